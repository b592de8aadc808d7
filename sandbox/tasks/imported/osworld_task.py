"""One OSWorld record while it is mapped: what it wants in vain, what was left out, which files it takes, and whether its commands could run
on a desktop of ours.
"""

from __future__ import annotations

import re
import shlex
import shutil
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from sandbox.desktop.apps import missing_packages
from sandbox.importing.fields import BadRecord
from sandbox.tasks.imported.machine import DESKTOP_HOME
from sandbox.tasks.imported.mapping import Files, digest_of, needs_packages
from sandbox.tasks.imported.shell_words import programs
from sandbox.tasks.imported.spec import Lack

_BUILTINS = frozenset(
    (
        "[",
        "[[",
        ":",
        ".",
        "alias",
        "break",
        "case",
        "cd",
        "command",
        "continue",
        "declare",
        "do",
        "done",
        "echo",
        "elif",
        "else",
        "esac",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fi",
        "for",
        "function",
        "if",
        "in",
        "let",
        "local",
        "printf",
        "pwd",
        "read",
        "return",
        "select",
        "set",
        "shift",
        "source",
        "test",
        "then",
        "time",
        "trap",
        "true",
        "type",
        "ulimit",
        "umask",
        "unset",
        "until",
        "wait",
        "while",
        "{",
        "}",
        "!",
        "hash",
        "history",
        "jobs",
    )
)
_NETWORK = frozenset(("curl", "wget", "pip", "pip3", "apt", "apt-get", "snap"))
_OFFICE = frozenset(("libreoffice", "soffice", "localc"))
_SYSTEMD = frozenset(("timedatectl", "systemctl", "loginctl", "hostnamectl"))
_SCHEMA = re.compile(r"gsettings['\", ]+(?:get|set|reset|describe)['\", ]+([\w.-]+)")
_SCHEMA_FILES = Path("/usr/share/glib-2.0/schemas")
_BUS = re.compile(r"(?:export\s+)?DBUS_SESSION_BUS_ADDRESS=(['\"]?)unix:path=/run/user/\d+/bus\1[ ;]*")


@cache
def _schemas() -> frozenset[str]:
    """Names of the settings (GSettings) that the machine has."""
    texts = (path.read_text(errors="replace") for path in _SCHEMA_FILES.glob("*.xml"))
    return frozenset(name for text in texts for name in re.findall(r"<schema\b[^>]*\bid=[\"']([\w.-]+)", text))


class OsworldTask:
    """One record while it is mapped."""

    def __init__(self, task_id: str, files: Files) -> None:
        self.task_id, self._files = task_id, files
        self.reasons: list[str] = []
        self.lacks: dict[str, Lack] = {}
        self.notes: list[str] = []
        self.unknown: list[str] = []
        self.assets: dict[str, bytes] = {}
        self.placed: dict[str, str] = {}

    def refuse(self, reason: str, lacks: Lack | None = None) -> None:
        """`lacks`: what the reason goes away with, where anything that can be given."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        if lacks is not None:
            self.lacks[reason] = lacks

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def asset(self, address: str, target: str = "") -> str | None:
        """Digest of a file that the record names; None, and a reason, where it cannot be had."""
        data = self._files.find(address, self.task_id, target)
        if data is None:
            where = "from the network" if "://" in address else "that does not lie with the record"
            self.refuse(f"needs a file {where}", lacks="files")
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
        self._check_settings(text)
        if _BUS.search(text):
            self.note("the address of OSWorld's session bus was left out: a desktop here has its own")
            text, words = _BUS.sub("", text), [_BUS.sub("", word) for word in words]
        if "{CLIENT_PASSWORD}" in text:
            self.refuse("needs the rights of root (a password)")
            return None
        if "{SCREEN_" in text:
            self.refuse("needs the size of OSWorld's screen")
            return None
        is_script = is_shell or (len(words) > 2 and words[0].rpartition("/")[2] in ("bash", "sh") and words[1] in ("-c", "-lc"))
        if is_script:
            script = text if is_shell or not words else words[2]
            self._check_programs(script)
            return f'python() {{ python3 "$@"; }}\n{script}' if re.search(r"\bpython\b", script) else script
        if words[0] == "python":
            self.note("python is python3 here")
            words = ["python3", *words[1:]]
        self.check_program(words[0])
        return tuple(words)

    def _check_programs(self, script: str) -> None:
        for name in programs(script):
            if not name.startswith(("~", "./", ".")):
                self.check_program(name)

    def check_program(self, name: str) -> None:
        """A reason where a program is not here, or could do nothing here."""
        if name in ("python", *_BUILTINS) or name.startswith(str(DESKTOP_HOME)):
            return
        if name == "sudo":
            self.refuse("needs the rights of root (sudo)")
        elif name in _NETWORK:
            self.refuse("needs the network")
        elif name in _SYSTEMD:
            self.refuse("needs systemd, which a desktop here does not have")
        elif name in _OFFICE:
            if lacking := missing_packages(["calc"]):
                self.refuse(needs_packages(lacking), lacks="packages")
        elif shutil.which(name, path="/usr/bin:/bin:/usr/games") is None and not PurePosixPath(name).is_absolute():
            self.refuse(f"needs the program {name}")

    def _check_settings(self, text: str) -> None:
        for schema in dict.fromkeys(_SCHEMA.findall(text)):
            if schema not in _schemas():
                self.refuse(f"needs the settings {schema}, which are not installed")


def split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
