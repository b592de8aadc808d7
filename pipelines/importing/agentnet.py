"""AgentNet and OpenCUA trajectories (Wang et al. 2025, arXiv 2508.09123): one JSON object a trajectory, its actions as PyAutoGUI code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.importing.reading import OnBytes, raw_records
from pipelines.importing.trajectories import DemonstratedStep, Demonstration, Entry, Importer, Pictures
from sandbox.importing.collection import Collection
from sandbox.importing.fields import BadRecord, Fields
from sandbox.importing.pyautogui_calls import BadCode, Hand
from sandbox.importing.pyautogui_code import parse_code

QUALITY = ("task_completed", "alignment_score", "efficiency_score", "task_difficulty")
ASIDE = ("natural_language_task", "actual_task", "reason", "domain", "domains", "system", "os", "applications", "websites")
STEP_ASIDE = ("observation", "reflection")


def agentnet_entries(path: Path, pictures: Pictures, on_bytes: OnBytes) -> Iterator[Entry]:
    """Satisfies EntryReader."""
    for raw in raw_records(path, on_bytes):
        entry = Entry(where=raw.where, digest=raw.digest, text=raw.text, why_not=raw.error)
        if not raw.error:
            try:
                entry.made = _demonstration(raw.value, pictures, entry.unknown)
            except BadRecord as error:
                entry.why_not = str(error)
        yield entry


AGENTNET = Collection("MIT", "AgentNet, https://huggingface.co/datasets/xlangai/AgentNet")
IMPORTER = Importer(name="agentnet", entries=agentnet_entries, acted_by="human", collection=lambda paths: AGENTNET)


def _demonstration(record: Any, pictures: Pictures, unknown: list[str]) -> Demonstration:
    fields = Fields(record)
    task_id, instruction = fields.take("task_id", str), fields.take("instruction", str)
    trajectory = fields.take("traj", list)
    completed = fields.any("task_completed")
    quality = {name: value for name in QUALITY if (value := fields.any(name)) is not None}
    fields.keep_aside(*ASIDE)
    steps = [_fields_of(step, unknown) for step in trajectory]
    unknown += fields.unknown()
    if not steps:
        raise BadRecord("`traj` is empty")
    if completed is not None and not isinstance(completed, bool):
        raise BadRecord(f"`task_completed` is {completed!r}, expected true or false")
    lost: Counter[str] = Counter()
    return Demonstration(
        task_id=task_id,
        instruction=instruction,
        completed=completed,
        quality=quality,
        judged_by="judge",
        load=_loader(steps, pictures, lost),
        lost=lost,
    )


def _fields_of(step: Any, unknown: list[str]) -> Mapping[str, Any]:
    """What of a step is used; the rest of its names go to `unknown`."""
    fields = Fields(step, "traj[]")
    value = Fields(fields.take("value", dict), "traj[].value")
    is_correct, is_redundant = value.any("last_step_correct"), value.any("last_step_redundant")
    found = {
        "image": fields.take("image", str),
        "code": value.take("code", str),
        "thought": value.take("thought", str, ""),
        "action": value.take("action", str, ""),
        "is_good": is_correct is not False and is_redundant is not True,
    }
    fields.keep_aside("index")
    value.keep_aside(*STEP_ASIDE)
    unknown += [*fields.unknown(), *value.unknown()]
    return found


def _loader(steps: Sequence[Mapping[str, Any]], pictures: Pictures, lost: Counter[str]) -> Callable[[], list[DemonstratedStep]]:
    def load() -> list[DemonstratedStep]:
        hand = Hand()
        return [_step(number, step, pictures, hand, lost) for number, step in enumerate(steps)]

    return load


def _step(number: int, step: Mapping[str, Any], pictures: Pictures, hand: Hand, lost: Counter[str]) -> DemonstratedStep:
    picture = pictures.read(step["image"], f"images/{step['image']}")
    try:
        parsed = parse_code(step["code"], picture.size_px, hand)
    except BadCode as error:
        raise BadRecord(f"step {number}: the code {step['code'][:80]!r} is not understood: {error}") from None
    lost.update(parsed.lost)
    said = [text for text in (step["thought"].strip(), step["action"].strip()) if text]
    thought = said[0] if len(said) == 2 and said[1] in said[0] else "\n".join(said)
    return DemonstratedStep(
        picture=picture, size_px=picture.size_px, actions=parsed.actions, thought=thought or None, is_good=step["is_good"]
    )
