"""The guest agent as a real process, driven through AgentDesktop: with a display of its own, and (by PyAutoGUI) on a display that is there.
What a desktop has to do is asked of LocalDesktop in the same words.

The agent runs under Debian's Python in a process namespace with a home and /tmp of its own, so all that it starts ends with it.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import io
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from PIL import Image

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.input import Refusal, gestures
from sandbox.desktop import guest_agent
from sandbox.desktop.agent_desktop import AGENT_VERSION, AgentDesktop
from sandbox.desktop.apps import App, missing_packages
from sandbox.desktop.box import ENVIRONMENT, HOME, BoxSettings
from sandbox.desktop.config import DESKTOPS_VARIABLE
from sandbox.desktop.desktop import Desktop, Window
from sandbox.desktop.local import LocalDesktop
from sandbox.pool.pool import SessionPool
from sandbox.tasks.desktop.source import load_tasks
from sandbox.tasks.prove import attempt
from warehouse.core.errors import DesktopCrashed, DesktopMissing, SandboxError, SandboxTimeout, TaskError

REPOSITORY = Path(__file__).parents[2]
SIZE_PX = (800, 600)
OWN_PACKAGES = ("mss", "Xlib", "six")
SCRIPTS = {
    "own": "exec /usr/bin/python3 $AGENT --screen 800x600",
    "current": """
        exec 4>&1 1>&2 3>/tmp/display
        Xvfb -displayfd 3 -screen 0 800x600x24 -nolisten tcp &
        while ! [ -s /tmp/display ]; do sleep 0.02; done
        export DISPLAY=:$(cat /tmp/display); touch $HOME/.Xauthority
        exec dbus-run-session sh -c 'openbox --sm-disable & exec /usr/bin/python3 $AGENT >&4'
    """,
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAgent:
    process: subprocess.Popen[bytes]
    port: int
    token: str

    async def open(self, **more: Any) -> AgentDesktop:
        return await AgentDesktop.open("127.0.0.1", self.port, self.token, **more)


def link_ours(packages: Path) -> None:
    """What a desktop of ours is given."""
    for name in OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            pytest.skip(f"the Python package {name} is not installed: pip install 'flywheel[desktop]'")
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (packages / source.name).symlink_to(source)


def install_pyautogui(packages: Path) -> None:
    """Not of our environment: PyAutoGUI brings an Xlib of its own. Without MouseInfo, which it can do without and which wants tkinter."""
    names = ("pyautogui", "pyscreeze", "pymsgbox", "pytweening", "python3-xlib", "mss")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip could not install pyautogui and mss: {done.stderr[-300:]}")


@contextmanager
def running_agent(kind: str, folder: Path) -> Iterator[RunningAgent]:
    token, packages, home = secrets.token_urlsafe(24), folder / "packages", folder / "home"
    packages.mkdir(parents=True)
    home.mkdir()
    if kind == "current":
        install_pyautogui(packages)
    else:
        link_ours(packages)
    (folder / "token").write_text(token)
    agent = f"{REPOSITORY}/sandbox/desktop/guest_agent.py --port 0 --token-file {folder}/token"
    environment = ENVIRONMENT | {"PYTHONPATH": f"{packages}:{REPOSITORY}", "AGENT": agent}
    command = [
        "setpriv",
        "--pdeathsig=KILL",
        "--",
        "bwrap",
        "--die-with-parent",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--unshare-pid",
        "--unshare-ipc",
        "--dev-bind",
        "/",
        "/",
        "--tmpfs",
        "/tmp",
        "--dir",
        "/tmp/.X11-unix",
        "--dir",
        "/tmp/run",
        "--tmpfs",
        "/home",
        "--bind",
        str(home),
        HOME,
        "--bind",
        str(folder),
        str(folder),
        "--ro-bind",
        str(REPOSITORY),
        str(REPOSITORY),
        "--proc",
        "/proc",
        "--chdir",
        HOME,
        "--clearenv",
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        "sh",
        "-c",
        SCRIPTS[kind],
    ]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")  # Xlib prints warnings there
        line = next((line.decode() for line in lines if line.startswith(b"listening on 127.0.0.1:")), None)
        assert line is not None, log.read_text()[-2000:]
        yield RunningAgent(process=process, port=int(line.rpartition(":")[2]), token=token)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module", autouse=True)
def packages_are_there() -> None:
    if lacking := missing_packages(["editor", "xterm"]):
        pytest.skip(f"a desktop needs Debian packages: apt-get install --no-install-recommends {' '.join(lacking)}")


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunningAgent]]:
    """Agents by kind, started when first asked for."""
    with ExitStack() as stack:
        running: dict[str, RunningAgent] = {}

        def get(kind: str) -> RunningAgent:
            if kind not in running:
                running[kind] = stack.enter_context(running_agent(kind, tmp_path_factory.mktemp(kind) / "agent"))
            return running[kind]

        yield get


@pytest.fixture(params=["local", "own", pytest.param("current", marks=pytest.mark.long)])
def on_desktop(request: pytest.FixtureRequest, agents: Any) -> Callable[[Callable[[Desktop], Awaitable[T]]], T]:
    """Runs `use(desktop)`; windows that it leaves open are closed."""

    def run(use: Callable[[Desktop], Awaitable[T]]) -> T:
        async def opened() -> T:
            settings = BoxSettings(width_px=SIZE_PX[0], height_px=SIZE_PX[1])
            desktop: Desktop = await (LocalDesktop.open(settings) if request.param == "local" else agents(request.param).open())
            try:
                return await use(desktop)
            finally:
                await desktop.run(["pkill", "-KILL", "-x", "mousepad|xterm"])
                await until(lambda: no_window(desktop))
                await desktop.close()

        return asyncio.run(opened())

    return run


async def until(look: Callable[[], Awaitable[T]], limit_s: float = 60.0) -> T:
    """The first value that is something."""
    deadline = time.monotonic() + limit_s
    while not (found := await look()):
        assert time.monotonic() < deadline, f"nothing within {limit_s} s"
        await asyncio.sleep(0.05)
    return found


async def window_of(desktop: Desktop, window_class: str) -> Window:
    async def look() -> list[Window]:
        return [window for window in await desktop.windows() if window.window_class == window_class and window.is_focused]

    found = (await until(look))[0]
    await desktop.settle()
    return found


async def do(desktop: Desktop, action: Action) -> None:
    phases = gestures(action, desktop.size_px, "desktop")
    assert not isinstance(phases, Refusal)
    await desktop.perform(phases)
    await desktop.settle()


def test_a_desktop_shows_a_screen_of_its_size(on_desktop: Any) -> None:
    async def use(desktop: Desktop) -> None:
        assert isinstance(desktop, Desktop)
        assert desktop.size_px == SIZE_PX and "800x600" in desktop.environment
        with Image.open(io.BytesIO(await desktop.screenshot())) as image:
            assert image.format == "PNG" and image.size == SIZE_PX

    on_desktop(use)


def test_files_go_in_and_come_out_unchanged(on_desktop: Any) -> None:
    async def use(desktop: Desktop) -> None:
        content, path = bytes(range(256)) * 5000, PurePosixPath("some folder/ä file.bin")
        await desktop.put_file(path, content)
        assert await desktop.get_file(path) == content
        assert await desktop.get_file(PurePosixPath("nothing")) is None and await desktop.get_file(PurePosixPath("some folder")) is None
        await desktop.run(["ln", "-s", "/etc/hostname", "link"])
        assert await desktop.get_file(PurePosixPath("link")) is None
        listed = {(str(entry.path), entry.is_folder) for entry in await desktop.list_files()}
        assert {("some folder", True), ("some folder/ä file.bin", False)} <= listed and not any(name.startswith(".") for name, _ in listed)

    on_desktop(use)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_paths_stay_in_the_home(on_desktop: Any, path: str) -> None:
    async def use(desktop: Desktop) -> None:
        with pytest.raises(ValueError, match="home folder"):
            await desktop.get_file(PurePosixPath(path))
        with pytest.raises(ValueError, match="home folder"):
            await desktop.put_file(PurePosixPath(path), b"x")

    on_desktop(use)


def test_programs_run_with_exit_codes_and_limits(on_desktop: Any) -> None:
    async def use(desktop: Desktop) -> None:
        result = await desktop.run(["sh", "-c", "pwd; echo é; echo oops >&2; exit 3"])
        assert (result.exit_code, result.stdout, result.stderr) == (3, f"{HOME}\né\n", "oops\n")
        assert (await desktop.run(["no-such-program"])).exit_code == 127
        assert (await desktop.run(["sh", "-c", "sleep 61; touch came-to-its-end"], timeout_s=0.3)).exit_code == 124
        assert await desktop.get_file(PurePosixPath("came-to-its-end")) is None
        assert (await desktop.run(["pgrep", "-f", "sleep 61$"])).exit_code == 1, "what it had started is gone"
        assert len((await desktop.run(["head", "-c", "3000000", "/dev/zero"])).stdout) == 256 * 1024

    on_desktop(use)


def test_an_editor_is_typed_into_clicked_and_moved(on_desktop: Any) -> None:
    async def use(desktop: Desktop) -> None:
        await desktop.put_file(PurePosixPath("note.txt"), b"")
        before = await desktop.screenshot()
        await desktop.launch("editor", [PurePosixPath("note.txt")])
        window = await window_of(desktop, "Mousepad")
        assert "note.txt" in window.title and before != await desktop.screenshot()
        await do(desktop, actions.TypeText(text="Grüße, World! 1+1=2\n"))
        await do(desktop, actions.Hotkey(keys=("ctrl", "s")))
        wanted = "Grüße, World! 1+1=2\n" if is_precise(desktop) else "Gre, World! 1+1=2\n"
        assert ((await desktop.get_file(PurePosixPath("note.txt"))) or b"").decode() == wanted
        texts = [element for element in await desktop.elements() if element.role == "textarea"]
        assert texts and texts[0].text.startswith(wanted.strip())
        await do(desktop, actions.Click(x=texts[0].x_px, y=texts[0].y_px, count=2))
        await desktop.place_window(window.window_id, 100, 120, 500, 300)
        moved = await until(lambda: placed(desktop, (100, 120, 500, 300)))
        assert moved.window_id == window.window_id
        await desktop.change_window(window.window_id, "maximise")
        assert await until(lambda: any_window(desktop, lambda found: found.is_maximised))
        await desktop.change_window(window.window_id, "close")
        assert await until(lambda: no_window(desktop))
        await desktop.change_window(window.window_id, "activate")  # a window that is gone is left gone

    on_desktop(use)


def is_precise(desktop: Desktop) -> bool:
    """Whether it types characters that no key has: PyAutoGUI does not."""
    return not isinstance(desktop, AgentDesktop) or desktop.sources["types"] == "every character"


async def placed(desktop: Desktop, box: tuple[int, int, int, int]) -> Window | None:
    return await any_window(desktop, lambda found: (found.x_px, found.y_px, found.width_px, found.height_px) == box)


async def any_window(desktop: Desktop, is_wanted: Callable[[Window], bool]) -> Window | None:
    return next((window for window in await desktop.windows() if is_wanted(window)), None)


async def no_window(desktop: Desktop) -> bool:
    return not await desktop.windows()


def test_a_terminal_obeys_what_is_typed(on_desktop: Any) -> None:
    async def use(desktop: Desktop) -> None:
        await desktop.launch("xterm")
        await window_of(desktop, "XTerm")
        await do(desktop, actions.TypeText(text="echo $((6*7)) > answer.txt\n"))

        async def answer() -> bytes | None:
            return await desktop.get_file(PurePosixPath("answer.txt"))

        assert await until(answer) == b"42\n"

    on_desktop(use)


def use_agent(agent: RunningAgent, folder: Path, monkeypatch: pytest.MonkeyPatch, restore: str) -> None:
    """Sessions of this process work at the agent's machine, which a shell's line puts back."""
    (folder / "token").write_text(agent.token + "\n")
    settings = {
        "provider": "agent",
        "host": "127.0.0.1",
        "port": agent.port,
        "token_file": str(folder / "token"),
        "restore": ["sh", "-c", restore],
    }
    (folder / "desktops.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv(DESKTOPS_VARIABLE, str(folder / "desktops.yaml"))


@pytest.mark.slow
def test_a_pool_lends_the_desktop_behind_an_agent_put_back_for_every_episode(
    agents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = tmp_path / "restored"
    use_agent(agents("own"), tmp_path, monkeypatch, f"echo once >> {restored}")
    task = load_tasks()["dialog-press"]

    async def episode(pool: SessionPool, seed: int) -> bool:
        async with pool.lease(task, screenshots=False) as session:
            done = await attempt(session, task, seed)
            assert "guest agent" in session.environment and "800x600" in session.environment
            return done.is_success

    async def use() -> None:
        async with SessionPool(size=3) as pool, SessionPool(size=1) as another:
            assert await asyncio.gather(*(episode(pool, seed) for seed in range(3))) == [True] * 3
            with pytest.raises(SandboxError, match=rf"in use by process {os.getpid()}: it has one desktop"):
                await episode(another, 1)
        async with SessionPool(size=1) as pool:
            assert await episode(pool, 4)

    asyncio.run(use())
    assert restored.read_text() == "once\n" * 4


def test_a_machine_that_cannot_be_put_back_is_no_desktop(agents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_agent(agents("own"), tmp_path, monkeypatch, "echo no such snapshot >&2; exit 7")

    async def use() -> None:
        async with SessionPool(size=1) as pool, pool.lease(load_tasks()["dialog-press"]) as session:
            with pytest.raises(SandboxError, match=r"exit code 7\): no such snapshot"):
                await session.reset(load_tasks()["dialog-press"], 1)

    asyncio.run(use())


def test_unknown_and_missing_applications_are_distinguished(agents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> None:
        desktop = await agents("own").open()
        with pytest.raises(TaskError, match="no application 'doom'"):
            await desktop.launch("doom")
        with monkeypatch.context() as patch:
            app = App(name="missing", command=("no-such-program",), package="none", window_class="None")
            patch.setattr("sandbox.desktop.agent_desktop.find_app", lambda name: app)
            with pytest.raises(DesktopMissing, match="no program 'no-such-program'"):
                await desktop.launch("editor")

    asyncio.run(use())


@pytest.mark.parametrize(("kind", "types"), [("own", "every character"), pytest.param("current", "ASCII only", marks=pytest.mark.long)])
def test_an_agent_says_where_its_lists_come_from(agents: Any, kind: str, types: str) -> None:
    async def use() -> None:
        sources = (await agents(kind).open()).sources
        assert (sources["windows"], sources["elements"]) == ("EWMH", "AT-SPI")
        assert sources["types"].startswith("every character" if shutil.which("xdotool") else types)

    asyncio.run(use())


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", "Basic abc", "Bearer é"])
@pytest.mark.parametrize(
    ("method", "target"), [("GET", "/v1/health"), ("GET", "/v1/screenshot"), ("POST", "/v1/run"), ("PUT", "/v1/file?path=x")]
)
def test_without_the_token_nothing_is_answered_or_done(agents: Any, authorization: str | None, method: str, target: str) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode().decode("latin-1")}
    request = Request(f"http://127.0.0.1:{agents('own').port}{target}", b"{}" if method != "GET" else None, headers, method=method)
    with pytest.raises(HTTPError) as caught:
        urlopen(request)
    with caught.value as answer:
        assert answer.status == 401 and answer.read() == b'{"error": "wrong or missing token"}'


def test_an_agent_that_refuses_is_heard_and_goes_on(agents: Any) -> None:
    async def use() -> None:
        desktop = await agents("own").open()
        for method, arguments, part in (
            ("explode", {}, "no method 'explode'"),
            ("run", {"nonsense": 1}, "cannot be called with"),
            ("change_window", {"window_id": 1, "change": "fold"}, "fold"),
        ):
            with pytest.raises(SandboxError, match=part):
                await desktop._call(method, **arguments)
        with pytest.raises(SandboxError, match="relative path"):
            await desktop._request("GET", "/v1/file?path=..%2Fx")
        assert (await desktop.run(["true"])).exit_code == 0

    asyncio.run(use())


def test_a_slow_agent_is_a_timeout_and_a_wrong_token_an_error(agents: Any) -> None:
    agent = agents("own")

    async def use() -> None:
        desktop = await agent.open(call_s=1.0)
        with pytest.raises(SandboxTimeout, match=r"within 0\.2 s"):
            await desktop._call("run", limit_s=0.2, command=["sleep", "3"], timeout_s=10, environment={})
        with pytest.raises(SandboxError, match="401"):
            await AgentDesktop.open("127.0.0.1", agent.port, "x" * 20)
        await desktop.close()
        with pytest.raises(DesktopCrashed, match="closed"):
            await desktop.screenshot()

    asyncio.run(use())


def test_an_agent_that_died_is_a_crash_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_agent("own", tmp_path / "agent") as agent:

        async def use() -> None:
            desktop = await agent.open()
            await desktop.launch("xterm")
            await window_of(desktop, "XTerm")
            agent.process.kill()
            agent.process.wait()

            async def is_gone() -> bool:
                try:
                    await desktop.screenshot()
                except DesktopCrashed:
                    return True
                return False

            assert await until(is_gone)

            async def nothing_is_left() -> bool:
                return str(tmp_path) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout

            assert await until(nothing_is_left)

        asyncio.run(use())


def test_the_agent_is_one_file_that_python_3_9_reads(tmp_path: Path) -> None:
    assert guest_agent.VERSION == AGENT_VERSION
    ast.parse(Path(guest_agent.__file__).read_text(), feature_version=(3, 9))
    copy = Path(shutil.copy(guest_agent.__file__, tmp_path))
    (tmp_path / "token").write_text("x" * 20)
    named = shutil.which("python3.9")
    is_usable = named is not None and subprocess.run([named, "-c", ""], capture_output=True).returncode == 0
    python = named if named is not None and is_usable else sys.executable
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "PYTHONPATH")}
    command = [python, "-I", "-S", str(copy), "--token-file", str(tmp_path / "token")]  # -S: with the standard library only
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 2 and "The Python package 'pyautogui' cannot be used here" in done.stderr
    (tmp_path / "token").write_text("short")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 2 and "the token has 5 characters" in done.stderr
