"""What can be checked of deploy/ without a container engine: the compose file, the image's definition, and what both name exists."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft7Validator

from pipelines.cli.app import app
from pipelines.orchestration.instance import prepare
from pipelines.orchestration.service import DAGSTER
from tests.deploy.deployment import COMPOSE, FOLDER, ROOT, SCHEMAS, NotSet, compose, variables_of
from warehouse.core.home import Home

EXAMPLE = variables_of(FOLDER / "env.example")
SECRETS = dict.fromkeys(EXAMPLE, "s3cret")
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
SERVICES = compose(SECRETS)["services"]
OURS = sorted(SERVICES.keys() - {"postgres"})
NAMED = re.compile(r"\$\{(\w+)(:[-?])?")
NAMED_VARIABLES = {name for name, _ in NAMED.findall(COMPOSE.read_text(encoding="utf-8"))}
INTERNAL = {"BIND_ADDRESS", "POSTGRES_PORT", "CODE_LOCATION_PORT"}
"""Variables that nobody needs to set, so env.example does not name them."""


def instructions(name: str) -> list[str]:
    """Arguments of the image's instructions of one kind."""
    return [line.partition(" ")[2].strip() for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def test_the_services_are_those_of_a_deployment() -> None:
    assert SERVICES.keys() == {"postgres", "dagster-code", "dagster-webserver", "dagster-daemon", "prefect", "sandbox", "annotation"}


def test_it_is_valid_by_the_schema_of_the_compose_specification() -> None:
    """As it is, and with its variables filled in; a service with a misspelt field is not."""
    validator = Draft7Validator(json.loads((SCHEMAS / "compose-spec.json").read_text(encoding="utf-8")))
    text = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    for whole in (text, compose(SECRETS)):
        assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(whole)] == []
    text["services"]["sandbox"]["helthcheck"] = {}
    assert [error.json_path for error in validator.iter_errors(text)] == ["$.services.sandbox"]


def test_no_secret_has_a_default_and_the_example_names_them_all() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    kinds: dict[str, set[str]] = {}
    for name, kind in NAMED.findall(text):
        kinds.setdefault(name, set()).add(kind)
    wanted = {name for name, found in kinds.items() if ":?" in found}
    assert wanted == {name for name, value in EXAMPLE.items() if value == ""} and all(kinds[name] == {":?"} for name in wanted)
    example = (FOLDER / "env.example").read_text(encoding="utf-8")
    assert sorted({*kinds, "POLICY_TOKEN"}) == sorted({*wanted, *INTERNAL, *re.findall(r"^#(\w+)=", example, re.M)})  # Kubernetes' own
    for left_out in wanted:
        with pytest.raises(NotSet, match=left_out):
            compose({name: value for name, value in SECRETS.items() if name != left_out})
    for service in yaml.safe_load(text)["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET", name):
                assert str(value).startswith("${"), f"{name} stands in the file"
            assert not re.search(r"//\w*:(?!\$\{)[^/@]*@", str(value)), f"{name} holds a password"
    assert "deploy/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_is_unprivileged_watched_and_restarted(name: str) -> None:
    service = SERVICES[name]
    user, group = service["user"].split(":")
    assert user not in ("root", "0") and group not in ("root", "0")
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    assert service["restart"] == "unless-stopped" and service["healthcheck"]["test"][0] == "CMD"
    assert "privileged" not in service and "cap_add" not in service and "network_mode" not in service
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port
    for needed, how in service.get("depends_on", {}).items():
        assert needed in SERVICES and how == {"condition": "service_healthy"}
    if name != "postgres":
        assert service["read_only"] is True and service["init"] is True


def test_each_has_a_user_and_a_home_of_its_own() -> None:
    accounts = (FOLDER / "accounts.sh").read_text(encoding="utf-8")
    users = {SERVICES[name]["user"].split(":")[0] for name in SERVICES}
    assert len(users) == len(SERVICES)
    passwd = Path("/etc/passwd").read_text(encoding="utf-8")
    for name in OURS:
        user = SERVICES[name]["user"].split(":")[0]
        assert re.search(rf"\b{user} 1\d{{4}} ", accounts), f"accounts.sh does not make {user}"
        assert not re.search(rf"^{user}:", passwd, re.M), f"Debian has a user {user} already"
        home = SERVICES[name]["environment"]["FLYWHEEL_HOME"]
        assert f'"$root{home}"' in accounts and any(volume.split(":")[1] == home for volume in SERVICES[name]["volumes"])
    writers = [name for name in OURS if "home:/srv/flywheel" in SERVICES[name]["volumes"]]
    assert writers == ["annotation", "dagster-code"]


def test_volumes_networks_and_files_that_it_names_exist() -> None:
    whole = compose(SECRETS)
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == whole["volumes"].keys()
    assert all((FOLDER / name).is_file() for name in used if name.startswith("."))
    assert {network for service in SERVICES.values() for network in service["networks"]} == whole["networks"].keys()
    assert "data" not in SERVICES["sandbox"]["networks"], "what sessions open must not reach the databases"
    host = re.compile(r"(?:@|//)([a-z-]+):\d")
    for name, service in SERVICES.items():
        for asked in host.findall(yaml.safe_dump(service)):
            assert asked in SERVICES, f"{name} asks for {asked}"
            assert set(service["networks"]) & set(SERVICES[asked]["networks"]), f"{name} cannot reach {asked}"


def test_who_comes_from_outside_is_let_in_to_annotation_alone() -> None:
    elsewhere = dict.fromkeys(NAMED_VARIABLES, "0.0.0.0") | SECRETS | {"ANNOTATION_PORT": "9000"}
    services = compose(elsewhere)["services"]
    assert {name for name, service in services.items() if any(not port.startswith("127.0.0.1:") for port in service.get("ports", []))} == {
        "annotation"
    }
    assert services["annotation"]["ports"] == ["0.0.0.0:9000:9000"]
    command = compose(SECRETS | {"ANNOTATION_PORT": "9000"})["services"]["annotation"]["command"]
    assert command[command.index("--url") + 1] == "http://127.0.0.1:9000"
    on = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert {name for name, networks in on.items() if networks & on["annotation"]} == {"annotation", "postgres", "sandbox"}


@pytest.mark.parametrize("name", OURS)
def test_its_commands_exist(name: str) -> None:
    service = SERVICES[name]
    for command in (service["command"], service["healthcheck"]["test"][1:]):
        check_command([str(word) for word in command])


def check_command(command: list[str]) -> None:
    program, *rest = command
    if program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None, rest[1]
        assert rest[1] != "pipelines.orchestration.service" or rest[2] in (*DAGSTER, "prefect")
    elif program == "python":
        assert (ROOT / rest[0]).is_file()
    elif program == "flywheel":
        check_options(rest)
    else:
        assert shutil.which(program, path=str(Path(sys.executable).parent)), program
    assert all((ROOT / word).is_file() for word in rest if word.startswith("deploy/"))


def check_options(words: list[str]) -> None:
    """Fails where a command or an option of `flywheel` is not there."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.get_command(None, words[0]), words[1:]
        assert command is not None, f"{words} names no command"
    command.make_context("flywheel", list(words)).close()


def test_a_wrong_option_is_found() -> None:
    with pytest.raises(Exception, match="No such option: --prot"):
        check_options(["sandbox", "serve", "--prot", "1"])


def test_variables_of_ours_are_documented() -> None:
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    used = {name for service in SERVICES.values() for name in service.get("environment", {}) if name.startswith("FLYWHEEL_")}
    assert [name for name in sorted(used) if f"| `{name}` |" not in page] == []


def test_the_image_is_built_of_what_is_there() -> None:
    assert all(re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", base) for base in instructions("FROM")), "a base names its version"
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*", SERVICES["postgres"]["image"])
    python = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert instructions("FROM")[0].startswith("python:3.11.") and python["requires-python"].startswith(">=3.11,")
    for words in map(str.split, instructions("COPY")):
        assert all((ROOT / source).exists() for source in words[:-1]), words
    assert instructions("USER")[-1] not in ("root", "0"), "it does not end as root"
    for run in instructions("RUN"):
        if "apt-get install" in run:
            assert "--no-install-recommends" in run and "rm -rf /var/lib/apt/lists/*" in run
        for installed in re.findall(r"pip install [^&]*", run):
            assert "-c constraints.txt" in installed, installed
        for extras in re.findall(r"'\.\[([\w,]+)\]'", run):
            assert set(extras.split(",")) <= python["optional-dependencies"].keys()
        for script in re.findall(r"\bdeploy/[\w.]+", run):
            assert (ROOT / script).stat().st_mode & 0o111, script
    assert not re.search("PASSWORD|TOKEN|SECRET", " ".join(instructions("ENV") + instructions("ARG")))
    left_out = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "deploy/.env"} <= set(left_out)


@pytest.mark.parametrize("script", ["accounts.sh", "databases.sh"])
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", str(FOLDER / script)], check=True, timeout=10)
    assert (FOLDER / script).stat().st_mode & 0o111


def test_dagster_runs_on_postgres_and_is_else_as_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_POSTGRES_URL", "postgresql://dagster:s3cret@postgres:5432/dagster")
    home = Home(tmp_path)
    environment = prepare(home)
    assert environment["FLYWHEEL_POSTGRES_URL"] == "postgresql+psycopg2://dagster:s3cret@postgres:5432/dagster"
    text = (home.dagster / "dagster.yaml").read_text()
    written, shipped = yaml.safe_load(text), yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    assert written.pop("storage") == {"postgres": {"postgres_url": {"env": "FLYWHEEL_POSTGRES_URL"}}} and "s3cret" not in text
    same = ("concurrency", "run_launcher", "run_monitoring", "telemetry", "nux")
    assert {name: written[name] for name in same} == {name: shipped[name] for name in same} and written.keys() | {
        "storage"
    } == shipped.keys()
