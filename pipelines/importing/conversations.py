"""Logged calls of models, with tools and pictures, as demonstrations: calls that continue each other are one conversation, each answer in
it a step. How a call is written down is its format's: chat_logs.py, anthropic_logs.py, responses_logs.py, otel_logs.py.

A log repeats the conversation with every call, often without the pictures of earlier turns. So each step is taken from the call that it was
the answer of; steps that no call of the file was logged for come from the conversation that a later call repeats. Two calls belong together
where the second repeats the answers up to the first one's, or names its id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.gateway.records import Called, Said, Shown, arguments_of
from agent.grammars.base import Grammar
from pipelines.importing.computer_calls import ComputerCall, actions_of, says_failed
from pipelines.importing.reading import OnBytes, RawRecord, raw_records
from pipelines.importing.trajectories import DemonstratedStep, Demonstration, Entry, EntryReader, Picture, Pictures, answered_in
from sandbox.actions import Action, CallUser, Finished, ToolCall, Wait
from sandbox.importing.fields import BadRecord, Fields, slug
from sandbox.importing.pyautogui_calls import Hand
from sandbox.importing.reading import NotPlain, check

BLIND_SIZE_PX = (1280, 720)
"""Of the screen that a step without a picture is said to have; nothing is drawn on it."""
MAX_PICTURES = 1000
"""In one call."""
MAX_CONTINUED = 8
"""Conversations of one name that have been continued and can be again, by a second answer to the same call."""
_DATA = re.compile(r"data:image/[\w.+-]+;base64,(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message, and what was thought before it."""

    said: Said
    thinking: str = ""


@dataclass(slots=True, kw_only=True)
class LoggedCall:
    """What was asked, and the answer, where there is one. `display`: width and height of the screen that points are of, where a call says
    it. `ids`: names of this call that a later one continues it by; `continues`: such a name, where a call gives one."""

    turns: list[Turn]
    answer: Turn | None = None
    pictures: dict[str, Picture] = field(default_factory=dict)
    display: tuple[int, int] | None = None
    ids: tuple[str, ...] = ()
    continues: str | None = None
    unknown: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)

    def shown(self, address: Any) -> Shown:
        """A picture of the message, by a data: address. Raises BadRecord."""
        written = _DATA.fullmatch(address) if isinstance(address, str) else None
        if written is None:
            raise BadRecord(f"a picture is {str(address)[:60]!r}: only pictures inside of the log are read, as data:image/…;base64")
        return self.shown_base64(written[1])

    def shown_base64(self, written: Any) -> Shown:
        if not isinstance(written, str):
            raise BadRecord(f"a picture is {type(written).__name__}, expected base64")
        if len(self.pictures) >= MAX_PICTURES:
            raise BadRecord(f"it shows more than {MAX_PICTURES} pictures")
        try:
            picture = Picture(data=base64.b64decode(written, validate=True))
        except (binascii.Error, ValueError):
            raise BadRecord("a picture in it is not base64") from None
        self.pictures[picture.screenshot_id] = picture
        return Shown(screenshot_id=picture.screenshot_id)

    def aside(self, fields: Fields, *names: str) -> None:
        """Fields that are known and that no row keeps: counted by their names."""
        self.lost.update(f"`{fields.dotted(name)}`" for name in dict.fromkeys(names) if fields.any(name) not in (None, [], {}, ""))


CallReader = Callable[[Any, LoggedCall], None]
"""Fills a LoggedCall from a record. Raises BadRecord."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One call of a record that holds several: its place in the record, what is read, and that as text."""

    place: str
    value: Any
    text: str


CallsOf = Callable[[Any], Iterator[Part]]
"""The calls that a record holds. Raises BadRecord."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer, and what was new before it. `picture` is the last one that was shown by then."""

    turn: Turn
    picture: Picture | None
    output: str
    user_text: str
    display: tuple[int, int] | None


@dataclass(slots=True, kw_only=True)
class Conversation:
    """Calls that continue each other, up to one of them."""

    instruction: str
    steps: list[Answered]
    digests: list[str]
    names: list[str]
    unknown: list[str]
    lost: Counter[str]


@dataclass(frozen=True, slots=True)
class _Link:
    """Which call this one continues, and by which names others continue it."""

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Open:
    """A conversation up to the call of `raw`, and the names that later calls continue it by."""

    found: Conversation
    raw: RawRecord
    names: Sequence[str] = ()
    is_continued: bool = False


class _Waiting:
    """Conversations that later calls of the file continue. Several may have one name: runs of a task that began alike."""

    def __init__(self, links: Iterable[_Link]) -> None:
        self._awaited = Counter(name for link in links for name in link.before)
        self._open: dict[str, list[_Open]] = {}

    def before(self, link: _Link, call: LoggedCall) -> _Open | None:
        """What a call continues: of several, the one that it repeats most of, and then the oldest that nothing has continued."""
        found = next((self._open[name] for name in link.before if name in self._open), [])
        if not found:
            return None
        turns = [*call.turns, *([call.answer] if call.answer is not None else [])]
        own = _answered(turns, call, None, None)
        ranks = [(_num_repeated(one.found, own, call), not one.is_continued) for one in found]
        best = max(ranks)
        if best[1] and ranks.count(best) > 1:
            call.lost["a call that could continue any of several: it is taken for the first one's"] += 1
        return found[ranks.index(best)]

    def done(self, link: _Link) -> list[_Open]:
        """The call of this link has been read. Conversations that no call continued, nor can any more."""
        ended: list[_Open] = []
        for name in link.before:
            self._awaited[name] -= 1
            if self._awaited[name] <= 0:
                ended += [one for one in self._open.pop(name, ()) if not one.is_continued]
        return [one for one in ended if not any(name in self._open for name in one.names)]

    def add(self, one: _Open, link: _Link) -> bool:
        """False where no later call can continue it."""
        one.names = [name for name in link.after if self._awaited[name] > 0]
        for name in one.names:
            others = [other for other in self._open.get(name, ()) if other.found.digests != one.found.digests]
            continued = [other for other in others if other.is_continued][-MAX_CONTINUED:]
            self._open[name] = [*continued, *(other for other in others if not other.is_continued), one]
        return bool(one.names)


def _num_repeated(found: Conversation, own: Sequence[Answered], call: LoggedCall) -> int:
    """How much of a conversation a call repeats: pictures, what tools returned, what the user said."""
    shown = sum(step.picture is not None and step.picture.screenshot_id in call.pictures for step in found.steps)
    return shown + sum((step.output == one.output) + (step.user_text == one.user_text) for step, one in zip(found.steps, own, strict=False))


def conversation_entries(read: CallReader, calls_of: CallsOf | None = None) -> Callable[[Grammar | None], EntryReader]:
    """Readers of a format's conversations, as trajectories. With a grammar, texts of answers without a call are actions written in it."""

    def reader(answers: Grammar | None) -> EntryReader:
        def entries(path: Path, pictures: Pictures, on_bytes: OnBytes) -> Iterator[Entry]:
            links = {where: _link(call) for where, _, call, _ in _calls(path, read, calls_of, lambda _: None) if call is not None}
            waiting = _Waiting(links.values())
            for where, raw, call, why in _calls(path, read, calls_of, on_bytes):
                if call is None:
                    yield Entry(where=where, digest=raw.digest, text=raw.text, why_not=why)
                    continue
                before = waiting.before(links[where], call)
                if before is not None:
                    before.is_continued = True
                found = _continued(before.found if before is not None else None, call, raw)
                ended = waiting.done(links[where])
                last = _Open(found=found, raw=replace(raw, value=None))
                if not waiting.add(last, links[where]):
                    ended.append(last)
                yield from (_entry(one.raw, one.found, answers) for one in ended)

        return entries

    return reader


def _calls(
    path: Path, read: CallReader, calls_of: CallsOf | None, on_bytes: OnBytes
) -> Iterator[tuple[str, RawRecord, LoggedCall | None, str]]:
    """(place, record, the call, or why it is none)."""
    for raw in raw_records(path, on_bytes):
        if raw.error:
            yield raw.where, raw, None, raw.error
            continue
        try:
            parts = [raw] if calls_of is None else [_record(raw, part) for part in calls_of(raw.value)]
        except BadRecord as error:
            yield raw.where, raw, None, str(error)
            continue
        for part in parts:
            call = LoggedCall(turns=[])
            try:
                read(part.value, call)
                yield part.where, part, call, ""
            except BadRecord as error:
                yield part.where, part, None, str(error)


def _record(raw: RawRecord, part: Part) -> RawRecord:
    return RawRecord(where=raw.where + part.place, text=part.text, value=part.value)


def _link(call: LoggedCall) -> _Link:
    key = hashlib.sha256(_instruction(call.turns).encode()).hexdigest()[:32]
    answers = [turn.said for turn in call.turns if turn.said.role == "assistant"]
    for said in answers:
        key = said.digest(key)
    before = (f"id {call.continues}",) if call.continues else (key,) if answers else ()
    after = (call.answer.said.digest(key),) if call.answer is not None else ()
    return _Link(before, (*(f"id {name}" for name in call.ids), *after))


def _instruction(turns: Sequence[Turn]) -> str:
    return next((text for turn in turns if turn.said.role == "user" and (text := _texts(turn.said))), "")


def _texts(said: Said) -> str:
    return "\n".join(piece.strip() for piece in said.pieces if isinstance(piece, str) and piece.strip())


def _continued(before: Conversation | None, call: LoggedCall, raw: RawRecord) -> Conversation:
    """The conversation up to this call's answer."""
    turns = [*call.turns, *([call.answer] if call.answer is not None else [])]
    last = before.steps[-1] if before is not None and before.steps else None
    own = _answered(turns, call, last.picture if last else None, last.display if last else None)
    lost = _said_besides(call)
    if before is None:
        steps, digests, instruction = own, [raw.digest], _instruction(call.turns)
    else:
        steps = [*before.steps, *(own if call.continues else own[len(before.steps) :])]
        digests, instruction = [*before.digests, raw.digest], before.instruction
        lost = before.lost + lost if call.continues else before.lost | lost
    known, named = (before.unknown, before.names) if before is not None else ([], [])
    unknown = list(dict.fromkeys([*known, *call.unknown]))
    return Conversation(instruction=instruction, steps=steps, digests=digests, names=[*named, *call.ids], unknown=unknown, lost=lost)


def _answered(turns: Sequence[Turn], call: LoggedCall, picture: Picture | None, display: tuple[int, int] | None) -> list[Answered]:
    found: list[Answered] = []
    output: list[str] = []
    user_texts: list[str] = []
    for turn in turns:
        if turn.said.role == "assistant":
            size = call.display or display
            found.append(Answered(turn=turn, picture=picture, output="\n".join(output), user_text="\n".join(user_texts), display=size))
            output, user_texts = [], []
            continue
        picture = next((call.pictures[name] for name in reversed(turn.said.pictures)), picture)
        if turn.said.role in ("tool", "user") and (text := _texts(turn.said)):
            (output if turn.said.role == "tool" else user_texts).append(text)
    return found


def _said_besides(call: LoggedCall) -> Counter[str]:
    """What a call says that no step does: prompts are made again."""
    lost = Counter(call.lost)
    lost["what the system says"] += sum(bool(_texts(turn.said)) for turn in call.turns if turn.said.role == "system")
    if call.answer is None and not (call.turns and call.turns[-1].said.role == "assistant"):
        lost["a call without an answer"] += 1
    return +lost


def _entry(raw: RawRecord, found: Conversation, answers: Grammar | None) -> Entry:
    digest = hashlib.sha256("".join(found.digests).encode()).hexdigest()[:32] if len(found.digests) > 1 else raw.digest
    entry = Entry(where=raw.where, digest=digest, text=raw.text, unknown=found.unknown, names=tuple(found.names))
    try:
        entry.made = _demonstration(found, answers)
    except BadRecord as error:
        entry.why_not = str(error)
    return entry


def _demonstration(found: Conversation, answers: Grammar | None) -> Demonstration:
    if not found.instruction:
        raise BadRecord("no message of the user says what is to be done")
    if not found.steps:
        raise BadRecord("nothing in it is an answer")
    lost = Counter(found.lost)

    def load() -> list[DemonstratedStep]:
        lost.clear()
        lost.update(found.lost)
        return _steps(found, answers, lost)

    return Demonstration(
        task_id=task_named(found.instruction),
        instruction=found.instruction,
        completed=False if _says_failed(found) else None,
        quality={},
        judged_by="judge",
        load=load,
        lost=lost,
    )


def _says_failed(found: Conversation) -> bool:
    """Whether the agent itself ended the run as a failure."""
    calls = [call for step in found.steps for call in step.turn.said.calls]
    return any(isinstance(values := arguments_of(call), Mapping) and says_failed(call.name, values) for call in calls)


def _steps(found: Conversation, answers: Grammar | None, lost: Counter[str]) -> list[DemonstratedStep]:
    hand, made = Hand(), list[DemonstratedStep]()
    output = ""
    for index, one in enumerate(found.steps):
        output = "\n".join(filter(None, (output, one.output)))
        if index > 0 and one.user_text:
            lost["what the user says after the instruction"] += 1
        thought = "\n".join(filter(None, (one.turn.thinking.strip(), _texts(one.turn.said) if one.turn.said.calls else ""))) or None
        try:
            actions = _actions(one, hand, lost, is_last=index == len(found.steps) - 1)
            if answers is not None and not one.turn.said.calls:
                _, thought, actions = answered_in(answers, _texts(one.turn.said), one.picture, found.instruction)
        except BadRecord as error:
            raise BadRecord(f"answer {index}: {error}") from None
        if not actions:
            if thought is not None:
                lost["thoughts of answers that only look at the screen"] += 1
            continue
        if one.picture is None and any(not isinstance(action, (ToolCall, Finished, CallUser, Wait)) for action in actions):
            raise BadRecord(f"answer {index} acts on a screen before any picture of it")
        size = one.picture.size_px if one.picture is not None else BLIND_SIZE_PX
        made.append(DemonstratedStep(picture=one.picture, size_px=size, actions=tuple(actions), thought=thought, output=output))
        output = ""
    if not made:
        raise BadRecord("no answer in it acts")
    return made


def _actions(one: Answered, hand: Hand, lost: Counter[str], *, is_last: bool) -> list[Action]:
    if not one.turn.said.calls:
        text = _texts(one.turn.said)
        if not text:
            lost["empty answers"] += 1
            return []
        return [Finished(answer=text) if is_last else CallUser(question=text)]
    size_px = one.picture.size_px if one.picture is not None else (0, 0)
    across, down = one.display or size_px
    scale = (size_px[0] / across, size_px[1] / down) if across and down else (1.0, 1.0)
    found: list[Action] = []
    for called in one.turn.said.calls:
        arguments = arguments_of(called)
        if not isinstance(arguments, Mapping):
            raise BadRecord(f"the arguments of {called.name} are {called.arguments[:60]!r}, expected a JSON object")
        try:
            check(arguments)
        except NotPlain as error:
            raise BadRecord(f"the JSON in the arguments of {called.name} {error}") from None
        call = ComputerCall(name=called.name, values=arguments, size_px=size_px, scale=scale, hand=hand, lost=lost)
        found += actions_of(called.name, call)
    return found


def task_named(instruction: str) -> str:
    """The name of the task that an instruction asks for: the same instruction is the same task."""
    return f"{slug(instruction)[:60]}-{hashlib.sha256(instruction.encode()).hexdigest()[:8]}"


def fields_of(value: Any, what: str = "") -> Fields:
    """Fields that say something: libraries write null for what they have nothing to say of. Raises BadRecord."""
    return Fields({name: each for name, each in value.items() if each is not None} if isinstance(value, Mapping) else value, what)


def display_of(tool: Fields, width: str, height: str) -> tuple[int, int]:
    """Pixels of a computer tool's screen, from these fields of it. Raises BadRecord."""
    found = tool.take(width, int), tool.take(height, int)
    if min(found) < 1:
        raise BadRecord(f"the screen of the computer tool is {found[0]}x{found[1]}")
    return found


def called(identity: Any, name: Any, arguments: Any) -> Called:
    """A call of a tool. Raises BadRecord."""
    if not isinstance(name, str) or not name:
        raise BadRecord(f"a call of a tool names {name!r:.60}, expected its name")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return Called(id=str(identity or ""), name=name, arguments=written)


def request_and_response(record: Any, call: LoggedCall) -> tuple[Fields, Any]:
    """Of a record that holds both, or a request alone: {"request": …, "response": …} with or without a `body` in each, as batches have it,
    or the request's own fields beside `response`."""
    fields = fields_of(record)
    response = _body(fields.any("response"))
    request = fields.any("request")
    if request is None:
        return fields, response
    call.ids = tuple(str(name) for name in (fields.any("id"), fields.any("custom_id")) if isinstance(name, str | int))
    call.aside(fields, "error", "timestamp", "started_at", "ended_at", "duration_ms", "metadata")
    call.unknown += fields.unknown()
    return fields_of(_body(request), "request"), response


def _body(value: Any) -> Any:
    return value["body"] if isinstance(value, Mapping) and isinstance(value.get("body"), Mapping) else value
