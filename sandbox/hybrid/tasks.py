"""What a hybrid task is made of: the files, goals and steps of a terminal task, and beside them the input of its page and how an oracle
acts on the page. The tasks themselves are kinds.py, what runs them session.py.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from sandbox.actions import Action, Click, Finished, TypeText
from sandbox.session import Element, Observation
from sandbox.terminal.tasks import Goal, Instance, Probe, Step, unmet, unmet_goals
from warehouse.core.errors import SandboxError

Evaluate = Callable[[str], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStep:
    """One action of an oracle on the page: done once `done`, a JavaScript expression, is true there, or `goal` holds."""

    act: Callable[[HybridStepContext], Action | None]
    done: str = ""
    goal: Goal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridInstance:
    """One instance. Its success is that every goal of `work` is met and, where the page expects something, the page has accepted it."""

    work: Instance
    page: dict[str, Any]
    """What start() of pages/desk.html is called with."""
    needs_page: bool = True
    """The page has to have accepted what was sent."""
    steps: Sequence[Step | PageStep]
    """Of the oracle, in order; `work.steps` is not used."""


HybridFactory = Callable[[Random], HybridInstance]
"""Makes the instance of a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStepContext:
    """What an oracle may look at."""

    instance: HybridInstance
    observation: Observation
    actions: Sequence[Action]
    probe: Probe
    evaluate: Evaluate
    is_accepted: bool


async def next_step(context: HybridStepContext) -> Action | None:
    """What the oracle would do now. Steps before the last one that is done with the page are done too: a page that has gone on to its
    next round shows nothing of the one before."""
    instance, steps = context.instance, context.instance.steps
    to_do = [await _is_open(step, context) for step in steps]
    last_done = max((index for index, step in enumerate(steps) if isinstance(step, PageStep) and not to_do[index]), default=-1)
    for index, step in enumerate(steps):
        if isinstance(step, PageStep):
            if to_do[index] and index > last_done:
                return step.act(context)
        elif to_do[index] and (step.goal is not None or any(to_do[index + 1 :])):
            return step.action
    unmet = await unmet_goals(instance.work.goals, context.probe)
    return None if unmet or (instance.needs_page and not context.is_accepted) else Finished(answer=instance.work.answer)


async def _is_open(step: Step | PageStep, context: HybridStepContext) -> bool:
    if isinstance(step, PageStep) and step.done:
        try:
            return not await context.evaluate(f"Boolean({step.done})")
        except SandboxError:  # another page is shown
            return True
    if step.goal is None:
        return isinstance(step, PageStep) or step.action not in context.actions
    return await unmet(step.goal, context.probe) is not None


def page_of(title: str, rounds: Sequence[Mapping[str, Any]], *, receipt: str = "Thank you.") -> dict[str, Any]:
    """What HybridInstance.page is: the page's title, its rounds (of `round_of`), and what it says once it has accepted the last."""
    return {"title": title, "rounds": list(rounds), "receipt": receipt}


def round_of(
    shown: Sequence[str],
    *,
    fields: Mapping[str, str] | None = None,
    download: Mapping[str, str] | None = None,
    upload: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One round of a page: the lines that it shows, the wanted value of each field by its label, and the name and text of the file that it
    gives, or that it wants."""
    wanted = [{"name": name, "wanted": value} for name, value in (fields or {}).items()]
    return {"lines": list(shown), "fields": wanted, "download": download, "upload": upload}


def find(observation: Observation, text: str, *, role: str | None = None) -> Element | None:
    """The first element with this text."""
    return next((each for each in observation.elements if each.text == text and role in (None, each.role)), None)


def click(text: str, *, role: str | None = None, done: str = "", goal: Goal | None = None) -> PageStep:
    """Click on what has this text."""

    def act(context: HybridStepContext) -> Action | None:
        element = find(context.observation, text, role=role)
        return None if element is None else Click(x=element.x_px, y=element.y_px)

    return PageStep(act=act, done=done, goal=goal)


def choose(path: str) -> PageStep:
    """Click on the file button; then, with the browser asking for a file, type its name."""
    name = path.rpartition("/")[2]

    def act(context: HybridStepContext) -> Action | None:
        button = next((each for each in context.observation.elements if each.role == "button" and each.text != "Send"), None)
        if button is None:
            return None
        opening = Click(x=button.x_px, y=button.y_px)
        return TypeText(text=path) if context.actions and context.actions[-1] == opening else opening

    return PageStep(act=act, done=f"state().file === {json.dumps(name)} || state().accepted")


def fill(index: int, text: str, *, round_number: int = 0) -> list[PageStep]:
    """Click into a field of the page, the first being 0, and type."""
    later = f"state().round > {round_number} || state().accepted"
    typed = f"{later} || (state().round === {round_number} && state().values[{index}] === {json.dumps(text)})"

    def act(context: HybridStepContext) -> Action | None:
        fields = [each for each in context.observation.elements if each.role == "input"]
        element = fields[index] if index < len(fields) else None
        return None if element is None else Click(x=element.x_px, y=element.y_px, count=3)  # three: what stands there is typed over

    return [
        PageStep(act=act, done=f"{typed} || (state().round === {round_number} && state().focused === {index})"),
        PageStep(act=lambda _: TypeText(text=text), done=typed),
    ]


def send(*, round_number: int = 0) -> PageStep:
    return click("Send", role="button", done=f"state().round > {round_number} || state().accepted")
