"""From files to a task set: every record of every file is mapped, named, given its split, and counted. Nothing is written here.

What a record cannot be mapped to is said with the task; what is not a record of the format at all is kept too, without a task.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sandbox.importing.collection import Collection
from sandbox.importing.fields import BadRecord
from sandbox.importing.reading import NotPlain, check, parse_json, yaml_records
from sandbox.tasks.imported.android_world import map_android_world
from sandbox.tasks.imported.lists import map_mind2web, map_miniwob, map_plain
from sandbox.tasks.imported.mapping import Files, Mapped
from sandbox.tasks.imported.osworld import map_osworld
from sandbox.tasks.imported.spec import ImportedTask, Lack
from sandbox.tasks.imported.store import Record
from warehouse.core.errors import ConfigError
from warehouse.core.identity import stable_fraction

TRAINED_ON = 0.8
"""Share of the tasks of an import that are trained on."""
SUFFIXES = (".json", ".jsonl", ".yaml", ".yml", ".txt")
Mapper = Callable[[Any, Files], Mapped]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFormat:
    """`is_one_record`: a JSON file is one task, not a list of them."""

    mapper: Mapper
    meaning: str
    is_one_record: bool = False
    collection: Collection | None = None
    """The public collection that a list of this format is of; none where other collections share the format."""


MINIWOB = Collection("MIT", "MiniWoB++, https://github.com/Farama-Foundation/miniwob-plusplus")
TASK_FORMATS: Mapping[str, TaskFormat] = {
    "plain": TaskFormat(mapper=map_plain, meaning="our own schema, as JSON lines or YAML"),
    "osworld": TaskFormat(mapper=map_osworld, meaning="OSWorld's examples, one JSON file a task", is_one_record=True),
    "android-world": TaskFormat(mapper=map_android_world, meaning="AndroidWorld-style templates with parameters and checks"),
    "mind2web": TaskFormat(mapper=map_mind2web, meaning="Mind2Web and Online-Mind2Web task lists"),
    "miniwob": TaskFormat(mapper=map_miniwob, meaning="names of MiniWoB++ environments, one a line, or JSON", collection=MINIWOB),
}


@dataclass(slots=True, kw_only=True)
class Collected:
    """What became of the files' records."""

    tasks: list[ImportedTask] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    assets: dict[str, bytes] = field(default_factory=dict)
    malformed: list[tuple[str, str]] = field(default_factory=list)
    """(file:line, why)."""
    num_duplicates: int = 0
    unknown_fields: Counter[str] = field(default_factory=Counter)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for task in self.tasks for reason in task.not_runnable)

    @property
    def notes(self) -> Counter[str]:
        return Counter(note for task in self.tasks for note in task.notes)

    @property
    def num_runnable(self) -> int:
        return sum(task.is_runnable for task in self.tasks)

    def num_lacking(self, *what: Lack) -> int:
        """How many tasks would run once they were given this, and all of it."""
        return sum({task.lacks.get(reason) for reason in task.not_runnable} == set(what) for task in self.tasks)


def collect(
    format: str,
    paths: Sequence[Path],
    *,
    assets: Sequence[Path] = (),
    held_out: bool = False,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Map the records of these files; of a folder, of every .json, .jsonl, .yaml and .txt file in it. `on_record(done, total)` counts
    files. Raises ConfigError for an unknown format, and for a file that is not there or cannot be read."""
    if format not in TASK_FORMATS:
        raise ConfigError(f"no task format {format!r}: the formats are {', '.join(TASK_FORMATS)}")
    found = Collected()
    names: Counter[str] = Counter()
    contents: set[str] = set()
    files = _files(paths)
    for number, path in enumerate(files, start=1):
        around = Files(*assets, path.parent)
        for where, record in records_of(path, TASK_FORMATS[format]):
            _add(found, format, where, record, around, held_out, names, contents)
        on_record(number, len(files))
    return found


def _add(
    found: Collected, format: str, where: str, record: Any, files: Files, held_out: bool, names: Counter[str], contents: set[str]
) -> None:
    digest = hashlib.sha256(json.dumps(record, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()[:32]
    data = record.text if isinstance(record, Unreadable) else record
    if digest not in found.digests:
        found.digests.add(digest)
        found.records.append(Record(digest=digest, where=where, data=data))
    if isinstance(record, Unreadable):
        found.malformed.append((where, record.reason))
        return
    try:
        mapped = TASK_FORMATS[format].mapper(record, files)
    except BadRecord as error:
        found.malformed.append((where, str(error)))
        return
    except ValidationError as error:  # a value that no check of the format's own looked at
        problem = error.errors()[0]
        found.malformed.append((where, f"`{'.'.join(map(str, problem['loc']))}`: {problem['msg']}"))
        return
    spec = mapped.spec
    if spec.content_id in contents:
        found.num_duplicates += 1
        return
    contents.add(spec.content_id)
    names[spec.name] += 1
    if names[spec.name] > 1:
        spec = spec.model_copy(update={"name": f"{spec.name}-{names[spec.name]}"})
    found.unknown_fields.update(mapped.unknown)
    found.assets |= mapped.assets
    fraction = stable_fraction("imported", spec.content_id)
    found.tasks.append(
        ImportedTask(
            spec=spec,
            held_out=held_out or fraction >= TRAINED_ON,
            not_runnable=tuple(dict.fromkeys(mapped.not_runnable)),
            lacks=mapped.lacks,
            notes=tuple(mapped.notes),
            unknown_fields=tuple(dict.fromkeys(mapped.unknown)),
            record=digest,
            where=where,
        )
    )


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is not a record at all."""

    text: str
    reason: str


def records_of(path: Path, format: TaskFormat) -> Iterator[tuple[str, Any]]:
    """(file:line, record) for each record of a file, Unreadable for what is none. Raises ConfigError for a file that cannot be opened."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if path.suffix in (".jsonl", ".txt"):
        yield from _lines(path, data)
        return
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield path.name, Unreadable(data.decode(errors="replace"), f"is not UTF-8: {error}")
        return
    yield from (_yaml if path.suffix in (".yaml", ".yml") else _json)(path, text, format)


def _lines(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        where = f"{path.name}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            yield where, Unreadable(line.decode(errors="replace"), f"is not UTF-8: {error}")
            continue
        if path.suffix == ".jsonl" and text.strip():
            yield where, _line(text)
        elif text.strip() and not text.lstrip().startswith("#"):
            yield where, text.strip()


def _line(line: str) -> Any:
    try:
        return parse_json(line)
    except NotPlain as error:
        return Unreadable(line, str(error))


def _yaml(path: Path, text: str, format: TaskFormat) -> Iterator[tuple[str, Any]]:
    try:
        for line, source, record in yaml_records(text, is_one_record=format.is_one_record):
            yield f"{path.name}:{line}", Unreadable(source, str(record)) if isinstance(record, NotPlain) else record
    except NotPlain as error:
        yield path.name, Unreadable(text, str(error))


def _json(path: Path, text: str, format: TaskFormat) -> Iterator[tuple[str, Any]]:
    """Records of one JSON document: a list, an object with `tasks`, or a single task."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield path.name, Unreadable(text, f"is not JSON: {'it is nested too deeply' if isinstance(error, RecursionError) else error}")
        return
    if isinstance(parsed, Mapping) and isinstance(parsed.get("tasks"), list) and not format.is_one_record:
        parsed = parsed["tasks"]
    if not isinstance(parsed, list):
        parsed = [parsed]
    for number, record in enumerate(parsed, start=1):
        where = f"{path.name}#{number}" if len(parsed) > 1 else path.name
        try:
            check(record)
        except NotPlain as error:
            yield where, Unreadable(text if len(parsed) == 1 else "", str(error))
        else:
            yield where, record


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES and each.is_file())
            if not inside:
                raise ConfigError(f"the folder {path} holds no .json, .jsonl, .yaml or .txt file")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ConfigError(f"there is no file or folder {path}")
    return found
