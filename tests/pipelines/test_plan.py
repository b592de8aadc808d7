"""Plans and dry runs: work counted by hand, known sizes, what home's episodes change, what each check refuses; the command itself."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from models.checkpoints.importing import num_parameters
from models.families.seed_policy import seed_policy
from models.families.shapes import KNOWN_CONFIGS, shape_of
from pipelines import profiles
from pipelines.cli import app as cli
from pipelines.plan import preflight
from pipelines.plan.dry_run import dry_run, in_time, print_stages, rests_on
from pipelines.plan.givens import policy_shape
from pipelines.plan.plan import GIB, Machine, Plan, in_bytes
from pipelines.plan.planner import make_plan
from pipelines.plan.server_check import check_server
from pipelines.plan.simulation import RecordedEpisode, recorded_episodes
from pipelines.plan.workload import Measured, Workload, measure
from tests.models.policy_servers import OK, Reply, chat_answer, flaky, played_server
from warehouse.core.checks import Check
from warehouse.core.errors import CheckpointError, ConfigError
from warehouse.core.home import Home
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

CPU = Machine(num_cores=2, num_gpus=0, gpu_memory_bytes=0.0)
NOTHING = Measured(steps={})
TINY = shape_of(
    {
        "model_type": "shift_qwen3",
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
        "num_shifted_tokens": 3,
    }
)


def plan_of(name: str, machine: Machine = CPU, measured: Measured = NOTHING, **settings: Any) -> Plan:
    profile = profiles.load(name, {key.replace("__", "."): value for key, value in settings.items()})
    known = KNOWN_CONFIGS.get(str(profile.policy.model))
    return make_plan(profile, shape_of(known) if known else TINY, machine, measured)


def stage(plan: Plan, name: str) -> Any:
    return next(found for found in (*plan.seed, *plan.first) if found.stage == name)


def test_work_is_what_the_profile_asks_for() -> None:
    """Smoke: 4 tasks of MiniWoB in two domains, one of them never trained on or not; two rounds of six episodes a task."""
    profile = profiles.load("smoke")
    workload = Workload(profile, TINY, Measured(steps={"pointing": 2.0, "forms": 3.0}, num_episodes=99))
    tasks = {domain: [t for t in workload._tasks if t.domain == domain and not t.held_out] for domain in profile.tasks.domains}
    works = {work.stage: work for work in workload.iteration(1)}
    assert works["rl_forms"].num_episodes == 2 * 6 * len(tasks["forms"])
    assert works["rl_forms"].num_steps == 3.0 * works["rl_forms"].num_episodes
    assert works["ct_model"].training_tokens == profile.ct.steps * profile.ct.batch_tokens
    assert works["rollouts"].num_episodes == 6 * sum(map(len, tasks.values()))
    assert len(workload._tasks) == 5, "two of them have one prompt each, and are not evaluated"
    assert works["merged_policy"].num_episodes == 2 * 3 * 3, "two candidates on a grid of one step"
    assert works["evaluations"].num_episodes == (5 * 4 + 4) * 3, "five policies on holdout, one on eval"
    later = {work.stage: work for work in workload.iteration(2)}
    assert later["evaluations"].num_episodes == (4 * 4 + 4) * 3, "the first CT is not played again"
    assert later["sft_model"].training == profile.sft_refresh
    assert "ct_model" not in {work.stage for work in Workload(profiles.load("smoke", {"ct_every": 2}), TINY, NOTHING).iteration(2)}


def test_policies_trained_jointly_are_planned_with_the_budget_of_one() -> None:
    settings = {"tasks.joint": [["pointing", "forms"]], "merge.grid_steps": 2, "merge.refine_rounds": 1, "merge.include_joint": True}
    workload = Workload(profiles.load("smoke", settings), TINY, NOTHING)
    works = {work.stage: work for work in workload.iteration(1)}
    alone = sum(works[f"rl_{domain}"].num_episodes for domain in ("pointing", "forms"))
    assert works["rl_joint_pointing_forms"].num_episodes == alone / 2, "three episodes of each task where a specialist has six"
    assert works["merged_policy"].num_episodes == (6 + 6) * 3 * 3, "six points of three weights, and six neighbours"
    assert works["evaluations"].amount.startswith("6 policies"), "the first CT, SFT, two specialists, the joint one, the merge"


def test_groups_are_whole_and_annotation_can_be_off() -> None:
    settings = {"rl.group_size": 4, "rl.algorithm": "grpo", "annotation.enabled": False}
    works = {work.stage: work for work in Workload(profiles.load("smoke", settings), TINY, NOTHING).iteration(1)}
    assert works["rl_forms"].num_episodes % (2 * 8) == 0, "six episodes a task are two groups of four"
    assert "annotations" not in works


def test_prompts_of_a_policy_that_sees_grow_with_their_pictures() -> None:
    profile = profiles.load("full-2b")
    workload = Workload(profile, shape_of(KNOWN_CONFIGS[str(profile.policy.model)]), NOTHING)
    first, pictures = workload.prompt_tokens(1)
    assert pictures == round(1024 * 768 / 28**2) and first == 900 + pictures
    longer, shown = workload.prompt_tokens(40)
    assert 4 * pictures < shown <= 5 * pictures, "five pictures at most"
    assert longer <= profile.agent.builder().max_tokens


def test_the_full_profiles_fit_what_they_are_made_for() -> None:
    for name, num_gpus in (("full-2b", 4), ("full-7b", 8)):
        profile = profiles.load(name)
        memory = float(profile.plan.gpu_memory_gib or 0) * GIB
        plan = plan_of(name, Machine(num_cores=64, num_gpus=num_gpus, gpu_memory_bytes=memory, gpu_names=("card",) * num_gpus))
        assert plan.gpus_needed == num_gpus
        found = preflight.check_gpus(plan)
        assert found.status == "ok", found
    eight = Machine(num_cores=64, num_gpus=8, gpu_memory_bytes=80 * GIB, gpu_names=("card",) * 8)
    seven = plan_of("full-7b", eight)
    embedded = plan_of("full-7b", eight, engine__kind="embedded", engine__http=None, plan__server_gpus=0)
    assert preflight.check_gpus(embedded).status == "fail", "policy, critic and an engine's copy of 8 B do not fit into 80 GB"
    sft = stage(seven, "sft_model")
    assert sft.num_gpus == 6 and 18 * 8.29e9 / 6 < sft.memory_bytes < 60 * GIB


def test_zero_shares_states_out_and_adapters_do_without_them() -> None:
    card = Machine(num_cores=64, num_gpus=8, gpu_memory_bytes=80 * GIB)
    memory = {n: stage(plan_of("full-2b", card, sft__num_processes=n, sft__batch_tokens=8192), "sft_model").memory_bytes for n in (1, 8)}
    assert memory[1] - memory[8] > 18 * 1.54e9 * 7 / 8, "the text part's states go down to an eighth, and activations with them"
    adapters = {"sft__lora_rank": 16, "sft__lora_base_dtype": "bfloat16", "sft__num_processes": 1, "sft__batch_tokens": 8192}
    assert stage(plan_of("full-2b", card, **adapters), "sft_model").memory_bytes < memory[1] - 25e9


def test_a_penalty_for_leaving_the_first_policy_keeps_it_in_memory_unless_adapters_can_be_left_out() -> None:
    card = Machine(num_cores=64, num_gpus=8, gpu_memory_bytes=80 * GIB)
    name = next(row.stage for row in plan_of("full-2b", card).first if row.stage.startswith("rl"))
    for rank, least in ((0, 4 * 1.54e9), (64, 0.0)):
        plans = [plan_of("full-2b", card, rl__lora_rank=rank, rl__kl_coefficient=weight) for weight in (0.0, 0.1)]
        without, with_it = (stage(plan, name).memory_bytes for plan in plans)
        assert with_it - without >= least and (with_it == without) == (rank > 0)


def test_episodes_of_the_home_go_before_assumptions(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    with connect(warehouse) as con:
        assert measure(con) == NOTHING
    episodes = [
        {
            "episode_id": f"e{i}",
            "purpose": "rollout",
            "task_id": "t",
            "task_name": "t",
            "domain": "forms",
            "seed": i,
            "split": "train",
            "attempt": 0,
            "policy_id": "p",
            "temperature": 1.0,
            "instruction": "",
            "outcome": "success",
            "reward": 1.0,
            "num_steps": 7,
            "num_retries": 0,
            "error": None,
            "duration_ms": 1.0,
            "environment": "e",
        }
        for i in range(40)
    ]
    episodes[1] |= {"outcome": "crashed", "reward": None, "num_steps": 0, "num_retries": 2, "error": "gone", "duration_ms": 90_000.0}
    steps = [
        {
            "episode_id": "e0",
            "step_index": i,
            "policy_id": "p",
            "observation": "",
            "screenshot_id": None,
            "messages": [],
            "response": "",
            "thought": None,
            "action": "{}",
            "prompt_token_ids": [1] * 50,
            "response_token_ids": [2] * 10,
            "response_logprobs": [],
            "reward": 0.0,
            "latency_ms": 1.0,
        }
        for i in range(7)
    ]
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage="rollouts")
    warehouse.replace_partition("steps", steps, iteration="0001", stage="rollouts")
    with connect(warehouse) as con:
        found, recorded = measure(con), recorded_episodes(con)
    crashed = RecordedEpisode(steps_s=(90.0,), num_retries=2, is_crashed=True)
    assert recorded == [RecordedEpisode(steps_s=(0.001,) * 7), crashed]
    assert found == Measured(num_episodes=39, steps={"forms": 7.0}, prompt_tokens=50.0, response_tokens=10.0)
    rl = stage(plan_of("smoke", measured=found), "rl_forms")
    assert rl.tokens == 7.0 * 60.0 * (rl.tokens / 420.0) and rl.tokens % 420 == 0


def test_more_work_takes_longer_and_specialists_go_side_by_side() -> None:
    short, long = plan_of("quickstart"), plan_of("quickstart", rl__rounds=10)
    assert stage(long, "rl_forms").seconds > 1.8 * stage(short, "rl_forms").seconds
    alone = plan_of("quickstart", max_parallel=1)
    assert alone.elapsed(alone.first) > short.elapsed(short.first)
    assert short.seconds(3) == pytest.approx(short.seconds(1) + 2 * short.elapsed(short.later))
    assert short.disk_bytes(3) > short.disk_bytes(1)


def test_reinforcement_learning_in_several_processes_wants_as_many_gpus_for_less_time() -> None:
    card = Machine(num_cores=64, num_gpus=8, gpu_memory_bytes=80 * GIB, gpu_names=("card",) * 8)
    settings = {"rl__streaming": False, "rl__min_batch_episodes": None}
    one, three = (stage(plan_of("full-2b", card, rl__num_processes=num, **settings), "rl_games") for num in (1, 3))
    assert (one.num_processes, one.num_gpus, three.num_processes, three.num_gpus) == (1, 1, 3, 3)
    assert three.memory_bytes == one.memory_bytes, "each holds everything"
    assert three.seconds < one.seconds
    assert "rl in 3 processes" in preflight.check_launcher(profiles.load("full-2b", {"rl.num_processes": 3})).found
    alone, both = (plan_of("quickstart", rl__num_processes=num) for num in (1, 2))
    assert stage(both, "rl_forms").seconds < stage(alone, "rl_forms").seconds
    reported = [preflight.check_host_memory(plan).found.split(" at the most")[0] for plan in (alone, both)]
    assert reported[0] != reported[1], "memory of both processes"


def test_servers_of_a_stages_own_have_memory_of_their_own() -> None:
    embedded, two = plan_of("smoke"), plan_of("smoke", engine__kind="served", engine__replicas=2)
    for name in ("rollouts", "rl_pointing"):
        assert stage(two, name).memory_bytes > stage(embedded, name).memory_bytes + 2 * embedded.profile.plan.process_gib * GIB
    assert two.at_once == embedded.at_once, "each stage has its own"
    assert "starts 2 servers of its own" in check_server(two.profile, Home(Path("unused"))).found
    cards = Machine(num_cores=16, num_gpus=3, gpu_memory_bytes=80 * GIB, gpu_names=("card",) * 3)
    beside = plan_of("smoke", cards, engine__kind="served", engine__replicas=2, engine__device="cuda:1")
    apart, together = stage(beside, "rl_pointing"), stage(plan_of("smoke", cards), "rl_pointing")
    assert (apart.num_gpus, together.num_gpus) == (3, 1) and apart.memory_bytes < together.memory_bytes and apart.server_bytes > 0
    assert "engine" in together.memory_parts and "engine" not in apart.memory_parts


def test_an_engine_that_is_kept_off_the_gpus_answers_at_the_cpus_speed() -> None:
    card = Machine(num_cores=2, num_gpus=1, gpu_memory_bytes=80 * GIB, gpu_names=("card",))
    slow = {"plan__cpu_decode_gflops": 0.01}
    with_gpu, without = plan_of("quickstart", card, **slow), plan_of("quickstart", **slow)
    kept_off = plan_of("quickstart", card, engine__device="cpu", **slow)
    assert with_gpu.answers_on_gpus and not kept_off.answers_on_gpus
    for name in ("rollouts", "evaluations", "merged_policy"):
        gpu, off, cpu = (stage(plan, name) for plan in (with_gpu, kept_off, without))
        assert off.seconds == cpu.seconds > gpu.seconds and (gpu.num_gpus, off.num_gpus) == (1, 0)
        assert off.memory_bytes == cpu.memory_bytes, "of the machine: a process, its sessions and the engine"
    gpu, off, cpu = (stage(plan, "rl_forms") for plan in (with_gpu, kept_off, without))
    assert gpu.seconds < off.seconds < cpu.seconds, "learning is on the GPU in either case"
    assert off.num_gpus == 1 and "engine" in gpu.memory_parts and "engine" not in off.memory_parts
    assert "in writing" in rests_on(kept_off)[2] and "data sheet" in rests_on(kept_off)[1] and "prompts" not in rests_on(kept_off)[1]


def test_the_quickstart_is_planned_as_long_as_it_takes() -> None:
    """Three iterations take 20 to 30 minutes on two cores (README.md): within a factor of two."""
    assert 10 * 60 < plan_of("quickstart").seconds(3) < 60 * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    model, tokenizer = seed_policy(("click", "ok"), seed=0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def of_model(folder: Path, **settings: Any) -> Check:
    own = {"policy.source": "checkpoint", "policy.model": str(folder)}
    profile = profiles.load("smoke", own | {key.replace("__", "."): value for key, value in settings.items()})
    shape, source = policy_shape(profile)
    return preflight.check_model(profile, shape, source)


def test_a_folder_is_opened_as_far_as_it_can_be_without_its_weights(folder: Path, tmp_path: Path) -> None:
    found = of_model(folder)
    assert found.status == "ok" and "ShiftQwen3ForCausalLM" in found.found and f"{num_parameters(folder):,}" in found.found
    assert of_model(folder, agent__max_prompt_tokens=5000).status == "fail", "longer than its positions"
    blind = of_model(folder, agent__grammar="uitars15", agent__max_prompt_tokens=1000)
    assert blind.status == "warn" and "list_elements" in blind.fix
    with pytest.raises(CheckpointError, match=r"config\.json"):
        of_model(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert of_model(tmp_path).status == "fail", "a configuration without weights"


def test_a_policy_that_sees_wants_a_grammar_that_shows() -> None:
    profile = profiles.load("full-2b", {"agent.grammar": "compact", "agent.max_prompt_tokens": 900})
    assert preflight.check_model(profile, *policy_shape(profile)).status == "warn"


def test_what_a_trainer_would_refuse_is_reported_before() -> None:
    for name, settings, status in (
        ("full-2b", {}, "ok"),
        ("smoke", {}, "ok"),
        ("full-2b", {"sft.packing": "packed"}, "fail"),
        ("full-2b", {"rl.screenshots": False}, "fail"),
    ):
        profile = profiles.load(name, settings)
        assert preflight.check_training(profile, policy_shape(profile)[0]).status == status, settings


def test_the_quickstarts_own_shape_is_the_models() -> None:
    shape, _ = policy_shape(profiles.load("quickstart"))
    assert 400_000 < shape.num_parameters < 600_000 and shape.max_positions == 2048


def test_tasks_without_an_oracle_are_named() -> None:
    assert preflight.check_oracles(profiles.load("smoke")).status == "ok"


def test_what_supervised_training_would_lack_is_reported() -> None:
    plan = plan_of("smoke")
    assert preflight.check_data(plan.profile, plan).status == "ok"
    empty = plan_of("smoke", sft_mixture__demonstration=None, sft_mixture__tutorial=None)
    found = preflight.check_data(empty.profile, empty)
    assert found.status == "fail" and "SFT" in found.found


def test_memory_and_disk_are_graded(tmp_path: Path) -> None:
    plan = plan_of("smoke")
    home = Home(tmp_path / "none")
    assert preflight.check_disk_space(plan, home, 1).status == "ok" and not home.root.exists()
    assert preflight.check_disk_space(plan, home, 10**9).status == "fail"
    assert preflight.check_host_memory(plan_of("smoke", plan__process_gib=10_000.0)).status == "fail"


def test_tokens_are_looked_for_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiles.load("full-2b")
    monkeypatch.delenv("FLYWHEEL_POLICY_TOKEN", raising=False)
    assert preflight.check_variables(profile).status == "fail"
    monkeypatch.setenv("FLYWHEEL_POLICY_TOKEN", "x")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert preflight.check_variables(profile).status == "warn"


class _Models(BaseHTTPRequestHandler):
    """A server that lists one model and answers nothing."""

    def do_GET(self) -> None:
        self._say(
            {
                "object": "list",
                "data": [
                    {
                        "id": "m",
                        "object": "model",
                        "owned_by": "flywheel",
                        "flywheel": {
                            "server": "flywheel",
                            "policy_id": "checkpoint-1",
                            "max_context": 64,
                            "prompt_token_ids": True,
                            "token_ids": True,
                            "logprobs": True,
                            "logprobs_follow_temperature": True,
                            "logprobs_follow_top_p": True,
                            "versions": True,
                            "loads": "checkpoints",
                        },
                    }
                ],
            }
        )

    def do_POST(self) -> None:
        """Weights: loaded from nowhere but below the folder `checkpoints`, where there are none."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        allowed = Path(asked["folder"]).parent.name == "checkpoints"
        self._say({"error": {"message": "no", "code": "weights_not_loaded" if allowed else "folder_not_allowed"}}, 400 if allowed else 403)

    def _say(self, answer: Any, status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_policy_server_is_asked(served: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    exchange = tmp_path / "exchange"
    there = {
        "engine.kind": "http",
        "engine.http.base_url": served,
        "engine.http.exchange": str(tmp_path / "checkpoints"),
        "max_parallel": 1,
    }
    found = check_server(profiles.load("smoke", there), home)
    assert found.status == "ok" and "could be learned from" in found.found
    away = there | {"engine.http.base_url": "http://127.0.0.1:9"}
    assert check_server(profiles.load("smoke", away), home).status == "fail"
    assert "hand its weights over" in check_server(profiles.load("smoke", there | {"engine.http.exchange": None}), home).found
    assert "at once" in check_server(profiles.load("smoke", there | {"max_parallel": 2}), home).found
    joint = there | {"max_parallel": 2, "tasks.rl_domains": ["pointing"], "tasks.joint": [["pointing", "forms"]]}
    assert "at once" in check_server(profiles.load("smoke", joint), home).found
    closed = check_server(profiles.load("smoke", there | {"engine.http.exchange": str(exchange)}), home)
    assert closed.status == "fail" and closed.found.endswith(f"it loads nothing from {exchange}")
    assert f"--weights-root {exchange}" in closed.fix
    assert check_server(profiles.load("smoke"), home).status == "ok"


def test_each_policy_server_is_asked(served: str, tmp_path: Path) -> None:
    def check(*others: str) -> Check:
        there = {"engine.kind": "http", "engine.http.base_url": served, "engine.http.replicas": list(others), "max_parallel": 1}
        there["engine.http.exchange"] = str(tmp_path / "checkpoints")
        return check_server(profiles.load("smoke", there), Home(tmp_path))

    dead = "http://127.0.0.1:9"
    found = check(dead)
    assert found.status == "fail" and f"{dead}/v1/models failed" in found.found
    with played_server(flaky()) as other:
        found = check(other.url)
    assert found.status == "fail" and "replicas differ" in found.found and f"{other.url}: openai, model m, loads nothing" in found.found


def test_weights_over_the_network_need_no_folder(tmp_path: Path) -> None:
    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]}
        return 200, OK, {"weight_version": "default"} if path == "/weight_info" else chat_answer()

    with played_server(reply) as played:
        there = {"engine.kind": "http", "engine.http.base_url": played.url, "engine.http.weights": "transfer", "max_parallel": 1}
        found = check_server(profiles.load("smoke", there), Home(tmp_path))
    assert (found.status, found.found.split("; ")[0]) == ("ok", f"{played.url}: vllm, model m, loads checkpoints")


def test_the_launcher_names_what_is_used_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiles.load("full-2b")
    assert "sft by ZeRO-3" in preflight.check_launcher(profile).found
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "deepspeed" else object())
    assert preflight.check_launcher(profile).found == "not installed: deepspeed"


def test_a_dry_run_prints_checks_and_plan_and_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_programs", lambda profile: [])
    console = Console(width=160, record=True, file=(tmp_path / "out").open("w"))
    own = {"policy.source": "checkpoint", "policy.model": str(folder)}
    try:
        assert dry_run(Home(tmp_path / "home"), "smoke", own, 2, console) == 0
    finally:
        console.file.close()
    text = console.export_text()
    for words in ("profile smoke: checks", "seed_demonstrations", "rl_forms", "a later iteration", "In all, 2 iterations", "It can run"):
        assert words in text
    assert "Lengths are assumed" in text and not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["quickstart", "full-7b"])
def test_eighty_columns_show_every_stage_and_figure_whole(name: str) -> None:
    card = Machine(num_cores=64, num_gpus=8, gpu_memory_bytes=80 * GIB) if name == "full-7b" else CPU
    plan, console = plan_of(name, card), Console(width=80, file=io.StringIO(), record=True)
    print_stages(plan, "iteration 1", plan.first, console)
    text = console.export_text()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    together = " ".join(text.split())
    for stage in plan.first:
        assert stage.stage in together and stage.amount.split(",")[0].split(" of ")[0] in together
        assert in_time(stage.seconds) in together and (in_bytes(stage.disk_bytes) in together or stage.disk_bytes < 1)
    assert "processes" not in text, "what is one of every stage, or as many as it has GPUs, is not a column"


def test_a_plan_for_a_machine_has_the_same_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "check_programs", lambda profile: [])
    ran = CliRunner().invoke(cli.app, ["run", "--dry-run", "--json", "--profile", "smoke", "--iterations", "2", "--home", str(tmp_path)])
    reported = json.loads(ran.output)
    assert (
        ran.exit_code == 0 and reported["can_run"] and reported["iterations"] == 2 and {"seed", "first", "later"} == set(reported["stages"])
    )
    assert {"rl_forms", "merged_policy"} < {stage["stage"] for stage in reported["stages"]["first"]} and reported["seconds"] > 0
    with pytest.raises(ConfigError, match="--json goes with --dry-run"):
        CliRunner().invoke(cli.app, ["run", "--json", "--home", str(tmp_path)], catch_exceptions=False)


def test_the_command_says_by_its_status_whether_it_can_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "check_programs", lambda profile: [])
    monkeypatch.delenv("FLYWHEEL_POLICY_TOKEN", raising=False)
    command = ["run", "--dry-run", "--home", str(tmp_path / "home"), "--profile"]
    ran = CliRunner().invoke(cli.app, [*command, "full-2b"], env={"COLUMNS": "160"})
    assert ran.exit_code == 1 and "fix" in ran.output and "server" in ran.output
    with pytest.raises(ConfigError, match="no profile"):
        CliRunner().invoke(cli.app, [*command, "none"], catch_exceptions=False)


def test_durations_are_short_to_read() -> None:
    assert [in_time(seconds) for seconds in (0, 48, 200, 7200, 400_000)] == ["0 s", "48 s", "3 min", "2.0 h", "4.6 days"]
