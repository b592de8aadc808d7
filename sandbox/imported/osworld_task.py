"""One OSWorld record while it is mapped: what it wants in vain, what was left out, which files it takes, and whether its commands could run
on a desktop of ours.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import PurePosixPath
from typing import Any

from sandbox.imported.machine import DESKTOP_HOME
from sandbox.imported.mapping import BadRecord, Files, digest_of

_BUILTINS = frozenset((
    "[", "[[", ":", ".", "alias", "break", "case", "cd", "command", "continue", "declare", "do", "done", "echo", "elif", "else", "esac",
    "eval", "exec", "exit", "export", "false", "fi", "for", "function", "if", "in", "let", "local", "printf", "pwd", "read", "return",
    "select", "set", "shift", "source", "test", "then", "time", "trap", "true", "type", "ulimit", "umask", "unset", "until", "wait",
    "while", "{", "}", "!",
))  # fmt: skip
_COMMAND_WORD = re.compile(r"(?:^|[;&|(`]|\$\(|\bthen\b|\bdo\b|\belse\b)\s*(?:[A-Za-z_]\w*=\S*\s+)*([A-Za-z_./~\[{:!][\w./~+-]*)")


class OsworldTask:
    """One record while it is mapped."""

    def __init__(self, task_id: str, files: Files) -> None:
        self.task_id, self._files = task_id, files
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.unknown: list[str] = []
        self.assets: dict[str, bytes] = {}
        self.placed: dict[str, str] = {}

    def refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def asset(self, address: str, target: str = "") -> str | None:
        """Digest of a file that the record names; None, and a reason, where it cannot be had."""
        data = self._files.find(address, self.task_id, target)
        if data is None:
            self.refuse("needs a file from the network" if "://" in address else "needs a file that does not lie with the record")
            return None
        self.assets[digest_of(data)] = data
        return digest_of(data)

    def command(self, command: Any, *, is_shell: bool) -> str | tuple[str, ...] | None:
        """A command for our machine; None, with reasons, where it cannot run there."""
        if isinstance(command, list) and all(isinstance(word, str) for word in command) and command:
            text, words = " ".join(command), command
        elif isinstance(command, str) and command.strip():
            text, words = command, [] if is_shell else split_words(command)
        else:
            raise BadRecord("a command is neither a text nor a list of texts")
        if "{CLIENT_PASSWORD}" in text or "{SCREEN_" in text:
            self.refuse("needs a password or the size of OSWorld's screen")
            return None
        is_script = is_shell or (len(words) > 2 and words[0].rpartition("/")[2] in ("bash", "sh") and words[1] in ("-c", "-lc"))
        if is_script:
            script = text if is_shell or not words else words[2]
            self._check_programs(script)
            return f'python() {{ python3 "$@"; }}\n{script}' if re.search(r"\bpython\b", script) else script
        if words[0] == "python":
            self.note("python is python3 here")
            words = ["python3", *words[1:]]
        self._check_program(words[0])
        return tuple(words)

    def _check_programs(self, script: str) -> None:
        quoted = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", "Q", script)
        for name in _COMMAND_WORD.findall(quoted):
            if name not in _BUILTINS and name != "Q" and not name.startswith(("~", "./", ".")) and f"{name}()" not in quoted:
                self._check_program(name)

    def _check_program(self, name: str) -> None:
        if name in ("python", *_BUILTINS) or name.startswith(str(DESKTOP_HOME)):
            return
        if name == "sudo":
            self.refuse("needs the rights of root (sudo)")
        elif shutil.which(name, path="/usr/bin:/bin:/usr/games") is None and not PurePosixPath(name).is_absolute():
            self.refuse(f"needs the program {name}")
        elif name in ("curl", "wget", "pip", "pip3", "apt", "apt-get", "snap", "git") and name != "git":
            self.refuse("needs the network")


def split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
