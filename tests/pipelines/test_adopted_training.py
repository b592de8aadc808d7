"""`train` and `report` of `flywheel adopt`: a site's profile, what training starts from, figures of stored episodes, and an adoption."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from rich.console import Console

from pipelines import profiles
from pipelines.adopting import training
from pipelines.adopting.profile import newest_release, write_profile
from pipelines.adopting.report import figures, report
from pipelines.orchestration.runs import kept_profile
from pipelines.stages.evaluate import greedy_requests
from sandbox.actions import Click
from sandbox.adopting import adopt as steps
from sandbox.adopting.records import AdoptedTask, AnswerCheck, Folder, Locator, Site, Step
from sandbox.adopting.source import PLUGIN_TEXT, kept_tasks, split_of
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Split
from tests.models.conftest import small_model
from tests.sandbox.adopted_app import serve
from tests.warehouse.conftest import Make
from warehouse.core.errors import ConfigError
from warehouse.core.home import HOME_VARIABLE, Home
from warehouse.lineage import registry
from warehouse.lineage.registry import Registered
from warehouse.storage.tables import Warehouse


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a run exports is taken back."""
    for name in (HOME_VARIABLE, profiles.PROFILE_VARIABLE, profiles.OVERRIDES_VARIABLE, "FLYWHEEL_TASK_SOURCES"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    yield
    SOURCES.use([], Path.cwd())


def nowhere() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def asked(number: int) -> AdoptedTask:
    step = Step(do="read", key="/", at=Locator(tag="td", name=str(number)))
    said = f'What is "Price" of "{number}"?'
    return AdoptedTask(
        family="read-value", instruction=said, start="/", checks=(AnswerCheck(text=str(number)),), steps=(step,), answer=str(number)
    )


@pytest.fixture
def adopted(tmp_path: Path) -> tuple[Folder, Site]:
    """A folder with tasks, as `source` leaves it."""
    folder, site = Folder(tmp_path / "site"), Site(name="site-1", origin=nowhere())
    folder.write("tasks.json", kept_tasks(site, [asked(number) for number in range(40)]))
    folder.path("source.py").write_text(PLUGIN_TEXT)
    steps.note(folder, "crawl", {"pages": {"used": 9}, "s": 60})
    steps.note(folder, "tasks", {"candidates": 50})
    steps.note(folder, "proof", {"played": 50, "sound": 40, "oracle_solves": 45, "s": 120})
    steps.note(folder, "source", {"splits": {"train": 24}})
    return folder, site


def release(home: Home) -> Registered:
    """A home that was run with the profile `smoke` and has a live release."""
    kept_profile.keep(home, "smoke", {"rl.rounds": 5})
    folder = home.checkpoints / "0001" / "merged_policy" / "policy"
    from models.checkpoints.checkpoint import save

    card = save(folder, *small_model(), stage="merged_policy", iteration="0001")
    registry.register(Warehouse(home), iteration="0001", stage="merged_policy", checkpoint_id=card.checkpoint_id, folder=folder)
    made = registry.find(Warehouse(home), card.checkpoint_id)
    registry.pass_on(Warehouse(home), made, iteration="0001", stage="released_policy", note="first release")
    return made


def test_without_a_release_training_starts_from_the_quickstarts_small_model(adopted: tuple[Folder, Site], tmp_path: Path):
    folder, site = adopted
    home = Home(tmp_path / "none")
    assert newest_release(home) is None and not home.root.exists()
    profile = profiles.load(str(write_profile(folder, site, home, num_sessions=3)))
    assert (profile.name, profile.policy.is_random, profile.tasks.domains) == ("adopted-site-1", True, ("site-1",))
    num_train = sum(kept.split is Split.TRAIN for kept in kept_tasks(site, [asked(number) for number in range(40)]).tasks)
    assert profile.seed_data.demonstrations_per_task == min(24, num_train) and profile.sandbox.num_sessions == 3
    assert profile.seed_data.curricula == ("web", "browsing") and not profile.annotation.enabled
    folder.path("profile.yaml").write_text("extends: smoke\n")
    assert write_profile(folder, site, home, num_sessions=1).read_text() == "extends: smoke\n", "a profile that is there is kept"


def test_with_a_release_training_goes_on_with_the_settings_of_its_home(adopted: tuple[Folder, Site], tmp_path: Path):
    folder, site = adopted
    home = Home(tmp_path / "home")
    made = release(home)
    assert newest_release(home) == made
    path = write_profile(folder, site, home, num_sessions=1)
    profile, smoke = profiles.load(str(path)), profiles.load("smoke")
    assert yaml.safe_load(path.read_text())["extends"] == "smoke"
    assert (profile.policy.source, profile.policy.model) == ("checkpoint", str(made.folder))
    assert profile.rl.rounds == 5, "what --set changed in that home"
    assert (profile.sft.steps, profile.sft.learning_rate) == (smoke.sft_refresh.steps, smoke.sft_refresh.learning_rate)
    assert profile.ct.steps == smoke.ct_refresh.steps and profile.tasks.lists == ("site-1",)


def test_tasks_that_changed_since_training_began_are_refused(adopted: tuple[Folder, Site], tmp_path: Path):
    folder, site = adopted
    home = Home(tmp_path / "home")
    begun = training.begun(folder, home)
    assert begun["entered_with"] is None
    release(home)
    assert training.begun(folder, home) == begun, "what training started from stays"
    folder.write("tasks.json", kept_tasks(site, [asked(number) for number in range(39)]))
    with pytest.raises(ConfigError, match="have changed since training on them began"):
        training.begun(folder, home)
    folder.write("tasks.json", kept_tasks(site, [one for one in map(asked, range(40)) if split_of(site, one) is Split.TRAIN]))
    with pytest.raises(ConfigError, match="none is of the split eval and holdout"):
        training.begun(folder, home)


def test_figures_leave_out_parts_that_have_not_run(adopted: tuple[Folder, Site]):
    found = dict(figures(steps.read_summary(adopted[0])))
    assert found["sound"] == "40 of 50 that were played" and found["sound tasks an hour of crawl and proof"] == "800"
    assert found["minutes"] == "crawl 1.0, proof 2.0"
    assert dict(figures({})) == {"minutes": ""}


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_report_of_stored_episodes_needs_no_application(adopted: tuple[Folder, Site], tmp_path: Path):
    folder, site = adopted
    training.begun(folder, Home(tmp_path / "none"))
    profile = write_profile(folder, site, Home(tmp_path / "none"), num_sessions=1)
    home = training.own_home(folder)
    kept_profile.keep(home, str(profile), {})
    warehouse, settings = Warehouse(home), profiles.load(str(profile))
    num_held_out = 0
    for name, iteration, stage, solves in (("old", "0000", "seed_policy", 5), ("new", "0001", "merged_policy", 2)):
        requests = greedy_requests(settings.acting, name, Split.HOLDOUT, settings.evaluation.holdout_per_task)
        num_held_out = len(requests)
        episodes = [
            Make.episode(
                f"{name}-{one.seed}",
                purpose="evaluation",
                task_id=one.task.task_id,
                task_name=one.task.name,
                domain=one.task.domain,
                seed=one.seed,
                split="holdout",
                policy_id=name,
                outcome="success" if place % solves == 0 else "truncated",
                num_steps=1,
            )
            for place, one in enumerate(requests)
        ]
        step_rows = [
            Make.step(row["episode_id"], 0, policy_id=name, screenshot_id=None, action=Click(x=1, y=2).model_dump_json())
            for row in episodes
        ]
        task = requests[0].task
        warehouse.replace_partition("tasks", [{**task.model_dump(mode="json"), "task_id": task.task_id}], iteration="0000", stage="tasks")
        warehouse.replace_partition("episodes", episodes, iteration=iteration, stage="evaluation")
        warehouse.replace_partition("steps", step_rows, iteration=iteration, stage="evaluation")
        registry.register(warehouse, iteration=iteration, stage=stage, checkpoint_id=name, folder=home.checkpoints / name)
    registry.pass_on(warehouse, registry.find(warehouse, "new"), iteration="0001", stage="released_policy", note="first release")
    with (tmp_path / "said").open("w") as said:
        found = report(folder, site, Console(file=said, width=140))
    assert (found["before"], found["after"], found["all"]["tasks"]) == ("old", "new", num_held_out)
    assert found["families"]["read-value"]["solved_after"] == -(-num_held_out // 2) > found["all"]["solved_before"]
    assert "read-value" in (tmp_path / "said").read_text()
    page = folder.path("report.html").read_text()
    assert "random weights" in page and "episodes.html" in page and (folder.root / "home/reports/index.html").exists()
    assert "not replayed" in folder.path("episodes.html").read_text(), "the application is down"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_shop_is_adopted_from_its_address_to_a_specialist_and_its_report(tmp_path: Path):
    server = serve(tmp_path / "shop.db")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    small = {"seed_data.tutorials": 600, "ct.steps": 60, "sft.steps": 60, "rl.rounds": 1, "rl.episodes_per_task": 2}
    small |= {"seed_data.demonstrations_per_task": 4, "evaluation.holdout_per_task": 2, "evaluation.eval_per_task": 2}
    words = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "pipelines.cli", "adopt", url, "--output", "made", "--delay", "0", "--tasks", "24", *words]

    def adopt(*more: str) -> dict[str, Any]:
        environment = {**os.environ, HOME_VARIABLE: str(tmp_path / "none"), "PYTHONPATH": str(Path.cwd()), "COLUMNS": "160"}
        ran = subprocess.run([*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "Greedy success on held-out tasks" in ran.stdout
        found: dict[str, Any] = json.loads((tmp_path / "made" / "summary.json").read_text())
        return found

    try:
        first = adopt()
        again = adopt("--only", "train,report")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert first["train"]["entered_with"] is None and first["report"]["released_by"].startswith("0001/")
    assert first["report"]["families"] == again["report"]["families"], "what was trained and played is not done again"
    assert again["train"]["s"] < first["train"]["s"] + 60
    home = Warehouse(Home(tmp_path / "made" / "home"))
    learned = {row["purpose"] for row in home.read("episodes").to_pylist() if row["domain"] == "made"}
    assert {"seed", "rl", "evaluation", "rollout"} <= learned
    for page in ("report.html", "episodes.html", "home/reports/index.html"):
        assert (tmp_path / "made" / page).stat().st_size > 1000
