"""AndroidSession: the Session protocol on an Android device. How adb is spoken is sandbox/android/device.py, what a task is
sandbox/android/instance.py.

Rewards are paid at the end: the agent's own `finished` is checked by commands on the device and pays 1 or 0. Every reset puts the device
back: where the session was given the name of one, to an emulator's snapshot, which is all of it; else by clearing the data of the source's
apps and putting back the settings that its tasks change. Then what an agent did elsewhere stays, so use a device that is for this alone:
its contacts, too, are cleared.
"""

from __future__ import annotations

import asyncio
import shlex
import struct
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sandbox import actions
from sandbox.actions import Action
from sandbox.android.device import MAX_ERROR_CHARACTERS, AndroidDevice, join
from sandbox.android.emulator import load_snapshot
from sandbox.android.gestures import commands
from sandbox.android.instance import AndroidInstance, AndroidStepContext, says_the_same
from sandbox.android.ui_tree import parse, rotation
from sandbox.browser.input import Refusal
from sandbox.session import Observation, Transition, Verdict, require_open, require_running
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import InstanceSource, instance_of
from warehouse.core.errors import SandboxError, SandboxTimeout

T = TypeVar("T")

APPS = {
    "settings": "com.android.settings",
    "contacts": "com.android.contacts",
    "clock": "com.android.deskclock",
    "camera": "com.android.camera2",
    "phone": "com.android.dialer",
    "messages": "com.android.messaging",
    "calendar": "com.android.calendar",
    "chrome": "com.android.chrome",
    "files": "com.android.documentsui",
    "gallery": "com.android.gallery3d",
    "calculator": "com.android.calculator2",
}
"""Packages of AOSP's apps by the name under their icon. Others are found by a part of their package's name, or by all of it."""

START_APP = "am start -W -a android.intent.action.MAIN -c android.intent.category.LAUNCHER -f 0x10200000"
"""As a launcher does: an app that runs already comes to the front as it was. (`monkey`, which others use, lets the screen turn again.)"""

PREPARE = (
    "input keyevent KEYCODE_WAKEUP",
    "wm dismiss-keyguard",
    # nothing moves by itself: no animations, no turning of the screen, no sleep, and a status bar that always says the same
    "settings put global window_animation_scale 0",
    "settings put global transition_animation_scale 0",
    "settings put global animator_duration_scale 0",
    "settings put global stay_on_while_plugged_in 7",
    "settings put global sysui_demo_allowed 1",
    "am broadcast -a com.android.systemui.demo -e command enter",
    "am broadcast -a com.android.systemui.demo -e command clock -e hhmm 1200",
    "am broadcast -a com.android.systemui.demo -e command notifications -e visible false",
    "am broadcast -a com.android.systemui.demo -e command battery -e level 100 -e plugged false",
)

BASELINE = (
    "settings put system accelerometer_rotation 0",
    "settings put system user_rotation 0",
    "settings put system screen_off_timeout 60000",
    "cmd connectivity airplane-mode disable",
    "svc wifi enable",
    "cmd uimode night no",
)
"""What tasks change beside the data of apps, put back before every episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Wall-clock limits and waits, in seconds. `settle_s` passes after an action before UI Automator is asked, which itself waits until
    nothing moves; on a device that draws slowly make it longer."""

    reset_s: float = 120.0
    step_s: float = 60.0
    settle_s: float = 0.3


@dataclass(slots=True, kw_only=True)
class _Running:
    task: Task
    instance: AndroidInstance
    upright_px: tuple[int, int]
    started_s: float
    observation: Observation | None = None
    num_steps: int = 0
    is_over: bool = False
    answer: str | None = None


class AndroidSession:
    """Task instances on one device, one after another. `screenshots` may be set before a reset."""

    def __init__(
        self,
        device: AndroidDevice,
        sources: Mapping[str, InstanceSource] = SOURCES,
        *,
        snapshot: str | None = None,
        limits: Limits | None = None,
        screenshots: bool = True,
    ) -> None:
        """`snapshot` is the name of an emulator's snapshot to reset to; without one, apps are cleared. The session owns the device and
        closes it."""
        self.screenshots = screenshots
        self._device, self._sources, self._snapshot = device, sources, snapshot
        self._limits = limits or Limits()
        self._current: _Running | None = None
        self._is_closed = False

    @property
    def environment(self) -> str:
        """The device's model, version and build."""
        return self._device.environment

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for an unknown source, and SandboxErrors."""
        require_open(self._is_closed)
        instance = instance_of(self._sources, task, seed, AndroidInstance)
        self._current = None
        await self._limited(self._restore(instance), self._limits.reset_s, f"Resetting to {task.name}")
        running = _Running(task=task, instance=instance, upright_px=await self._device.screen_size(), started_s=time.monotonic())
        self._current = running
        return await self._limited(self._observe(running), self._limits.step_s, f"The first look at {task.name}")

    async def _restore(self, instance: AndroidInstance) -> None:
        if self._snapshot is not None:
            await load_snapshot(self._device.serial, self._snapshot, limit_s=self._limits.reset_s)
            await self._device.wait_until_ready(self._limits.reset_s)
        clears = () if self._snapshot is not None else tuple(f"pm clear {package}" for package in instance.packages)
        stops = tuple(f"am force-stop {package}" for package in instance.packages)
        lines = [*PREPARE, *BASELINE, *stops, *clears, *instance.setup, "input keyevent KEYCODE_HOME"]
        await self._device.shell(join(lines), limit_s=self._limits.reset_s)

    async def step(self, action: Action) -> Transition:
        running = self._running()
        if running.is_over:
            observation = await self._limited(self._observe(running), self._limits.step_s, f"A look at {running.task.name}")
            return Transition(
                observation=observation, reward=0.0, terminated=True, truncated=False, info={"ignored": "the episode is over"}
            )
        pause_s = action.seconds if isinstance(action, actions.Wait) else 0.0
        return await self._limited(self._step(running, action), self._limits.step_s + pause_s, f"A step of {running.task.name}")

    async def _step(self, running: _Running, action: Action) -> Transition:
        info, output = await self._act(running, action)
        observation = await self._observe(running, output)
        running.num_steps += 1
        terminated = isinstance(action, actions.Finished | actions.CallUser)
        truncated = not terminated and running.num_steps >= running.task.max_steps
        running.is_over = terminated or truncated
        reward = (await self.evaluate()).score if terminated else 0.0
        return Transition(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)

    async def _act(self, running: _Running, action: Action) -> tuple[dict[str, Any], str]:
        """Carry out an action: returns what to say about it, and what it printed."""
        match action:
            case actions.InvalidAction(reason=reason):
                return {"invalid": reason}, ""
            case actions.Finished(answer=answer):
                running.answer = answer
                return {}, ""
            case actions.CallUser():
                return {}, ""
            case actions.ToolCall(name=name):
                return {}, f"error: there is no tool {name!r} on this device; use its screen."
            case actions.Wait(seconds=seconds):
                await asyncio.sleep(seconds)
                return {}, ""
            case actions.OpenApp(name=name):
                return await self._open_app(name), ""
        size_px = self._size_px(running)
        lines = commands(action, size_px)
        if isinstance(lines, Refusal):
            return {"ignored": lines.reason}, ""
        return (await self._send(join(lines)) if lines else {}), ""

    async def _send(self, command: str) -> dict[str, Any]:
        """Carry out a command that a policy chose. What this Android refuses, an older one for instance `input keycombination`, is
        the policy's to know and no failure of the device."""
        result = await self._device.shell(command, check=False)
        await asyncio.sleep(self._limits.settle_s)
        if result.exit_code == 0:
            return {}
        said = (result.stderr or result.stdout).decode(errors="replace").strip()[:MAX_ERROR_CHARACTERS]
        return {"ignored": f"the device refused {command!r}: {said}"}

    async def _open_app(self, name: str) -> dict[str, Any]:
        activities = await self._device.launchable()
        packages = sorted(activities)
        wanted = name.strip().casefold()
        known = APPS.get(wanted)
        candidates = [package for package in packages if package in (known, wanted)]
        candidates += [package for package in packages if wanted and wanted.replace(" ", "") in package.casefold()]
        if not candidates:
            return {"ignored": f"there is no app {name!r}; packages with an icon: {', '.join(packages)}"}
        return await self._send(f"{START_APP} -n {shlex.quote(activities[candidates[0]])}")

    async def _observe(self, running: _Running, output: str = "") -> Observation:
        """The tree first: UI Automator waits until nothing moves, so the picture is of the same moment."""
        xml = await self._device.dump_ui()
        png = await self._device.screenshot() if self.screenshots else None
        if png is not None:
            size_px = png_size(png)
        else:
            size_px = running.upright_px if rotation(xml) % 2 == 0 else (running.upright_px[1], running.upright_px[0])
        tree = parse(xml, size_px)
        running.observation = Observation(
            instruction=running.instance.instruction,
            elements=tree.elements,
            screenshot=png,
            width_px=size_px[0],
            height_px=size_px[1],
            time_ms=round((time.monotonic() - running.started_s) * 1000, 3),
            url=tree.package,
            output=output,
        )
        return running.observation

    async def evaluate(self) -> Verdict:
        running = self._running()
        reasons = await self._failures(running.instance)
        expected = running.instance.answer
        if expected is not None and not says_the_same(running.answer or "", expected):
            reasons.append(f"the answer is {running.answer!r}, not {expected!r}" if running.answer else "no answer was given")
        score = 0.0 if reasons else 1.0
        return Verdict(origin="verifier", score=score, threshold=1.0, reasons=tuple(reasons) or ("every check of the device holds",))

    async def _failures(self, instance: AndroidInstance) -> list[str]:
        failures = []
        for check in instance.checks:
            output = (await self._device.shell(check.command)).text
            if not check.holds(output):
                how = "a part " if check.is_part else "the rows " if check.is_rows else ""
                wanted = ("not " if check.is_negated else "") + how + repr(check.expected)
                failures.append(f"{check.command!r} says {output[:200]!r}, expected {wanted}")
        return failures

    async def oracle_action(self) -> Action | None:
        running = self._running()
        if running.observation is None or running.is_over:
            return None
        is_solved = not await self._failures(running.instance)
        return running.instance.oracle_action(AndroidStepContext(observation=running.observation, is_solved=is_solved))

    def _running(self) -> _Running:
        require_open(self._is_closed)
        return require_running(self._current)

    @staticmethod
    def _size_px(running: _Running) -> tuple[int, int]:
        if running.observation is None:
            raise SandboxError("The device has not been observed yet: reset the session first.")
        return running.observation.width_px, running.observation.height_px

    @staticmethod
    async def _limited(work: Coroutine[Any, Any, T], limit_s: float, what: str) -> T:
        try:
            return await asyncio.wait_for(work, limit_s)
        except SandboxError:
            raise
        except TimeoutError as error:
            raise SandboxTimeout(f"{what} took longer than {limit_s:g} s.") from error

    async def close(self) -> None:
        self._is_closed = True
        self._current = None
        await self._device.close()


def png_size(png: bytes) -> tuple[int, int]:
    """Width and height from the header of a PNG."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height
