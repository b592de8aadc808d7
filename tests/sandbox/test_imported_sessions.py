"""Imported tasks in the sessions that they are for: a real jail, a real X server with a real editor, AOSP's adbd on a simulated device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.actions import Hotkey, TypeText
from sandbox.android.device import AndroidDevice
from sandbox.android.session import AndroidSession, Limits
from sandbox.desktop.apps import missing_packages
from sandbox.pool.pool import SessionPool
from sandbox.tasks.imported.collecting import collect
from sandbox.tasks.imported.machine import DESKTOP_HOME
from sandbox.tasks.imported.store import write_set
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Task
from tests.sandbox.android_device.harness import SimulatedDevice, Unavailable, adbd_root
from warehouse.core.errors import TaskError
from warehouse.core.home import Home

LACKING = missing_packages(["editor"])
needs_desktop = pytest.mark.skipif(bool(LACKING), reason=f"apt-get install --no-install-recommends {' '.join(LACKING)}")

WORKBOOK = Path(__file__).with_name("workbooks") / "chart.xlsx"
NO_CALC = missing_packages(["calc"])
needs_calc = pytest.mark.skipif(bool(NO_CALC), reason="libreoffice-calc is not installed: make setup FLYWHEEL_DESKTOP=full")
NO_TERMINAL = missing_packages(["terminal"])
needs_terminal = pytest.mark.skipif(bool(NO_TERMINAL), reason=f"apt-get install --no-install-recommends {' '.join(NO_TERMINAL)}")


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`imported(format, *records)` gives the tasks of a set of them, by the part of their name that they were given."""
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))

    def make(format: str, *records: Any) -> dict[str, Task]:
        path = tmp_path / "tasks.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        found = collect(format, [path])
        assert not found.malformed and not found.reasons
        write_set(Home.from_env(), "mine", found.tasks, found.records, found.assets, {})
        return {task.name.partition(":")[2]: task for task in tasks_of("imported:mine")}

    return make


async def play(session: Any) -> list[Any]:
    """What the oracle does until it has nothing more to say."""
    done = []
    while (action := await session.oracle_action()) is not None:
        done.append(await session.step(action))
        if done[-1].terminated or done[-1].truncated:
            break
    return done


GOALS = [
    {"kind": "file_contains", "path": "out/all.txt", "texts": ["b", "a"]},
    {"kind": "folder", "path": "out"},
    {"kind": "executable", "path": "run.sh"},
    {"kind": "absent", "path": "a.txt"},
    {"kind": "prints", "command": "bash run.sh", "text": "done"},
    {"kind": "any", "goals": [{"kind": "file", "path": "nothing"}, {"kind": "not", "goal": {"kind": "absent", "path": "b.txt"}}]},
    {"kind": "compare", "function": "compare_csv", "result": {"file": "t.csv"}, "expected": {"value": "x,y\n1,2\n"}},
]


def test_a_terminal_task_is_set_up_solved_and_verified(imported: Any) -> None:
    tasks = imported(
        "plain",
        {
            "name": "many",
            "kind": "terminal",
            "instruction": "Tidy up.",
            "files": {"a.txt": "a\n", "b.txt": "b\n", "run.sh": "echo done\n"},
            "folders": ["old"],
            "setup": [{"command": "echo ready > /workspace/old/state"}],
            "goals": GOALS,
            "oracle": [
                {"command": "mkdir out"},
                {"command": "cat a.txt b.txt > out/all.txt"},
                {"command": "chmod +x run.sh && rm a.txt"},
                {"command": "printf 'x,y\\n1,2\\n' > t.csv"},
            ],
        },
        {
            "name": "ask",
            "kind": "terminal",
            "instruction": "Which word is in {file}?",
            "params": [{"file": "f1", "word": "kiwi"}],
            "files": {"{file}": "{word}\n"},
            "goals": [{"kind": "answers", "text": "{word}"}],
            "oracle": [{"command": "cat {file}"}],
        },
    )

    async def use() -> None:
        async with SessionPool(size=1) as pool:
            async with pool.lease(tasks["many"]) as session:
                await session.reset(tasks["many"], 0)
                reasons = (await session.evaluate()).reasons
                assert "out/all.txt is not there as a file" in reasons and "a.txt is file, not absent" in reasons
                done = await play(session)
                assert done[-1].reward == 1.0 and len(done) == 5, (await session.evaluate()).reasons
            async with pool.lease(tasks["ask"]) as session:
                assert (await session.reset(tasks["ask"], 0)).instruction == "Which word is in f1?"
                done = await play(session)
                assert done[0].observation.output.startswith("kiwi") and done[-1].reward == 1.0

    asyncio.run(use())


def test_a_setup_that_fails_is_an_error_of_the_task(imported: Any) -> None:
    task = imported(
        "plain",
        {"name": "x", "kind": "terminal", "instruction": "x", "setup": [{"command": "false"}], "goals": [{"kind": "file", "path": "x"}]},
    )["x"]

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            with pytest.raises(TaskError, match="Preparing a task"):
                await session.reset(task, 0)

    asyncio.run(use())


@needs_desktop
@pytest.mark.slow
def test_an_osworld_example_runs_on_a_real_desktop(imported: Any) -> None:
    """Its file is made, opened in the editor, changed by keys, saved by the evaluator's own postconfig, and compared."""
    record = {
        "id": "0a-1",
        "snapshot": "os",
        "instruction": "Put the word hello in front of the text in the editor.",
        "related_apps": ["gedit"],
        "config": [
            {"type": "execute", "parameters": {"command": "mkdir -p ~/Desktop && printf 'world\\n' > ~/Desktop/note.txt", "shell": True}},
            {"type": "launch", "parameters": {"command": ["gedit", f"{DESKTOP_HOME}/Desktop/note.txt"]}},
        ],
        "evaluator": {
            "postconfig": [
                {"type": "activate_window", "parameters": {"window_name": "note.txt"}},
                {"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl', 's');"]}},
                {"type": "sleep", "parameters": {"seconds": 0.3}},
            ],
            "func": ["exact_match", "check_include_exclude"],
            "conj": "and",
            "result": [
                {"type": "vm_command_line", "command": ["cat", f"{DESKTOP_HOME}/Desktop/note.txt"]},
                {"type": "vm_command_line", "command": "ls ~/Desktop | wc -l", "shell": True},
            ],
            "expected": [{"type": "rule", "rules": {"expected": "hello world\n"}}, {"type": "rule", "rules": {"include": ["1"]}}],
        },
    }
    task = imported("osworld", record)["0a-1"]

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            observation = await session.reset(task, 0)
            assert observation.screenshot is not None and any(element.text.strip() == "world" for element in observation.elements)
            assert await session.oracle_action() is None, "it has no oracle, and its verifier is left alone"
            await session.step(Hotkey(keys=("ctrl", "home")))
            await session.step(TypeText(text="hello "))
            last = await session.step(actions.Finished())
            assert last.reward == 1.0, (await session.evaluate()).reasons
            await session.reset(task, 0)
            assert (await session.step(actions.Finished())).reward == 0.0
            assert any("exact_match" in reason for reason in (await session.evaluate()).reasons)

    asyncio.run(use())


@needs_terminal
@pytest.mark.slow
def test_what_a_terminal_shows_is_read_from_its_window(imported: Any) -> None:
    """OSWorld's vm_terminal_output, of a terminal that its keys start."""
    script = "import pyautogui; import time; pyautogui.hotkey('ctrl', 'alt', 't'); time.sleep(0.5)"
    record = {
        "id": "0a-3",
        "instruction": "Show on the terminal what three times seven is.",
        "config": [{"type": "execute", "parameters": {"command": ["python", "-c", script]}}],
        "evaluator": {
            "func": "check_include_exclude",
            "result": {"type": "vm_terminal_output"},
            "expected": {"type": "rule", "rules": {"include": ["it is 21"], "exclude": []}},
        },
    }
    task = imported("osworld", record)["0a-3"]

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            await session.reset(task, 0)
            await session.step(TypeText(text="echo it is $((3 * 7))\n"))
            last = await session.step(actions.Finished())
            assert last.reward == 1.0, (await session.evaluate()).reasons
            await session.reset(task, 0)
            await session.step(TypeText(text="echo it is 3 times 7\n"))
            assert (await session.step(actions.Finished())).reward == 0.0
            await session.reset(task, 0)
            await session.step(TypeText(text="exit\n"))
            assert (await session.step(actions.Finished())).reward == 0.0

    asyncio.run(use())


@needs_calc
@pytest.mark.slow
def test_a_workbook_that_calc_saves_is_compared(imported: Any, tmp_path: Path) -> None:
    """Typed into, saved by the evaluator's Ctrl+S, printed as CSV by its own command; the chart is still that of the file it was."""
    (tmp_path / "a.xlsx").write_bytes(WORKBOOK.read_bytes())
    (tmp_path / "a.csv").write_text("7,Sales,COGS,Kind\nJan,10,4,a\nFeb,20,9,b\nMar,15,6,a\nApr,30,11,b\nMay,25,8,a\n")
    download = {"type": "download", "parameters": {"files": [{"url": "https://x.org/a.xlsx", "path": f"{DESKTOP_HOME}/a.xlsx"}]}}
    to_csv = ["--convert-to", "csv:Text - txt - csv (StarCalc):44,34,UTF-8,,,,false,true,true,false,false,1", "--outdir", f"{DESKTOP_HOME}"]
    postconfig = [
        {"type": "activate_window", "parameters": {"window_name": "a.xlsx - LibreOffice Calc", "strict": True}},
        {"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl', 's');"]}},
        {"type": "sleep", "parameters": {"seconds": 2}},
        {"type": "execute", "parameters": {"command": ["libreoffice", *to_csv, f"{DESKTOP_HOME}/a.xlsx"]}},
    ]
    sheets = {"sheet_idx0": 0, "sheet_idx1": "EI0"}
    printed = {"path": [f"{DESKTOP_HOME}/a.xlsx", f"{DESKTOP_HOME}/a-Sheet1.csv"], "dest": ["a.xlsx", "a-Sheet1.csv"], "multi": True}
    gold = {"path": ["https://x.org/a.xlsx", "https://x.org/a.csv"], "dest": ["g.xlsx", "g-Sheet1.csv"], "multi": True}
    cell = {"type": "check_cell", "sheet_idx": 0, "coordinate": "A1", "props": {"value": {"method": "eq", "ref": 7}}}
    record = {
        "id": "0a-4",
        "instruction": "Put a 7 into the first cell.",
        "config": [download, {"type": "open", "parameters": {"path": f"{DESKTOP_HOME}/a.xlsx"}}],
        "evaluator": {
            "postconfig": postconfig,
            "func": ["compare_table", "compare_table"],
            "result": [{"type": "vm_file", "path": f"{DESKTOP_HOME}/a.xlsx", "dest": "a.xlsx"}, {"type": "vm_file", **printed}],
            "expected": [{"type": "cloud_file", "path": "https://x.org/a.xlsx", "dest": "g.xlsx"}, {"type": "cloud_file", **gold}],
            "options": [
                {"rules": [cell, {"type": "chart", **sheets, "chart_props": ["type", "direction", "xtitle"]}]},
                {"rules": [{"type": "sheet_print", **sheets}]},
            ],
        },
    }
    task = imported("osworld", record)["0a-4"]

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            await session.reset(task, 0)
            await session.step(TypeText(text="7\n"))
            assert (await session.step(actions.Finished())).reward == 1.0, (await session.evaluate()).reasons
            await session.reset(task, 0)
            assert (await session.step(actions.Finished())).reward == 0.0

    asyncio.run(use())


@needs_desktop
def test_what_cannot_be_done_is_solved_by_saying_so_and_by_nothing_else(imported: Any) -> None:
    record = {"id": "0a-2", "snapshot": "os", "instruction": "Fold the screen in two.", "config": [], "evaluator": {"func": "infeasible"}}
    known = {
        "name": "no-end",
        "kind": "desktop",
        "instruction": "Write down the last prime.",
        "goals": [{"kind": "gives_up"}],
        "oracle": [{"action": {"kind": "call_user"}}],
    }
    task = imported("osworld", record)["0a-2"]

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            for last, reward, said in (
                (actions.CallUser(question="A screen cannot be folded."), 1.0, "the agent said so"),
                (actions.Finished(), 0.0, "did not end by saying so"),
            ):
                await session.reset(task, 0)
                await session.step(Hotkey(keys=("escape",)))
                assert not (await session.evaluate()).success, "not before it was said"
                transition = await session.step(last)
                assert transition.terminated and transition.reward == reward
                assert said in (await session.evaluate()).reasons[-1]
        other = imported("plain", known)["no-end"]
        async with SessionPool(size=1) as pool, pool.lease(other) as session:
            await session.reset(other, 0)
            assert [transition.reward for transition in await play(session)] == [1.0]

    asyncio.run(use())


def test_giving_up_stands_alone(tmp_path: Path) -> None:
    both = [{"kind": "gives_up"}, {"kind": "folder", "path": "out"}]
    tasks = [
        {"name": "beside", "kind": "desktop", "instruction": "x", "goals": both},
        {"name": "inside", "kind": "desktop", "instruction": "x", "goals": [{"kind": "any", "goals": both}]},
        {"name": "terminal", "kind": "terminal", "instruction": "x", "goals": both[:1]},
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    found = collect("plain", [tmp_path / "tasks.jsonl"])
    assert len(found.tasks) == 3
    assert all("giving up is the only goal of a desktop task, or none" in task.not_runnable for task in found.tasks)


@pytest.fixture
def simulated() -> Iterator[SimulatedDevice]:
    try:
        adbd_root()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with SimulatedDevice() as device:
        yield device


ROW = {
    "on_or_off": "off",
    "max_or_min": "max",
    "app_name": "settings",
    "name": "Ann Lee",
    "number": "+1 (555) 010-4471",
    "file_name": "a.mp3",
    "subfolder": "Music",
    "source_folder": "Music",
    "destination_folder": "Podcasts",
}
LAUNCH = "am start -W -a android.intent.action.MAIN -c android.intent.category.LAUNCHER -f 0x10200000 -n com.android.settings/.Main"
_DATA = "content insert --uri content://com.android.contacts/data --bind raw_contact_id:i:1 --bind mimetype:s:vnd.android.cursor.item"
ADD_CONTACT = (
    "content insert --uri content://com.android.contacts/raw_contacts --bind account_type:n: --bind account_name:n:",
    f"{_DATA}/name --bind 'data1:s:Ann Lee'",
    f"{_DATA}/phone_v2 --bind 'data1:s:1 555-010-4471'",
)
MUSIC = "/storage/emulated/0/Music/a.mp3"
ANDROID_WORLD: dict[str, tuple[str, ...]] = {
    # what an agent would have done, as commands: only with the last of them the task is solved
    "SystemWifiTurnOffVerify": (),
    "SystemBrightnessMaxVerify": (),
    "SystemBluetoothTurnOn": ("svc bluetooth enable",),
    "TurnOffWifiAndTurnOnBluetooth": ("svc wifi disable", "svc bluetooth enable"),
    "OpenAppTaskEval": (LAUNCH,),
    "TurnOnWifiAndOpenApp": (LAUNCH, "svc wifi enable"),
    "ContactsAddContact": ADD_CONTACT,
    "FilesDeleteFile": ("rm /storage/emulated/0/Music/old_a.mp3", f"rm {MUSIC}"),
    "FilesMoveFile": (f"cp {MUSIC} /storage/emulated/0/Podcasts/", f"rm {MUSIC}"),
}


@pytest.mark.long
def test_checks_of_android_world_hold_once_all_was_done(imported: Any, simulated: SimulatedDevice) -> None:
    tasks = imported("android-world", *({"task_name": name, "task_template": name, "params": [ROW]} for name in ANDROID_WORLD))

    async def use() -> None:
        device = await AndroidDevice.open(simulated.serial, port=simulated.adb_port)
        session = AndroidSession(device, limits=Limits(settle_s=0.0), screenshots=False)
        try:
            for name, lines in ANDROID_WORLD.items():
                await session.reset(tasks[name], 0)
                for line in lines:
                    assert not (await session.evaluate()).success, (name, line)
                    simulated.adb("shell", line)
                assert (await session.evaluate()).success, (name, (await session.evaluate()).reasons)
        finally:
            await session.close()

    asyncio.run(use())


@pytest.mark.long
def test_a_template_of_android_world_runs_on_the_simulated_device(imported: Any, simulated: SimulatedDevice) -> None:
    tasks = imported(
        "android-world",
        {
            "task_name": "SystemWifiTurnOff",
            "task_template": "Turn wifi {on_or_off}.",
            "difficulty": "easy",
            "tags": [],
            "optimal_steps": "3",
        },
        {"name": "Ask", "template": "Which is larger, 1 or 2?", "app": "settings", "criteria": [{"answer": "2"}]},
    )

    async def use() -> None:
        device = await AndroidDevice.open(simulated.serial, port=simulated.adb_port)
        session = AndroidSession(device, limits=Limits(settle_s=0.0), screenshots=False)
        try:
            wifi = tasks["SystemWifiTurnOff"]
            assert (await session.reset(wifi, 0)).instruction == "Turn wifi off."
            assert not (await session.evaluate()).success
            simulated.adb("shell", "svc wifi disable")
            assert (await session.step(actions.Finished())).reward == 1.0
            await session.reset(tasks["Ask"], 0)
            assert (await session.step(actions.Finished(answer="1"))).reward == 0.0
        finally:
            await session.close()

    asyncio.run(use())
