"""The compose file as a container engine would understand it, as far as it uses the format: variables filled in, merges resolved, and each
service as a process of this machine (`Place.start`, `Place.ask`).

What bubblewrap gives a process is what the file asks for: the volumes at their places, read-only or not, a read-only root, its own user,
processes and /tmp, no capabilities, no environment but its own; names of services lead to loopback. What it does not: networks of their
own, an image of its own, limits of memory.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy"
COMPOSE = FOLDER / "compose.yaml"
SCHEMAS = Path(__file__).parent / "schemas"
"""Of others; README.md there says whose."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::(-|\?)([^{}]*))?\}")
START_S = 300.0
POLL_S = 3.0


class NotSet(Exception):
    """A variable that has no default and is not in the environment file."""


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Raises NotSet."""
    if isinstance(value, dict):
        return {key: interpolated(part, variables) for key, part in value.items()}
    if isinstance(value, list):
        return [interpolated(part, variables) for part in value]
    if not isinstance(value, str):
        return value

    def filled(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == "-":
            return str(rest)
        raise NotSet(f"{name}: {rest}")

    while (said := _VARIABLE.sub(filled, value)) != value:  # a default may hold variables
        value = said
    return value


def compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in."""
    loaded: dict[str, Any] = interpolated(yaml.safe_load(COMPOSE.read_text(encoding="utf-8")), variables)
    return loaded


def variables_of(env_file: Path) -> dict[str, str]:
    """Of an environment file: names and what they are set to."""
    lines = [line.partition("=") for line in env_file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in lines}


@dataclass(kw_only=True)
class Place:
    """Services on this machine. `folder` holds what the image's build makes (deploy/accounts.sh): users, and the folders of volumes."""

    folder: Path
    services: Mapping[str, Any]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make users and volumes, as the image's build does."""
        subprocess.run([str(FOLDER / "accounts.sh"), str(self.folder)], check=True, timeout=30)
        names = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *self.services))
        (self.folder / "etc" / "hosts").write_text(names)

    def start(self, name: str) -> None:
        """Start a service as the file says; its log is in `folder`."""
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*self._boxed(name), *self.services[name]["command"]],
                cwd=ROOT,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, name: str, command: list[str], *, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program beside a service, as its user with its environment and volumes: what `docker compose exec` does."""
        boxed = [*self._boxed(name), *command]
        return subprocess.run(boxed, cwd=ROOT, env=self._environment(name), capture_output=True, text=True, timeout=timeout_s)

    def is_healthy(self, name: str) -> bool:
        """What the service's own health check says."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.ask(name, command).returncode == 0

    def start_all(self) -> None:
        """Start each service when those that it depends on are healthy, as the file says; Postgres runs already."""
        healthy: set[str] = set()
        asked_s: dict[str, float] = {"postgres": 0.0}
        deadline = time.monotonic() + START_S
        while healthy != self.services.keys():
            for name in self.services.keys() - healthy - asked_s.keys():
                if self.services[name].get("depends_on", {}).keys() <= healthy:
                    self.start(name)
                    asked_s[name] = time.monotonic()
            for name in asked_s.keys() - healthy:
                if time.monotonic() - asked_s[name] > POLL_S:  # a check of Dagster's takes two seconds of a core
                    healthy |= {name} if self.is_healthy(name) else set()
                    asked_s[name] = time.monotonic()
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            assert not ended, "\n".join(f"{name} ended:\n{self.log_tail(name)}" for name in ended)
            waiting = self.running.keys() - healthy
            assert time.monotonic() < deadline, "\n".join(f"{name} is not healthy:\n{self.log_tail(name)}" for name in waiting)
            time.sleep(0.2)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log_tail(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")[-4000:]

    def end(self) -> None:
        """End all, those that others depend on last."""
        for process in reversed(self.running.values()):
            process.send_signal(signal.SIGTERM)  # to bubblewrap, whose processes end with it
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ids(self, name: str) -> tuple[int, int]:
        """User and group of a service, as the users file says."""
        user, group = self.services[name]["user"].split(":")
        return _id(self.folder / "etc" / "passwd", user), _id(self.folder / "etc" / "group", group)

    def _environment(self, name: str) -> dict[str, str]:
        wanted = self.services[name].get("environment", {})
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HOME": "/tmp", **{key: str(wanted[key]) for key in wanted}}

    def _boxed(self, name: str) -> list[str]:
        service = self.services[name]
        user, group = self.ids(name)
        boxed = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--ro-bind", "/", "/"]
        boxed += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/srv"]
        boxed += ["--perms", "1777", "--tmpfs", "/dev/shm", "--perms", "1777", "--tmpfs", "/tmp"]
        needed = [Path(sys.base_prefix), Path(sys.prefix).resolve(), ROOT]
        for closed in dict.fromkeys(found for path in needed if (found := _closed_above(path)) is not None):
            boxed += ["--tmpfs", str(closed)]
        for path in needed:
            for parent in reversed([parent for parent in path.parents if (closed := _closed_above(path)) and closed in parent.parents]):
                boxed += ["--dir", str(parent)]
            boxed += ["--ro-bind", str(path), str(path)]
        for file in ("hosts", "passwd", "group"):
            boxed += ["--ro-bind", str(self.folder / "etc" / file), f"/etc/{file}"]
        for volume in service.get("volumes", []):
            _, target, *mode = volume.split(":")
            if not target.startswith("/srv/"):  # Postgres's own
                continue
            boxed += ["--ro-bind" if mode == ["ro"] else "--bind", f"{self.folder}{target}", target]
        as_whom = ["setpriv", "--reuid", str(user), "--regid", str(group), "--clear-groups", "--no-new-privs", "--bounding-set", "-all"]
        return [*boxed, "--", *as_whom, "--inh-caps", "-all", "--"]


def _id(file: Path, name: str) -> int:
    if name.isdigit():
        return int(name)
    return next(int(fields[2]) for line in file.read_text().splitlines() if (fields := line.split(":"))[0] == name)


def _closed_above(path: Path) -> Path | None:
    """The outermost folder around a path that other users may not pass through, as a root's home."""
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)
