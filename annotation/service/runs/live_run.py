"""One live run: what is known of it now, what has been decided, and how its page learns of each change. Its episode is played by
person.py; what people ask of it comes through runs.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from agent.episode.episode import EpisodeRequest
from agent.grammars.base import Grammar
from agent.policy.action_source import StepContext
from agent.policy.policy import Message, Response
from annotation.platform.live import LiveEpisode
from annotation.service.campaigns.policies import Served
from annotation.service.editor.answers import action_view
from annotation.service.runs.choices import Choice, Situation
from annotation.service.runs.proposals import Candidate
from annotation.service.runs.screens import screen_view
from annotation.storage.runs import Executed
from annotation.wire.runs import CampaignView, DraftView, HistoryStep, ProposalView, RunPhase, RunState, TaskView
from sandbox.session import Observation
from warehouse.core.identity import stable_seed

T = TypeVar("T")
PICTURES_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What does not change while a run lives."""

    run_id: str
    assignment_id: str
    user_id: str
    campaign: CampaignView
    num_candidates: int
    temperature: float
    request: EpisodeRequest
    served: Served

    @property
    def mode(self) -> str:
        return self.campaign.mode

    @property
    def grammar(self) -> Grammar:
        return self.served.builder.grammar


@dataclass(slots=True, kw_only=True)
class KeptStep:
    """A decided step that was not stepped back over: how it is done again, and what it looks like in the history."""

    step_id: str
    base: Response
    override: str | None
    instruction: str
    observation: str
    """The element list as text, as it was seen."""
    screenshot_id: str | None
    view: HistoryStep
    is_executed: bool = False


@dataclass(slots=True, kw_only=True)
class Open:
    """The step that waits for a decision."""

    step_id: str
    candidates: list[Candidate]
    decision: asyncio.Future[Choice | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """None: the person has finished."""
    num_asked: int = 1
    """Calls of the policy."""


class LiveRun:
    """All of it belongs to one event loop."""

    def __init__(self, plan: Plan, episode: LiveEpisode, *, version: int, lease_until_s: float) -> None:
        self.plan, self.episode = plan, episode
        self.version, self.lease_until_s = version, lease_until_s
        self.phase: RunPhase = "starting"
        self.problem: str | None = None
        self.lock = asyncio.Lock()
        """Held while the run is changed on somebody's behalf."""
        self.task: asyncio.Task[None] | None = None
        self.context: StepContext | None = None
        self.observation: Observation | None = None
        self.screenshot_id: str | None = None
        self.open: Open | None = None
        self.kept_steps: list[KeptStep] = []
        self.closing: HistoryStep | None = None
        """The step at which the person gave the state up."""
        self.stops = False
        """The person has ended the episode: nobody is asked any more."""
        self.executed: list[Executed] = []
        """What came of steps and is not stored yet; it goes along with what is stored next."""
        self.asked: dict[tuple[int, tuple[Message, ...]], list[Candidate]] = {}
        """What the policy proposed so far, so that who steps back need not wait for the same again."""
        self.recovered: tuple[str, str] | None = None
        """Step id and element list of a step that was open when the server ended."""
        self.draft: DraftView | None = None
        self.outcome: str | None = None
        self.reward: float | None = None
        self.verifier: bool | None = None
        self.pictures: dict[str, bytes] = {}
        self.files: tuple[str, ...] = ()
        """Of the workspace, as last listed."""
        self.done: object = None
        """The last request that changed something: sent again, it changes nothing."""
        self._changed = asyncio.Event()
        self._has_left = False
        self._view: RunState | None = None

    @property
    def situation(self) -> Situation:
        candidates = self.open.candidates if self.open is not None else []
        return Situation(
            mode=self.plan.mode, candidates=candidates, grammar=self.plan.grammar, observation=self.seen, user_id=self.plan.user_id
        )

    @property
    def seen(self) -> Observation:
        """The newest screen; an empty one before there is any."""
        return self.observation or Observation(instruction="", elements=(), screenshot=None, width_px=1, height_px=1, time_ms=0.0)

    def show(self, observation: Observation) -> None:
        """A new screen. Its picture is at hand before it is stored."""
        self.observation = observation
        self.screenshot_id = observation.screenshot_id
        if observation.screenshot is not None:
            self.pictures[str(self.screenshot_id)] = observation.screenshot
            while len(self.pictures) > PICTURES_KEPT:
                del self.pictures[next(iter(self.pictures))]

    def publish(self, phase: RunPhase | None = None, problem: str | None = None) -> None:
        """A change that pages are notified of. A problem stays until the next decision, or until there is another."""
        self.phase = phase or self.phase
        self.problem = problem or self.problem
        self.version += 1
        self.forget_view()
        self._wake()

    def forget_view(self) -> None:
        """Something changed that nobody waits for, and on which decisions that were made on this version do not depend: a draft."""
        self._view = None

    def leave(self) -> None:
        """The server lets go of the run as it is: nobody waits for changes any more."""
        self._has_left = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, after_version: int, timeout_s: float) -> bool:
        """Wait until the version is another one; whether it is."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == after_version and not self._has_left:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return self.version != after_version

    def view(self) -> RunState:
        if self._view is None:
            self._view = self._state()
        return self._view

    def _state(self) -> RunState:
        plan, task = self.plan, self.plan.request.task
        return RunState(
            run_id=plan.run_id,
            assignment_id=plan.assignment_id,
            version=self.version,
            phase=self.phase,
            campaign=plan.campaign,
            task=TaskView(name=task.name, domain=task.domain, seed=plan.request.seed, max_steps=task.max_steps),
            instruction=self.observation.instruction if self.observation is not None else None,
            grammar=plan.grammar.name,
            policy_id=plan.served.policy_id,
            step_index=len(self.kept_steps),
            screen=None if self.observation is None else screen_view(self.observation, self.screenshot_id),
            proposals=self._proposals() if self.phase == "deciding" else (),
            history=(*(step.view for step in self.kept_steps), *((self.closing,) if self.closing is not None else ())),
            draft=self.draft if self.draft is not None and self.draft.step_index == len(self.kept_steps) else None,
            verifier=self.verifier,
            outcome=self.outcome,
            lease_until_s=self.lease_until_s,
            problem=self.problem,
        )

    def _proposals(self) -> tuple[ProposalView, ...]:
        candidates = self.open.candidates if self.open is not None else []
        return tuple(
            ProposalView(
                **action_view(each.response.text, self.plan.grammar, self.seen).model_dump(),
                rank=rank,
                score=each.score,
                num_samples=each.num_samples,
                policy_id=each.response.policy_id,
            )
            for rank, each in enumerate(candidates)
        )


def history_step(
    text: str | None,
    grammar: Grammar,
    observation: Observation,
    *,
    step_index: int,
    decision: str,
    screenshot_id: str | None,
    reward: float | None = None,
) -> HistoryStep:
    view = {"text": "", "thought": None, "action": "", "line": "beyond repair"}
    if text is not None:
        view = action_view(text, grammar, observation).model_dump()
    return HistoryStep.model_validate(
        {**view, "step_index": step_index, "decision": decision, "screenshot_id": screenshot_id, "reward": reward}
    )


def attempt_of(run_id: str) -> int:
    """Distinguishes the episodes of one policy at one instance by their runs; the scripted annotator's are number 0."""
    return stable_seed("annotated run", run_id) >> 11


async def surely(work: Awaitable[T]) -> T:
    """What has begun is waited for, even by a caller that is cancelled meanwhile: nothing is stored after they were believed to be gone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
