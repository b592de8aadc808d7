"""What an agent can do in a web session, on a page with one of everything, whatever drives the page."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sandbox import actions
from sandbox.browser.page_session import PageSession
from sandbox.session import Observation, Session, Transition
from tests.sandbox.web_pages import SHOP, TASK, Bench, bench, click, find, keys, noted, page_value
from warehouse.core.errors import ConfigError, SandboxError


@pytest.fixture(scope="module", params=["beginframe", pytest.param("plain", marks=pytest.mark.slow)])
def web(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param) as opened:
        yield opened


def urls(transition: Transition) -> list[str]:
    return [tab["url"] for tab in transition.info["tabs"]]


async def noted_soon(session: PageSession, wanted: str) -> Transition:
    """In real time some events come a little after the action that caused them."""
    for _ in range(20):
        transition = await session.step(actions.Wait(seconds=0.1))
        if any(wanted in entry for entry in noted(transition)):
            return transition
    raise AssertionError(f"{wanted!r} is not among {noted(transition)}")


def test_a_session_shows_a_site_of_the_task(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        assert isinstance(session, Session)
        assert first.url == "https://shop.test/" and first.screenshot is not None
        with Image.open(io.BytesIO(first.screenshot)) as image:
            assert image.size == (500, 240) and len(image.convert("RGB").getcolors(100_000) or []) > 10
        assert "web policy" in session.environment and "flags" in session.environment
        assert not (await session.evaluate()).success

    web.run(use)


def test_links_lead_on_and_back(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(actions.Navigate(url="https://other.test/"))
        assert transition.observation.url == "https://other.test/" and find(transition.observation, "other")
        transition = await session.step(actions.NavigateBack())
        assert transition.observation.url == "https://shop.test/"
        assert "no page" in (await session.step(actions.NavigateBack())).info["ignored"]
        transition = await session.step(keys("alt", "right"))
        assert transition.observation.url == "https://other.test/"
        transition = await session.step(actions.Navigate(url="shop.test"))
        assert not (await session.evaluate()).success
        transition = await session.step(click(transition.observation, "two"))
        assert transition.observation.url == "https://shop.test/two.html" and find(transition.observation, "second page")
        assert transition.terminated and transition.reward == 1.0 and (await session.evaluate()).success

    web.run(use)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://evil.test/", "not allowed"),
        ("http://localhost:9/", "not allowed"),
        ("chrome://version", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("view-source:https://shop.test", "scheme"),
        ("javascript:alert(1)", "not allowed"),
        ("https://", "not allowed"),
        ("", "not allowed"),
        ("foo://[", "scheme"),
        ("file://[x", "scheme"),
        ("ftp://[1", "scheme"),
        ("http://[", "not allowed"),
    ],
)
def test_what_may_not_be_opened_is_said(web: Bench, url: str, said: str) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(actions.Navigate(url=url))
        assert said in transition.info["ignored"] and transition.observation.url == "https://shop.test/"

    web.run(use)


def test_a_link_to_elsewhere_leaves_the_page_where_it_is(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "evil"))
        assert transition.observation.url == "https://shop.test/" and transition.info["blocked"] == ["https://evil.test/"]
        assert "unsettled" not in transition.info

    web.run(use, settle_limit_s=20.0)


def test_tabs_open_switch_and_close(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "popup"))
        assert transition.observation.url == "https://other.test/" and "*[2] Other" in transition.observation.output
        assert transition.info["tabs"][1] == {"title": "Other", "url": "https://other.test/", "active": True}
        transition = await session.step(keys("ctrl", "tab"))
        assert transition.observation.url == "https://shop.test/" and find(transition.observation, "popup")
        transition = await session.step(keys("ctrl", "2"))
        transition = await session.step(click(transition.observation, "close me"))
        assert urls(transition) == ["https://shop.test/"] and transition.observation.url == "https://shop.test/"
        transition = await session.step(keys("ctrl", "t"))
        assert urls(transition) == ["https://shop.test/", "about:blank"] and transition.observation.url == "about:blank"
        transition = await session.step(keys("ctrl", "w"))
        assert urls(transition) == ["https://shop.test/"]
        transition = await session.step(keys("ctrl", "w"))
        assert urls(transition) == ["about:blank"]
        assert "1 tabs" in (await session.step(keys("ctrl", "5"))).info["ignored"]

    web.run(use)


def test_a_link_may_open_a_tab(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "new tab"))
        assert urls(transition) == ["https://shop.test/", "https://shop.test/two.html"] and transition.terminated

    web.run(use)


@pytest.mark.slow
def test_a_page_cannot_open_tabs_without_end(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        await page_value(session, "(() => { for (let i = 0; i < 40; i++) window.open('https://other.test/'); })()")
        transition = await session.step(actions.Wait(seconds=0.1))
        assert len(transition.info["tabs"]) <= 20

    web.run(use)


def test_a_download_comes_into_the_workspace(web: Bench, tmp_path: Path) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "report"))
        assert "downloaded Downloads/report.bin" in transition.observation.output
        assert (tmp_path / "Downloads" / "report.bin").read_text() == "report contents"
        transition = await session.step(click(transition.observation, "report"))
        assert "downloaded Downloads/report (1).bin" in transition.observation.output
        assert sorted(path.name for path in (tmp_path / "Downloads").iterdir()) == ["report (1).bin", "report.bin"]

    web.run(use, workspace=tmp_path)


def test_a_download_may_be_too_large_or_unwanted(web: Bench, tmp_path: Path) -> None:
    async def too_large(session: PageSession, first: Observation) -> None:
        assert "larger than 1e-06 MiB" in (await session.step(click(first, "report"))).observation.output
        assert not list(tmp_path.iterdir())

    async def unwanted(session: PageSession, first: Observation) -> None:
        assert "no workspace" in (await session.step(click(first, "report"))).observation.output

    web.run(too_large, workspace=tmp_path, max_download_mib=1e-6)
    web.run(unwanted)


def test_the_downloads_of_an_episode_are_limited_together(web: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(session: PageSession, first: Observation) -> list[str]:
        said = []
        for _ in range(3):
            transition = await session.step(click(first, "report"))
            async with asyncio.timeout(30):
                while not transition.observation.output:  # a busy browser tells of a download a step later
                    transition = await session.step(actions.Wait(seconds=0.1))
            said.append(transition.observation.output)
        assert "downloaded" in said[0]
        return said

    said = web.run(use, workspace=tmp_path, max_downloads_mib=20 / 1024 / 1024)
    assert all("may have 1.90735e-05 MiB together" in line for line in said[1:])
    monkeypatch.setattr("sandbox.browser.window.downloads.MAX_DOWNLOADS", 2)
    said = web.run(use, workspace=tmp_path)
    assert "downloaded" in said[1] and "refused: there were 2 in this episode" in said[2]
    assert len(list((tmp_path / "Downloads").iterdir())) == 3


def test_a_page_cannot_start_downloads_without_end(web: Bench, tmp_path: Path) -> None:
    """They never end: a page is sent their first byte."""
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\n\r\n<p>served</p>"
    part = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-part\r\nContent-Length: 1000\r\n\r\nx"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_page = (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET / ")
        writer.write(page if is_page else part)
        await writer.drain()
        if not is_page:
            await reader.read()  # until the browser gives up
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def connect(port: int) -> Any:
        return await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])

    async def use(session: PageSession, first: Observation) -> None:
        asking = "for (let i = 0; i < 6; i++) Object.assign(document.createElement('a'), {href: '/' + i, download: 'part' + i}).click()"
        await page_value(session, f"(() => {{ {asking} }})()")
        lines: list[str] = []
        for _ in range(20):
            transition = await session.step(actions.Wait(seconds=0.1))
            lines += transition.observation.output.splitlines()
            if len(lines) == 2:
                break
        assert [line.partition(" refused: ")[2] for line in lines] == ["4 others are under way"] * 2
        assert transition.info["unsettled"] == "a download is under way"

    server = web.runner.run(start())
    try:
        web.run(use, workspace=tmp_path, connect=connect, address="http://localhost:5000/", sites=(), settle_limit_s=1.0)
    finally:
        server.close()


def test_what_is_recorded_names_no_folder_of_this_machine(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        assert first.url == "shop/index.html"
        await page_value(session, "document.title = ''; (new Image).src = '../../beside.png'; 0")
        seen = [await session.step(actions.Wait(seconds=0.1)), await session.step(click(first, "new tab"))]
        assert urls(seen[-1]) == ["shop/index.html", "shop/two.html"] and seen[-1].observation.url == "shop/two.html"
        assert "[1] shop/index.html" in seen[-1].observation.output
        assert "../beside.png" in seen[0].info["blocked"] and "file:" not in str([each.info for each in seen])
        with pytest.raises(SandboxError, match=r"went wrong at shop/two\.html"):
            await page_value(session, "(() => { throw new Error('went wrong at ' + location.href); })()")

    web.run(use, sites=(), address=(SHOP.folder / "index.html").as_uri())


def test_a_worker_that_starts_when_no_tab_is_left_is_ended(web: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        window: Any = session._page
        browser, tab, gone = window.browser, window.active, asyncio.Event()

        def on_detached(event: dict[str, Any]) -> None:
            browser._on_detached(event)
            gone.set()

        browser.connection.listen(None, "Target.detachedFromTarget", on_detached)
        window.on_closed(tab)
        await tab.evaluate("void new SharedWorker('data:text/javascript,0')")
        await asyncio.wait_for(gone.wait(), 30)
        browser.connection.listen(None, "Target.detachedFromTarget", browser._on_detached)
        transition = await session.step(actions.Wait(seconds=0.1))
        assert transition.terminated and "no tab" in transition.info["lost"]

    web.run(use)
    assert not caplog.records


def test_a_file_of_the_workspace_is_uploaded(web: Bench, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("from the workspace")

    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "file field"))
        assert "a file field waits" in transition.observation.output
        transition = await session.step(actions.TypeText(text="notes/missing.txt"))
        assert "cannot be read" in transition.info["ignored"] and "a file field waits" in transition.observation.output
        transition = await session.step(actions.TypeText(text="notes/a\0.txt"))
        assert "is not a file name" in transition.info["ignored"]
        transition = await session.step(actions.TypeText(text="notes/a.txt"))
        assert transition.info["uploaded"] == ["notes/a.txt"]
        await noted_soon(session, "file a.txt from the workspace")
        await session.step(click(first, "file field"))
        transition = await session.step(keys("escape"))
        assert transition.observation.output == ""

    web.run(use, workspace=tmp_path)


def test_dialogs_are_answered_by_policy(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> list[str]:
        transition = await session.step(click(first, "confirm"))
        assert transition.info["dialogs"] == ["Are you sure?"]
        return noted(await session.step(click(first, "prompt")))

    assert web.run(use) == ["confirmed true", "prompted nobody"]
    assert web.run(use, dialogs="dismiss") == ["confirmed false", "prompted null"]


def test_the_agent_may_answer_dialogs(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "confirm"))
        shown = transition.observation
        assert [element.text for element in shown.elements] == ["Are you sure?", "OK", "Cancel"] and shown.screenshot != first.screenshot
        assert "answer it first" in (await session.step(click(first, "two"))).info["ignored"]
        transition = await session.step(click(shown, "Cancel"))
        assert noted(transition) == ["confirmed false"] and find(transition.observation, "confirm")
        transition = await session.step(click(first, "prompt"))
        assert find(transition.observation, "nobody").role == "input"
        transition = await session.step(actions.TypeText(text="Ada"))
        assert find(transition.observation, "Ada")
        assert noted(await session.step(keys("enter")))[-1] == "prompted Ada"
        await session.step(click(first, "prompt"))
        assert noted(await session.step(keys("escape")))[-1] == "prompted null"

    web.run(use, dialogs="ask")


def test_frames_and_shadow_trees_are_part_of_the_page(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        seen = first
        for text, becomes in (("far", "far pressed"), ("near", "near pressed")):
            seen = (await session.step(click(seen, text))).observation
            find(seen, becomes)
        find(seen, "open shadow")
        await session.step(click(seen, "closed shadow"))
        await noted_soon(session, "closed pressed")
        colour = next(element for element in seen.elements if element.role == "select" and element.text == "red")
        transition = await session.step(actions.SelectOption(x=colour.x_px, y=colour.y_px, option="green"))
        assert "ignored" not in transition.info and find(transition.observation, "green")

    web.run(use)


def test_the_page_takes_every_kind_of_input(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        scroller = find(first, "top")
        await session.step(actions.Scroll(direction="down", x=scroller.x_px, y=scroller.y_px))
        await noted_soon(session, "scrolled")
        await session.step(click(first, "rich"))
        await session.step(keys("ctrl", "a"))
        transition = await session.step(actions.TypeText(text="poor"))
        assert find(transition.observation, "poor").role == "textarea"
        source, target = find(first, "drag me"), find(first, "drop here")
        await session.step(actions.Drag(x=source.x_px, y=source.y_px, to_x=target.x_px, to_y=target.y_px))
        entries = noted(await noted_soon(session, "dragend"))
        assert entries[entries.index("dragstart") :] == ["dragstart", "drop payload", "dragend"]
        await session.step(click(first, "second"))
        await session.step(actions.TypeText(text="né"))
        entries = noted(await noted_soon(session, "compositionend é"))
        assert "compositionstart" in [entry.strip() for entry in entries]
        option = next(element for element in first.elements if element.role == "select" and element.text == "one")
        assert noted(await session.step(actions.SelectOption(x=option.x_px, y=option.y_px, option="two")))[-1] == "chose two"

    web.run(use)


def test_text_is_copied_and_pasted_within_the_session(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        await session.step(click(first, "copied words", count=3))
        await session.step(keys("ctrl", "c"))
        await session.step(click(first, "second"))
        await session.step(keys("ctrl", "v"))
        assert await page_value(session, "second.value") == "copied words"
        await session.step(keys("ctrl", "a"))
        await session.step(keys("ctrl", "x"))
        assert await page_value(session, "second.value") == ""
        await session.step(keys("shift", "insert"))
        assert await page_value(session, "second.value") == "copied words"

    web.run(use)


def test_an_observation_may_wait_for_still_frames(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        assert "unsettled" not in (await session.step(actions.Wait(seconds=0.1))).info
        await page_value(
            session, "document.body.animate([{ background: 'red' }, { background: 'blue' }], { duration: 500, iterations: Infinity }); 0"
        )
        transition = await session.step(actions.Wait(seconds=0.1))
        assert transition.info["unsettled"] == "the page keeps moving" and transition.observation.screenshot is not None

    web.run(use, still_frames=True, settle_limit_s=3.0)


def test_a_task_may_ask_for_real_time(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        transition = await session.step(click(first, "slow fetch"))
        await noted_soon(session, "fetched from the site")
        assert transition.observation.screenshot is not None

    web.run(use, real_time=True)


def test_what_a_click_fetches_comes_before_the_limit(web: Bench) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        async with asyncio.timeout(30):
            await session.step(click(first, "slow fetch"))
            await noted_soon(session, "fetched from the site")

    web.run(use, settle_limit_s=90.0)


def test_a_reset_begins_again(web: Bench, tmp_path: Path) -> None:
    async def use(session: PageSession, first: Observation) -> None:
        await session.step(click(first, "popup"))
        again = await session.reset(TASK, 1)
        assert (again.elements == first.elements and again.output == "" and again.time_ms == first.time_ms) or web.kind == "plain"

    web.run(use)


@pytest.mark.slow
def test_two_runs_show_the_same_pixels() -> None:
    """In two browsers: navigation, frames, fetches and tabs included."""

    async def use(session: PageSession, first: Observation) -> list[Any]:
        trace: list[Any] = [(first.screenshot_id, first.elements, first.time_ms)]
        for text in ("slow fetch", "far", "popup"):
            seen = (await session.step(click(first, text))).observation
            trace.append((seen.screenshot_id, seen.elements, seen.time_ms, seen.instruction))
        seen = (await session.step(keys("ctrl", "1"))).observation
        trace.append((seen.screenshot_id, seen.elements, seen.time_ms, seen.instruction))
        seen = (await session.step(actions.Navigate(url="https://other.test/"))).observation
        trace.append((seen.screenshot_id, seen.elements, seen.time_ms))
        return trace

    with bench("beginframe") as one:
        first, second = one.run(use), one.run(use)
    with bench("beginframe") as another:
        third = another.run(use)
    assert first == second == third


@pytest.mark.slow
def test_playwright_sees_and_does_the_same() -> None:
    """The independent check: other navigation, other tabs, other input, the same page."""

    async def use(session: PageSession, first: Observation) -> list[Any]:
        assert isinstance(session, Session) and first.screenshot is not None
        seen = [first.url, {(element.role, element.text) for element in first.elements} - {("button", "closed shadow")}]
        points = {
            element.text: (element.x_px, element.y_px) for element in first.elements if element.text in {"two", "popup", "far", "near"}
        }
        transition = await session.step(click(first, "far"))
        seen.append(find(transition.observation, "far pressed").role)
        transition = await session.step(click(first, "evil"))
        seen += [transition.observation.url, transition.info["blocked"]]
        transition = await session.step(click(first, "popup"))
        transition = await session.step(actions.Wait(seconds=0.5))
        seen += [transition.observation.url, urls(transition)]
        transition = await session.step(keys("ctrl", "1"))
        seen += [transition.observation.url, transition.observation.output]
        transition = await session.step(actions.Navigate(url="https://evil.test/"))
        seen.append("not allowed" in transition.info["ignored"])
        transition = await session.step(actions.Navigate(url="https://shop.test/two.html"))
        return [*seen, points, transition.observation.url, transition.reward, transition.terminated]

    with bench("beginframe") as ours, bench("playwright") as theirs:
        assert ours.run(use) == theirs.run(use)
        with pytest.raises(ConfigError, match="dialogs"):
            theirs.run(use, dialogs="ask")
