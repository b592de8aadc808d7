"""Whether what a task asks for is so: run by tests/test.sh of a Harbor folder that harbor_export.py wrote. The standard library alone.

check.py GOALS.json FOLDER REWARDS      prints which goals are not met, and writes REWARDS/reward.txt

A goal may run a program that the agent wrote. Such a program, and what it starts, can neither trace this process nor outlive it: all are
killed before the reward is written.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


def text(path: str) -> str | None:
    if not os.path.isfile(path) or os.path.islink(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n")
    except (OSError, UnicodeDecodeError):
        return None


def same(found: object, wanted: object) -> bool:
    """Equal JSON; a number is not taken for true or false."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def is_json(path: str, wanted: object) -> bool:
    try:
        return same(json.loads(text(path) or ""), wanted)
    except (ValueError, RecursionError):
        return False


def prints(command: str, wanted: str, environment: dict[str, str]) -> bool:
    words = ["bash", "--noprofile", "--norc", "-c", command]
    try:
        done = subprocess.run(words, capture_output=True, timeout=20, check=False, env={**os.environ, **environment})
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and (done.stdout + done.stderr).decode(errors="replace").rstrip("\n") == wanted.rstrip("\n")


def serves(port: int, path: str, wanted: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:  # nosec B310 # on loopback
            return bool(answer.read().decode(errors="replace").rstrip("\n") == wanted.rstrip("\n"))
    except (OSError, ValueError):
        return False


def plain(said: str) -> str:
    return said.strip().strip(".\"'").casefold()


def is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def is_met(kind: str, goal: dict, environment: dict[str, str]) -> bool:  # type: ignore[type-arg]
    path = goal.get("path", "")
    match kind:
        case "Holds":
            return bool(text(path) == goal["text"].rstrip("\n"))
        case "HoldsJson":
            return is_json(path, goal["value"])
        case "Absent":
            return not os.path.lexists(path)
        case "Present":
            return is_file(path)
        case "Folder":
            return is_folder(path)
        case "Names":
            return is_folder(path or ".") and set(os.listdir(path or ".")) == set(goal["names"])
        case "Mode":
            return is_file(path) and os.stat(path).st_mode & 0o777 == goal["mode"]
        case "Executable":
            return is_file(path) and bool(os.stat(path).st_mode & 0o100)
        case "Prints":
            return prints(goal["command"], goal["text"], environment)
        case "Serves":
            return serves(goal["port"], path, goal["text"])
        case "Answers":
            found = text(goal["file"])
            return found is not None and plain(found) == plain(goal["text"])
    raise ValueError(kind)


def guard() -> None:
    """No other process may trace this one, and orphans of its children become its own children."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1)):
        if prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")


def children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):  # it has ended
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


def end_children() -> None:
    """Until none is left: those of a child that ends become children."""
    while left := children():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)


def write_reward(folder: str, reward: int) -> None:
    """What the agent's programs put there goes aside first."""
    os.chmod(folder, 0o755)  # nosec B103 # what runs Harbor reads the reward, perhaps as another user
    for name in ("reward.json", "reward.txt"):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o755)  # nosec B103 # of the agent's making, and about to be moved
        if os.path.lexists(path):
            os.rename(path, os.path.join(tempfile.mkdtemp(dir=folder), name))
    with open(os.path.join(folder, "reward.txt"), "x", encoding="utf-8") as file:
        file.write(f"{reward}\n")


def main() -> None:
    guard()
    with open(sys.argv[1], encoding="utf-8") as file:
        given = json.load(file)
    os.chdir(sys.argv[2])
    unmet = [goal for goal in given["goals"] if not is_met(goal["kind"], goal, given["environment"])]
    for goal in unmet:
        print("not met:", goal["kind"], goal.get("path", goal.get("command", "")))
    end_children()
    write_reward(sys.argv[3], 0 if unmet else 1)


if __name__ == "__main__":
    main()
