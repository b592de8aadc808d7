"""What a dry run says of several machines: the commands are those that the parts that submit them make, bytes between machines by hand, and
cost by the prices given and by nothing else."""

from __future__ import annotations

import json
import shlex
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from assets.settings.execution import RunnerSettings
from models.training.hosts import TrainingHosts
from models.training.launcher import Launch
from pipelines import profiles
from pipelines.cluster.stage_jobs import job_request
from pipelines.orchestration.work.folder import work_folder, worker_environment
from pipelines.plan.commands import stage_commands
from pipelines.plan.cost import all_nodes, cost, cost_rests_on, held_cost, stage_costs
from pipelines.plan.dry_run import dry_run
from pipelines.plan.hosts_check import check_hosts
from pipelines.plan.network import PROMPT_TOKEN_BYTES, ring_bytes
from pipelines.plan.plan import Plan
from pipelines.stages.context import WorkerContext
from tests.pipelines.test_plan import plan_of, stage
from warehouse.core.home import Home

HOSTS = {"training__hosts": ["127.0.0.1", "192.0.2.9"]}


def cluster(**settings: Any) -> Plan:
    return plan_of("cluster-smoke", **(HOSTS | settings))


def test_a_stages_command_starts_its_worker(tmp_path: Path) -> None:
    plan, home = plan_of("smoke"), Home(tmp_path)
    (line,) = stage_commands(plan.profile, home, "0001", stage(plan, "evaluations"))
    assert f"FLYWHEEL_HOME={tmp_path}" in shlex.split(line)
    assert line.endswith(shlex.join([sys.executable, "-m", "pipelines.stages", str(work_folder(home, "0001", "evaluation"))]))
    assert stage_commands(plan.profile, home, "0000", stage(plan, "seed_tutorials")) == []


def test_training_over_hosts_has_the_launchers_own_commands(tmp_path: Path) -> None:
    plan, home = cluster(), Home(tmp_path)
    _, *agents = stage_commands(plan.profile, home, "0001", stage(plan, "sft_model"))
    folder = WorkerContext(folder=tmp_path, home=home, iteration="0001", stage="sft_model", log=print).run_folder / "launch"
    launch = Launch("m", [], folder, num_processes=2, hosts=TrainingHosts(hosts=("127.0.0.1", "192.0.2.9")))
    assert [shlex.split(line) for line in agents] == list(launch.commands().values())
    assert agents[0].endswith(f"-m models.training.node {folder}/node-0.json") and agents[1].startswith("ssh ")
    assert len(stage_commands(plan.profile, home, "0001", stage(plan, "ct_model"))) == 1, "one process needs no agent"
    away = cluster(training__hosts=["192.0.2.8", "192.0.2.9"])
    assert "none of training.hosts" in stage_commands(away.profile, home, "0001", stage(away, "sft_model"))[1]


def test_the_hosts_that_train_together_are_tried(tmp_path: Path) -> None:
    """By a shell of this machine for the other one: with this code; without a home that it sees; with another Python; and not at all."""

    def said(launch: str, *hosts: str) -> tuple[str, str]:
        (check,) = check_hosts(profiles.load("smoke", {"training.hosts": list(hosts), "training.launch": launch}), Home(tmp_path / "home"))
        return check.status, f"{check.found} {check.fix}"

    other = ("127.0.0.1", "192.0.2.9")
    assert check_hosts(profiles.load("smoke"), Home(tmp_path)) == []
    assert said("env HOST={host} sh -c {command}", *other)[0] == "ok"
    assert "does not see" in said("""sh -c 'eval "$(echo "$1" | sed s,seen-,lost-,)"' {host} {command}""", *other)[1]
    assert "status 3: no such host" in said("sh -c 'echo no such host >&2; exit 3' {host} {command}", *other)[1]
    assert "No such file" in said("not-a-program {host} {command}", *other)[1]
    assert "is this machine" in said("sh -c {command} {host}", "192.0.2.8", "192.0.2.9")[1]
    (check,) = check_hosts(profiles.load("smoke", {"training.hosts": list(other)}), Home(Path("/proc/home")))
    assert check.status == "fail" and check.found.startswith("/proc cannot be written"), "nobody can make a folder there"
    assert list(tmp_path.iterdir()) == []


def test_reinforcement_learning_counts_its_leader(tmp_path: Path) -> None:
    plan = cluster(rl__num_processes=2)
    assert len(stage_commands(plan.profile, Home(tmp_path), "0001", stage(plan, "rl_forms"))) == 2, "the leader is the worker itself"


def test_a_ray_job_is_asked_for_as_the_client_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_POLICY_TOKEN", "a-secret")
    runner = {"kind": "ray", "address": "http://head:8265", "cpus": 4, "resources": {"trainer": 1}}
    plan, home = plan_of("smoke", runner=runner), Home(tmp_path)
    (line,) = stage_commands(plan.profile, home, "0001", stage(plan, "sft_model"))
    words = shlex.split(line)
    asked = job_request(tmp_path / "work/0001/sft_model", RunnerSettings.model_validate(runner), worker_environment(home))
    assert words[:5] == ["ray", "job", "submit", "--address", "http://head:8265"]
    assert json.loads(words[words.index("--runtime-env-json") + 1]) == asked["runtime_env"]
    assert words[words.index("--entrypoint-num-cpus") + 1] == "4.0" and json.loads(words[words.index("--entrypoint-resources") + 1])
    assert shlex.join(words[words.index("--") + 1 :]) == asked["entrypoint"] and "a-secret" not in line


def test_bytes_between_machines_are_those_of_the_formulas() -> None:
    assert stage(plan_of("smoke"), "sft_model").network_parts == {}
    plan = cluster()
    sft = stage(plan, "sft_model")
    assert sft.network_parts == {"gradients": 40 * 2 * 1 * 4 * plan.shape.num_parameters}, "two hosts, each sends 2 (N-1)/N = 1 times S"
    assert ring_bytes(1.0, 8, 4, zero_stage=3) == pytest.approx(4 * 3 * 7 / 8)
    assert ring_bytes(1.0, 8, 1, zero_stage=0) == ring_bytes(1.0, 1, 4, zero_stage=0) == 0.0
    rl = stage(plan, "rl_forms").network_parts
    assert rl["weights"] == 2 * 2 * plan.shape.num_parameters, "two rounds, in bfloat16"
    assert rl["answers"] > 65 * PROMPT_TOKEN_BYTES["token_ids"] and rl["sandboxes"] > 0 and "gradients" not in rl
    two = cluster(engine__http__replicas=["http://10.77.0.4:8431"])
    assert stage(two, "rl_forms").network_parts["weights"] == 2 * rl["weights"]
    assert plan.network_bytes(2) > plan.network_bytes(1) > sft.network_bytes


def test_a_stage_uses_the_machines_that_its_work_is_on() -> None:
    plan = cluster()
    assert stage(plan, "ct_model").nodes == {"head": 1}
    assert stage(plan, "sft_model").nodes == {"head": 1, "trainer": 1}
    assert stage(plan, "rl_forms").nodes == {"head": 1, "sandbox": 2, "policy": 1}
    assert stage(plan, "seed_demonstrations").nodes == {"head": 1, "sandbox": 2}, "the oracle asks no policy"
    assert all_nodes(plan) == {"head": 1, "policy": 1, "sandbox": 2, "trainer": 1}
    job = plan_of("smoke", runner={"kind": "ray", "cpus": 2}, sandbox={"ray": {"workers": 5}})
    assert stage(job, "rollouts").nodes == {"head": 1, "trainer": 1, "sandbox": 5}


def test_cost_is_hours_times_the_prices_given() -> None:
    plan = cluster(plan__prices={"head": 1.0, "sandbox": 0.25})
    costs = stage_costs(plan, plan.first)
    sft, rollouts = stage(plan, "sft_model"), stage(plan, "rollouts")
    assert costs["sft_model"] == pytest.approx(sft.seconds / 3600)
    assert costs["rollouts"] == pytest.approx(rollouts.seconds / 3600 * 1.5)
    assert held_cost(plan, 1) == pytest.approx(plan.seconds(1) / 3600 * 1.5) and cost(plan, 1) < held_cost(plan, 1)
    assert cost_rests_on(plan)[1] == "Without a price, and so not in the cost: policy, trainer."


def test_specialists_side_by_side_share_the_head() -> None:
    plan = plan_of("quickstart", plan__prices={"head": 3600.0})
    assert plan.at_once > 1
    assert sum(stage_costs(plan, plan.first).values()) == pytest.approx(plan.elapsed(plan.first))


def test_nothing_costs_anything_without_a_price() -> None:
    plan = plan_of("smoke")
    assert cost(plan, 3) == 0.0 and "no price is given" in cost_rests_on(plan)[0]
    unknown = plan_of("smoke", sandbox={"ray": {}}, plan__prices={"head": 1.0})
    assert "sandbox.ray.workers" in cost_rests_on(unknown)[-1]


def test_a_dry_run_prints_commands_network_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reached = "echo ssh -o BatchMode=yes {host} {command}"  # nobody is
    settings = {"training.hosts": HOSTS["training__hosts"], "training.launch": reached, "plan.prices.head": 2.0}
    console = Console(width=200, record=True, quiet=False)
    assert dry_run(Home(tmp_path / "home"), "cluster-smoke", settings, 1, console) == 1, "no server answers"
    text = console.export_text()
    for words in ("Commands that the seed and iteration 1 submit", "network", "cost", "ssh -o BatchMode=yes", "over the network", "Cost: "):
        assert words in " ".join(text.split()), words
    capsys.readouterr()
    dry_run(Home(tmp_path / "home"), "cluster-smoke", settings, 1, console, as_json=True)
    reported = json.loads(capsys.readouterr().out)
    assert set(reported["commands"]) >= {"seed_policy", "sft_model"} and reported["costs"]["first"]["sft_model"] > 0
    assert reported["nodes"]["sandbox"] == 2 and not (tmp_path / "home").exists()


def test_the_profile_to_copy_has_nobodys_addresses_and_its_dry_run_names_who_does_not_answer(tmp_path: Path) -> None:
    """The run is with addresses of this machine at which nothing listens, and a launcher that reaches nobody: nothing leaves loopback."""
    profile = profiles.load("cluster")
    assert profile.engine.http is not None
    urls = [profile.engine.http.base_url, *profile.engine.http.replicas, *(server.url for server in profile.sandbox.servers)]
    names = [*(str(urlsplit(url).hostname) for url in urls), *profile.training.hosts]
    assert all(ip_address(name) in ip_network("192.0.2.0/24") for name in names) and len(set(names)) == len(names) == 7
    settings = {
        "sandbox.servers": ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"],
        "engine.http.base_url": "http://127.0.0.1:4",
        "engine.http.replicas": ["http://127.0.0.1:5"],
        "training.hosts": HOSTS["training__hosts"],
        "training.launch": "echo ssh {host} {command}",
    }
    console = Console(width=200, record=True, quiet=False)
    assert dry_run(Home(tmp_path / "home"), "cluster", settings, 1, console) == 1
    text = " ".join(console.export_text().replace("│", " ").split())
    for url in (*settings["sandbox.servers"], settings["engine.http.base_url"], settings["engine.http.replicas"][0]):
        assert f"{url}: " in text, url
    assert "4 wanted" in text, "of the eight that train, four are this machine's"
    for words in ("Commands that the seed and iteration 1 submit", "network", "cost", "ssh 192.0.2.9", "over the network", "Cost: "):
        assert words in text, words
    assert "Machines: 1 head, 2 policy, 3 sandbox, 1 trainer" in text and "Without a price" not in text
    assert not (tmp_path / "home").exists()


def test_every_profile_has_commands_for_its_stages(tmp_path: Path) -> None:
    for name in ("quickstart", "full-2b", "cluster"):
        plan = plan_of(name)
        for number, stages in (("0000", plan.seed), ("0001", plan.first)):
            for one in stages:
                assert stage_commands(profiles.load(name), Home(tmp_path), number, one) or one.stage == "seed_tutorials"
