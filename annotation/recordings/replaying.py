"""Whether a recording can be carried out: its actions again on a live session of the environment that it names, step by step. Recordings of
a person's own programs have no such environment; those that were made for a task of a sandbox do.
"""

from __future__ import annotations

from dataclasses import dataclass

from annotation.recordings.bundle import Manifest, RecordedAction, ScreenElement
from sandbox.session import Element, Observation, Session, Verdict
from sandbox.tasks.task import Task

TEXT_CHARS = 60
SLACK_PX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """`problem`: why a step could not be carried out as it was recorded; empty where it could."""

    index: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """How far a recording could be carried out. `verdict` is the environment's on the end state; None where a step failed before."""

    steps: tuple[StepCheck, ...]
    verdict: Verdict | None

    @property
    def is_executable(self) -> bool:
        return self.verdict is not None and all(not step.problem for step in self.steps)


async def replay(manifest: Manifest, session: Session, task: Task, seed: int) -> ReplayReport:
    """Carry out a recording on a session. Each pointer action has to find what it was done to at its place; the first that does not ends
    it. Raises SandboxError where the infrastructure fails."""
    observation = await session.reset(task, seed)
    steps: list[StepCheck] = []
    for index, action in enumerate(manifest.actions):
        problem = mismatch(action, observation)
        if problem:
            return ReplayReport(steps=(*steps, StepCheck(index=index, problem=problem)), verdict=None)
        transition = await session.step(action.action)
        reason = transition.info.get("invalid") or transition.info.get("ignored")
        steps.append(StepCheck(index=index, problem=str(reason) if reason else ""))
        observation = transition.observation
        if transition.terminated or transition.truncated:
            if index < len(manifest.actions) - 1:
                steps.append(StepCheck(index=index + 1, problem="the episode had ended before it"))
            break
    return ReplayReport(steps=tuple(steps), verdict=await session.evaluate())


def mismatch(action: RecordedAction, observation: Observation) -> str:
    """Why what an action was done to is not where it was; empty where it is, or nothing is known of it. Redacted texts count as equal."""
    point = getattr(action.action, "x", None), getattr(action.action, "y", None)
    if not isinstance(point[0], int) or not isinstance(point[1], int):
        return ""
    if not (0 <= point[0] < observation.width_px and 0 <= point[1] < observation.height_px):
        return f"the point {point} is outside the screen of {observation.width_px} by {observation.height_px}"
    target = action.target
    if target is None or any(_is_same(target, element) and _holds(element, point[0], point[1]) for element in observation.elements):
        return ""
    return f"there is no {target.role} {target.text[:TEXT_CHARS]!r} at {point}"


def _is_same(target: ScreenElement, element: Element) -> bool:
    if target.role != element.role:
        return False
    return "[" in target.text or " ".join(target.text.split())[:TEXT_CHARS] == " ".join(element.text.split())[:TEXT_CHARS]


def _holds(element: Element, x: int, y: int) -> bool:
    """Element says its size and a point inside it, mostly its middle: anything within its size of that point may be it."""
    return abs(x - element.x_px) <= element.width_px + SLACK_PX and abs(y - element.y_px) <= element.height_px + SLACK_PX
