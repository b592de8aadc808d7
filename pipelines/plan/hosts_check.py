"""What can be checked before a run of the machines that train together: that `training.launch` runs a command on each, with this Python and
this code, and that the home lies where they see it too."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from assets.settings.profile import Profile
from models.training.hosts import TrainingHosts
from warehouse.core.checks import Check, Status
from warehouse.core.code import code_digest
from warehouse.core.home import Home

ANSWER_S = 60.0
SAYS = "host-of-training"
PROBE = f"import os, sys; from warehouse.core.code import code_digest; print({SAYS!r}, code_digest(), os.path.isdir(sys.argv[1]))"


def check_hosts(profile: Profile, home: Home) -> list[Check]:
    """One of each host but this; none where this machine trains alone. What is put into the home for the others to see is removed."""
    from models.training.launcher import shell_command
    from models.training.processes import interface_of

    every = profile.training.hosts
    try:
        others = [host for host in every if interface_of(host) is None]
    except OSError as error:
        fix = "Name hosts by addresses, or by names that this machine can look up: training.hosts"
        return [Check(name="host", status="fail", found=f"one of {', '.join(every)}: {error}", fix=fix)]
    if every and len(others) == len(every):
        fix = "Name this machine too, by the address that the others reach: training.hosts"
        return [Check(name="host", status="fail", found=f"none of {', '.join(every)} is this machine", fix=fix)]
    if not others:
        return []
    there = next(folder for folder in (home.root.resolve(), *home.root.resolve().parents) if folder.is_dir())
    try:
        probe = tempfile.TemporaryDirectory(prefix="seen-", dir=there)
    except OSError as error:
        fix = f"Make {there} writable for this user, or name another home with --home or FLYWHEEL_HOME"
        return [Check(name="host", status="fail", found=f"{there} cannot be written: {error.strerror}", fix=fix)]
    with probe as seen, ThreadPoolExecutor(len(others)) as asking:
        command = shell_command([sys.executable, "-c", PROBE, seen])
        return list(asking.map(partial(_check, profile.training, command, there), others))


def _check(hosts: TrainingHosts, command: str, there: Path, host: str) -> Check:
    def said(status: Status, found: str, fix: str = "") -> Check:
        return Check(name="host", status=status, found=f"{host}: {found}", fix=fix)

    started = hosts.command_on(host, command)
    by_hand = shlex.join(hosts.command_on(host, "true"))
    reach = f"`{by_hand}` has to end well and ask nothing: fix training.launch, or take the host out of training.hosts"
    try:
        done = subprocess.run(started, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except OSError as error:
        return said("fail", str(error), reach)
    except subprocess.TimeoutExpired:
        return said("fail", f"no answer within {ANSWER_S:g} s", reach)
    found = [line.split() for line in done.stdout.splitlines() if line.startswith(SAYS)]
    if not found:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return said("fail", f"status {done.returncode}: {last}", f"{reach}. It needs {sys.executable} and this release at the same path")
    _, digest, is_seen = found[-1]
    if digest != code_digest():
        return said("fail", "runs other code", "Install the same release, or check out the same commit, on both")
    if is_seen != "True":
        return said("fail", f"does not see {there}", "Put the home on a file system that all hosts see at the same path")
    return said("ok", f"runs commands, has this code, sees {there}")
