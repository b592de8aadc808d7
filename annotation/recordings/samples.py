"""Recordings as the flywheel keeps them: an episode by a person, and its steps as samples of `ct_samples` in the layout that policies are
asked in (agent/prompts/prompt.py): the prompt as it would have been asked, and what the person thought and did. Expert and novice
recordings are distinguished by domain.

Which recordings may become samples (looked at by two people, not withdrawn) is the annotation server's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.grammars.base import NotRepresentable
from agent.grammars.elements import render_observation
from agent.prompts.prompt import PromptBuilder
from annotation.recordings.bundle import Manifest, RecordedAction, Result, Screen, ScreenElement, Track
from sandbox.actions import Action, Click, Finished
from sandbox.importing.fields import slug
from sandbox.session import Element, Observation
from sandbox.tasks.task import Split, Task
from warehouse.core.identity import stable_seed
from warehouse.quality.personal_data import kinds_in
from warehouse.routing.samples import sample_row

ORIGIN = "annotation"
"""What people did, as CT takes it: the mixture's sample pool `in_situ`."""
VARIATION = "variation"
"""The same in a model's words; it shares that pool."""
DOMAINS: dict[Track, str] = {"expert": "recorded-expert", "novice": "recorded-novice"}
"""What the column `domain` says of a recording's samples, so that a mixture can give each track its share."""
HUMAN = "human"
"""Who acted, in place of a policy."""
MAX_STEPS = 1_000
LOOKS_PRIVATE = "looks private"
_ENDINGS: dict[Result, tuple[Outcome, float | None]] = {
    "done": (Outcome.SUCCESS, 1.0),
    "failed": (Outcome.FAILURE, 0.0),
    "infeasible": (Outcome.FAILURE, 0.0),
    "unsaid": (Outcome.TRUNCATED, None),
}
"""The person's verdict. Without one nothing is claimed: it counts as cut off."""
ReadScreen = Callable[[str], bytes | None]
KeepScreen = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recording as an episode of a person, its rows of `ct_samples`, and why steps are not part of either (reason: how often). The
    episode holds no pictures. `variations`: further rows, of the same steps in a model's words."""

    episode: Episode
    samples: list[dict[str, Any]]
    variations: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def request_of(manifest: Manifest) -> EpisodeRequest:
    """The episode that a recording is, whatever is made of its steps."""
    task = Task(
        source="recording", name=slug(manifest.task.query), domain=DOMAINS[manifest.track], max_steps=MAX_STEPS, version="recordings 1"
    )
    attempt = attempt_of(manifest.recording_id)
    return EpisodeRequest(purpose="seed", task=task, seed=task.seeds(Split.TRAIN, 1)[0], attempt=attempt, policy_id=HUMAN)


def attempt_of(recording_id: str) -> int:
    """The attempt that a recording's episode is; it says which recording an episode was, also when that has been erased."""
    return stable_seed("recording", recording_id) % 2**31


def recorded(
    manifest: Manifest,
    read_screen: ReadScreen,
    builder: PromptBuilder,
    *,
    keep: KeepScreen | None = None,
    also: Sequence[Manifest] = (),
    prompt_loss: float = 1.0,
    wrong: Collection[int] = (),
) -> Recorded:
    """What is learned of one recording. `read_screen` gives a picture's bytes by its id, None where it is gone; `keep` is given each that
    the episode shows, once; one at a time is in memory. `also`: the recording with other words for its task and thoughts. `wrong`: actions
    that a reviewer called wrong, which happened and teach nothing.

    A step without a picture, with something taken out of its text, that looks private all the same, or that the grammar cannot write is
    left out, and is not part of the history of later ones. A recording that its person calls done ends with a step that says so.
    """
    own, *others = (_Telling(each, builder) for each in (manifest, *also))
    left_out: Counter[str] = Counter()
    kept: set[str] = set()
    taught: set[int] = set()
    for index, (action, screen) in enumerate(_steps(manifest)):
        png = None if screen is None else read_screen(screen.screen_id)
        if screen is None or (builder.shows_screens and png is None):
            left_out["no picture"] += 1
            continue
        if isinstance(action, RecordedAction) and action.hidden:
            left_out["private text"] += 1
            continue
        seen = screen.screen_id.encode() if png is not None else None
        why_not = own.take(index, action, screen, seen)
        if why_not is not None:
            left_out[why_not] += 1
            continue
        for other in others:
            other.take(index, action, screen, seen)
        if png is not None and keep is not None and screen.screen_id not in kept:
            kept.add(screen.screen_id)
            keep(screen.screen_id, png)
        if index in wrong:
            left_out["called wrong"] += 1
        else:
            taught.add(index)
    outcome, reward = _ENDINGS[manifest.result]
    episode = Episode(
        request=request_of(manifest),
        instruction=manifest.task.query,
        steps=tuple(own.steps.values()),
        outcome=outcome,
        reward=reward,
        duration_ms=manifest.length_s * 1000,
        environment=f"recorded on {manifest.machine.system}",
    )
    samples = [_sample(ORIGIN, episode, step, step, prompt_loss) for index, step in own.steps.items() if index in taught]
    varied = [
        _sample(VARIATION, episode, own.steps[index], step, prompt_loss)
        for other in others
        for index, step in other.steps.items()
        if index in taught and (step.messages, step.response) != (own.steps[index].messages, own.steps[index].response)
    ]
    return Recorded(
        episode=episode, samples=samples, variations=list({row["sample_id"]: row for row in varied}.values()), left_out=dict(left_out)
    )


class _Named(Observation):
    """It has the name of its picture in place of the bytes: prompts need no more, and a hundred steps are remembered."""

    __slots__ = ()

    @property
    def screenshot_id(self) -> str | None:
        return None if self.screenshot is None else self.screenshot.decode()


class _Telling:
    """A recording under one wording: its steps as a policy would have been asked for them, by the index of their action."""

    def __init__(self, manifest: Manifest, builder: PromptBuilder) -> None:
        self._manifest, self._builder = manifest, builder
        self._memory = builder.start(manifest.task.query)
        self.steps: dict[int, Step] = {}

    def take(self, index: int, action: RecordedAction | Action, screen: Screen, named: bytes | None) -> str | None:
        """The next step; why it is none where the grammar cannot write it, or where it looks private, which nobody but the recorder has
        looked for. `named`: the picture's id."""
        builder, seen = self._builder, observation_of(screen, named, self._manifest.task.query, _Named)
        thought = self._manifest.actions[index].thought if isinstance(action, RecordedAction) else None
        try:
            response = builder.grammar.format(thought.text or None if thought else None, _said(action, builder), seen)
        except NotRepresentable:
            return "not in the grammar"
        observation = render_observation(seen)
        if kinds_in(observation) or kinds_in(response):
            return LOOKS_PRIVATE
        parsed = builder.grammar.parse(response, seen)
        self.steps[index] = Step(
            step_index=len(self.steps),
            policy_id=HUMAN,
            observation=observation,
            screenshot_id=seen.screenshot_id,
            messages=builder.build(self._memory, seen),
            response=response,
            thought=parsed.thought,
            action=parsed.actions[0],
        )
        self._memory = builder.remember(self._memory, seen, response, parsed)
        return None


def _steps(manifest: Manifest) -> list[tuple[RecordedAction | Action, Screen | None]]:
    screens = {screen.screen_id: screen for screen in manifest.screens}
    steps: list[tuple[RecordedAction | Action, Screen | None]] = [
        (action, screens.get(action.screen_id or "")) for action in manifest.actions
    ]
    if manifest.result == "done" and manifest.last_screen_id is not None:
        steps.append((Finished(), screens[manifest.last_screen_id]))
    return steps


def _said(action: RecordedAction | Action, builder: PromptBuilder) -> Action:
    """The action that is written down: by its element, where the grammar names elements."""
    if not isinstance(action, RecordedAction):
        return action
    return at_element(action) if builder.grammar.layout == "elements" else action.action


def _sample(origin: str, episode: Episode, step: Step, learned: Step, prompt_loss: float) -> dict[str, Any]:
    """`step` is the episode's, `learned` the same in the words that are learned."""
    return sample_row(
        "ct",
        origin=origin,
        domain=episode.request.task.domain,
        messages=learned.messages,
        response=learned.response,
        prompt_loss=prompt_loss,
        episode_id=episode.episode_id,
        step_index=step.step_index,
    )


def observation_of(screen: Screen, png: bytes | None, instruction: str, kind: type[Observation] = Observation) -> Observation:
    """What an agent would have seen: the recorded picture and elements, each to be clicked in its middle."""
    return kind(
        instruction=instruction,
        elements=tuple(element_of(element) for element in screen.elements),
        screenshot=png,
        width_px=screen.width_px,
        height_px=screen.height_px,
        time_ms=0.0,
    )


def element_of(element: ScreenElement) -> Element:
    box = element.box
    return Element(
        role=element.role,
        text=element.text,
        states=element.states,
        x_px=box.x + box.width // 2,
        y_px=box.y + box.height // 2,
        width_px=box.width,
        height_px=box.height,
    )


def at_element(action: RecordedAction) -> Action:
    """A click as grammars write it that name elements: in the middle of what was clicked."""
    if isinstance(action.action, Click) and action.target is not None:
        middle = element_of(action.target)
        return action.action.model_copy(update={"x": middle.x_px, "y": middle.y_px})
    return action.action
