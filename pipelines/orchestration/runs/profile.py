"""The profile of a run, as its run configuration says it: `resources.profile.config` names a profile and changes settings of it.

Its schema is made from assets/settings/profile.py, so that Dagster's Launchpad completes and describes every setting, and refuses an
unknown key or a value of another type before it launches. What depends on the profile as a whole is checked when the run begins, before any
step does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from assets.settings.profile import Profile
from assets.stages.resources import ProfileResource
from pipelines import profiles
from sandbox.server.address import ServerAddress
from warehouse.core.errors import ConfigError

NAME = "name"
"""Key of the configuration that names the profile; every other key is a setting of it (a profile's own name is not one)."""
NAME_MEANING = "name of a profile, or absolute path of a .yaml file; without it the one that this code location was started with"
FROM_TEXT = (ServerAddress,)
"""Groups of settings that may be a text instead."""
WORDS_PER_VALUE = 60
"""Characters of the value that a setting's description shows."""


class RunProfile(ProfileResource):
    """The profile of the run whose configuration this is."""

    config: dict[str, Any]

    def load(self) -> Profile:
        return load(self.config)


def build_resource(standing: Profile) -> dg.ResourceDefinition:
    """The resource `profile`. `standing` is what a run gets that changes nothing: its values stand in the descriptions."""

    def start(context: dg.InitResourceContext) -> RunProfile:
        return RunProfile(config=dict(context.resource_config))

    fields = {NAME: dg.Field(str, is_required=False, description=NAME_MEANING)} | _fields(Profile, standing, left_out=(NAME,))
    return dg.ResourceDefinition(start, config_schema=fields, description="The profile of the run, and what the run changes of it.")


def load(config: Mapping[str, Any]) -> Profile:
    """The profile that a configuration means. Raises ConfigError."""
    changes = dict(_flat({key: value for key, value in config.items() if key != NAME}))
    name = config.get(NAME)
    if name is not None:
        return profiles.load(name, changes)
    return profiles.load(*profiles.chosen_by_env(changes))


def of_run(run_config: Mapping[str, Any]) -> Profile:
    """The profile of a run. Raises ConfigError, also where its specialists are not those for which the graph has assets."""
    profile, standing = load(config_of(run_config)), profiles.from_env()
    for what, wanted, there_are in (
        ("specialists", profile.tasks.specialists, standing.tasks.specialists),
        ("joint groups", profile.tasks.joint, standing.tasks.joint),
    ):
        if set(wanted) != set(there_are):
            name = config_of(run_config).get(NAME, profile.name)
            raise ConfigError(
                f"the run's profile trains the {what} {_list(wanted)}, and Dagster was started with a profile that has {_list(there_are)}: "
                f"start it with that profile (flywheel ui --profile {name}), or launch with one of the same {what}"
            )
    return profile


def config_of(run_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run configuration says of the profile."""
    resource = (run_config.get("resources") or {}).get("profile") or {}
    return resource.get("config") or {}


def same_profile(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The run configuration of another run under the profile of this one."""
    config = config_of(run_config)
    return {"resources": {"profile": {"config": config}}} if config else {}


def run_config(name: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The run configuration of a profile and of changes by dotted key, as the command line takes them."""
    config: dict[str, Any] = {NAME: name} if name is not None else {}
    for dotted, value in changes.items():
        *groups, last = dotted.split(".")
        place = config
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return same_profile({"resources": {"profile": {"config": config}}})


def _list(names: Sequence[Any]) -> str:
    return ", ".join(str(name) for name in names) or "none"


def _flat(config: Mapping[str, Any], group: type[BaseModel] = Profile, prefix: str = "") -> list[tuple[str, Any]]:
    """Settings by dotted key."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        field = group.model_fields.get(key)  # none of a setting's former name
        inner = _group(field.annotation) if field is not None else None
        if inner is not None and isinstance(value, Mapping):
            found.extend(_flat(value, inner, f"{prefix}{key}."))
        else:
            found.append((f"{prefix}{key}", value))
    return found


def _group(annotation: Any) -> type[BaseModel] | None:
    """The class of a group of settings, which may be null; None for a single setting."""
    kinds = [kind for kind in _alternatives(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel) else None


def _fields(group: type[BaseModel], standing: BaseModel | None, left_out: Sequence[str] = ()) -> dict[str, dg.Field]:
    return {
        name: dg.Field(
            _type(field.annotation, getattr(standing, name, None)), is_required=False, description=_description(field, standing, name)
        )
        for name, field in group.model_fields.items()
        if name not in left_out
    }


def _description(field: FieldInfo, standing: BaseModel | None, name: str) -> str | None:
    value = getattr(standing, name, None)
    if standing is None or isinstance(value, BaseModel):
        return field.description
    now = f"now {str(value)[:WORDS_PER_VALUE]}"
    return f"{field.description} ({now})" if field.description else now


def _type(annotation: Any, standing: Any) -> Any:
    """The type of Dagster's configuration for one of a profile's. What Dagster has no word for is any value, and checked with the whole."""
    kinds = _alternatives(annotation)
    if NoneType in kinds:
        return dg.Noneable(_one([kind for kind in kinds if kind is not NoneType], standing))
    return _one(kinds, standing)


def _one(kinds: Sequence[Any], standing: Any) -> Any:
    if len(kinds) > 1:
        return dg.Any
    (kind,) = kinds
    if get_origin(kind) is Literal:
        return _enum(get_args(kind)) if all(isinstance(value, str) for value in get_args(kind)) else dg.Any
    if get_origin(kind) is tuple and len(get_args(kind)) == 2 and get_args(kind)[1] is Ellipsis:
        return dg.Array(_type(get_args(kind)[0], None))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        shape = dg.Shape(_fields(kind, standing if isinstance(standing, kind) else None))
        return dg.ScalarUnion(scalar_type=str, non_scalar_schema=shape) if kind in FROM_TEXT else shape
    return kind if kind in (int, float, str, bool) else dg.Any


def _alternatives(annotation: Any) -> list[Any]:
    """The types that a value may have, without what `Annotated` says of them."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _alternatives(each)]
    return [annotation]


@cache
def _enum(values: tuple[str, ...]) -> dg.Enum:
    return dg.Enum("_or_".join("".join(filter(str.isalnum, value)) for value in values), [dg.EnumValue(value) for value in values])
