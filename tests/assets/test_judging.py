"""The ORM in the assets of an iteration, by Dagster, with the real workers: trained, judging, measured, its threshold chosen; and passing
where it is switched off or has too little to learn from."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent.judging.samples import part_of
from assets.gates.checks import INVARIANTS
from assets.iterations.partitions import ITERATIONS
from assets.judging import judging, orm_data, orm_model
from assets.routing import routing, verdicts
from assets.settings.profile import Profile
from assets.stages.requests import StageRequest, StageResult
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from models.checkpoints.checkpoint import read_card
from pipelines import profiles
from pipelines.cli.data.verdict import add_human_verdict
from pipelines.reporting.build import build_iteration
from pipelines.stages.__main__ import WORKERS
from pipelines.stages.context import WorkerContext
from sandbox.tasks.task import Split
from tests.agent.judged_episodes import many, store
from tests.assets.instances import emptied_instance
from tests.models.judging_policy import new_policy
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, config, our_server
from tests.warehouse.judging import verdicts_of
from warehouse.core.errors import ConfigError, UnknownId
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

LEARNING = {
    "orm.enabled": True,
    "orm.min_samples": 20,
    "orm.training.steps": 600,
    "orm.training.learning_rate": 4e-3,
    "orm.training.batch_tokens": 2048,
    "orm.training.warmup_steps": 20,
    "verdicts.target_precision": 0.9,
}


class WorkersHere(StageRunner):
    """Runs the real workers in this process."""

    root: str

    def run(self, context: dg.AssetExecutionContext, request: StageRequest) -> StageResult:
        folder = Path(self.root) / "work" / request.stage
        folder.mkdir(parents=True, exist_ok=True)
        here = WorkerContext(
            folder=folder, home=Home(Path(self.root)), iteration=request.iteration, stage=request.stage, log=context.log.info
        )
        worker = import_module(WORKERS[request.worker])  # type: ignore[attr-defined]
        result: StageResult = worker.run(request, here)
        return result

    def forget(self, iteration: str, stage: str) -> None: ...


class Given(ProfileResource):
    settings: str

    def load(self) -> Profile:
        return Profile.model_validate_json(self.settings)


def run_assets(warehouse: Warehouse, *assets: Any, **settings: Any) -> dg.ExecuteInProcessResult:
    """Materialize assets of iteration 0001 on a home."""
    profile = profiles.load("quickstart", {name.replace("__", "."): value for name, value in settings.items()})
    root = str(warehouse.home.root)
    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0001"])
        return dg.materialize(
            list(assets),
            partition_key="0001",
            instance=instance,
            resources={
                "tables": WarehouseResource(root=root),
                "runner": WorkersHere(root=root),
                "profile": Given(settings=profile.model_dump_json()),
            },
        )


def copy_of(warehouse: Warehouse, folder: Path) -> Warehouse:
    """A home to write on."""
    shutil.copytree(warehouse.home.root, folder / "home")
    return Warehouse(Home(folder / "home"))


def metadata_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    (made,) = [event.materialization for event in result.get_asset_materialization_events() if event.asset_key == dg.AssetKey(asset)]
    return {name: value.value for name, value in made.metadata.items()}


@pytest.fixture
def judge_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A home with the episodes that an iteration has made before its ORM is trained, and the policy that made them."""
    root = tmp_path_factory.mktemp("home")
    warehouse = store(
        root,
        ("0001", "rl_pointing", many(700)),
        ("0001", "evaluation", [*many(60, split=Split.EVAL, purpose="evaluation"), *many(60, split=Split.HOLDOUT, purpose="evaluation")]),
        ("0001", "rollouts", many(60, seed=1, purpose="rollout")),
    )
    folder = new_policy(warehouse.home.checkpoints / "base")
    checkpoint_id = read_card(folder).checkpoint_id
    registry.register(warehouse, iteration="0001", stage="sft_model", checkpoint_id=checkpoint_id, folder=folder)
    return warehouse


@pytest.fixture(scope="module")
def judged(played: Warehouse) -> tuple[Warehouse, dg.ExecuteInProcessResult]:
    """The same home after the ORM has learned and judged in place of the verifier."""
    settings = {**LEARNING, "verdicts.unverified_domains": []}
    return played, run_assets(played, orm_data, orm_model, judging, verdicts, routing, **settings)


@pytest.mark.slow
def test_the_orm_is_trained_judges_and_is_measured(judged: tuple[Warehouse, dg.ExecuteInProcessResult], tmp_path: Path) -> None:
    warehouse, result = judged
    assert result.success
    made = registry.made_by(warehouse, "0001", "orm_model")
    assert made.parents == (registry.made_by(warehouse, "0001", "sft_model").checkpoint_id,)
    with connect(warehouse) as con:
        (rows,) = con.execute("select count(*) from verdicts where origin = 'orm' and judge_version = ?", [made.checkpoint_id]).fetchall()
        rollouts = con.execute(
            "select count(*) from episodes e join verdicts v using (episode_id) where e.purpose = 'rollout' and v.judge = 'orm' "
            "and v.cost_tokens > 0 and v.cost_ms > 0 and len(v.reasons) > 0"
        ).fetchone()
        chosen = con.execute(
            "select split, threshold, precision, recall, f1, num_true_positive + num_false_positive + num_false_negative + "
            "num_true_negative from judge_reports where is_chosen and domain = 'all' order by split"
        ).fetchall()
        taught = con.execute("select distinct e.task_id, e.seed, e.split from orm_samples s join episodes e using (episode_id)").fetchall()
    assert rows[0] > 200 and rollouts == (60,)
    assert [split for split, *_ in chosen] == ["eval", "holdout", "train"]
    by_split = {split: figures for split, *figures in chosen}
    assert by_split["eval"][1] >= 0.9, "the threshold was chosen for this"
    assert by_split["holdout"][1] > 0.75 and by_split["holdout"][3] > 0.4 and by_split["holdout"][4] > 100
    assert len({threshold for _, threshold, *_ in chosen}) == 1
    assert all(part_of(*row) == "train" for row in taught), "what measures has taught nothing"
    shown = metadata_of(result, "judgements")
    assert " a precision of 0.9" in shown["orm threshold of pointing"] and shown["orm/ms a case"] > 0
    assert "| orm | verifier | holdout | all domains |" in metadata_of(result, "judge_reports")["by_domain"]
    page = build_iteration(warehouse, "0001", tmp_path).read_text()
    assert "Judges that may err" in page and "eval (chose the threshold)" in page


@pytest.mark.slow
def test_where_a_verifier_speaks_the_orm_decides_nothing(judged: tuple[Warehouse, dg.ExecuteInProcessResult]) -> None:
    warehouse, _ = judged
    with connect(warehouse) as con:
        reasons = [reason for (reason,) in con.execute("select reason from routes where reason like 'V=%'").fetchall()]
        agrees = next(each for each in INVARIANTS if each.name == "sft_verdict_agrees_with_its_route")
        assert con.sql(agrees.sql, params={"iteration": "0001"}).fetchall() == [], "an ORM that disagrees breaks no rule"
    assert reasons and all("verifier" in reason for reason in reasons)


@pytest.mark.slow
def test_in_an_unverified_domain_the_orm_routes_and_a_person_goes_before_it(
    judged: tuple[Warehouse, dg.ExecuteInProcessResult], tmp_path: Path
) -> None:
    warehouse = copy_of(judged[0], tmp_path)
    hidden = {**LEARNING, "verdicts.unverified_domains": ["pointing"]}
    assert run_assets(warehouse, verdicts, routing, **hidden).success
    with connect(warehouse) as con:
        rows = con.execute(
            "select r.episode_id, r.route, r.reason, v.passed from routes r join verdicts v on v.episode_id = r.episode_id "
            "and v.judge = 'orm' where r.reason like 'V=%'"
        ).fetchall()
    assert rows and all("orm" in reason and "verifier" not in reason for _, _, reason, _ in rows)
    assert all(passed or route != "sft" for _, route, _, passed in rows), "what the ORM does not pass is not SFT data"
    episode_id = next(name for name, route, *_ in rows if route == "sft")
    add_human_verdict(warehouse, episode_id, is_good=True, reasons=["it is what was asked"])
    add_human_verdict(warehouse, episode_id, is_good=False, reasons=["no, it is not"], person="ann")
    assert run_assets(warehouse, routing, **hidden).success
    with connect(warehouse) as con:
        (route,) = con.execute("select route, reason from routes where episode_id = ?", [episode_id]).fetchall()
        said = con.execute("select reasons from verdicts where judge = 'human' order by judge_version").fetchall()
    assert route[0] == "ct" and "human" in route[1], "the newest word of a person counts"
    assert said == [(["it is what was asked"],), (["no, it is not", "by ann"],)], "and the older one stays"


@pytest.mark.slow
@pytest.mark.usefixtures("judge_token")
def test_a_judge_behind_a_server_is_measured_too(judged: tuple[Warehouse, dg.ExecuteInProcessResult], tmp_path: Path) -> None:
    """The server is our own, on the ORM's checkpoint: asked as it was taught it is a fair judge."""
    warehouse = copy_of(judged[0], tmp_path)
    with our_server(registry.made_by(warehouse, "0001", "orm_model").folder) as server:
        result = run_assets(
            warehouse,
            judging,
            **{
                "verdicts.judge.engine": config(server.url).model_dump(mode="json"),
                "verdicts.prompt.layout": "elements",
                "verdicts.max_measured": 60,
                "verdicts.target_precision": 0.7,
            },
        )
    assert result.success
    with connect(warehouse) as con:
        (row,) = con.execute(
            "select count(*), avg(cast(passed = (reward > 0.5) as double)), min(cost_tokens) "
            "from verdicts join episodes using (episode_id) where judge = 'judge'"
        ).fetchall()
        reported = con.execute("select count(*) from judge_reports where judge = 'judge' and is_chosen and domain = 'all'").fetchone()
    assert row[0] >= 120 and row[1] > 0.7 and row[2] > 0
    assert reported is not None and reported[0] >= 2


def test_a_person_names_an_episode_and_gives_a_reason(played: Warehouse) -> None:
    with pytest.raises(ConfigError, match="needs a reason"):
        add_human_verdict(played, "episode-train-0-1-rl", is_good=True, reasons=[" "])
    with pytest.raises(UnknownId, match="may be episode-"):
        add_human_verdict(played, "episode-", is_good=True, reasons=["so"])
    with pytest.raises(UnknownId, match="no episode has the id"):
        add_human_verdict(played, "nothing", is_good=True, reasons=["so"])


def test_without_an_orm_its_assets_pass_and_touch_nothing(tmp_path: Path) -> None:
    warehouse = store(tmp_path, ("0001", "rl_pointing", many(20)), ("0001", "rollouts", many(5, seed=1, purpose="rollout")))
    before = warehouse.versions()
    result = run_assets(warehouse, orm_data, orm_model, judging)
    assert result.success and warehouse.versions() == before
    assert all("orm.enabled is false" in metadata_of(result, name)["note"] for name in ("orm_samples", "orm_model", "judgements"))


def test_too_few_samples_pass_the_base_on_and_nothing_judges(tmp_path: Path) -> None:
    warehouse = store(tmp_path, ("0001", "rl_pointing", many(20)), ("0001", "rollouts", many(5, seed=1, purpose="rollout")))
    folder = warehouse.home.checkpoints / "base"
    registry.register(warehouse, iteration="0001", stage="sft_model", checkpoint_id="checkpoint-sft", folder=folder)
    result = run_assets(warehouse, orm_data, orm_model, judging, **{"orm.enabled": True})
    assert result.success
    made = registry.made_by(warehouse, "0001", "orm_model")
    assert made.checkpoint_id == "checkpoint-sft" and "are needed: checkpoint-sft is passed on" in made.note
    assert "has not been trained yet" in metadata_of(result, "judgements")["note"]
    assert verdicts_of(warehouse, "0001", profiles.load("quickstart").quality).num_rows, "routing goes on by the verifier"


def test_a_domain_without_verifier_needs_a_judge() -> None:
    with pytest.raises(ConfigError, match="there is no judge for them"):
        profiles.load("quickstart", {"verdicts.unverified_domains": ["pointing"]})
    with pytest.raises(ConfigError, match="not among the domains"):
        profiles.load("quickstart", {"verdicts.unverified_domains": ["painting"], "orm.enabled": True})
