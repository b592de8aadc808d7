"""The schema of a task that is data: what is set up, what is asked, what must hold afterwards. It is what task files of one's own are
written in (docs/importing.md), what every importer maps foreign records onto, and what is stored in a task set.

How goals are checked is goals.py, what runs a task sessions.py, where a set is kept store.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer, model_validator

from sandbox.actions import Action
from warehouse.core.identity import content_id

Kind = Literal["terminal", "desktop", "android", "page", "web"]
"""terminal, desktop and android tasks run in sessions of that kind; a page task is one of an installed source of pages; a web task wants a
live site."""
DEFAULT_STEPS = {"terminal": 20, "desktop": 30, "android": 20, "page": 10, "web": 30}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    LATER: ClassVar[tuple[str, ...]] = ()
    """Fields that are left out where nothing is in them: tasks are split by the hash of their fields, and these came later."""

    @model_serializer(mode="wrap")
    def _without_later(self, as_usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = as_usual(self)
        return {name: value for name, value in fields.items() if value or name not in self.LATER}


class Getter(_Part):
    """Where a goal's value comes from: exactly one of these."""

    command: Annotated[str | tuple[str, ...] | None, Field(description="what a command prints; a text is run by bash")] = None
    errors_of: Annotated[str | tuple[str, ...] | None, Field(description="what a command prints to its standard error")] = None
    file: Annotated[str | None, Field(description="what a file of the episode holds")] = None
    asset: Annotated[str | None, Field(description="what a file of the task set holds, by its digest")] = None
    value: Annotated[Any, Field(description="itself: a text, or the rules of the comparison")] = None
    shown_by: Annotated[Literal["terminal"] | None, Field(description="the text in the window of a desktop's terminal")] = None
    LATER: ClassVar[tuple[str, ...]] = ("shown_by",)

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("command", "errors_of", "file", "asset", "value", "shown_by") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of command, errors_of, file, asset, value and shown_by, not {', '.join(given) or 'none'}")
        return self


class Compare(_Part):
    """A comparison by its name in metrics.py."""

    kind: Literal["compare"] = "compare"
    function: str
    result: Getter
    expected: Getter | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class FileHolds(_Part):
    """A file holds just this text; line ends at its end do not count."""

    kind: Literal["file_holds"]
    path: str
    text: str


class FileContains(_Part):
    """A file holds each of these texts."""

    kind: Literal["file_contains"]
    path: str
    texts: Annotated[tuple[str, ...], Field(min_length=1)]


class PathIs(_Part):
    """What is at a path: a file, a folder, a file that can be executed, or nothing."""

    kind: Literal["file", "folder", "executable", "absent"]
    path: str


class Prints(_Part):
    """A command succeeds and prints this; line ends at the end do not count."""

    kind: Literal["prints"]
    command: str
    text: str


class Answers(_Part):
    """The agent's last words; case, quotes and a full stop do not count."""

    kind: Literal["answers"]
    text: str


class GivesUp(_Part):
    """The task cannot be done, and the agent ends the episode by saying so: its last action is `call_user`."""

    kind: Literal["gives_up"]


class DeviceSays(_Part):
    """A command on an Android device prints this, white space at the ends aside; with `is_part`, among other things."""

    kind: Literal["device"]
    command: str
    expected: str
    is_part: bool = False
    is_negated: bool = False


class Several(_Part):
    """All of these goals hold, or any of them."""

    kind: Literal["all", "any"]
    goals: Annotated[tuple[Goal, ...], Field(min_length=1)]


class Not(_Part):
    kind: Literal["not"]
    goal: Goal


Goal = Annotated[
    Compare | FileHolds | FileContains | PathIs | Prints | Answers | GivesUp | DeviceSays | Several | Not, Field(discriminator="kind")
]
Several.model_rebuild()
Not.model_rebuild()
GOALS: TypeAdapter[tuple[Goal, ...]] = TypeAdapter(tuple[Goal, ...])


class SetupStep(_Part):
    """One thing that is done before an episode begins, or before its goals are checked: one of command, launch, wait, act, window, put."""

    command: Annotated[str | tuple[str, ...] | None, Field(description="run in the home folder; a text is run by bash")] = None
    must_succeed: Annotated[bool, Field(description="a command that fails makes the task unusable")] = True
    launch: Annotated[str | None, Field(description="application of sandbox/desktop/apps.py, waited for")] = None
    files: Annotated[tuple[str, ...], Field(description="files that it opens")] = ()
    wait: Annotated[float | None, Field(gt=0, le=60, description="seconds")] = None
    act: Annotated[tuple[Action, ...], Field(description="keys and text, as an agent would type them")] = ()
    window: Annotated[str | None, Field(description="a part of a window's title, or its class, that is brought up or closed")] = None
    change: Literal["activate", "close"] = "activate"
    put: Annotated[dict[str, str], Field(description="path below the home folder -> digest of a file of the set")] = Field(
        default_factory=dict
    )
    LATER: ClassVar[tuple[str, ...]] = ("put",)

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("command", "launch", "wait", "window") if getattr(self, name) is not None]
        given += [name for name in ("act", "put") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"give one of command, launch, wait, act, window and put, not {', '.join(given) or 'none'}")
        return self


class OracleStep(_Part):
    """One step of a known solution: a shell command, any action, or a click on what has a text."""

    command: str | None = None
    action: Action | None = None
    click_on: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.command, self.action, self.click_on)) != 1:
            raise ValueError("give one of command, action and click_on")
        return self


class TaskSpec(_Part):
    """One task. In texts of a task with `params`, {name} stands for the value of the row that the seed draws."""

    name: Annotated[str, Field(min_length=1, max_length=120, description="unique in its set")]
    kind: Kind
    instruction: Annotated[str, Field(min_length=1)]
    domain: Annotated[str | None, Field(description="which specialist learns it; default: its kind")] = None
    max_steps: Annotated[int | None, Field(ge=1, le=1000, description="default: by kind")] = None
    difficulty: Annotated[float, Field(ge=0, le=1)] = 0.5
    files: Annotated[dict[str, str], Field(description="text files below the home folder, by path")] = Field(default_factory=dict)
    assets: Annotated[dict[str, str], Field(description="path below the home folder -> digest of a file of the set")] = Field(
        default_factory=dict
    )
    folders: tuple[str, ...] = ()
    setup: tuple[SetupStep, ...] = ()
    before_checks: Annotated[tuple[SetupStep, ...], Field(description="done once more at the end, before the goals are checked")] = ()
    packages: Annotated[tuple[str, ...], Field(description="Android apps whose data is cleared before an episode")] = ()
    device_setup: Annotated[tuple[str, ...], Field(description="commands on the Android device")] = ()
    params: tuple[dict[str, str], ...] = ()
    goals: tuple[Goal, ...] = ()
    oracle: Annotated[tuple[OracleStep, ...], Field(description="a solution, to prove that the task can be solved")] = ()
    page: Annotated[str | None, Field(description="of a page task: its source and name, e.g. miniwob/click-button")] = None
    website: Annotated[str | None, Field(description="of a web task: where it begins")] = None
    reference_length: Annotated[int | None, Field(ge=0, description="steps that a person took")] = None
    source: Annotated[str, Field(description="where the task is from, and under which licence")] = ""

    @property
    def spec_id(self) -> str:
        """Hash of all that follows; a changed task is another one."""
        return content_id("spec", self.model_dump(mode="json"))

    @property
    def content_id(self) -> str:
        """Hash of what is asked and checked, whatever the task is called."""
        return content_id("instance", self.model_dump(mode="json", exclude={"name", "source", "domain", "difficulty", "max_steps"}))

    @property
    def steps(self) -> int:
        return self.max_steps or DEFAULT_STEPS[self.kind]


def fill(value: Any, row: Mapping[str, str]) -> Any:
    """A value with each {name} of a row's parameters filled in, wherever a text stands: other braces stay as they are."""
    if isinstance(value, str):
        for name, text in row.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, dict):
        return {fill(name, row): fill(item, row) for name, item in value.items()}
    return [fill(item, row) for item in value] if isinstance(value, list) else value


Lack = Literal["files", "packages"]
"""What a task would run with that does not run: files given with --assets, or Debian packages that are not installed."""


class ImportedTask(_Part):
    """One line of a task set: the task, whether it runs here and why not, and what of the record was not understood."""

    spec: TaskSpec
    held_out: Annotated[bool, Field(description="never trained on")] = False
    not_runnable: Annotated[tuple[str, ...], Field(description="reasons; none where it runs")] = ()
    lacks: Annotated[dict[str, Lack], Field(description="of those reasons that go away once something is given, what")] = {}
    notes: Annotated[tuple[str, ...], Field(description="what was mapped with a loss")] = ()
    unknown_fields: tuple[str, ...] = ()
    record: Annotated[str, Field(description="digest of the record that it came from, in records.jsonl")]
    where: Annotated[str, Field(description="file:line of the record")]

    @property
    def is_runnable(self) -> bool:
        return not self.not_runnable
