"""Replaying a stored episode: its recorded actions again on a live session, compared step by step with the recording.
pipelines/replay/command.py shows the result; nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import duckdb
from PIL import Image, ImageChops

from agent.episode.episode import Outcome
from agent.episode.rows import stored_actions
from agent.grammars.elements import render_observation
from sandbox.actions import Action
from sandbox.session import Observation, Session, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, UnknownId
from warehouse.storage.screenshots import pictures

REWARD_TOLERANCE = 1e-9

_EPISODES = """
select e.episode_id, e.iteration, e.stage, e.purpose, e.policy_id, e.seed, e.instruction, e.outcome, e.reward, e.environment, e.num_steps,
    e.task_id, t.source, t.name, t.domain, t.max_steps, t.held_out, t.version
from episodes e left join (select distinct on (task_id) * from tasks order by task_id, iteration desc) t using (task_id)
where starts_with(e.episode_id, $id)
order by e.episode_id, e.iteration desc, e.stage
"""
_STEPS = """
select s.step_index, s.policy_id, s.observation, s.thought, s.response, s.action, s.reward, s.latency_ms, s.screenshot_id, i.data
from steps s left join screenshots i using (screenshot_id)
where s.episode_id = $id and s.iteration = $iteration and s.stage = $stage order by s.step_index
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step as it was stored; `screenshot` is the screen before its actions, None where none was kept."""

    step_index: int
    policy_id: str
    observation: str
    thought: str | None
    response: str
    actions: tuple[Action, ...]
    reward: float
    latency_ms: float
    screenshot_id: str | None
    screenshot: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisode:
    """An episode as it was stored, with its task."""

    episode_id: str
    iteration: str
    stage: str
    purpose: str
    policy_id: str
    task: Task
    seed: int
    instruction: str | None
    outcome: Outcome
    reward: float | None
    environment: str
    steps: tuple[RecordedStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelDifference:
    """Where two screens differ: how many pixels, and the smallest box around them (left, top, right, bottom)."""

    num_pixels: int
    num_of: int
    box_px: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """A replayed step compared with the recording. `same_pixels` is None where no screenshot had been kept."""

    step_index: int
    same_pixels: bool | None
    same_text: bool
    same_reward: bool
    difference: PixelDifference | None
    screenshot: bytes | None = field(repr=False)
    """The screen before the step's actions, now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The outcome of a replay. `steps` are fewer than were recorded where the session ended the episode earlier."""

    episode: RecordedEpisode
    environment: str
    steps: tuple[StepCheck, ...]
    verdict: Verdict
    reward: float
    last_screenshot: bytes | None = field(repr=False)
    """The screen after the last action, which no step of an episode keeps."""

    @property
    def is_whole(self) -> bool:
        """Every recorded step was replayed."""
        return len(self.steps) == len(self.episode.steps)

    @property
    def same_pixels(self) -> bool | None:
        """Every screen that had been kept was seen again, to the pixel; None where none had been."""
        compared = [step.same_pixels for step in self.steps if step.same_pixels is not None]
        return all(compared) and self.is_whole if compared else None

    @property
    def same_text(self) -> bool:
        """Elements and tool output were the same at every step."""
        return self.is_whole and all(step.same_text for step in self.steps)

    @property
    def same_reward(self) -> bool:
        """Each step's reward and the verifier's score are as recorded."""
        recorded = self.episode.reward
        steps_agree = self.is_whole and all(step.same_reward for step in self.steps)
        return steps_agree and recorded is not None and abs(recorded - self.reward) <= REWARD_TOLERANCE

    @property
    def same_environment(self) -> bool:
        return self.environment == self.episode.environment

    @property
    def first_difference(self) -> StepCheck | None:
        """The first step that was not as recorded."""
        return next((step for step in self.steps if step.same_pixels is False or not step.same_text or not step.same_reward), None)


def load_episode(con: duckdb.DuckDBPyConnection, identity: str) -> RecordedEpisode:
    """A stored episode by its id, or by an unambiguous prefix of one; the newest where it was stored more than once.

    `con` is of warehouse.storage.sql.query.connect. Raises UnknownId; ConfigError for an episode that cannot be replayed.
    """
    rows = con.execute(_EPISODES, {"id": identity}).fetchall() if identity else []
    found = sorted({row[0] for row in rows})
    if not found:
        raise UnknownId(f"no episode has the id {identity!r}: list them with `flywheel sql 'select episode_id, task_name from episodes'`")
    if len(found) > 1:
        raise UnknownId(f"{identity!r} matches {len(found)} episodes, e.g. {found[0]} and {found[1]}: give more of the id")
    episode_id, iteration, stage, purpose, policy_id, seed, instruction, outcome, reward, environment, num_steps, task_id, *spec = rows[0]
    if spec[0] is None:
        raise ConfigError(f"{episode_id} cannot be replayed: its task {task_id} is not in the table `tasks`")
    names = ("source", "name", "domain", "max_steps", "held_out", "version")
    steps = con.execute(_STEPS, {"id": episode_id, "iteration": iteration, "stage": stage}).fetchall()
    if len(steps) != num_steps:
        raise ConfigError(f"{episode_id} cannot be replayed: it had {num_steps} steps, but {len(steps)} are stored")
    return RecordedEpisode(
        episode_id=episode_id,
        iteration=iteration,
        stage=stage,
        purpose=purpose,
        policy_id=policy_id,
        task=Task(**dict(zip(names, spec, strict=True))),
        seed=seed,
        instruction=instruction,
        outcome=Outcome(outcome),
        reward=reward,
        environment=environment,
        steps=tuple(_step(row) for row in steps),
    )


async def replay(episode: RecordedEpisode, session: Session) -> Replay:
    """Replay an episode's recorded actions on a session that nobody else uses meanwhile.

    Raises ConfigError for an episode whose sandbox crashed, and SandboxErrors.
    """
    if episode.outcome is Outcome.CRASHED:
        raise ConfigError(f"{episode.episode_id} cannot be replayed: it crashed, so it has no actions and no reward")
    run = _Run(session)
    observation = await session.reset(episode.task, episode.seed)
    checks: list[StepCheck] = []
    for step in episode.steps:
        if run.is_over:
            break
        before = observation
        reward, observation = await run.carry_out(step.actions, observation)
        checks.append(_check(step, before, reward))
    verdict = await session.evaluate()
    # As in the episode loop: an episode that the policy itself cut short earns nothing, whatever the page shows.
    earned = 0.0 if episode.outcome in (Outcome.TIMEOUT, Outcome.INVALID_ACTION) else verdict.score
    return Replay(
        episode=episode,
        environment=str(getattr(session, "environment", "")),
        steps=tuple(checks),
        verdict=verdict,
        reward=_bounded(earned),
        last_screenshot=observation.screenshot,
    )


class _Run:
    """A session during a replay."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_over = False

    async def carry_out(self, actions: tuple[Action, ...], observation: Observation) -> tuple[float, Observation]:
        """All actions of one response, up to the one that ends the episode; what they paid, and the last screen."""
        reward = 0.0
        for action in actions:
            transition = await self._session.step(action)
            reward, observation = reward + transition.reward, transition.observation
            if transition.terminated or transition.truncated:
                self.is_over = True
                break
        return _bounded(reward), observation


def _check(step: RecordedStep, before: Observation, reward: float) -> StepCheck:
    same_pixels = None if step.screenshot_id is None else step.screenshot_id == before.screenshot_id
    difference = None
    if same_pixels is False and step.screenshot is not None and before.screenshot is not None:
        difference = pixel_difference(step.screenshot, before.screenshot)
    return StepCheck(
        step_index=step.step_index,
        # The same picture may be written as other bytes, by another version of the library that writes it.
        same_pixels=True if same_pixels is False and difference is not None and difference.num_pixels == 0 else same_pixels,
        same_text=step.observation == render_observation(before),
        same_reward=abs(step.reward - reward) <= REWARD_TOLERANCE,
        difference=difference,
        screenshot=before.screenshot,
    )


def pixel_difference(one: bytes, other: bytes) -> PixelDifference:
    """Of two pictures, compared as RGB; where one is larger, all that the other has not counts as different."""
    with pictures.opened(one) as first, pictures.opened(other) as second:
        size = (max(first.width, second.width), max(first.height, second.height))
        same_size = first.size == second.size
        canvases = [_on_canvas(image, size) for image in (first, second)]
    changed = ImageChops.difference(*canvases).convert("RGB").split()
    mask = ImageChops.lighter(ImageChops.lighter(changed[0], changed[1]), changed[2]).point(lambda value: 255 if value else 0)
    box = mask.getbbox() or (0, 0, 0, 0)
    num_pixels = mask.histogram()[255]
    if not same_size and not num_pixels:
        box, num_pixels = (0, 0, *size), 1
    return PixelDifference(num_pixels=num_pixels, num_of=size[0] * size[1], box_px=box)


def picture_size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    found = pictures.header(picture)
    return found.width_px, found.height_px


def _on_canvas(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    canvas = Image.new("RGB", size)
    canvas.paste(image.convert("RGB"))
    return canvas


def _step(row: tuple[Any, ...]) -> RecordedStep:
    index, policy_id, observation, thought, response, action, reward, latency_ms, screenshot_id, data = row
    return RecordedStep(
        step_index=index,
        policy_id=policy_id,
        observation=observation,
        thought=thought,
        response=response,
        actions=stored_actions(action),
        reward=reward,
        latency_ms=latency_ms,
        screenshot_id=screenshot_id,
        screenshot=data,
    )


def _bounded(reward: float) -> float:
    return min(1.0, max(-1.0, reward))
