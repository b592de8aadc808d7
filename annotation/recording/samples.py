"""From recordings to samples for continual training: rows of `ct_samples` in the layout that policies are asked in (agent/prompt.py), one a
step: the prompt as it would have been asked, and what the person thought and did. Expert and novice recordings are told apart by domain.

Which recordings may become samples (reviewed twice, not withdrawn) is the annotation server's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.grammars.base import NotRepresentable
from agent.memory import Memory
from agent.prompt import PromptBuilder
from annotation.recording.bundle import Manifest, RecordedAction, Screen, ScreenElement, Track
from sandbox.actions import Action, Click, Finished
from sandbox.session import Element, Observation
from warehouse.samples import sample_row

ORIGIN = "recording"
DOMAINS: dict[Track, str] = {"expert": "recorded-expert", "novice": "recorded-novice"}
"""What the column `domain` says of a recording's samples, so that a mixture can give each track its share."""
ReadScreen = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSamples:
    """Rows of `ct_samples`, the screens that their messages name, and why steps gave none (reason: how often)."""

    rows: list[dict[str, Any]]
    screen_ids: frozenset[str]
    left_out: dict[str, int] = field(default_factory=dict)


def samples_of(
    manifest: Manifest, read_screen: ReadScreen, builder: PromptBuilder, *, query: str | None = None, prompt_loss: float = 1.0
) -> RecordingSamples:
    """Samples of one recording. `read_screen` gives a picture's bytes by its id, None where it is gone; `query` is another wording of the
    task than the recording's own.

    A step without a picture, with something taken out of its text, or that the grammar cannot write gives no sample and is not part of the
    history of later ones. A recording that its person calls done ends with a step that says so.
    """
    instruction = query or manifest.task.query
    memory = builder.start(instruction)
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for action, screen, thought in _steps(manifest):
        observation = None if screen is None else observation_of(screen, read_screen(screen.screen_id), instruction)
        if observation is None or (builder.shows_screens and observation.screenshot is None):
            left_out["no picture"] += 1
            continue
        if isinstance(action, RecordedAction) and action.hidden:
            left_out["private text"] += 1
            continue
        done = action.action if isinstance(action, RecordedAction) else action
        if builder.grammar.layout == "elements" and isinstance(action, RecordedAction):
            done = at_element(action)
        try:
            response = builder.grammar.format(thought, done, observation)
        except NotRepresentable:
            left_out["not in the grammar"] += 1
            continue
        row, memory = _sample(builder, memory, observation, response, manifest.track, prompt_loss)
        rows.append(row)
    screens = {message["screenshot_id"] for row in rows for message in row["messages"] if message["screenshot_id"]}
    return RecordingSamples(rows=rows, screen_ids=frozenset(screens), left_out=dict(left_out))


def _steps(manifest: Manifest) -> list[tuple[RecordedAction | Action, Screen | None, str | None]]:
    screens = {screen.screen_id: screen for screen in manifest.screens}
    steps: list[tuple[RecordedAction | Action, Screen | None, str | None]] = [
        (action, screens.get(action.screen_id or ""), action.thought.text if action.thought and action.thought.text else None)
        for action in manifest.actions
    ]
    if manifest.result == "done" and manifest.last_screen_id is not None:
        steps.append((Finished(), screens[manifest.last_screen_id], None))
    return steps


def _sample(
    builder: PromptBuilder, memory: Memory, observation: Observation, response: str, track: Track, prompt_loss: float
) -> tuple[dict[str, Any], Memory]:
    messages = builder.build(memory, observation)
    row = sample_row("ct", origin=ORIGIN, domain=DOMAINS[track], messages=messages, response=response, prompt_loss=prompt_loss)
    return row, builder.remember(memory, observation, response, builder.grammar.parse(response, observation))


def observation_of(screen: Screen, png: bytes | None, instruction: str) -> Observation:
    """What an agent would have seen: the recorded picture and elements, each to be clicked in its middle."""
    return Observation(
        instruction=instruction, elements=tuple(element_of(element) for element in screen.elements), screenshot=png,
        width_px=screen.width_px, height_px=screen.height_px, time_ms=0.0,
    )  # fmt: skip


def element_of(element: ScreenElement) -> Element:
    box = element.box
    return Element(
        role=element.role, text=element.text, states=element.states, x_px=box.x + box.width // 2, y_px=box.y + box.height // 2,
        width_px=box.width, height_px=box.height,
    )  # fmt: skip


def at_element(action: RecordedAction) -> Action:
    """A click as grammars write it that name elements: in the middle of what was clicked."""
    if isinstance(action.action, Click) and action.target is not None:
        middle = element_of(action.target)
        return action.action.model_copy(update={"x": middle.x_px, "y": middle.y_px})
    return action.action


def variations(manifest: Manifest, queries: Sequence[str], read_screen: ReadScreen, builder: PromptBuilder) -> list[dict[str, Any]]:
    """Samples of one recording under several wordings of its task, each sample once."""
    rows = [row for query in (manifest.task.query, *queries) for row in samples_of(manifest, read_screen, builder, query=query).rows]
    return list({row["sample_id"]: row for row in rows}.values())
