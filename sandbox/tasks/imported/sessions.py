"""How imported tasks run in our kinds of sessions: as an instance of the terminal's, the desktop's or the android device's own kind.
Nothing is started here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sandbox.actions import Action, Click, ToolCall
from sandbox.android.instance import AndroidInstance, Check
from sandbox.browser.input import Refusal, gestures
from sandbox.desktop import instance as desktop_instance
from sandbox.desktop.desktop import Desktop
from sandbox.desktop.instance import DesktopStepContext, Launch
from sandbox.desktop.launching import start
from sandbox.tasks.imported import goals
from sandbox.tasks.imported.machine import DESKTOP_HOME, DesktopMachine, TerminalMachine, relative, words
from sandbox.tasks.imported.spec import Answers, DeviceSays, GivesUp, Goal, OracleStep, SetupStep, TaskSpec
from sandbox.tasks.task import Task
from sandbox.terminal import tasks as terminal
from warehouse.core.errors import TaskError

SETUP_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalGoal:
    """A goal of an imported task as the terminal's verifier takes it."""

    goal: Goal
    assets: goals.Assets

    async def unmet(self, probe: terminal.Probe) -> str | None:
        return await goals.unmet(self.goal, TerminalMachine(probe), self.assets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _All:
    """Every one of some goals: what the last step of a solution leads to."""

    goals: Sequence[terminal.Goal]

    async def unmet(self, probe: terminal.Probe) -> str | None:
        return "; ".join(await terminal.unmet_goals(self.goals, probe)) or None


def terminal_task(task: Task, spec: TaskSpec, assets: goals.Assets) -> terminal.Instance:
    answers = [goal.text for goal in spec.goals if isinstance(goal, Answers)]
    checked = [TerminalGoal(goal=goal, assets=assets) for goal in spec.goals if not isinstance(goal, Answers)]
    files: dict[str, str | bytes] = dict(spec.files)
    return terminal.Instance(
        instruction=spec.instruction,
        files=files | {path: assets(digest) for path, digest in spec.assets.items()},
        folders=spec.folders,
        commands=[_command_text(step) for step in spec.setup],
        goals=[*checked, *(terminal.Answers(text=text) for text in answers)],
        steps=_terminal_steps(spec.oracle, checked),
        answer=answers[0] if answers else "",
    )


def _command_text(step: SetupStep) -> str:
    if step.command is None:
        raise TaskError("a terminal task is set up by commands alone: leave launch, wait, act, window and put to desktop tasks")
    text = step.command if isinstance(step.command, str) else " ".join(map(terminal.quoted, step.command))
    return text if step.must_succeed else f"{{ {text}\n}} || true"


def _terminal_steps(oracle: Sequence[OracleStep], checked: Sequence[terminal.Goal]) -> list[terminal.Step]:
    """The last one is taken until every goal but an answer holds, so that those before it count as taken once."""
    steps = [terminal.Step(action=_terminal_action(step)) for step in oracle]
    if steps and checked:
        steps[-1] = terminal.Step(action=steps[-1].action, goal=_All(goals=checked))
    return steps


def _terminal_action(step: OracleStep) -> Action:
    if step.click_on is not None:
        raise TaskError("the oracle of a terminal task cannot click: give commands or actions")
    return step.action or ToolCall(name="execute_bash", arguments={"command": step.command or ""})


def desktop_task(task: Task, spec: TaskSpec, assets: goals.Assets) -> desktop_instance.Instance:
    files = {path: text.encode() for path, text in spec.files.items()} | {path: assets(digest) for path, digest in spec.assets.items()}

    async def prepare(desktop: Desktop, window_s: float) -> None:
        folders = [path for path in spec.folders if relative(path, DESKTOP_HOME)]
        steps = (SetupStep(command=("mkdir", "-p", "--", *folders)), *spec.setup) if folders else spec.setup
        await carry_out(desktop, steps, window_s, assets)

    async def verify(desktop: Desktop) -> list[str]:
        await carry_out(desktop, spec.before_checks, SETUP_LIMIT_S, assets)
        machine = DesktopMachine(desktop)
        reasons = [await goals.unmet(goal, machine, assets) for goal in spec.goals if not isinstance(goal, GivesUp)]
        return [reason for reason in reasons if reason is not None]

    return desktop_instance.Instance(
        instruction=spec.instruction,
        files={PurePosixPath(_at_home(path)): content for path, content in files.items()},
        prepare=prepare,
        verify=verify,
        oracle=lambda context: _next_of(spec.oracle, context),
        has_oracle=bool(spec.oracle),
        cannot_be_done=any(isinstance(goal, GivesUp) for goal in spec.goals),
    )


def _at_home(path: str) -> str:
    inside = relative(path, DESKTOP_HOME)
    if inside is None:
        raise TaskError(f"a task's file lies at {path!r}: put it below {DESKTOP_HOME}")
    return inside


def _next_of(oracle: Sequence[OracleStep], context: DesktopStepContext) -> Action | None:
    """The steps are taken in order, one a step of the episode."""
    done = len(context.actions)
    if done >= len(oracle):
        return None
    step = oracle[done]
    if step.click_on is not None:
        element = next((each for each in context.observation.elements if each.text == step.click_on), None)
        return None if element is None else Click(x=element.x_px, y=element.y_px)
    return step.action


async def carry_out(desktop: Desktop, steps: Sequence[SetupStep], window_s: float, assets: goals.Assets) -> None:
    """A setup's steps, one after the other. Raises TaskError where a command that must succeed does not."""
    for step in steps:
        if step.command is not None:
            done = await desktop.run(words(step.command), timeout_s=SETUP_LIMIT_S)
            if done.exit_code != 0 and step.must_succeed:
                raise TaskError(f"preparing a task, {step.command!r} gave {done.exit_code}: {(done.stderr or done.stdout)[-300:]!r}")
        elif step.launch is not None:
            paths = tuple(PurePosixPath(_at_home(path)) for path in step.files)
            await start(desktop, Launch(app=step.launch, files=paths), window_s)
        elif step.wait is not None:
            await asyncio.sleep(step.wait)
        elif step.window is not None:
            for window in await desktop.windows():
                if step.window.casefold() in (window.title.casefold(), window.window_class.casefold()) or step.window in window.title:
                    await desktop.change_window(window.window_id, step.change)
            await desktop.settle()
        for path, digest in step.put.items():
            await desktop.put_file(PurePosixPath(_at_home(path)), assets(digest))
        for action in step.act:
            phases = gestures(action, desktop.size_px, "desktop")
            if isinstance(phases, Refusal):
                raise TaskError(f"preparing a task, {action.kind} is not possible: {phases.reason}")
            await desktop.perform(phases)
            await desktop.settle()


def android_task(task: Task, spec: TaskSpec, assets: goals.Assets) -> AndroidInstance:
    checks = [goal for goal in spec.goals if isinstance(goal, DeviceSays)]
    answers = [goal.text for goal in spec.goals if isinstance(goal, Answers)]
    return AndroidInstance(
        instruction=spec.instruction,
        packages=spec.packages,
        setup=spec.device_setup,
        checks=tuple(
            Check(command=check.command, expected=check.expected, is_part=check.is_part, is_negated=check.is_negated) for check in checks
        ),
        answer=answers[0] if answers else None,
        oracle_action=lambda context: None,
    )


FACTORIES: Mapping[str, Callable[[Task, TaskSpec, goals.Assets], Any]] = {
    "terminal": terminal_task,
    "desktop": desktop_task,
    "android": android_task,
}
"""By kind of task."""


def instance_of(task: Task, spec: TaskSpec, assets: goals.Assets) -> Any:
    """For the session of the task's kind. Raises TaskError for a task that another source plays."""
    if spec.kind not in FACTORIES:
        raise TaskError(f"task {task.name!r} is a {spec.kind} task, which its own source plays")
    return FACTORIES[spec.kind](task, spec, assets)
