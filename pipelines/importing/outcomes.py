"""Whether the task of an imported record was carried out, looked up where `--outcome` says:

    field:PATH[=VALUE]    a field of the record, by its path (history/-1/result/-1/success), compared with a value by =, !=, <, <=, > or >=
    thumbs:PATH           a field with thumbs: up or down, 1 or -1, true or false
    thumbs:FILE           a CSV file or JSON lines of `id` and `thumb`; ids are those that records give themselves, or file and line
    orm:CHECKPOINT[@0.9]  the outcome reward model of this checkpoint, and the score that passes
    judge:NAME[@0.9]      a judge of your own (docs/plugins.md)
    person                people's verdict on it, by `flywheel verdict`

What it says goes before what the record says of itself. Where it says nothing, nothing is known.
"""

from __future__ import annotations

import asyncio
import csv
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from agent.judging.prompt import read_record
from pipelines.importing.reading import raw_records
from pipelines.importing.rows import Row, Rows
from pipelines.importing.trajectories import Demonstration, Entry
from sandbox.importing.fields import BadRecord
from warehouse.core.errors import ConfigError, ModelError
from warehouse.storage.tables import Warehouse

THRESHOLD = 0.9
"""Of a judge that may err, where none is given: what passes by mistake is learned."""
UP = ("up", "+1", "1", "true", "yes", "good", "like", "positive", "👍")
DOWN = ("down", "-1", "0", "false", "no", "bad", "dislike", "negative", "👎")
COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_RULE = re.compile(r"(?P<path>[^=<>!]+)(?:(?P<how>!=|<=|>=|=|<|>)(?P<value>.*))?", re.DOTALL)
_JUDGE = re.compile(r"(?P<name>.+?)(?:@(?P<threshold>[0-9.]+))?")
FORMS = "field:PATH, field:PATH=VALUE, thumbs:PATH, thumbs:FILE, orm:CHECKPOINT, judge:NAME or person"
Stored = Callable[[], Rows]
"""The rows that the record would be."""


class Outcomes(Protocol):
    """What one `--outcome` says of a record: a row of `verdicts` in part (`passed`, `origin` and what else is known), or None. Raises
    BadRecord for what cannot be understood: a failure must not be learned as a success."""

    def __call__(self, entry: Entry, episode_id: str, rows: Stored) -> Row | None: ...


def with_outcome(made: Demonstration, ask: Callable[[], Row | None]) -> Demonstration:
    """The demonstration with its outcome. Raises BadRecord."""
    lost = Counter(made.lost)
    said = ask()
    made.lost.clear()  # a judge has had it loaded, and it will be loaded once more
    made.lost.update(lost)
    if said is None:
        return replace(made, completed=None)
    return replace(made, completed=said["passed"], judged_by=said["origin"], verdict=said)


def outcomes_of(spec: str, warehouse: Warehouse, stack: ExitStack) -> Outcomes:
    """Raises ConfigError for what is none of FORMS. `stack` closes a model that is opened."""
    kind, _, rest = spec.partition(":")
    if kind == "person" and not rest:
        return _People(warehouse)
    if not rest or kind not in ("field", "thumbs", "orm", "judge"):
        raise ConfigError(f"--outcome is {spec!r}; it can be {FORMS}")
    if kind == "thumbs":
        path = Path(rest)
        return _ThumbsOfFile(_thumbs(path), spec) if path.suffix in (".csv", ".jsonl", ".json") else _ThumbsOfField(rest)
    if kind == "field":
        matched = _RULE.fullmatch(rest)
        if matched is None:
            raise ConfigError(f"--outcome is {spec!r}; a rule is field:PATH, or field:PATH=VALUE with one of {', '.join(COMPARED)}")
        return _Rule(matched["path"].strip(), matched["how"], matched["value"])
    return _judge(kind, rest, spec, warehouse, stack)


def _value_at(entry: Entry, path: str) -> Any:
    """What stands at a path of names and numbers; None where it leads nowhere."""
    value = json.loads(entry.text)
    for part in path.split("/"):
        if isinstance(value, list) and re.fullmatch(r"-?\d{1,9}", part):
            value = value[int(part)] if -len(value) <= int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True, slots=True)
class _Rule:
    path: str
    how: str | None
    written: str | None

    def __call__(self, entry: Entry, episode_id: str, rows: Stored) -> Row | None:
        value = _value_at(entry, self.path)
        if value is None:
            return None
        passed = self._passed(value)
        reason = f"{self.path}{self.how or ''}{self.written or ''} is {str(passed).lower()}"  # not the value: it may be personal data
        return {"passed": passed, "origin": "verifier", "score": float(passed), "reasons": [reason]}

    def _passed(self, value: Any) -> bool:
        if self.how is None:
            if not isinstance(value, bool):
                raise BadRecord(f"`{self.path}` is {value!r:.60}, expected true or false, as --outcome compares it with nothing")
            return value
        wanted = self._wanted(value)
        kinds = {_kind(value), _kind(wanted)}
        if len(kinds) > 1 or (self.how not in ("=", "!=") and kinds != {"number"}):
            needed = "a value of the same type is" if self.how in ("=", "!=") else "numbers are"
            raise BadRecord(f"`{self.path}` is {value!r:.60}, which {self.how} {wanted!r:.60} does not compare: {needed} needed")
        return COMPARED[self.how](value, wanted)

    def _wanted(self, value: Any) -> Any:
        """A text is compared with a text: 200 with "200" as with 200."""
        wanted = _parsed(self.written or "")
        return self.written if isinstance(value, str) and not isinstance(wanted, str) else wanted


def _kind(value: Any) -> str:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def _parsed(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written


def _thumb(value: Any, where: str) -> bool | None:
    """Raises BadRecord for what is neither up nor down."""
    if value is None or value == "":
        return None
    word = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip().lower()
    if word not in (*UP, *DOWN):
        raise BadRecord(f"{where} is {value!r:.60}; a thumb is one of {', '.join((*UP, *DOWN))}")
    return word in UP


def _by_person(is_up: bool | None, reason: str) -> Row | None:
    return None if is_up is None else {"passed": is_up, "origin": "human", "score": float(is_up), "reasons": [reason]}


@dataclass(frozen=True, slots=True)
class _ThumbsOfField:
    path: str

    def __call__(self, entry: Entry, episode_id: str, rows: Stored) -> Row | None:
        is_up = _thumb(_value_at(entry, self.path), f"`{self.path}`")
        return _by_person(is_up, f"thumbs {'up' if is_up else 'down'}")


@dataclass(frozen=True, slots=True)
class _ThumbsOfFile:
    """Of a record with several thumbs, one down counts."""

    thumbs: Mapping[str, bool]
    spec: str

    def __call__(self, entry: Entry, episode_id: str, rows: Stored) -> Row | None:
        task = (entry.made.task_id,) if isinstance(entry.made, Demonstration) else ()
        said = [self.thumbs[name] for name in (*entry.names, *task, entry.where, episode_id) if name in self.thumbs]
        is_up = all(said) if said else None
        return _by_person(is_up, f"thumbs {'up' if is_up else 'down'}")


def _thumbs(path: Path) -> dict[str, bool]:
    """Raises ConfigError for a file that does not hold ids and thumbs."""
    found: dict[str, bool] = {}
    try:
        for where, row in _rows_of(path):
            is_up = _thumb(row.get("thumb"), f"{where}: `thumb`")
            if row.get("id") in (None, "") or "thumb" not in row:
                raise BadRecord(f"{where} has no `id` or no `thumb`")
            if is_up is not None:
                found[str(row["id"])] = found.get(str(row["id"]), True) and is_up
    except (BadRecord, OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"the thumbs of {path} cannot be read: {error}") from None
    return found


def _rows_of(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [(f"line {number}", row) for number, row in enumerate(csv.DictReader(file), start=2)]
    found = []
    for raw in raw_records(path, lambda _: None):
        if raw.error or not isinstance(raw.value, Mapping):
            raise BadRecord(f"{raw.where} {raw.error or 'is not an object with `id` and `thumb`'}")
        found.append((raw.where, raw.value))
    return found


class _People:
    """The newest word of a person on the episode counts."""

    def __init__(self, warehouse: Warehouse) -> None:
        said = warehouse.read("verdicts").to_pylist()
        by_age = sorted((row for row in said if row["origin"] == "human" and row["judge"] == "human"), key=lambda row: row["judge_version"])
        self._said = {row["episode_id"]: row for row in by_age}

    def __call__(self, entry: Entry, episode_id: str, rows: Stored) -> Row | None:
        row = self._said.get(episode_id)
        return None if row is None else {"passed": row["passed"], "origin": "human", "score": row["score"], "reasons": row["reasons"]}


def _judge(kind: str, rest: str, spec: str, warehouse: Warehouse, stack: ExitStack) -> Outcomes:
    from agent.judging.prompt import JudgePromptConfig
    from assets.settings.verdicts import OrmSettings
    from models.engine.choice import EngineChoice
    from models.judges.judge import Case, Judge
    from models.judges.own import OwnJudge
    from models.judges.registry import JUDGES
    from pipelines.stages.judge import open_orm
    from warehouse.lineage import registry

    matched = _JUDGE.fullmatch(rest)
    threshold = float(matched["threshold"] or THRESHOLD) if matched is not None and _is_number(matched["threshold"]) else 2.0
    if matched is None or not 0 < threshold <= 1:
        raise ConfigError(f"--outcome is {spec!r}; it is {kind}:NAME, or {kind}:NAME@THRESHOLD with a score above 0 and up to 1")
    name = matched["name"]
    judge: Judge
    if kind == "orm":
        folder = registry.find(warehouse, name).folder
        judge = open_orm(folder, EngineChoice(), OrmSettings(), JudgePromptConfig().builder("chat"), stack)
    elif name in JUDGES:
        judge = OwnJudge(name, JUDGES[name])
    else:
        raise ConfigError(
            f"there is no judge {name!r}; yours are {', '.join(JUDGES) or 'none'}: name one in FLYWHEEL_JUDGES (docs/plugins.md)"
        )

    def outcome(entry: Entry, episode_id: str, rows: Stored) -> Row | None:
        made = rows().of
        images = {row["screenshot_id"]: row["data"] for row in made.get("screenshots", ())}
        record = replace(read_record(made["episodes"][0], made["steps"]), is_cut_off=False)  # logs record no limit; it ended
        try:
            (said,) = asyncio.run(judge.judge([Case(record=record, images=images)]))
        except ModelError as error:
            if error.is_retryable:
                raise
            raise BadRecord(str(error)) from error
        passed = said.score >= threshold
        about = {"judge": judge.name, "judge_version": judge.version, "origin": judge.origin, "threshold": threshold}
        costs = {"cost_tokens": said.cost_tokens, "cost_ms": said.cost_ms}
        return {"passed": passed, "score": said.score, "reasons": list(said.reasons), **about, **costs}

    return outcome


def _is_number(written: str | None) -> bool:
    return written is None or re.fullmatch(r"\d*\.?\d+", written) is not None
