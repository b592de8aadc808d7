"""Pages that make their browser unusable, as an agent may open or serve them: an episode then goes on or has failed, and is never an error
of the infrastructure. The sessions beside it, and the next episode, know nothing of it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz_actions import ADDRESSES, fuzzed_action
from sandbox import actions
from sandbox.browser.page_session import Limits, PageSession
from sandbox.session import Observation
from sandbox.tasks.page_task import Site
from tests.sandbox.web_pages import OTHER, SHOP, TASK, Bench, bench

BUTTON = "<button style='width:400px;height:200px' onclick='{}'>press</button>"
LATER = "<p>x<script>setTimeout(() => {{{}}}, 10)</script>"
PAGES = {
    "an endless script": LATER.format("for(;;);"),
    "an endless handler": BUTTON.format("for(;;);"),
    "endless microtasks": BUTTON.format("(function f() {Promise.resolve().then(f)})()"),
    "an endless expression": LATER.format("/^(a+)+$/.test('a'.repeat(60) + 'b')"),
    "an endless title": "<script>Object.defineProperty(document, 'title', {get() {for(;;);}})</script>",
    "alerts without end": LATER.format("for(;;) alert(1)"),
    "dialogs on every event": "<div style='width:400px;height:200px' onmousemove='confirm(1)' onmousedown='prompt(2)'>x</div>",
    "a page that must not be left": "<script>onbeforeunload = event => {event.preventDefault(); return 1}</script>" + BUTTON.format("1"),
    "a blob that is gone": LATER.format("const u = URL.createObjectURL(new Blob(['x'])); URL.revokeObjectURL(u); location = u"),
    "a blob": BUTTON.format('location = URL.createObjectURL(new Blob(["<p>y"], {type: "text/html"}))'),
    "memory without end": LATER.format("const a = []; for(;;) a.push(new Array(1e6).fill(Math.random()))"),
    "itself again and again": LATER.format("location.reload()"),
    "itself at once": "<script>location = '?' + Math.random()</script>",
    "a refresh": "<meta http-equiv=refresh content=0>",
    "its own end": LATER.format("window.close()"),
    "printing": LATER.format("for (let i = 0; i < 20; i++) print()"),
    "a breakpoint": LATER.format("debugger"),
    "windows": BUTTON.format('for (let i = 0; i < 100; i++) open("/index.html")'),
    "the whole screen": BUTTON.format("document.documentElement.requestFullscreen()"),
    "a long history": LATER.format("for (let i = 0; i < 20000; i++) history.pushState(i, '', '?' + i)"),
    "frames": "<iframe src=index.html></iframe>" * 60,
    "timers": "<script>(function f() {setTimeout(f, 0); setTimeout(f, 0)})()</script>",
    "slow frames": "<script>(function f() {requestAnimationFrame(f); for (let i = 0; i < 1e8; i++);})()</script>",
    "replaced functions": "<script>Object.prototype.toJSON = () => {throw 1}; Object.defineProperty(document, 'title', {get() {throw 1}}); "
    "document.elementFromPoint = () => {throw 1}; Array.prototype[Symbol.iterator] = null; JSON.stringify = null</script>",
    "no document": LATER.format("document.documentElement.remove()"),
    "downloads": LATER.format(
        "for (let i = 0; i < 300; i++) {const a = document.createElement('a'); a.href = 'data:,x'; a.download = 'x'; a.click()}"
    ),
    "a lost context": "<script>for (let i = 0; i < 40; i++) "
    "document.createElement('canvas').getContext('webgl')?.getExtension('WEBGL_lose_context')?.loseContext()</script>",
    "a script as its address": LATER.format("location = 'javascript:for(;;);'"),
    "an endless worker": "<script>new Worker(URL.createObjectURL(new Blob(['for(;;);'])))</script>",
    "a huge page": "<div style='width:30000000px;height:30000000px'>x</div>",
}
QUICK = ("a blob that is gone", "replaced functions")
AFTER = (
    actions.Wait(seconds=0.3),
    actions.Click(x=100, y=100),
    actions.Drag(x=100, y=100, to_x=140, to_y=140),
    actions.TypeText(text="hi"),
    actions.Scroll(direction="down", x=100, y=100),
    actions.NavigateBack(),
    actions.Navigate(url="https://shop.test/"),
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Site]]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "index.html").write_text("<p>here")
    for number, page in enumerate(PAGES.values()):
        (folder / f"{number}.html").write_text(page)
    folder.chmod(0o755)
    with bench("beginframe") as made:
        yield made, Site(host="hostile.test", folder=folder)


def play(hostile: tuple[Bench, Site], *todo: actions.Action, step_s: float = 6.0) -> None:
    """Take the actions beside another session, then restart in the same browser."""
    made, site = hostile

    async def use(session: PageSession, first: Observation) -> None:
        beside = made.session(sites=(SHOP, OTHER))
        try:
            seen = await beside.reset(TASK, 1)
            for action in todo:
                transition = await session.step(action)
                assert transition.observation.screenshot
            await session.evaluate()
            assert (await beside.step(actions.Wait(seconds=0.1))).observation.elements == seen.elements, "the session beside it goes on"
            assert (await session.reset(TASK, 1)).elements == first.elements, "and so does the next episode"
        finally:
            await beside.close()

    async def used() -> None:
        session = made.session(sites=(SHOP, OTHER, site), settle_limit_s=2.0)
        session._limits = Limits(ready_s=120.0, step_s=step_s)
        try:
            await use(session, await session.reset(TASK, 1))
        finally:
            await session.close()

    made.runner.run(used())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in PAGES])
def test_no_page_makes_an_episode_an_error_of_the_infrastructure(hostile: tuple[Bench, Site], name: str) -> None:
    address = f"https://hostile.test/{list(PAGES).index(name)}.html"
    play(hostile, actions.Navigate(url=address), *AFTER)


def test_a_click_that_never_returns_costs_its_page_alone(hostile: tuple[Bench, Site]) -> None:
    """Two of those actions; the long test of "an endless handler" takes them all."""
    address = f"https://hostile.test/{list(PAGES).index('an endless handler')}.html"
    play(hostile, actions.Navigate(url=address), actions.Click(x=100, y=100), actions.Navigate(url="https://shop.test/"), step_s=1.5)


OTHER_ADDRESSES = ("blob:null/x", "https://nothing.test/", "about:blank")


@pytest.mark.parametrize(
    "url", ["blob:https://shop.test/x", "http://localhost:1/", *(pytest.param(url, marks=pytest.mark.slow) for url in OTHER_ADDRESSES)]
)
def test_no_address_does(hostile: tuple[Bench, Site], url: str) -> None:
    """A blob's first of all: typed, it leads to an error page, and a frame that is drawn while that comes never ends."""
    play(hostile, actions.Navigate(url=url), actions.Click(x=9, y=9), actions.NavigateBack())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_address_of_many_does(hostile: tuple[Bench, Site]) -> None:
    for url in ADDRESSES:
        play(hostile, actions.Navigate(url=url), actions.Click(x=9, y=9), actions.NavigateBack())


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=12), first=st.sampled_from(sorted(PAGES)))
def test_no_sequence_of_actions_does(hostile: tuple[Bench, Site], seeds: list[int], first: str) -> None:
    """Any actions, on any of the pages that an agent could have served."""
    if "endless" in first or "without end" in first:
        first = "replaced functions"
    todo = [fuzzed_action(random.Random(seed), "web") for seed in seeds]
    todo = [action for action in todo if not isinstance(action, actions.Finished)]
    play(hostile, actions.Navigate(url=f"https://hostile.test/{list(PAGES).index(first)}.html"), *todo)


def test_a_pages_process_has_a_filter_of_system_calls(hostile: tuple[Bench, Site]) -> None:
    """Chromium's own, wherever its sandbox is on: a page that breaks its renderer opens no socket of any family."""
    made, _ = hostile
    browser: Any = made.host
    process = browser.browser.process
    if not process.is_sandboxed:
        pytest.skip("Chromium has no sandbox of its own on this machine")
    renderers = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes() and os.getpgid(int(folder.name)) == process.pid:
                renderers += 1
                assert "Seccomp:\t2" in (folder / "status").read_text()
        except (ProcessLookupError, FileNotFoundError):  # it ended meanwhile
            continue
    assert renderers
