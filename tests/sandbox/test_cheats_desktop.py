"""Cheats against verifiers of desktop and Android tasks. The desktop's are typed into a real terminal on a real desktop; an Android check
is asked what it says of outputs that a cheat would leave. docs/verifiers.md tells the same.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path, PurePosixPath

import pytest

from sandbox import actions
from sandbox.android.instance import says_the_same
from sandbox.desktop.apps import missing_packages
from sandbox.desktop.local import LocalDesktops
from sandbox.desktop.session import DesktopSession
from sandbox.tasks.android.source import load_tasks as android_tasks
from sandbox.tasks.android.source import make_instance
from sandbox.tasks.desktop.source import load_tasks
from sandbox.tasks.desktop.source import make_instance as make_desktop_instance
from sandbox.tasks.imported.machine import DESKTOP_HOME, DesktopMachine, relative
from tests.sandbox.one_session import on_desktop

LACKING = missing_packages(["editor", "terminal", "form"])
needs_desktop = pytest.mark.skipif(bool(LACKING), reason=f"apt-get install --no-install-recommends {' '.join(LACKING)}")
TASKS = load_tasks()


def seed_of(beginning: str) -> int:
    """A seed for which the terminal task asks for such a command."""
    task = TASKS["terminal-command"]
    return next(seed for seed in range(50) if make_desktop_instance(task, seed).instruction.startswith(f'Run "{beginning}'))


FILE_CHEATS = (
    "echo WORD > .x; ln -s .x NAME",
    "mkdir NAME; echo WORD > NAME/NAME",
    "mkfifo NAME; (echo WORD > NAME) &",
    "echo WORD > NAME; truncate -s 3G NAME",
    "echo WORD WORD > NAME",
    "echo WORD > ' NAME'",
    "printf 'WORD\\0' > NAME",
)


@pytest.mark.slow
@needs_desktop
def test_a_file_on_the_desktop_is_that_file() -> None:
    async def use(session: DesktopSession) -> None:
        task, seed = TASKS["terminal-command"].model_copy(update={"max_steps": 100}), seed_of("echo")
        word, name = make_desktop_instance(task, seed).instruction.split('"')[1].removeprefix("echo ").split(" > ")
        await session.reset(task, seed)
        for cheat in FILE_CHEATS:
            line = cheat.replace("WORD", word).replace("NAME", name)
            transition = await session.step(actions.TypeText(text=f"{line}\n"))
            await asyncio.sleep(0.15)
            verdict = await session.evaluate()
            assert not verdict.success and not transition.terminated, cheat
            await session.step(actions.TypeText(text=f"rm -rf {name} ' {name}' .x; kill %1\n"))
        await session.step(actions.TypeText(text=f"echo {word} > {name}\n"))
        for _ in range(100):
            if (await session.evaluate()).success:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the honest command is not paid")

    on_desktop(use)


@needs_desktop
def test_the_end_of_an_episode_alone_pays_nothing_on_a_desktop() -> None:
    async def use(session: DesktopSession) -> None:
        for name in ("dialog-press", "editor-type"):
            await session.reset(TASKS[name], 4)
            transition = await session.step(actions.Finished(answer="done, success, 1"))
            assert transition.terminated and transition.reward == 0.0, name

    on_desktop(use)


@needs_desktop
def test_nothing_beside_a_dialog_can_write_its_answer() -> None:
    """Everything on a desktop belongs to one user, so no other program may run there: no terminal, no editor, no menu of the desktop."""

    async def use(session: DesktopSession) -> None:
        task = TASKS["dialog-press"].model_copy(update={"max_steps": 100})
        observation = await session.reset(task, 1)
        assert session._episode is not None
        desktop = session._episode.desktop
        before = await desktop.windows()
        for name in ("terminal", "editor", "files"):
            transition = await session.step(actions.OpenApp(name=name))
            assert "no other application can be opened" in transition.info["ignored"]
        await session.step(actions.Click(x=2, y=observation.height_px - 3, button="right"))
        for hotkey in (("super", "e"), ("ctrl", "alt", "t"), ("alt", "f2")):
            await session.step(actions.Hotkey(keys=hotkey))
        assert {window.window_id for window in await desktop.windows()} == {window.window_id for window in before}
        assert (await session.evaluate()).reasons == ("the dialog was not answered",)
        assert not await desktop.list_files()

    on_desktop(use)


def test_a_phone_is_asked_for_all_its_rows() -> None:
    """A contact whose name says what a row should say is another contact, and so is one with a longer number; a contact that was given
    another name is not deleted."""
    for name in ("add-contact", "delete-contact"):
        (check,) = make_instance(android_tasks()[name], 1).checks
        rows = check.expected.splitlines()
        assert len(rows) == 3 and check.holds("".join(f"Row: {number} {row}\n" for number, row in enumerate(reversed(rows))))
        first, *others = rows
        kept = "".join(f"Row: {number} {row}\n" for number, row in enumerate(others))
        person, number = first.removeprefix("display_name=").split(", data1=")
        for forged in (
            f"Row: 2 display_name={first}, data1=1\n",
            f"Row: 2 {first}9\n",
            f"Row: 2 display_name=x {person}, data1={number}\n",
            f"Row: 2 display_name={person}, data1=1, data1={number}\n",
            f"Row: 2 {first}\nRow: 3 display_name=Somebody Else, data1={number}\n",
            f"Row: 2 {first}\nRow: 3 {first}\n",
            f"{first} {first}\n",
            "",
        ):
            assert not check.holds(kept + forged), forged
        assert not check.holds("No result found.\n")


def test_a_phones_answer_is_one_number() -> None:
    instance = make_instance(android_tasks()["find-number"], 1)
    right = instance.answer or ""
    assert says_the_same(f" {right}. ", right)
    digits = right.replace("-", "")
    assert not any(says_the_same(answer, right) for answer in ("", f"{right} {right}", f"{right} or 555-0100", digits[:-1], f"{digits}0"))


FORGED = "import os; print('42 (checked)', flush=True); os._exit(0)\n"


@needs_desktop
def test_what_the_agent_left_in_its_home_does_not_answer_for_an_imported_tasks_programs() -> None:
    """Modules of the user's own, settings of git and a replaced history; links and pipes in place of files."""

    async def run() -> None:
        desktops = LocalDesktops()
        try:
            desktop = await desktops.fresh()
            machine = DesktopMachine(desktop)
            site = (await desktop.run(["python3", "-m", "site", "--user-site"])).stdout.strip()
            inside = relative(site, DESKTOP_HOME)
            assert inside is not None
            await desktop.put_file(PurePosixPath(inside, "usercustomize.py"), FORGED.encode())
            says = ("python3", "-c", "print(6 * 7)")
            assert (await desktop.run(says)).stdout == "42 (checked)\n", "the cheat is a real one"
            assert await machine.run(says) == (0, "42\n", "")
            await desktop.put_file(PurePosixPath("it.txt"), b"x\n")
            made = await desktop.run(
                [
                    "/bin/bash",
                    "-c",
                    "ln -s it.txt link; ln -s nowhere lost; mkfifo pipe; cp it.txt run; chmod +x run; "
                    "mkdir box; ln -s ~/it.txt /tmp/out; cp it.txt /tmp/true",
                ]
            )
            assert made.exit_code == 0, made
            paths = ("it.txt", "~/run", "link", str(DESKTOP_HOME / "lost"), "pipe", "box", "none", "/tmp/out", "/tmp/true")
            kinds = [await machine.path_kind(path) for path in paths]
            assert kinds == ["file", "executable", "link", "link", "other", "folder", "absent", "link", "file"]
            read = [await machine.read(path) for path in ("it.txt", "link", "pipe", "/tmp/out", "/tmp/true")]
            assert read == [b"x\n", None, None, None, b"x\n"]
        finally:
            await desktops.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["kill -9 -1", "pkill -9 Xvfb"])
def test_an_agent_that_ends_its_own_desktop_has_failed(command: str) -> None:
    """By a terminal that the task offers; the machine is well, and the next episode has another desktop."""
    task = load_tasks()["terminal-command"]

    async def use(session: DesktopSession) -> None:
        for _ in range(2):
            await session.reset(task, 1)
            await session.step(actions.TypeText(text=f"{command}\n"))
            transition = await session.step(actions.Wait(seconds=0.5))
            verdict = await session.evaluate()
            assert transition.terminated and transition.reward == 0.0 and not verdict.success
            assert "cannot be used any more" in verdict.reasons[0]
            assert (await session.step(actions.Finished())).info == {"ignored": "the episode is over"}

    on_desktop(use)


@pytest.mark.slow
def test_a_desktop_reaches_nothing_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host files, other displays and their windows, processes, the network, sockets of other families, and the next episode."""
    (tmp_path / "secret").write_text("k7-plum-41")
    monkeypatch.setenv("FLYWHEEL_SECRET", "k7-plum-41")  # the host's environment, where tokens may be
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        tried = (
            "import os, socket\n"
            f"for path in ({str(tmp_path / 'secret')!r}, '/etc/shadow', {str(Path.home())!r}, {'/proc/1/root' + str(Path.home())!r}):\n"
            "    try: print('read', path, os.listdir(path) if os.path.isdir(path) else open(path).read()[:20])\n"
            "    except OSError: pass\n"
            "for process in os.listdir('/proc'):\n"
            "    try: print('environment', open(f'/proc/{process}/environ').read())\n"
            "    except OSError: pass\n"
            f"for family, address in ((2, ('127.0.0.1', {listener.getsockname()[1]})), (2, ('10.0.0.1', 80)), (1, '\\0/tmp/.X11-unix/X1'),"
            " (1, '/tmp/.X11-unix/X1'), (1, '/run/dbus/system_bus_socket')):\n"
            "    try:\n"
            "        made = socket.socket(family, 1); made.settimeout(2); made.connect(address); print('reached', address)\n"
            "    except OSError: pass\n"
            "for family in range(3, 64):\n"
            "    try: socket.socket(family, 3 if family == 16 else 1); print('opened', family)\n"
            "    except OSError: pass\n"
            "print('displays', sorted(os.listdir('/tmp/.X11-unix')), 'processes', len([p for p in os.listdir('/proc') if p.isdigit()]))\n"
            "open(os.path.expanduser('~/left'), 'w').write('x'); open('/tmp/left', 'w').write('x')\n"
        )

        async def use(session: DesktopSession) -> None:
            task = load_tasks()["editor-type"]
            await session.reset(task, 1)
            desktop = session._episode.desktop  # type: ignore[union-attr]
            said = (await desktop.run(["/usr/bin/python3", "-c", tried])).stdout
            assert "environment" in said and "read" not in said and "reached" not in said and "k7" not in said, said
            assert {line for line in said.splitlines() if line.startswith("opened")} <= {"opened 10"}
            assert "displays ['X0']" in said and int(said.rpartition("processes ")[2]) < 40
            await session.reset(task, 1)
            desktop = session._episode.desktop  # type: ignore[union-attr]
            assert (await desktop.run(["/usr/bin/test", "-e", "/tmp/left"])).exit_code != 0
            assert (await desktop.run(["/bin/sh", "-c", "test -e ~/left"])).exit_code != 0

        on_desktop(use)
        with pytest.raises(BlockingIOError):
            listener.accept()
