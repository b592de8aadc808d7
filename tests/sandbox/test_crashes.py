"""Browsers that die, hang or are missing, pages that never get ready, parents that are killed: typed errors, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox import actions
from sandbox.browser.backend import CdpBackend
from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.connection import Connection, Params
from sandbox.browser.chromium import EXECUTABLE_VARIABLE, NO_SANDBOX_VARIABLE, find_chromium
from sandbox.browser.isolation.scratch import Profile, browser_user, readable_root, reap_profiles
from sandbox.browser.page_session import Limits
from sandbox.pool.pool import SessionPool
from sandbox.pool.slots import RecyclePolicy
from sandbox.tasks.page_task import PageSettings, Site, WebSettings
from tests.sandbox.process_watch import group_members, soon, within
from tests.sandbox.web_pages import OTHER, SHOP, TASK, WebSource
from warehouse.core.errors import BrowserCrashed, BrowserMissing, ConfigError, PageNotReady, SandboxError, SandboxTimeout

WAIT_S = 60
"""What the players of a killed browser are in the midst of."""
KINDS = pytest.mark.parametrize("kind", ["beginframe", pytest.param("plain", marks=pytest.mark.long)])
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def profile_of(pid: int) -> Path:
    arguments = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode().replace("\0", " ").split()
    return Path(next(argument.partition("=")[2] for argument in arguments if argument.startswith("--user-data-dir=")))


@KINDS
@linux_only
def test_a_killed_browser_tells_everyone_at_once_and_is_replaced(kind: Any, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        all_play, num_playing = asyncio.Event(), 0

        async def play() -> None:
            nonlocal num_playing
            async with pool.lease() as session:
                await session.reset(html_task(), 1)
                num_playing += 1
                if num_playing == 2:
                    all_play.set()
                with pytest.raises(BrowserCrashed):
                    await session.step(actions.Wait(seconds=WAIT_S))

        players = [asyncio.ensure_future(play()) for _ in range(2)]
        await asyncio.wait_for(all_play.wait(), 60)
        await asyncio.sleep(0.2)
        (pid,) = pool.browser_pids()
        would_end = asyncio.ensure_future(asyncio.sleep(WAIT_S))
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*players)
        assert not would_end.done(), "both know before what it was doing would have ended"
        would_end.cancel()
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
        assert pool.browser_pids() != [pid] and pool.stats().num_crashes == 1
        assert within(5, lambda: not group_members(pid))

    with live_pool(SessionPool({"html": html_source()}, kind=kind, size=2, num_browsers=1)) as live:
        live.run(use)


@pytest.mark.slow
@KINDS
def test_a_hanging_page_times_out_and_costs_its_browser(kind: Any, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(SandboxTimeout, match="longer than 3 s"):
            async with pool.lease() as session:
                observation = await session.reset(html_task(), 1)
                hang = next(element for element in observation.elements if element.role == "hang")
                await session.step(actions.Click(x=hang.x_px, y=hang.y_px))
        async with pool.lease() as session:
            assert (await session.reset(html_task(), 1)).elements

    with live_pool(SessionPool({"html": html_source()}, kind=kind, size=1, limits=Limits(ready_s=20, step_s=3))) as live:
        live.run(use)


@pytest.mark.slow
@KINDS
def test_a_page_that_hangs_after_the_end_times_out_as_well(kind: Any, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(SandboxTimeout, match="longer than 3 s"):
            async with pool.lease() as session:
                await session.reset(html_task(), 1)
                await session.step(actions.Finished())
                await session._instance.page.evaluate("void setTimeout(() => { for (;;); }, 0)")
                await session.step(actions.Wait(seconds=1))

    with live_pool(SessionPool({"html": html_source()}, kind=kind, size=1, limits=Limits(ready_s=20, step_s=3))) as live:
        live.run(lambda pool: asyncio.wait_for(use(pool), 60))


@pytest.mark.slow
@KINDS
@linux_only
def test_a_stopped_browser_is_ended_long_before_its_step_is(kind: Any, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
            (pid,) = pool.browser_pids()
            os.killpg(pid, signal.SIGSTOP)
            with pytest.raises(BrowserCrashed, match="answered nothing for 2 s"):
                await session.step(actions.Wait(seconds=1))
        await soon(lambda: not group_members(pid))
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
        assert pool.browser_pids() != [pid]

    recycle = RecyclePolicy(heartbeat_s=0.2, hung_after_s=2)
    with live_pool(SessionPool({"html": html_source()}, kind=kind, size=1, recycle=recycle, limits=Limits(step_s=120))) as live:
        live.run(use)


@linux_only
def test_what_a_dead_browser_left_is_cleaned_up_without_a_lease(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
        (pid,) = pool.browser_pids()
        profile = profile_of(pid)
        os.kill(pid, signal.SIGKILL)
        await soon(lambda: not profile.exists() and not group_members(pid))
        assert pool.stats().num_crashes == 1

    with live_pool(SessionPool({"html": html_source()}, size=1, recycle=RecyclePolicy(heartbeat_s=0.1))) as live:
        live.run(use)


@linux_only
def test_a_browser_that_takes_too_much_memory_is_ended(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(BrowserCrashed, match="of memory, more than the 1 MiB"):
            async with pool.lease() as session:
                await session.reset(html_task(), 1)
                await session.step(actions.Wait(seconds=60))

    with live_pool(SessionPool({"html": html_source()}, size=1, recycle=RecyclePolicy(heartbeat_s=0.2, end_memory_mib=1.0))) as live:
        live.run(use)


@KINDS
def test_a_page_whose_process_ends_costs_its_session_alone(kind: Any, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        async with pool.lease() as beside:
            await beside.reset(html_task(), 1)
            with pytest.raises(SandboxError, match="page's process ended") as reported:
                async with pool.lease() as session:
                    await session.reset(html_task(), 1)
                    page = session._instance.page
                    page.browser.crash_page(page._session_id)
                    await asyncio.sleep(1.0)
                    await session.step(actions.Wait(seconds=1))
            assert not isinstance(reported.value, BrowserCrashed)
            assert (await beside.step(actions.Wait(seconds=0.1))).observation.elements
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
        assert pool.stats().num_launches == 1

    with live_pool(SessionPool({"html": html_source()}, kind=kind, size=2, num_browsers=1)) as live:
        live.run(use)


@pytest.mark.slow
@linux_only
def test_a_page_that_takes_too_much_memory_has_failed_and_its_neighbour_goes_on(live_pool: Any, tmp_path: Path) -> None:
    """It fills ArrayBuffers, 1.25 GiB in all; the browser may have 900 MiB."""
    script = "const kept = []; for (let i = 0; i < 20; i++) kept.push(new Uint8Array(64 << 20).fill(1))"
    (tmp_path / "index.html").write_text(f"<button style='width:400px;height:200px' onclick='{script}'>take</button>")
    tmp_path.chmod(0o755)
    source = WebSource(web=WebSettings(sites=(SHOP, OTHER, Site(host="hostile.test", folder=tmp_path))))

    async def use(pool: SessionPool) -> None:
        async with pool.lease() as beside, pool.lease() as session:
            seen = await beside.reset(TASK, 1)
            await session.reset(TASK, 1)
            await session.step(actions.Navigate(url="https://hostile.test/"))
            transition = await session.step(actions.Click(x=100, y=100))
            for _ in range(100):
                if transition.terminated:
                    break
                transition = await session.step(actions.Wait(seconds=0.2))
            assert "process ended" in transition.info["lost"] and not (await session.evaluate()).success
            assert (await beside.step(actions.Wait(seconds=0.1))).observation.elements == seen.elements
            assert (await session.reset(TASK, 1)).elements == seen.elements
        assert pool.stats().num_launches == 1

    recycle = RecyclePolicy(heartbeat_s=0.2, end_memory_mib=900.0)
    with live_pool(SessionPool({"web": source}, kind="beginframe", size=2, num_browsers=1, recycle=recycle)) as live:
        live.run(use)


def test_a_listener_that_fails_costs_nobody_else_a_word(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Params) -> None:
        raise ValueError("broken")

    async def use() -> None:
        (read_fd, their_write_fd), (their_read_fd, write_fd) = os.pipe(), os.pipe()
        connection, heard = Connection(), list[Params]()
        await connection.open(read_fd=read_fd, write_fd=write_fd)
        connection.listen(None, "Target.first", fail)
        connection.listen(None, "Target.second", heard.append)
        answer = connection.send("Browser.getVersion")
        said = [{"method": "Target.first"}, {"method": "Target.second", "params": {"n": 1}}, {"id": 1, "result": {"product": "x"}}]
        os.write(their_write_fd, b"".join(json.dumps(message).encode() + b"\0" for message in said))
        assert await asyncio.wait_for(answer, 30) == {"product": "x"} and heard == [{"n": 1}]
        connection.close()
        os.close(their_write_fd)
        os.close(their_read_fd)

    asyncio.run(use())
    assert "Target.first" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["never-ready", "endless"])
def test_a_page_that_never_gets_ready(name: str, live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(PageNotReady, match=rf"[( ]{name}\.html"):  # by its path below the root, which is the same on every machine
            async with pool.lease() as session:
                await session.reset(html_task(name), 1)

    with live_pool(SessionPool({"html": html_source()}, size=1, limits=Limits(ready_s=3, step_s=20))) as live:
        live.run(use)


def test_a_page_that_is_not_there(live_pool: Any, html_source: Any, html_task: Any) -> None:
    async def use(pool: SessionPool) -> None:
        with pytest.raises(SandboxError, match=r"The page nonesuch\.html could not be opened"):
            async with pool.lease() as session:
                await session.reset(html_task("nonesuch"), 1)
        async with pool.lease() as session:
            await session.reset(html_task(), 1)
        assert pool.stats().num_crashes == 0

    with live_pool(SessionPool({"html": html_source()}, size=1)) as live:
        live.run(use)


def test_a_missing_browser_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(EXECUTABLE_VARIABLE, str(tmp_path / "chromium"))
    with pytest.raises(BrowserMissing, match=EXECUTABLE_VARIABLE):
        find_chromium()
    with pytest.raises(FileNotFoundError):
        asyncio.run(SessionPool(size=1).__aenter__())


def test_a_program_that_is_no_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "headless-shell"
    program.write_text("#!/bin/sh\necho cannot open display >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv(EXECUTABLE_VARIABLE, str(program))
    with pytest.raises(BrowserCrashed, match="cannot open display"):
        asyncio.run(Browser.launch(begin_frame=False))


@linux_only
def test_a_browser_without_its_sandbox_says_so_and_shows_no_open_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Chromium that finds no sandbox, as where the kernel gives no namespaces to users without privileges."""
    program = tmp_path / "headless-shell"
    refusing = 'case "$*" in *--no-sandbox*) ;; *) echo "No usable sandbox!" >&2; exit 1;; esac'
    program.write_text(f'#!/bin/sh\n{refusing}\nexec {find_chromium().path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv(EXECUTABLE_VARIABLE, str(program))
    root = Path(__file__).with_name("pages")

    def settings(network: Any) -> PageSettings:
        web = WebSettings(network=network)
        return PageSettings(viewport_px=(320, 320), area_px=(320, 320), step_time_ms=50.0, frame_time_ms=50.0, web=web)

    async def use() -> None:
        host = CdpBackend(await Browser.launch(begin_frame=True))
        try:
            assert host.browser.version.endswith("; no sandbox")
            await (await host.open_page(settings("none"), root)).close()
            with pytest.raises(ConfigError, match=f"{NO_SANDBOX_VARIABLE}=1"):
                await host.open_page(settings("open"), root)
            monkeypatch.setenv(NO_SANDBOX_VARIABLE, "1")
            page = await host.open_page(settings("open"), root)
            assert "; no sandbox; web policy" in page.browser_version
            await page.close()
        finally:
            await host.close()

    asyncio.run(use())


ORPHAN_SCRIPT = """
import asyncio, sys
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.actions import Wait

async def main():
    async with SessionPool(kind=sys.argv[1], size=2, num_browsers=2) as pool:
        async with pool.lease() as one, pool.lease() as two:
            for session in (one, two):
                await session.reset(load_tasks()["click-button"], 1)
            print(*pool.browser_pids(), flush=True)
            await asyncio.gather(*(session.step(Wait(seconds=60)) for session in (one, two)))

asyncio.run(main())
"""


@KINDS
@linux_only
def test_no_browser_outlives_a_killed_parent(kind: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN_SCRIPT, kind], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(len(group_members(pid)) >= 3 for pid in pids)
    profiles = [profile_of(pid) for pid in pids]
    assert all(profile.is_dir() for profile in profiles)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert within(5, lambda: not any(group_members(pid) for pid in pids))
    reap_profiles()  # or somebody else's session, which may be at it just now
    assert within(5, lambda: not any(profile.exists() for profile in profiles))


FORGOTTEN_SCRIPT = """
import asyncio, sys
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks

async def forget():
    global pool
    pool = await SessionPool(size=1).__aenter__()
    async with pool.lease() as session:
        await session.reset(load_tasks()["click-button"], 1)
    return pool.browser_pids()

print(*asyncio.run(forget()), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@linux_only
def test_a_pool_that_was_not_closed_ends_with_its_event_loop() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORGOTTEN_SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as forgetful:
        assert forgetful.stdout is not None and forgetful.stdin is not None
        (pid,) = [int(word) for word in forgetful.stdout.readline().split()]
        assert within(30, lambda: not group_members(pid)) and forgetful.poll() is None
        forgetful.stdin.close()
    assert forgetful.returncode == 0


def test_profiles_in_use_are_not_reaped() -> None:
    profile = Profile()
    reap_profiles()
    assert profile.path.is_dir()
    profile.remove()
    profile.remove()
    assert not profile.path.exists()


@linux_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")
def test_as_root_the_browser_is_another_user_with_its_sandbox_on() -> None:
    def renderers(browser: Browser) -> list[int]:
        members = group_members(browser.process.pid)
        return [pid for pid in members if b"--type=renderer" in (Path("/proc") / str(pid) / "cmdline").read_bytes()]

    async def use() -> None:
        browser = await Browser.launch(begin_frame=True)
        try:
            context = await browser.connection.send("Target.createBrowserContext")
            await browser.connection.send("Target.createTarget", {"url": "about:blank", **context})
            assert within(10, lambda: renderers(browser)), "a page has one, but not at once"
            statuses = [(Path("/proc") / str(pid) / "status").read_text() for pid in group_members(browser.process.pid)]
            uids = {line.split()[1] for status in statuses for line in status.splitlines() if line.startswith("Uid:")}
            assert uids == {str(browser_user().uid)} and "0" not in uids
            assert within(10, lambda: all("Seccomp:\t2" in (Path("/proc") / str(pid) / "status").read_text() for pid in renderers(browser)))
        finally:
            await browser.close()

    asyncio.run(use())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has pages that its browser cannot read")
def test_pages_in_a_closed_folder_are_served_from_a_copy(live_pool: Any, html_source: Any, html_task: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for page in html_source().root.glob("*.html"):
        (closed / page.name).write_bytes(page.read_bytes())
    assert readable_root(closed) != closed

    async def use(pool: SessionPool) -> str:
        async with pool.lease() as session:
            return (await session.reset(html_task(), 1)).url

    with live_pool(SessionPool({"html": html_source(closed)}, size=1)) as live:
        assert live.run(use) == "kitchen.html"
