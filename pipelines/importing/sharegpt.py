"""ShareGPT-style chats with pictures: kept as they are, so that what `flywheel export --format sharegpt` wrote comes back equal; or, where
their answers are actions of a known grammar, as trajectories whose prompts are then our own.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.grammars.base import Grammar
from pipelines.importing.reading import OnBytes, raw_records
from pipelines.importing.trajectories import (
    Chat,
    DemonstratedStep,
    Demonstration,
    Entry,
    EntryReader,
    Importer,
    Picture,
    Pictures,
    answered_in,
)
from sandbox.importing.fields import BadRecord, Fields
from warehouse.datasets.chat_formats import IMAGE_TOKEN, SHAREGPT_NAMES, VERDICTS
from warehouse.storage.catalogue import SAMPLE_ORIGINS

ROLES = {name: role for role, name in SHAREGPT_NAMES.items()} | {
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
_OURS = re.compile(r"sample-[0-9a-f]{16}")
_INSTRUCTION = re.compile(r"(?:^|\n)(?:## User Instruction|## Task|Task:|Instruction:)[ \t]*\n?(?P<text>.+)\Z", re.DOTALL)
_DATA = re.compile(r"data:image/[\w.+-]+;base64,(.+)", re.DOTALL)


def chat_entries(answers: Grammar | None) -> EntryReader:
    """With a grammar, chats are read as trajectories of answers in it."""

    def entries(path: Path, pictures: Pictures, on_bytes: OnBytes) -> Iterator[Entry]:
        for raw in raw_records(path, on_bytes):
            entry = Entry(where=raw.where, digest=raw.digest, text=raw.text, why_not=raw.error)
            if not raw.error:
                try:
                    entry.made = _made(raw.value, pictures, answers, entry, raw.digest)
                except BadRecord as error:
                    entry.why_not = str(error)
            yield entry

    return entries


IMPORTER = Importer(name="sharegpt", entries=chat_entries(None), answers=chat_entries)


def _made(record: Any, pictures: Pictures, answers: Grammar | None, entry: Entry, digest: str) -> Chat | Demonstration:
    fields = Fields(record)
    sample_id = fields.any("id")
    is_ours = isinstance(sample_id, str) and _OURS.fullmatch(sample_id) is not None
    turns = [turn_of(turn, "conversations", entry.unknown) for turn in fields.take("conversations", list)]
    system = fields.take("system", str, "")
    if system.strip():
        turns.insert(0, ("system", system, 0.0))
    shown = fields.any("images", "image")
    names = shown if isinstance(shown, list) else [] if shown is None else [shown]
    messages, places = _messages(turns, len(names), is_ours=is_ours)
    labels = _labels(fields)
    entry.unknown += fields.unknown()
    load = _pictures(names, pictures)
    if answers is not None:
        return _trajectory(str(sample_id or digest[:16]), messages, places, load, answers, labels)

    def named() -> Sequence[Picture]:
        found = load()
        for place, picture in zip(places, found, strict=True):
            messages[place]["screenshot_id"] = picture.screenshot_id
        return found

    return Chat(
        messages=messages,
        pictures=named,
        sample_id=str(sample_id) if is_ours else None,
        origin=labels.origin,
        domain=labels.domain,
        verdict=labels.verdict,
    )


PROVENANCE = ("source", "licence")
"""What an export of ours says of each sample; an import says it once for all (licences.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """What a record says of itself, as an export of ours does; None where it says nothing."""

    origin: str | None
    domain: str | None
    verdict: bool | None


def _labels(fields: Fields) -> _Labels:
    """Raises BadRecord for a value that is not allowed: a failure that is not understood must not be learned as a success."""
    fields.keep_aside(*PROVENANCE)
    origin, domain, verdict = fields.any("origin"), fields.any("domain"), fields.any("verdict")
    if origin is not None and origin not in SAMPLE_ORIGINS:
        raise BadRecord(f"`origin` is {origin!r}; known are {', '.join(SAMPLE_ORIGINS)}")
    if domain is not None and (not isinstance(domain, str) or not domain.strip()):
        raise BadRecord(f"`domain` is {domain!r}, expected a name")
    if verdict is not None and not isinstance(verdict, bool):
        words = {word: known for known, word in VERDICTS.items()}
        if not isinstance(verdict, str) or verdict not in words:
            raise BadRecord(f"`verdict` is {verdict!r}, expected {', '.join(words)}, true, false or null")
        verdict = words[verdict]
    return _Labels(origin=origin, domain=domain, verdict=verdict)


def turn_of(turn: Any, listed: str, unknown: list[str]) -> tuple[str, str, float | None]:
    """Role, text, and the loss weight where there is one, of a turn in the list of that name. Raises BadRecord."""
    fields = Fields(turn, f"{listed}[]")
    said_by = fields.any("from", "role")
    role = ROLES.get(str(said_by))
    if role is None:
        raise BadRecord(f"a turn is from {said_by!r}; known are {', '.join(ROLES)}")
    text = fields.any("value", "content")
    if not isinstance(text, str):
        raise BadRecord("a turn has no text as `value`")
    weight = fields.any("weight")
    if weight is not None and (not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 <= weight < math.inf):
        raise BadRecord(f"the weight of a turn is {weight!r}, expected a finite number of at least 0")
    unknown += fields.unknown()
    return role, text, None if weight is None else float(weight)


def _messages(turns: Sequence[tuple[str, str, float | None]], num_images: int, *, is_ours: bool) -> tuple[list[dict[str, Any]], list[int]]:
    """Messages, each with one picture at most, and which of them show one. What we wrote ourselves keeps every space."""
    messages: list[dict[str, Any]] = []
    places: list[int] = []
    for role, text, weight in turns:
        loss = (1.0 if role == "assistant" else 0.0) if weight is None else weight
        if is_ours:
            parts = [text.removeprefix(IMAGE_TOKEN)]
            num_shown = 1 if len(places) < num_images and text.startswith(IMAGE_TOKEN) else 0
            parts = parts if num_shown else [text]
        else:
            num_shown = text.count(IMAGE_TOKEN)
            parts = [""] * (num_shown - 1) + [text.replace(IMAGE_TOKEN, "").strip()]
        for index, part in enumerate(parts):
            if index < num_shown:
                places.append(len(messages))
            messages.append({"role": role, "content": part, "screenshot_id": None, "loss": loss})
    if len(places) != num_images:
        raise BadRecord(f"it shows {len(places)} pictures ({IMAGE_TOKEN}) and names {num_images}")
    if not messages or not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise BadRecord("nothing in it is an answer")
    return messages, places


def _pictures(names: Sequence[Any], pictures: Pictures) -> Callable[[], list[Picture]]:
    def load() -> list[Picture]:
        return [_picture(name, pictures) for name in names]

    return load


def _picture(name: Any, pictures: Pictures) -> Picture:
    if not isinstance(name, str):
        raise BadRecord(f"an image is {type(name).__name__}, expected a path or a data: address")
    if (written := _DATA.fullmatch(name)) is not None:
        try:
            return Picture(data=base64.b64decode(written[1], validate=True))
        except binascii.Error:
            raise BadRecord("an image in it is not base64") from None
    return pictures.read(name)


def _trajectory(
    task_id: str,
    messages: Sequence[Mapping[str, Any]],
    places: Sequence[int],
    load: Callable[[], list[Picture]],
    answers: Grammar,
    labels: _Labels,
) -> Demonstration:
    asked = next((message["content"] for message in messages if message["role"] == "user" and message["content"].strip()), "")
    found = _INSTRUCTION.search(asked)
    instruction = (found["text"] if found else asked).strip()
    if not instruction:
        raise BadRecord("no turn of the user says what is to be done")

    def steps() -> list[DemonstratedStep]:
        shown = dict(zip(places, load(), strict=True))
        made: list[DemonstratedStep] = []
        picture: Picture | None = None
        for index, message in enumerate(messages):
            picture = shown.get(index, picture)
            if message["role"] == "assistant":
                made.append(_step(len(made), message["content"], picture, answers, instruction, is_good=message["loss"] > 0))
        return made

    return Demonstration(
        task_id=task_id,
        instruction=instruction,
        completed=labels.verdict,
        quality={},
        judged_by="judge",
        load=steps,
        lost=_left_out(messages, asked, instruction, labels),
        domain=labels.domain,
    )


def _left_out(messages: Sequence[Mapping[str, Any]], asked: str, instruction: str, labels: _Labels) -> Counter[str]:
    """What a trajectory does not keep of a chat, since its prompts are made again: texts but for the instruction's, weights, the origin."""
    lost = Counter(
        f"what the {message['role']} says"
        for message in messages
        if message["role"] != "assistant" and message["content"].strip() and message["content"] != asked
    )
    lost["`weight` of an answer, but for whether it is learned"] = sum(
        message["role"] == "assistant" and message["loss"] not in (0.0, 1.0) for message in messages
    )
    lost["`weight` of what is not an answer"] = sum(message["role"] != "assistant" and message["loss"] > 0 for message in messages)
    lost["what stands before the instruction"] = int(asked.strip() != instruction)
    lost["`origin`"] = int(labels.origin is not None)
    return +lost


def _step(number: int, answer: str, picture: Picture | None, answers: Grammar, instruction: str, *, is_good: bool) -> DemonstratedStep:
    try:
        seen, thought, actions = answered_in(answers, answer, picture, instruction)
    except BadRecord as error:
        raise BadRecord(f"answer {number} {error}") from None
    return DemonstratedStep(picture=seen, size_px=seen.size_px, actions=tuple(actions), thought=thought, is_good=is_good)
