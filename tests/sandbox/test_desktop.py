"""Desktops of this machine: what a hand does arrives in real programs, what is on the screen is told, and nothing leaks in or out."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import pytest
from PIL import Image

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.input import Refusal, gestures
from sandbox.desktop import apps
from sandbox.desktop.apps import find_app, missing_packages, require
from sandbox.desktop.box import BoxSettings
from sandbox.desktop.desktop import Desktop, Window
from sandbox.desktop.keys import keysym
from sandbox.desktop.local import LocalDesktop, LocalDesktops
from sandbox.session import Element
from sandbox.terminal.cgroups import hierarchies
from warehouse.core.errors import DesktopCrashed, DesktopMissing, SandboxTimeout, TaskError

LACKING = missing_packages(["editor", "files", "xterm", "form"])
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"apt-get install --no-install-recommends {' '.join(LACKING)}")

NOTE = PurePosixPath("note.txt")
FORM = PurePosixPath("form.json")
PATIENCE_S = 60.0

Use = Callable[[LocalDesktop], Awaitable[Any]]


def on_desktop(use: Use, **settings: Any) -> Any:
    """What `await use(desktop)` gives on a desktop of its own."""

    async def run() -> Any:
        desktop = await LocalDesktop.open(BoxSettings(**settings))
        try:
            return await use(desktop)
        finally:
            await desktop.close()

    return asyncio.run(run())


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := await condition()):
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.02)
    return value


async def window_of(desktop: Desktop, window_class: str) -> Window:
    async def find() -> Window | None:
        return next((window for window in await desktop.windows() if window.window_class == window_class and window.is_focused), None)

    window: Window = await until(find)
    await desktop.settle()
    return window


async def do(desktop: Desktop, *wanted: Action) -> None:
    for action in wanted:
        phases = gestures(action, desktop.size_px, "desktop")
        assert not isinstance(phases, Refusal)
        await desktop.perform(phases)
        await desktop.settle()


async def editor(desktop: Desktop, text: str = "") -> Window:
    """The editor with a file of this text."""
    await desktop.put_file(NOTE, text.encode())
    await desktop.launch("editor", [NOTE])
    return await window_of(desktop, "Mousepad")


async def form(desktop: Desktop, **more: Any) -> Window:
    await desktop.put_file(FORM, json.dumps({"title": "Form", "question": "What?", "buttons": ["Cancel", "Ok"], **more}).encode())
    await desktop.launch("form", [FORM])
    return await window_of(desktop, "Form")


async def saved(desktop: Desktop) -> str:
    """The editor's text, by way of its file."""
    await do(desktop, actions.Hotkey(keys=("ctrl", "s")))

    async def is_written() -> bool:
        return not any(window.title.startswith("*") for window in await desktop.windows())

    await until(is_written)
    content = await desktop.get_file(NOTE)
    assert content is not None
    return content.decode().rstrip("\n")


def find(elements: tuple[Element, ...], role: str, text: str | None = None) -> Element:
    return next(element for element in elements if element.role == role and text in (None, element.text))


def click(element: Element, **more: Any) -> Action:
    return actions.Click(x=element.x_px, y=element.y_px, **more)


MANY = "".join(chr(code) for code in range(0x3B1, 0x3B1 + 24)) + "".join(chr(code) for code in range(0x430, 0x430 + 90))
"""Greek and Cyrillic letters."""


def test_typed_characters_arrive() -> None:
    """Those that a US keyboard has, those that it has not, and more of them than there are keys to spare."""

    async def use(desktop: LocalDesktop) -> None:
        await editor(desktop)
        for text in ("Hello, {World}! ~#[1]\\", "Grüße für 5€: äöü ÄÖÜ ß → ñ", MANY):
            await do(desktop, actions.Hotkey(keys=("ctrl", "a")), actions.TypeText(text=text))
            assert await saved(desktop) == text

    on_desktop(use)


@pytest.mark.slow
def test_keys_arrive() -> None:
    shift_down, shift_up = actions.KeyDown(key="shift"), actions.KeyUp(key="shift")
    home, right = actions.Hotkey(keys=("home",)), actions.Hotkey(keys=("right",))
    trials: list[tuple[list[Action], str]] = [
        ([actions.TypeText(text="x")], "x"),
        ([actions.TypeText(text="one"), actions.TypeText(text="\ntwo\t3")], "one\ntwo\t3"),
        ([shift_down, actions.TypeText(text="ab"), shift_up, actions.TypeText(text="ab")], "ABab"),
        ([actions.TypeText(text="abc"), home, shift_down, right, right, shift_up, actions.TypeText(text="X")], "Xc"),
        ([actions.TypeText(text="ab"), actions.Hotkey(keys=("shift", "left")), actions.Hotkey(keys=("delete",))], "a"),
    ]

    async def use(desktop: LocalDesktop) -> None:
        await editor(desktop)
        for wanted, text in trials:
            await do(desktop, actions.Hotkey(keys=("ctrl", "a")), *wanted)
            assert await saved(desktop) == text

    on_desktop(use)


@pytest.mark.slow
def test_the_pointer_selects_and_scrolls() -> None:
    async def use(desktop: LocalDesktop) -> None:
        lines = "\n".join(f"first line{n}" for n in range(200))
        window = await editor(desktop, lines)
        area = find(await desktop.elements(), "textarea")
        x, y = window.x_px + 20, area.y_px - area.height_px // 2 + 10
        await do(desktop, actions.Click(x=x, y=y, count=2), actions.TypeText(text="1"))
        assert (await saved(desktop)).startswith("1 line0\n")
        await do(desktop, actions.Drag(x=window.x_px + 3, y=y, to_x=window.x_px + 14, to_y=y), actions.TypeText(text="2"))
        assert (await saved(desktop)).startswith(("2 line0", "2line0"))
        top = await desktop.screenshot()
        await do(desktop, actions.Scroll(direction="down", x=x, y=y))
        below = await desktop.screenshot()
        await do(desktop, actions.Scroll(direction="up", x=x, y=y))
        assert top != below and top == await desktop.screenshot()

    on_desktop(use)


def test_windows_are_reported_and_changed() -> None:
    async def use(desktop: LocalDesktop) -> None:
        first, second = await form(desktop), await editor(desktop)
        top, below = await desktop.windows()
        assert (top.window_id, below.window_id) == (second.window_id, first.window_id) and top.title.endswith("note.txt - Mousepad")
        assert top.is_focused and not below.is_focused and (top.window_class, below.window_class) == ("Mousepad", "Form")

        async def shows(window_id: int, **wanted: Any) -> None:
            async def is_so() -> bool:
                window = next(window for window in await desktop.windows() if window.window_id == window_id)
                return all(getattr(window, name) == value for name, value in wanted.items())

            await until(is_so)

        await desktop.change_window(first.window_id, "activate")
        await shows(first.window_id, is_focused=True)
        assert (await desktop.windows())[0].window_id == first.window_id
        await desktop.place_window(second.window_id, 10, 60, 500, 300)
        await shows(second.window_id, x_px=10, y_px=60, width_px=500, height_px=300)
        await desktop.place_window(second.window_id, 30, 80)
        await shows(second.window_id, x_px=30, y_px=80, width_px=500)
        for change, state in (("maximise", True), ("restore", False)):
            await desktop.change_window(second.window_id, change)  # type: ignore[arg-type]
            await shows(second.window_id, is_maximised=state)
        await desktop.change_window(second.window_id, "minimise")
        await shows(second.window_id, is_minimised=True)
        await desktop.change_window(first.window_id, "close")

        async def is_closed() -> bool:
            return [window.window_id for window in await desktop.windows()] == [second.window_id]

        await until(is_closed)
        await desktop.change_window(first.window_id, "close")

    on_desktop(use)


@pytest.mark.slow
def test_a_window_is_moved_by_its_title_and_closed_by_its_button() -> None:
    async def use(desktop: LocalDesktop) -> None:
        before = await form(desktop)
        title = find(await desktop.elements(), "header", "Form")
        await do(desktop, actions.Drag(x=title.x_px, y=title.y_px, to_x=title.x_px + 120, to_y=title.y_px + 90))
        (after,) = await desktop.windows()
        assert (after.x_px - before.x_px, after.y_px - before.y_px) == (120, 90)
        await do(desktop, click(find(await desktop.elements(), "button", "maximise")))
        assert (await desktop.windows())[0].is_maximised
        await do(desktop, click(find(await desktop.elements(), "button", "close")))
        assert await desktop.windows() == ()

    on_desktop(use)


def test_elements_show_roles_states_and_where_a_click_lands() -> None:
    async def use(desktop: LocalDesktop) -> None:
        await form(desktop, entries=["Name:"], checks=["fox", "dog"], radios=["red", "blue"])
        elements = await desktop.elements()
        assert [(e.role, e.text) for e in elements if e.y_px > find(elements, "header").y_px + 10] == [
            ("text", "What?"),
            ("text", "Name:"),
            ("input", ""),
            ("checkbox", "fox"),
            ("checkbox", "dog"),
            ("radio", "red"),
            ("radio", "blue"),
            ("button", "Cancel"),
            ("button", "Ok"),
        ]
        assert "focused" in find(elements, "input").states and find(elements, "radio", "red").states == ("checked",)
        await do(desktop, actions.TypeText(text="ab"), click(find(elements, "checkbox", "dog")), click(find(elements, "radio", "blue")))
        elements = await desktop.elements()
        assert find(elements, "input").text == "ab" and "checked" in find(elements, "checkbox", "dog").states
        assert "checked" not in find(elements, "checkbox", "fox").states and "checked" not in find(elements, "radio", "red").states
        await do(desktop, click(find(elements, "input")), actions.Hotkey(keys=("ctrl", "a")))
        assert {"selected", "focused"} <= set(find(await desktop.elements(), "input").states)
        await do(desktop, click(find(elements, "button", "Ok")))
        answer = json.loads(await desktop.get_file(PurePosixPath("form.json.answer")) or b"")
        assert answer == {"button": "Ok", "entries": ["ab"], "checks": ["dog"], "radio": "blue"}

    on_desktop(use)


@pytest.mark.slow
def test_what_is_covered_is_no_element_and_menus_are() -> None:
    async def use(desktop: LocalDesktop) -> None:
        below = await form(desktop)
        assert find(await desktop.elements(), "button", "Ok")
        above = await editor(desktop)
        await desktop.place_window(above.window_id, below.x_px - 20, below.y_px - 20, below.width_px + 100, below.height_px + 200)
        await desktop.settle()
        elements = await desktop.elements()
        assert "Ok" not in [element.text for element in elements] and find(elements, "item", "Edit")
        await do(desktop, click(find(elements, "item", "Edit")))
        items = {element.text: element for element in await desktop.elements() if element.role == "item"}
        assert "disabled" in items["Undo"].states and "disabled" not in items["Select All"].states
        await do(desktop, actions.Hotkey(keys=("escape",)))
        assert "Select All" not in [element.text for element in await desktop.elements()]

        area = find(await desktop.elements(), "textarea")
        await do(desktop, click(area, button="right"))
        texts = [element.text for element in await desktop.elements() if element.role == "item"]
        assert texts[:2] == ["Undo", "Redo"] and all(len(text) < 40 for text in texts)

    on_desktop(use)


@pytest.mark.slow
def test_a_file_is_dragged_into_a_folder() -> None:
    async def use(desktop: LocalDesktop) -> None:
        await desktop.put_file(NOTE, b"x")
        await desktop.put_file(PurePosixPath("box/old.txt"), b"")
        await desktop.launch("files")
        await window_of(desktop, "Pcmanfm")
        elements = await desktop.elements()
        file, folder = find(elements, "item", "note.txt"), find(elements, "item", "box")
        await do(desktop, actions.Drag(x=file.x_px, y=file.y_px, to_x=folder.x_px, to_y=folder.y_px))

        async def is_moved() -> bool:
            return await desktop.get_file(PurePosixPath("box/note.txt")) == b"x" and await desktop.get_file(NOTE) is None

        await until(is_moved)

    on_desktop(use)


@pytest.mark.slow
def test_a_program_that_hangs_is_a_picture_until_it_goes_on() -> None:
    async def use(desktop: LocalDesktop) -> None:
        await editor(desktop, "text")
        await desktop.run(["bash", "-c", "kill -STOP $(pidof mousepad)"])
        assert {element.role for element in await desktop.elements()} == {"header", "button", "image"}
        await desktop.run(["bash", "-c", "kill -CONT $(pidof mousepad)"])
        assert find(await desktop.elements(), "textarea").text == "text"

    on_desktop(use)


def test_programs_without_a_tree_are_pictures() -> None:
    async def use(desktop: LocalDesktop) -> None:
        await desktop.launch("xterm")
        await window_of(desktop, "XTerm")
        assert find(await desktop.elements(), "image").text == find(await desktop.elements(), "header").text
        await do(desktop, actions.TypeText(text="echo hello > out.txt\n"))

        async def is_written() -> bool:
            return await desktop.get_file(PurePosixPath("out.txt")) == b"hello\n"

        await until(is_written)

    on_desktop(use)


@pytest.mark.slow
def test_a_screen_that_moves_never_settles_and_one_that_stands_still_does() -> None:
    async def use(desktop: LocalDesktop) -> None:
        assert await desktop.settle()
        await desktop.launch("xterm")
        await window_of(desktop, "XTerm")
        assert await desktop.settle()
        moving = "while true; do echo $RANDOM; read -t 0.01; done"  # without a program that could end just as it is interrupted
        await desktop.perform(_phases(actions.TypeText(text=f"{moving}\n"), desktop))
        assert not await desktop.settle()
        await desktop.perform(_phases(actions.Hotkey(keys=("ctrl", "c")), desktop))
        assert await desktop.settle()

    on_desktop(use)


def _phases(action: Action, desktop: Desktop) -> Any:
    return gestures(action, desktop.size_px, "desktop")


def test_screenshots_are_png_of_the_screen() -> None:
    async def use(desktop: LocalDesktop) -> None:
        await form(desktop)
        with Image.open(io.BytesIO(await desktop.screenshot())) as image:
            assert image.format == "PNG" and image.size == desktop.size_px == (640, 480)
            assert len(image.convert("RGB").getcolors(100_000) or []) > 10
        assert "640x480" in desktop.environment

    on_desktop(use, width_px=640, height_px=480)


def test_files_are_written_read_and_listed() -> None:
    async def use(desktop: LocalDesktop) -> None:
        content = bytes(range(256)) * 5000
        await desktop.put_file(PurePosixPath("folder/data.bin"), content)
        assert await desktop.get_file(PurePosixPath("folder/data.bin")) == content
        assert await desktop.get_file(PurePosixPath("folder")) is None and await desktop.get_file(PurePosixPath("nothing")) is None
        assert [(str(entry.path), entry.is_folder) for entry in await desktop.list_files()] == [
            ("folder", True),
            ("folder/data.bin", False),
        ]
        await desktop.run(["ln", "-s", "/etc/passwd", "link"])
        assert await desktop.get_file(PurePosixPath("link")) is None
        for path in ("../out.txt", "/etc/passwd"):
            with pytest.raises(ValueError, match="home folder"):
                await desktop.put_file(PurePosixPath(path), b"")

    on_desktop(use)


def test_commands_run_beside_the_applications() -> None:
    async def use(desktop: LocalDesktop) -> None:
        done = await desktop.run(["bash", "-c", "pwd; echo problem >&2; exit 3"])
        assert (done.exit_code, done.stdout, done.stderr) == (3, "/home/user\n", "problem\n")
        assert (await desktop.run(["sleep", "60"], timeout_s=0.2)).exit_code == 124
        assert (await desktop.run(["no-such-program"])).exit_code == 127
        with pytest.raises(TaskError, match="no application 'paint'"):
            await desktop.launch("paint")

    on_desktop(use)


def test_nothing_of_the_host_is_in_a_desktop() -> None:
    async def use(desktop: LocalDesktop) -> None:
        async def says(script: str) -> str:
            return (await desktop.run(["bash", "-c", script])).stdout

        assert (await says("id -u")).strip() == "1000"
        assert set((await says("ls /")).split()) == {
            "bin",
            "dev",
            "etc",
            "home",
            "lib",
            "lib32",
            "lib64",
            "opt",
            "proc",
            "run",
            "sbin",
            "tmp",
            "usr",
            "var",
        }
        names = ("net", "mnt", "pid", "ipc", "uts", "user")
        ours = [os.readlink(f"/proc/self/ns/{name}") for name in names]
        theirs = (await says(f"for n in {' '.join(names)}; do readlink /proc/self/ns/$n; done")).split()
        assert len(theirs) == len(ours) and not set(theirs) & set(ours)
        assert [line.split(":")[0].strip() for line in (await says("cat /proc/net/dev")).splitlines()[2:]] == ["lo"]
        assert (await says("grep -hE '^Cap(Eff|Bnd):' /proc/self/status")).count("0000000000000000") == 2
        assert "NoNewPrivs:\t1" in await says("cat /proc/self/status")
        for attempt in ("touch /usr/planted", "cat /etc/shadow", "unshare -r true"):
            assert (await desktop.run(["bash", "-c", attempt])).exit_code != 0, attempt

    on_desktop(use)


@pytest.mark.slow
def test_a_desktop_that_starts_processes_without_end_stays_within_its_number() -> None:
    if not any("pids" in hierarchy.controllers for hierarchy in hierarchies()):
        pytest.skip("this process may make no control groups")

    async def use(desktop: LocalDesktop) -> None:
        done = await desktop.run(["bash", "-c", "for n in $(seq 300); do sleep 1000 & done 2>/dev/null"], timeout_s=2.0)
        assert done.exit_code != 0 and (await desktop.processes()).count("sleep") < 100
        assert await desktop.windows() == ()

    on_desktop(use, processes=100)


def _below(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _alive(processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(processes)


@pytest.mark.slow
def test_no_process_outlives_its_desktop() -> None:
    """Not those that left their session and their parents either."""

    async def use(desktop: LocalDesktop) -> list[psutil.Process]:
        await editor(desktop)
        await desktop.run(["bash", "-c", "setsid -f sleep 1000; (setsid -f nohup sleep 1001 &)"])
        async with asyncio.timeout(PATIENCE_S):
            while (await desktop.processes()).count("sleep") != 2:
                await asyncio.sleep(0.02)
        return _below(desktop.pid)

    processes = on_desktop(use)
    assert len(processes) > 8
    _wait_gone(processes)


OWNER = """
import asyncio, sys
from sandbox.desktop.local import LocalDesktops

async def main():
    desktop = await LocalDesktops().fresh()
    await desktop.launch("editor")
    await desktop.run(["setsid", "-f", "sleep", "1000"])
    print(desktop.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_owner_takes_its_desktops_along() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert owner.stdout is not None
        int(owner.stdout.readline())
        processes = psutil.Process(owner.pid).children(recursive=True)
        assert any(process.name() == "sleep" for process in processes)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
    _wait_gone(processes)


@pytest.mark.slow
def test_nothing_crosses_from_one_desktop_to_the_next() -> None:
    """Planted: files, the clipboard and the selection, a process, a property of the screen, a held key, a setting."""

    async def run() -> None:
        desktops = LocalDesktops()
        try:
            first = await desktops.fresh()
            await editor(first, "planted")
            await do(first, actions.Hotkey(keys=("ctrl", "a")), actions.Hotkey(keys=("ctrl", "c")), actions.KeyDown(key="shift"))
            await first.run(["bash", "-c", "setsid -f sleep 1000; echo x > ~/.planted; echo x > /tmp/planted; echo x > /dev/shm/planted"])
            await first.run(["bash", "-c", "printf '[Settings]\\ngtk-font-name=DejaVu Sans 20\\n' > ~/.config/gtk-3.0/settings.ini"])
            assert (await first.run(["bash", "-c", "ls /dev/shm/planted /tmp/planted"])).exit_code == 0

            second = await desktops.fresh()
            with pytest.raises(DesktopCrashed, match="closed"):
                await first.windows()
            assert "sleep" not in await second.processes() and await second.windows() == ()
            assert (await second.run(["bash", "-c", "ls -d ~/.planted /tmp/planted /dev/shm/planted"])).stdout == ""
            assert await second.list_files() == ()
            await editor(second)
            await do(second, actions.Hotkey(keys=("ctrl", "v")), actions.TypeText(text="a"))
            assert await saved(second) == "a"
        finally:
            await desktops.close()

    asyncio.run(run())


@pytest.mark.slow
def test_desktops_side_by_side_do_not_disturb_each_other() -> None:
    async def run() -> None:
        texts = ["left side", "right side", "far side"]
        desktops = await asyncio.gather(*(LocalDesktop.open() for _ in texts))
        try:

            async def work(desktop: LocalDesktop, text: str) -> None:
                await editor(desktop)
                for word in text.split():
                    await do(desktop, actions.TypeText(text=word), actions.Hotkey(keys=("ctrl", "a")), actions.Hotkey(keys=("ctrl", "x")))
                    await do(desktop, actions.Hotkey(keys=("ctrl", "v")), actions.TypeText(text=" "))
                assert await saved(desktop) == text + " "

            await asyncio.gather(*map(work, desktops, texts))
        finally:
            await asyncio.gather(*(desktop.close() for desktop in desktops))

    asyncio.run(run())


def test_a_desktop_that_ends_is_reported_as_crashed() -> None:
    async def use(desktop: LocalDesktop) -> None:
        assert isinstance(desktop, Desktop)
        processes = _below(desktop.pid)
        processes[0].kill()
        _wait_gone(processes)
        with pytest.raises(DesktopCrashed, match="'windows' on a desktop failed"):
            await desktop.windows()
        with pytest.raises(DesktopCrashed):
            await desktop.screenshot()

    on_desktop(use)


@pytest.mark.slow
def test_a_spare_desktop_that_died_is_replaced() -> None:
    async def run() -> None:
        desktops = LocalDesktops()
        try:
            await desktops.fresh()
            spare = desktops._spare
            assert spare is not None
            processes = _below((await spare).pid)
            processes[0].kill()
            _wait_gone(processes)
            assert await (await desktops.fresh()).windows() == ()
        finally:
            await desktops.close()
            await desktops.close()

    asyncio.run(run())


def test_a_desktop_that_is_closed_while_it_starts_leaves_nothing() -> None:
    before = psutil.Process().children(recursive=True)

    async def run() -> None:
        for wait_s in (0.0, 0.01, 0.05, 0.2):
            opening = asyncio.create_task(LocalDesktop.open())
            await asyncio.sleep(wait_s)
            opening.cancel()
            (opened,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(opened, LocalDesktop):  # a quick machine has it up by then
                await opened.close()
        _wait_gone([process for process in psutil.Process().children(recursive=True) if process not in before])

    asyncio.run(run())


def test_a_desktop_that_hangs_is_ended() -> None:
    async def use(desktop: LocalDesktop) -> None:
        helper = next(process for process in _below(desktop.pid) if process.name() == "python3")
        helper.suspend()
        with pytest.raises(SandboxTimeout, match="took more than 1 s"):
            await desktop._box.call("windows", limit_s=1.0)
        _wait_gone([helper])

    on_desktop(use)


def test_missing_programs_are_reported_with_the_line_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "SYSTEM_PROGRAMS", {**apps.SYSTEM_PROGRAMS, "no-such-server": "xnosuch"})
    assert missing_packages() == ["xnosuch"]
    with pytest.raises(DesktopMissing, match="apt-get install --no-install-recommends xnosuch"):
        require()
    assert find_app("calc").is_full


@pytest.mark.long
@pytest.mark.parametrize("name", apps.APPS)
def test_every_application_starts_and_its_window_is_known(name: str) -> None:
    if lacking := missing_packages([name]):
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(lacking)}")

    async def use(desktop: LocalDesktop) -> None:
        files = []
        if name == "form":
            await desktop.put_file(FORM, json.dumps({"title": "Form", "question": "Well?", "buttons": ["Ok"]}).encode())
            files = [FORM]
        await desktop.launch(name, files)
        window = await window_of(desktop, find_app(name).window_class)
        assert window.width_px > 50 and await desktop.elements()

    on_desktop(use)


def test_keysyms() -> None:
    names = ("a", "A", "enter", "ctrl", "ü", "€", "f5", "hyper")
    assert [keysym(name) for name in names] == [0x61, 0x41, 0xFF0D, 0xFFE3, 0xFC, 0x010020AC, 0xFFC2, None]
