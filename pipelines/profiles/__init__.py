"""The profiles that come with the project, as YAML, and how one is loaded by name or path. What a profile may say is
assets/settings/profile.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from agent.grammars.registry import GRAMMARS
from agent.harness.registry import HARNESSES
from assets.settings.profile import Profile, parse_profile
from models.judges.registry import JUDGES
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_in
from warehouse.core.errors import ConfigError
from warehouse.core.plain_yaml import read_yaml
from warehouse.core.plugins import Plugins, located_all

PROFILE_VARIABLE = "FLYWHEEL_PROFILE"
OVERRIDES_VARIABLE = "FLYWHEEL_PROFILE_OVERRIDES"
DEFAULT_PROFILE = "quickstart"
PLUGINS: Mapping[str, Plugins[Any]] = {plugins.kind: plugins for plugins in (SOURCES, GRAMMARS, JUDGES, HARNESSES)}
"""What a profile may bring along, by its keys below `plugins`."""
_REQUIRED = frozenset(name for name, field in Profile.model_fields.items() if field.is_required())


def names() -> list[str]:
    """The profiles that come with the project."""
    return sorted(entry.name.removesuffix(".yaml") for entry in files(__package__).iterdir() if entry.name.endswith(".yaml"))


def load(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """A profile by name, or from a YAML file of one's own. A file may begin with `extends: NAME` and say only what differs;
    the path of another file counts from its own folder. A file without a `name` is named after itself.

    The plug-ins that it names are registered here, and in every process that this one starts.

    Raises ConfigError that names what is wrong and what is allowed.
    """
    data = _read(name_or_path)
    for dotted, value in (overrides or {}).items():
        _set(data, dotted, value)
    source = f"{name_or_path} with {', '.join(overrides)}" if overrides else name_or_path
    _use_plugins(data.get("plugins"), source)
    try:
        profile = parse_profile(data, source)
    except ConfigError as error:
        if any(key not in data for key in _REQUIRED):
            raise ConfigError(
                f"{error}\nA profile of your own begins with `extends: {DEFAULT_PROFILE}` and says only what differs"
            ) from error
        raise
    _check_tasks(profile, source)
    _check_judges(profile, source)
    _check_harness(profile, source)
    return profile


def export(name_or_path: str, overrides: Mapping[str, Any]) -> Profile:
    """The profile, and this process's environment set so that whatever it starts, in whatever folder, finds the same one."""
    profile = load(name_or_path, overrides)
    os.environ[PROFILE_VARIABLE] = located(name_or_path, Path.cwd())
    os.environ[OVERRIDES_VARIABLE] = yaml.safe_dump(dict(overrides)) if overrides else ""
    return profile


def from_env() -> Profile:
    """The profile of this process: FLYWHEEL_PROFILE with FLYWHEEL_PROFILE_OVERRIDES (YAML mapping of dotted keys)."""
    return load(*chosen_by_env({}))


def chosen_by_env(overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What the environment names, under further overrides."""
    given = parse_overrides(os.environ.get(OVERRIDES_VARIABLE, ""))
    return os.environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE, {**given, **overrides}


def parse_overrides(text: str) -> dict[str, Any]:
    """A YAML mapping of dotted keys, e.g. `{seed: 1, annotation.enabled: false}`."""
    data = parse_value(text, OVERRIDES_VARIABLE) if text.strip() else {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{OVERRIDES_VARIABLE} is {text!r}; a YAML mapping of dotted keys is allowed, e.g. {{seed: 1, annotation.enabled: false}}"
        )
    return data


def parse_value(text: str, source: str) -> Any:
    """Plain YAML data. Raises ConfigError with the place where it goes wrong."""
    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML (text with signs of YAML, such as * or {{, goes into quotes): {error}") from error


def _use_plugins(given: Any, source: str) -> None:
    """Before the profile is read: other settings name them. What is not a reference is left to its reader."""
    for kind, declared in given.items() if isinstance(given, Mapping) else ():
        names = declared.values() if isinstance(declared, Mapping) else declared if isinstance(declared, list) else [declared]
        if kind in PLUGINS and declared and all(isinstance(name, str) for name in names):
            try:
                PLUGINS[kind].use(declared, Path.cwd())
            except ConfigError as error:
                raise ConfigError(f"plugins.{kind} of the profile {source}: {error}") from error


def _check_judges(profile: Profile, source: str) -> None:
    if unknown := [name for name in profile.verdicts.judges if name not in JUDGES]:
        raise ConfigError(
            f"verdicts.judges of the profile {source} names {', '.join(unknown)}; known are {', '.join(JUDGES) or 'none'}. Name yours in "
            'plugins.judges, e.g. `plugins: {judges: {mine: "judge.py:judge"}}`'
        )


def _check_harness(profile: Profile, source: str) -> None:
    for place, harness in (("collection.harness", profile.collection.harness), ("rl_harness", profile.rl_harness)):
        if harness is not None and harness.name not in HARNESSES:
            raise ConfigError(
                f"{place}.name of the profile {source} is {harness.name!r}; known are {', '.join(HARNESSES) or 'none'}. Name yours in "
                'plugins.harnesses, e.g. `plugins: {harnesses: {mine: "agent.py:HARNESS"}}`'
            )


def _check_tasks(profile: Profile, source: str) -> None:
    try:
        pool = tasks_in(profile.tasks.lists)
    except ConfigError as error:
        raise ConfigError(f"tasks.lists of the profile {source}: {error}") from error
    there_are = sorted({task.domain for task in pool.values()})
    unknown = [domain for domain in profile.tasks.domains if domain not in there_are]
    if unknown:
        raise ConfigError(
            f"tasks.domains of the profile {source} names {', '.join(unknown)}; "
            f"the tasks of {', '.join(profile.tasks.lists)} have {', '.join(there_are)}"
        )


def _read(name_or_path: str, children: tuple[str, ...] = ()) -> dict[str, Any]:
    """The data of a profile, laid over that of the one it extends. `children` are those that led here."""
    if name_or_path in children:
        raise ConfigError(f"the profile {name_or_path} extends itself ({' extends '.join([*children, name_or_path])}); name another one")
    path = Path(name_or_path)
    if _is_path(name_or_path):
        if not os.path.isfile(path):  # also for a name that no file can have
            raise ConfigError(f"there is no profile file {path}; the profiles that come with the project are {', '.join(names())}")
        text = _text(path)
    elif name_or_path in names():
        text = (files(__package__) / f"{name_or_path}.yaml").read_text()
    else:
        raise ConfigError(f"there is no profile `{name_or_path}`; there are {', '.join(names())}, or give the path of a .yaml file")
    data = parse_value(text, f"the profile {name_or_path}")
    if not isinstance(data, dict):
        raise ConfigError(f"the profile {name_or_path} is not a YAML mapping")
    if _is_path(name_or_path):
        data.setdefault("name", path.stem)
    if _is_path(name_or_path) and "plugins" in data:
        data["plugins"] = located_all(data["plugins"], path.parent)
    parent = data.pop("extends", None)
    return merged(_read(located(str(parent), path.parent), (*children, name_or_path)), data) if parent else data


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the profile {path} is not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}. Save it as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be read ({error.strerror})") from error


def located(name_or_path: str, folder: Path) -> str:
    """A path, absolute and counted from a folder; a name as it is. Raises ConfigError for what no path can be."""
    if "\0" in name_or_path:
        raise ConfigError(f"{name_or_path!r} is not the name of a profile or a file: it holds a NUL")
    return str((folder / name_or_path).resolve()) if _is_path(name_or_path) else name_or_path


def _is_path(name_or_path: str) -> bool:
    return Path(name_or_path).suffix in (".yaml", ".yml")


def merged(base: dict[str, Any], changes: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings of both, the changes where both say something. `above`: the dotted name of the group that both are. Raises ConfigError for
    an empty group where the base has settings: it would change nothing, and looks as if it took them back."""
    both = dict(base)
    for key, value in changes.items():
        old = both.get(key)
        if not (isinstance(old, dict) and isinstance(value, Mapping)):
            both[key] = value
        elif value or not old:
            both[key] = merged(old, value, f"{above}{key}.")
        else:
            raise ConfigError(
                f"`{above}{key}: {{}}` changes nothing: what the profile extends sets {', '.join(map(str, old))} there. Give these their "
                f"new values ({next(iter(old))}: null where the setting may be null), or remove `{above}{key}`"
            )
    return both


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError(f"cannot set `{dotted}`: `{part}` is not a group of settings")
    data[last] = value
