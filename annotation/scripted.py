"""The scripted annotator: the policy acts on training tasks, the task's oracle plays the person who approves and corrects it.

`relabel` looks at finished episodes: solved ones are approved whole, in failed ones each wrong step is corrected until the state is beyond
repair. `intervene` corrects while the episode runs: the correction is carried out, and the verifier decides V. Either way the oracle
labels what it sees at that step, never a reconstruction. Annotations become samples in warehouse/routing/samples.py.

On-policy corrections after DAgger (Ross, Gordon & Bagnell 2011).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.loop import Intervene
from agent.grammars.base import Grammar, NotRepresentable
from agent.policy.action_source import ORACLE_POLICY_ID, OracleActionSource, StepContext
from agent.policy.policy import Message, Policy, Response
from annotation.config import Mode, ScriptedAnnotatorConfig
from annotation.rows import annotation_row
from sandbox.actions import TypeText
from sandbox.session import Observation
from warehouse.core.identity import bytes_id, canonical_json
from warehouse.quality.contradictions import Said, contradictions_in

Decision = Literal["accept", "override", "beyond_repair"]


class InterveningCollector(Protocol):
    """A collector that lets an annotator look on, e.g. agent/episode/pool_collector.py's."""

    def collect(
        self, policy: Policy, requests: Sequence[EpisodeRequest], *, log: EpisodeLog | None = None, intervene: Intervene | None = None
    ) -> AsyncIterator[Episode]:
        """Yield each request's episode as it finishes, once it is in the log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the annotator saw at one step: the policy's proposal, and the right answer (None: the oracle knows none)."""

    step_index: int
    messages: tuple[Message, ...]
    proposal: str
    label: str | None
    agrees: bool
    is_valid: bool
    is_typing: bool
    """whether the proposal or the label types: wrong text is the hardest to take back."""
    overridden: bool
    screen: str
    """equal for equal screens."""
    thought: str | None = None
    kinds: tuple[str, ...] = ()
    """what the grammar reads in the proposal: its thought, and the kinds of its actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One decision at one step; `row` is its row of the table `annotations`."""

    task: str
    episode_id: str
    mode: Mode
    decision: Decision
    note: Note
    response: str | None

    @property
    def row(self) -> dict[str, Any]:
        return annotation_row(
            episode_id=self.episode_id,
            step_index=self.note.step_index,
            annotator=ORACLE_POLICY_ID,
            origin="scripted",
            mode=self.mode,
            decision=self.decision,
            proposal=self.note.proposal,
            response=self.response,
            messages=[asdict(message) for message in self.note.messages],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationResult:
    """Episodes in the order of their ids, as the keeper holds on to them, annotations in the order of episode and step."""

    episodes: tuple[Episode, ...]
    annotations: tuple[Annotation, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table `annotations`, without iteration and stage."""
        return [annotation.row for annotation in self.annotations]


NotesOf = Callable[[Episode], Sequence[Note]]
"""The notes on the steps of an episode that has just ended, handed out once."""


class Keeper(Protocol):
    """Where a round of annotation keeps its episodes with the notes on their steps, so that one that is cut off goes on."""

    def log(self, notes_of: NotesOf) -> EpisodeLog:
        """What episodes are appended to; it asks for the notes on each."""
        ...

    def kept(self, episode_id: str) -> tuple[Episode, Sequence[Note]] | None:
        """An episode as it is held on to, and its notes."""
        ...


class ScriptedAnnotator:
    """Sits beside the policy and takes notes; `watch` and `correct` are hooks of the episode loop."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._oracle = OracleActionSource(grammar)
        self._notes: dict[str, list[Note]] = {}
        self.allowed: dict[str, int] = {}
        """Corrections that `correct` may still make, by episode id."""

    async def watch(self, context: StepContext, response: Response) -> str | None:
        """Take a note, let the proposal stand."""
        await self._take_note(context, response, may_override=False)
        return None

    async def correct(self, context: StepContext, response: Response) -> str | None:
        """Take a note; override a proposal that the oracle does not share, while the episode's allowance lasts."""
        episode_id = context.request.episode_id
        before = self._notes.get(episode_id, []) if context.step_index else []
        is_lost = any(note.label is None for note in before)
        used = sum(note.overridden for note in before)
        note = await self._take_note(context, response, may_override=not is_lost and used < self.allowed.get(episode_id, 0))
        return note.label if note.overridden else None

    def notes(self, episode: Episode) -> list[Note]:
        """The notes on an episode's steps, forgotten as they are handed out."""
        return self._notes.pop(episode.episode_id, [])[: len(episode.steps)]

    async def _take_note(self, context: StepContext, response: Response, *, may_override: bool) -> Note:
        if context.step_index == 0:
            # The episode may have been started afresh after an infrastructure failure.
            self._notes[context.request.episode_id] = []
        observation, label = context.observation, await self._oracle.response_text(context)
        parsed = self._grammar.parse(response.text, observation)
        agrees = label is not None and self._canonical(response.text, observation) == self._canonical(label, observation)
        actions = [*parsed.actions, *(self._grammar.parse(label, observation).actions if label else ())]
        note = Note(
            step_index=context.step_index,
            messages=context.messages,
            proposal=response.text,
            label=label,
            agrees=agrees,
            is_valid=parsed.invalid is None,
            is_typing=any(isinstance(action, TypeText) for action in actions),
            overridden=may_override and label is not None and not agrees,
            screen=bytes_id("screen", repr((observation.elements, observation.screenshot_id, observation.url)).encode()),
            thought=parsed.thought,
            kinds=tuple(action.kind for action in parsed.actions),
        )
        self._notes[context.request.episode_id].append(note)
        return note

    def _canonical(self, text: str, observation: Observation) -> str | None:
        """An answer as the grammar writes it, so that spacing does not count; None for one that is not a single action. Where thoughts
        are free prose they do not count either."""
        parsed = self._grammar.parse(text, observation)
        if parsed.invalid is not None or len(parsed.actions) != 1:
            return None
        thought = parsed.thought if self._grammar.layout == "elements" else None
        try:
            return self._grammar.format(thought, parsed.actions[0], observation)
        except NotRepresentable:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """The annotator in one mode, as the episode loop calls it."""

    annotator: ScriptedAnnotator
    mode: Mode

    async def __call__(self, context: StepContext, response: Response) -> str | None:
        work = self.annotator.watch if self.mode == "relabel" else self.annotator.correct
        return await work(context, response)


def relabel(episode: Episode, notes: Sequence[Note], *, fix_typing: bool = True) -> list[Annotation]:
    """Decisions on a finished episode. A solved one is approved whole, except for steps that were invalid, changed nothing or contradict
    themselves; of a failed one each step is approved or corrected, up to where the oracle knows no way on. A crashed one says nothing."""
    if episode.outcome is Outcome.CRASHED:
        return []
    if episode.is_success:
        screens = [note.screen for note in notes[1:]] + [None]
        useful = [note for note, after in zip(notes, screens, strict=True) if note.is_valid and note.screen != after]
        contradictions = contradictions_in([Said(note.thought, note.kinds) for note in useful])
        return [_decide(episode, "relabel", "accept", note) for note, why in zip(useful, contradictions, strict=True) if why is None]
    annotations = []
    for note in notes:
        if note.label is None:
            annotations.append(_decide(episode, "relabel", "beyond_repair", note))
            break
        annotations.append(_decide(episode, "relabel", "accept" if note.agrees else "override", note))
        if not note.agrees and note.is_typing and not fix_typing:
            break
    return annotations


def intervened(episode: Episode, notes: Sequence[Note]) -> list[Annotation]:
    """Decisions that were taken while the episode ran. A wrong step that the allowance did not cover is not a decision."""
    if episode.outcome is Outcome.CRASHED:
        return []
    annotations = []
    for note in notes:
        if note.label is None:
            annotations.append(_decide(episode, "intervene", "beyond_repair", note))
            break
        if note.agrees or note.overridden:
            annotations.append(_decide(episode, "intervene", "accept" if note.agrees else "override", note))
    return annotations


def _decide(episode: Episode, mode: Mode, decision: Decision, note: Note) -> Annotation:
    response = {"accept": note.proposal, "override": note.label, "beyond_repair": None}[decision]
    return Annotation(
        task=episode.request.task.name, episode_id=episode.episode_id, mode=mode, decision=decision, note=note, response=response
    )


def within_budget(annotations: Iterable[Annotation], config: ScriptedAnnotatorConfig) -> list[Annotation]:
    """As many corrections and approvals as the budget allows, spread evenly over tasks; the same lesson is given once."""
    lessons: dict[tuple[str, bytes], Annotation] = {}
    for annotation in sorted(annotations, key=lambda a: (a.episode_id, a.note.step_index)):
        asked = [[message.role, message.content, message.screenshot_id] for message in annotation.note.messages]
        is_lost = annotation.decision == "beyond_repair"
        lesson = canonical_json([asked, annotation.response, annotation.episode_id if is_lost else None])
        lessons.setdefault((annotation.decision, lesson), annotation)
    corrections, approvals, rest = (_of(lessons.values(), decision) for decision in ("override", "accept", "beyond_repair"))
    return balanced(corrections, config.max_corrections) + balanced(approvals, config.max_approvals) + rest


def _of(annotations: Iterable[Annotation], decision: str) -> list[Annotation]:
    return [annotation for annotation in annotations if annotation.decision == decision]


def balanced(annotations: Sequence[Annotation], limit: int) -> list[Annotation]:
    """The first `limit` when tasks take turns."""
    by_task: dict[str, list[Annotation]] = {}
    for annotation in annotations:
        by_task.setdefault(annotation.task, []).append(annotation)
    longest = max((len(group) for group in by_task.values()), default=0)
    turns = [by_task[task][i] for i in range(longest) for task in sorted(by_task) if i < len(by_task[task])]
    return turns[:limit]


async def annotate(
    policy: Policy,
    requests: Sequence[EpisodeRequest],
    collector: InterveningCollector,
    grammar: Grammar,
    config: ScriptedAnnotatorConfig,
    keeper: Keeper | None = None,
) -> AnnotationResult:
    """One round of annotation. `requests` are of purpose `annotation`, on train instances; `grammar` is the collector's. What `keeper` has
    is not run again.

    In mode `intervene` episodes run in waves until each task's share of the corrections is used up; requests that no share is left for
    are not run. The result does not depend on the order in which episodes finish.
    """
    annotator = ScriptedAnnotator(grammar)
    episodes: list[Episode] = []
    annotations: list[Annotation] = []

    def decide(episode: Episode, notes: Sequence[Note]) -> list[Annotation]:
        return relabel(episode, notes, fix_typing=config.fix_typing) if config.mode == "relabel" else intervened(episode, notes)

    async def collect(wave: Sequence[EpisodeRequest], hook: Intervene) -> list[Annotation]:
        found = [kept for request in wave if keeper is not None and (kept := keeper.kept(request.episode_id)) is not None]
        there = {episode.episode_id for episode, _ in found}
        missing = [one for one in wave if one.episode_id not in there]
        log = None if keeper is None else keeper.log(annotator.notes)
        async for episode in collector.collect(policy, missing, log=log, intervene=hook):
            kept = None if keeper is None else keeper.kept(episode.episode_id)
            found.append(kept or (episode, annotator.notes(episode)))
        episodes.extend(episode for episode, _ in found)
        return [annotation for episode, notes in found for annotation in decide(episode, notes)]

    if config.mode == "relabel":
        annotations = within_budget(await collect(requests, Hook(annotator=annotator, mode="relabel")), config)
    else:
        left = _shares(requests, config.max_corrections)
        queues = {task: [request for request in requests if request.task.name == task] for task in left}
        while wave := _next_wave(queues, left, config.max_interventions_per_episode):
            annotator.allowed = wave
            chosen = [request for request in requests if request.episode_id in wave]
            for annotation in (made := await collect(chosen, Hook(annotator=annotator, mode="intervene"))):
                left[annotation.task] -= annotation.decision == "override"
            annotations += made
    annotations.sort(key=lambda annotation: (annotation.episode_id, annotation.note.step_index))
    return AnnotationResult(episodes=tuple(sorted(episodes, key=lambda episode: episode.episode_id)), annotations=tuple(annotations))


def _shares(requests: Sequence[EpisodeRequest], budget: int) -> dict[str, int]:
    """Corrections each task may get: equal shares, the remainder to the first tasks by name."""
    tasks = sorted({request.task.name for request in requests})
    return {task: budget // len(tasks) + (index < budget % len(tasks)) for index, task in enumerate(tasks)}


def _next_wave(queues: dict[str, list[EpisodeRequest]], left: dict[str, int], per_episode: int) -> dict[str, int]:
    """Allowance by episode id of the episodes that run next: of each task as many as its share surely covers. Takes them off the queues."""
    wave: dict[str, int] = {}
    for task, queue in queues.items():
        num = min(len(queue), max(1, left[task] // per_episode)) if left[task] > 0 else 0
        for request in queue[:num]:
            wave[request.episode_id] = min(per_episode, left[task] // num)
        del queue[:num]
    return wave
