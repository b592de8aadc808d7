"""Android sessions over AOSP's real adbd and a real adb server, on a SIMULATED device: `input`, `screencap`, `uiautomator`, `am`, `pm`,
`settings` and their kin are a small program of ours (tests/sandbox/android_device), so no Android interface is exercised here.

The first run fetches adbd from Debian (7 MB). Skipped, with the reason, where it or a program to run it cannot be had.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from sandbox import actions
from sandbox.actions import Action
from sandbox.android import emulator
from sandbox.android.device import AndroidDevice
from sandbox.android.session import AndroidSession, Limits
from sandbox.session import Observation, Session, Transition
from sandbox.tasks.android.source import load_tasks
from sandbox.tasks.task import Task
from tests.sandbox.android_device.commands import OLD_INPUT
from tests.sandbox.android_device.harness import SimulatedDevice, Unavailable, adbd_root
from warehouse.core.errors import DeviceLost, DeviceMissing, SandboxError, SandboxTimeout, TaskError

pytestmark = pytest.mark.long
TASKS = load_tasks()
LIMITS = Limits(settle_s=0.0)
Use = Callable[[AndroidSession], Awaitable[Any]]


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimulatedDevice]:
    try:
        adbd_root()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with SimulatedDevice() as device:
        yield device


@asynccontextmanager
async def opened(simulated: SimulatedDevice, **more: Any) -> AsyncIterator[AndroidSession]:
    device = await AndroidDevice.open(simulated.serial, port=simulated.adb_port)
    session = AndroidSession(device, limits=LIMITS, **more)
    try:
        yield session
    finally:
        await session.close()


@pytest.fixture
def on_device(simulated: SimulatedDevice) -> Callable[..., Any]:
    """Runs `use(session)`."""

    def run(use: Use, **more: Any) -> Any:
        async def leased() -> Any:
            async with opened(simulated, **more) as session:
                return await use(session)

        return asyncio.run(leased())

    return run


def at(observation: Observation, text: str) -> dict[str, int]:
    element = next(element for element in observation.elements if element.text.startswith(text))
    return {"x": element.x_px, "y": element.y_px}


async def walk(session: AndroidSession, *texts: str) -> Transition:
    """Tap one thing after another."""
    transition = await session.step(actions.OpenApp(name=texts[0]))
    for text in texts[1:]:
        transition = await session.step(actions.Click(**at(transition.observation, text)))
    return transition


def test_a_reset_of_the_simulated_device_shows_its_launcher(on_device: Any) -> None:
    async def use(session: AndroidSession) -> None:
        assert isinstance(session, Session)
        observation = await session.reset(TASKS["wifi-off"], 0)
        assert (observation.instruction, observation.url) == ("Turn Wi-Fi off.", "com.android.launcher3")
        assert [element.text for element in observation.elements] == ["12:00", "Settings", "Contacts"]
        assert (observation.width_px, observation.height_px) == (360, 640) and observation.screenshot is not None
        with Image.open(io.BytesIO(observation.screenshot)) as image:
            assert image.size == (360, 640) and len(image.convert("RGB").getcolors(100_000) or []) > 3
        assert session.environment == "Android Simulated 14 sim-1"

    on_device(use)


def test_two_resets_of_the_simulated_device_give_the_same_pixels(on_device: Any) -> None:
    async def use(session: AndroidSession) -> list[str | None]:
        seen = []
        for _ in range(2):
            await session.reset(TASKS["delete-contact"], 4)
            seen.append((await walk(session, "Contacts")).observation.screenshot_id)
        return seen

    first, second = on_device(use)
    assert first is not None and first == second


def test_nothing_of_a_task_crosses_to_the_next_episode_on_the_simulated_device(on_device: Any, simulated: SimulatedDevice) -> None:
    state = [
        "settings get global wifi_on",
        "settings get global airplane_mode_on",
        "settings get secure ui_night_mode",
        "settings get system accelerometer_rotation",
        "settings get system screen_off_timeout",
        "content query --uri content://com.android.contacts/data/phones --projection display_name:data1",
    ]

    def reported() -> list[str]:
        return [simulated.adb("shell", command).stdout for command in state]

    async def use(session: AndroidSession) -> None:
        first = await session.reset(TASKS["find-number"], 0)
        clean = reported()
        for name in TASKS:
            await session.reset(TASKS[name], 5)
            while (action := await session.oracle_action()) is not None:
                await session.step(action)
        assert reported() != clean
        again = await session.reset(TASKS["find-number"], 0)
        assert reported() == clean and again.elements == first.elements

    on_device(use, screenshots=False)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_oracle_solves_its_task_on_the_simulated_device(on_device: Any, name: str) -> None:
    async def use(session: AndroidSession) -> None:
        for seed in range(3):
            await session.reset(TASKS[name], seed)
            assert not (await session.evaluate()).success
            transition = None
            while transition is None or not (transition.terminated or transition.truncated):
                action = await session.oracle_action()
                assert action is not None
                transition = await session.step(action)
                assert "ignored" not in transition.info and (transition.terminated or transition.reward == 0.0)
            verdict = await session.evaluate()
            assert transition.terminated and transition.reward == 1.0 and verdict.success, (seed, verdict.reasons)
            assert await session.oracle_action() is None

    on_device(use, screenshots=False)


def test_giving_up_pays_nothing_and_says_why_on_the_simulated_device(on_device: Any) -> None:
    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["wifi-off"], 0)
        transition = await session.step(actions.Finished())
        assert transition.terminated and transition.reward == 0.0
        assert "'settings get global wifi_on' says '1'" in (await session.evaluate()).reasons[0]
        after = await session.step(actions.PressHome())
        assert after.terminated and after.info == {"ignored": "the episode is over"}
        await session.reset(TASKS["find-number"], 0)
        await session.step(actions.Finished(answer="555-0000"))
        assert "the answer is '555-0000'" in (await session.evaluate()).reasons[0]

    on_device(use, screenshots=False)


def test_steps_run_out_on_the_simulated_device(on_device: Any) -> None:
    async def use(session: AndroidSession) -> Transition:
        await session.reset(TASKS["wifi-off"].model_copy(update={"max_steps": 1}), 0)
        return await session.step(actions.PressHome())

    transition = on_device(use, screenshots=False)
    assert transition.truncated and not transition.terminated


TEXTS = [
    "Ada",
    "a b  c",
    'it\'s "$HOME" & `id`; rm -rf * | cat > x # !',
    "50%sure 100%",
    "%s",
    "-n \\n 'x",
    "~!@#$%^&*()_+{}|:<>?[]\\;,./=",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_reaches_the_simulated_device_as_it_was_typed(on_device: Any, text: str) -> None:
    async def use(session: AndroidSession) -> str:
        await session.reset(TASKS["add-contact"], 0)
        await walk(session, "Contacts", "Create contact", "Name")
        transition = await session.step(actions.TypeText(text=text))
        return next(element.text for element in transition.observation.elements if element.role == "input")

    assert on_device(use, screenshots=False) == " ".join(text.split())


def test_enter_moves_on_and_two_keys_go_together_on_the_simulated_device(on_device: Any) -> None:
    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["add-contact"], 0)
        await walk(session, "Contacts", "Create contact", "Name")
        transition = await session.step(actions.TypeText(text="Ada\n123"))
        inputs = [element for element in transition.observation.elements if element.role == "input"]
        assert [element.text for element in inputs] == ["Ada", "123"] and inputs[1].states == ("focused",)
        transition = await session.step(actions.Hotkey(keys=("ctrl", "a")))
        assert [element.text for element in transition.observation.elements if element.role == "input"] == ["Ada", "Phone"]
        transition = await session.step(actions.TypeText(text="ü"))
        assert "ASCII only" in transition.info["ignored"]

    on_device(use, screenshots=False)


def test_what_an_older_input_refuses_is_reported_and_costs_no_episode(on_device: Any, simulated: SimulatedDevice) -> None:
    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["add-contact"], 0)
        await walk(session, "Contacts", "Create contact", "Name")
        transition = await session.step(actions.Hotkey(keys=("ctrl", "a")))
        assert "refused 'input keycombination KEYCODE_CTRL_LEFT KEYCODE_A': Error: Unknown command" in transition.info["ignored"]
        assert not transition.terminated and (await session.step(actions.TypeText(text="Ada"))).info == {}

    simulated.adb("shell", f"settings put global {OLD_INPUT} 1")
    try:
        on_device(use, screenshots=False)
    finally:
        simulated.adb("shell", f"settings delete global {OLD_INPUT}")


def test_a_list_scrolls_on_the_simulated_device(on_device: Any, simulated: SimulatedDevice) -> None:
    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["delete-contact"], 0)
        for number in range(10):
            uri = "content://com.android.contacts"
            simulated.adb("shell", f"content insert --uri {uri}/raw_contacts --bind account_type:n: --bind account_name:n:")
            name = f"--bind mimetype:s:vnd.android.cursor.item/name --bind data1:s:Z{number}"
            simulated.adb("shell", f"content insert --uri {uri}/data --bind raw_contact_id:i:{number + 5} {name}")
        shown = [element.text for element in (await walk(session, "Contacts")).observation.elements]
        assert "Z9" not in shown
        transition = await session.step(actions.Scroll(direction="down"))
        assert "Z9" in [element.text for element in transition.observation.elements]
        transition = await session.step(actions.Drag(x=180, y=100, to_x=180, to_y=600))
        assert [element.text for element in transition.observation.elements] == shown

    on_device(use, screenshots=False)


def test_home_back_and_open_app_on_the_simulated_device(on_device: Any) -> None:
    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["wifi-off"], 0)
        transition = await walk(session, "settings", "Display")
        assert transition.observation.url == "com.android.settings" and transition.observation.elements[1].text == "Display"
        transition = await session.step(actions.PressBack())
        assert transition.observation.elements[1].text == "Settings"
        assert (await session.step(actions.PressHome())).observation.url == "com.android.launcher3"
        assert (await session.step(actions.OpenApp(name="com.android.contacts"))).observation.url == "com.android.contacts"
        transition = await session.step(actions.OpenApp(name="Doom"))
        assert transition.info["ignored"].startswith("there is no app 'Doom'; packages with an icon: com.android.contacts")

    on_device(use, screenshots=False)


@pytest.mark.parametrize(
    ("action", "key", "part"),
    [
        (actions.Click(x=400, y=6), "ignored", "outside the screen of 360x640"),
        (actions.InvalidAction(text="clik", reason="no such action"), "invalid", "no such action"),
        (actions.KeyDown(key="a"), "ignored", "not possible on this device"),
    ],
)
def test_what_the_policy_does_wrong_is_a_value(on_device: Any, action: Action, key: str, part: str) -> None:
    async def use(session: AndroidSession) -> Transition:
        await session.reset(TASKS["wifi-off"], 0)
        return await session.step(action)

    assert part in on_device(use, screenshots=False).info[key]


def test_a_tool_that_a_phone_has_not_is_reported(on_device: Any) -> None:
    async def use(session: AndroidSession) -> Transition:
        await session.reset(TASKS["wifi-off"], 0)
        return await session.step(actions.ToolCall(name="execute_bash", arguments={"command": "id"}))

    assert on_device(use, screenshots=False).observation.output.startswith("error: ")


def test_a_turned_simulated_device_is_seen_as_it_is_turned(on_device: Any, simulated: SimulatedDevice) -> None:
    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["wifi-off"], 0)
        simulated.adb("shell", "settings put system user_rotation 1")
        observation = (await session.step(actions.Wait(seconds=0.01))).observation
        assert (observation.width_px, observation.height_px) == (640, 360)
        assert observation.elements[0].width_px == 640
        assert (await session.reset(TASKS["wifi-off"], 0)).width_px == 360

    on_device(use, screenshots=False)
    on_device(use, screenshots=True)


def test_files_go_to_the_device_unchanged(simulated: SimulatedDevice, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000

    async def use() -> None:
        device = await AndroidDevice.open(port=simulated.adb_port)  # the only one there is
        assert device.serial == simulated.serial
        await device.push(content, "/sdcard/Download/some file.bin")
        assert (await device.shell("wc -c < '/sdcard/Download/some file.bin'")).text == str(len(content))
        await device.close()

    asyncio.run(use())
    simulated.adb("pull", "/sdcard/Download/some file.bin", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content


def test_commands_have_exit_codes_raw_output_and_a_limit(simulated: SimulatedDevice) -> None:
    async def use() -> None:
        device = await AndroidDevice.open(simulated.serial, port=simulated.adb_port)
        result = await device.shell("printf 'a\\r\\nb\\n\\000'; echo oops >&2; exit 3", check=False)
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"a\r\nb\n\0", b"oops\n")
        with pytest.raises(SandboxError, match="exit code 3: 'oops'"):
            await device.shell("echo oops >&2; exit 3")
        with pytest.raises(SandboxTimeout, match=r"within 0\.2 s"):
            await device.shell("sleep 5", limit_s=0.2)
        assert (await device.shell("echo still there")).text == "still there"
        await device.close()
        with pytest.raises(SandboxError, match="closed"):
            await device.shell("true")

    asyncio.run(use())


def test_the_loop_goes_on_while_the_device_is_slow(simulated: SimulatedDevice) -> None:
    async def use() -> int:
        device = await AndroidDevice.open(simulated.serial, port=simulated.adb_port)
        slow = asyncio.ensure_future(device.shell("sleep 1"))
        num_turns = 0
        while not slow.done():
            await asyncio.sleep(0.005)
            num_turns += 1
        await device.close()
        return num_turns

    assert asyncio.run(use()) > 3


def test_devices_that_are_not_there_are_named_and_no_adb_server_is_started(simulated: SimulatedDevice) -> None:
    async def use() -> None:
        with pytest.raises(DeviceMissing, match=r"'emulator-5554' is not connected; devices there: 127\.0\.0\.1:15561 \(device\)"):
            await AndroidDevice.open("emulator-5554", port=simulated.adb_port)
        with pytest.raises(DeviceMissing, match="No adb server answers"):
            await AndroidDevice.open(port=1)

    before = {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "adb"}
    asyncio.run(use())
    after = {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "adb"}
    assert after <= before


def test_what_a_simulated_device_was_sent_at_reset(on_device: Any, simulated: SimulatedDevice) -> None:
    simulated.adb("shell", "fakelog")
    on_device(lambda session: session.reset(TASKS["add-contact"], 0), screenshots=False)
    reported = [json.loads(line) for line in simulated.adb("shell", "fakelog").stdout.splitlines()]
    assert ["input", "keyevent", "KEYCODE_WAKEUP"] in reported and ["wm", "dismiss-keyguard"] in reported
    assert reported.index(["am", "force-stop", "com.android.contacts"]) < reported.index(["pm", "clear", "com.android.contacts"])
    assert ["screencap", "-p"] not in reported


def test_a_session_goes_back_to_a_snapshot_of_the_simulated_emulator(
    on_device: Any, simulated: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(emulator, "console_port", lambda serial: simulated.console_port)  # the serial of ours names no console
    save = partial(emulator.console, simulated.console_port, "avd snapshot save clean")
    with pytest.raises(SandboxError, match=r"refused .*KO: unknown command"):
        asyncio.run(save())
    (tmp_path / emulator.TOKEN_FILE).write_text("simulated-token\n")
    asyncio.run(save())
    simulated.adb("shell", "settings put global planted 1")

    async def use(session: AndroidSession) -> None:
        await session.reset(TASKS["wifi-off"], 0)
        assert simulated.adb("shell", "settings get global planted").stdout.strip() == "null"

    on_device(use, screenshots=False, snapshot="clean")
    with pytest.raises(SandboxError, match="no snapshot of name 'gone'"):
        on_device(use, screenshots=False, snapshot="gone")


def test_sessions_refuse_what_they_cannot_do(on_device: Any) -> None:
    async def use(session: AndroidSession) -> None:
        with pytest.raises(SandboxError, match="reset"):
            await session.step(actions.PressHome())
        with pytest.raises(TaskError, match=r"this session has \['android'\]"):
            await session.reset(Task(source="miniwob", name="click", domain="pointing", max_steps=1), 0)
        await session.close()
        with pytest.raises(SandboxError, match="closed"):
            await session.reset(TASKS["wifi-off"], 0)

    on_device(use)


def test_a_lost_device_is_an_error_of_the_infrastructure() -> None:
    try:
        adbd_root()
    except Unavailable as reason:
        pytest.skip(str(reason))

    async def use(device: SimulatedDevice) -> None:
        async with opened(device, screenshots=False) as session:
            await session.reset(TASKS["wifi-off"], 0)
            device.kill_adbd()
            with pytest.raises(DeviceLost, match=r"127\.0\.0\.1:15561 is gone"):
                await session.step(actions.PressHome())

    with SimulatedDevice() as device:
        asyncio.run(use(device))
        folder = device.folder
    assert not folder.exists()
