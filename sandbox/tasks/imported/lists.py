"""Task lists that name what is asked and where, and no more: Mind2Web and Online-Mind2Web (live sites), MiniWoB (pages that are installed),
and task files in our own schema.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from sandbox.importing.fields import BadRecord, Fields, listed, slug
from sandbox.tasks.imported.machine import DESKTOP_HOME, TERMINAL_HOME, relative
from sandbox.tasks.imported.mapping import Files, Mapped, digest_of
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.source import page_of
from sandbox.tasks.imported.spec import GOALS, Answers, Compare, DeviceSays, GivesUp, Goal, Lack, Not, Several, TaskSpec, fill
from warehouse.core.errors import ConfigError

LEVELS = {"easy": 0.25, "medium": 0.5, "hard": 0.8}
STEPS_PER_REFERENCE = 3


def map_mind2web(record: Any, files: Files) -> Mapped:
    """A task of Mind2Web or Online-Mind2Web: kept, and not run, because its site is a live one. Raises BadRecord."""
    fields = Fields(record)
    name = fields.any("task_id", "annotation_id", "id")
    asked = fields.any("confirmed_task", "task_description", "task", "instruction")
    if not isinstance(asked, str) or not asked.strip():
        raise BadRecord("`confirmed_task` is missing")
    website = str(fields.any("website", "start_url", "url") or "")
    length = fields.any("reference_length")
    fields.keep_aside("domain", "subdomain", "actions", "action_reprs", "evaluation")
    reference = length if isinstance(length, int) else len(listed(record.get("action_reprs"))) or None
    try:
        host = urlsplit(website if "://" in website else f"https://{website}").hostname or "its site"
    except ValueError as error:
        raise BadRecord(f"`website` is not an address: {error}") from None
    spec = TaskSpec(
        name=slug(str(name or asked[:40])),
        kind="web",
        instruction=asked,
        website=website or None,
        difficulty=LEVELS.get(str(fields.any("level", "difficulty")), 0.5),
        reference_length=reference,
        max_steps=min(1000, STEPS_PER_REFERENCE * reference) if reference else None,
        source="Mind2Web" + (f" {name}" if name else ""),
    )
    reasons = ["wants a live site, which is not on this machine", "has no verifier: a judge or an ORM alone can say what came of it"]
    return Mapped(spec=spec, not_runnable=reasons, notes=[f"its site is {host}"], unknown=fields.unknown())


def map_miniwob(record: Any, files: Files) -> Mapped:
    """A page of MiniWoB++ by its name or its environment's id; a seed is kept with the record, since which seeds are run is for the
    splits to say. Raises BadRecord."""
    fields = Fields({"env": record} if isinstance(record, str) else record)
    named = fields.any("env", "env_name", "env_id", "task", "name", "task_name")
    if not isinstance(named, str):
        raise BadRecord("a line of a MiniWoB list is the name of an environment, or an object with `env`")
    notes = ["its seeds are kept aside: splits say which are run"] if fields.any("seed", "seeds") is not None else []
    page = named.rpartition("/")[2].removeprefix("browsergym-").removeprefix("miniwob.").removesuffix("-v1").removesuffix("-v0")
    spec = TaskSpec(
        name=slug(page),
        kind="page",
        instruction=f"MiniWoB++ page {page}: it says itself what it asks",
        page=f"miniwob/{page}",
        source=f"MiniWoB++ {named}",
    )
    reasons = []
    try:
        page_of(spec)
    except ConfigError:
        reasons.append("is not a page of the installed MiniWoB++ that is used here")
    return Mapped(spec=spec, not_runnable=reasons, notes=notes, unknown=fields.unknown())


def map_plain(record: Any, files: Files) -> Mapped:
    """A task in our own schema (spec.py). A field `asset_files` names files beside the task file, by where they are to lie. Raises
    BadRecord for fields that the schema does not have, with the one that may have been meant."""
    if not isinstance(record, Mapping):
        raise BadRecord(f"a task is an object with named fields, not {type(record).__name__}")
    data = dict(record)
    named = data.pop("asset_files", {})
    assets: dict[str, bytes] = {}
    reasons: list[str] = []
    lacks: dict[str, Lack] = {}
    for path, name in named.items() if isinstance(named, Mapping) else ():
        found = files.find(str(name))
        if found is None:
            reason = f"needs a file, {name}, that does not lie with the task file"
            reasons.append(reason)
            lacks[reason] = "files"
        else:
            assets[digest_of(found)] = found
            data["assets"] = {**data.get("assets", {}), str(path): digest_of(found)}
    try:
        spec = TaskSpec.model_validate(data)
    except ValidationError as error:
        raise BadRecord("; ".join(_kindly(item) for item in error.errors())) from None
    reasons += _lacking(spec)
    return Mapped(spec=spec.model_copy(update={"name": slug(spec.name)}), not_runnable=reasons, lacks=lacks, assets=assets)


def _kindly(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        return f"`{where}`: {item['msg']}"
    name = str(item["loc"][-1])
    close = difflib.get_close_matches(name, TaskSpec.model_fields, 1) if len(item["loc"]) == 1 else []
    return f"`{where}` is not a field of a task" + (f"; did you mean `{close[0]}`?" if close else "")


def _lacking(spec: TaskSpec) -> list[str]:
    """Why a well-formed task cannot run."""
    reasons = []
    if spec.kind == "web":
        return ["wants a live site, which is not on this machine", "has no verifier: a judge or an ORM alone can say what came of it"]
    if spec.kind == "page":
        try:
            page_of(spec)
        except ConfigError as error:
            reasons.append(str(error))
        return reasons
    if not spec.goals:
        reasons.append("has no goals, so nothing could verify it")
    kinds = {type(goal) for each in spec.goals for goal in _flat(each)}
    allowed = {"android": {DeviceSays, Answers}}.get(spec.kind)
    if allowed is not None and not kinds <= allowed:
        reasons.append("an android task has goals of the kinds device and answers only")
    if allowed is None and DeviceSays in kinds:
        reasons.append(f"a {spec.kind} task has no device: give goals of files and commands")
    if spec.kind == "desktop" and Answers in kinds:
        reasons.append("a desktop task has no answer that is checked: give goals of files and commands")
    if GivesUp in kinds and (spec.kind != "desktop" or len(spec.goals) > 1 or not isinstance(spec.goals[0], GivesUp)):
        reasons.append("giving up is the only goal of a desktop task, or none")
    if spec.kind == "terminal" and (spec.before_checks or any(step.command is None for step in spec.setup)):
        reasons.append("a terminal task is set up by commands alone")
    if spec.kind != "desktop" and any(_is_shown(goal) for each in spec.goals for goal in _flat(each)):
        reasons.append(f"a {spec.kind} task has no window of a terminal: leave `shown_by` to desktop tasks")
    if Answers in kinds - {type(goal) for goal in spec.goals}:
        reasons.append("an answer stands among the goals themselves, not inside all, any or not")
    home = {"terminal": TERMINAL_HOME, "desktop": DESKTOP_HOME}.get(spec.kind)
    put = [path for step in (*spec.setup, *spec.before_checks) for path in step.put]
    if home is not None and (outside := [path for path in (*spec.files, *spec.assets, *put) if relative(path, home) is None]):
        reasons.append(f"puts {outside[0]} outside of the home folder {home}")
    filled = [GOALS.validate_python(fill(GOALS.dump_python(spec.goals, mode="json"), row)) for row in spec.params or ({},)]
    reasons += dict.fromkeys(f"has a goal that cannot be checked: {fault}" for goals in filled for goal in goals for fault in faults(goal))
    return reasons


def _is_shown(goal: Goal) -> bool:
    return isinstance(goal, Compare) and any(getter is not None and getter.shown_by for getter in (goal.result, goal.expected))


def _flat(goal: Goal) -> list[Goal]:
    """A goal with all that is inside of it."""
    inside = goal.goals if isinstance(goal, Several) else (goal.goal,) if isinstance(goal, Not) else ()
    return [goal, *(each for inner in inside for each in _flat(inner))]
