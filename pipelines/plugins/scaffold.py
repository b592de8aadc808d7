"""What `flywheel init KIND NAME` writes: a plug-in, or a profile, that works as it stands, with its test. The files are templates/."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path

from agent.grammars.registry import GRAMMARS
from agent.harness.registry import HARNESSES
from assets.settings.verdicts import OWN_JUDGES
from models.judges.registry import JUDGES
from pipelines import profiles
from pipelines.importing.registry import IMPORTERS
from sandbox.tasks.registry import SOURCES
from warehouse.core.errors import ConfigError

TEMPLATES: dict[str, tuple[str, ...]] = {
    "task-source": ("@name@.html", "@name@.py", "@name@.yaml", "test_@name@.py"),
    "judge": ("@name@.py", "@name@.yaml", "test_@name@.py"),
    "grammar": ("@name@.py", "@name@.yaml", "test_@name@.py"),
    "harness": ("@name@.py", "@name@_agent.py", "@name@.yaml", "test_@name@.py"),
    "importer": ("@name@.py", "@name@.jsonl", "@name@.png", "test_@name@.py"),
    "profile": ("@name@.yaml",),
}
"""The files of each kind, in templates/KIND/."""
NEXT = {
    "task-source": ("pytest test_{name}.py", "flywheel check {name}.py:SOURCE", "flywheel run --profile {name}.yaml --iterations 1"),
    "judge": ("pytest test_{name}.py", "flywheel check {name}.py:judge", "flywheel run --profile {name}.yaml --iterations 1"),
    "grammar": ("pytest test_{name}.py", "flywheel check {name}.py:GRAMMAR", "flywheel run --profile {name}.yaml --dry-run"),
    "harness": ("pytest test_{name}.py", "flywheel check {name}.py:HARNESS", "flywheel run --profile {name}.yaml --iterations 1"),
    "importer": (
        "pytest test_{name}.py",
        "flywheel check {name}.py:IMPORTER {name}.jsonl",
        "flywheel import demonstrations {name}.py:IMPORTER {name}.jsonl --track expert",
    ),
    "profile": ("flywheel run --profile {name}.yaml --dry-run", "flywheel run --profile {name}.yaml"),
}
"""Commands to go on with."""


def rendered(kind: str, name: str) -> dict[str, bytes]:
    """Contents of the files of a kind, by file name. Raises ConfigError for an unknown kind, and for a name that Python cannot import."""
    if kind not in TEMPLATES:
        raise ConfigError(f"{kind!r} cannot be made: the kinds are {', '.join(TEMPLATES)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise ConfigError(f"the name is {name!r}: use lower-case letters, digits and _, beginning with a letter, e.g. shop")
    if name in _taken(kind):
        raise ConfigError(f"{name!r} is the name of another {kind}, or of Flywheel's own: choose another one")
    words = {"@name@": name, "@NAME@": name.upper(), "@Name@": "".join(part.capitalize() for part in name.split("_"))}
    return {_filled(template, words): _content(kind, template, words) for template in TEMPLATES[kind]}


def _taken(kind: str) -> Collection[str]:
    if kind == "judge":
        return {*OWN_JUDGES, *JUDGES}
    names: dict[str, Collection[str]] = {
        "task-source": SOURCES,
        "grammar": GRAMMARS,
        "harness": HARNESSES,
        "importer": IMPORTERS,
        "profile": profiles.names(),
    }
    return names[kind]


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write them; returns the paths. Raises ConfigError where one of them is there already; then nothing was written."""
    contents = {folder / file: content for file, content in rendered(kind, name).items()}
    if there := [str(path) for path in contents if path.exists()]:
        raise ConfigError(f"{', '.join(there)} is there already: choose another name, or another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        path.write_bytes(content)
    return list(contents)


def _content(kind: str, template: str, words: dict[str, str]) -> bytes:
    data = (files(__package__) / "templates" / kind / f"{template.replace('@', '')}.template").read_bytes()
    return data if template.endswith(".png") else _filled(data.decode(), words).encode()


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text
