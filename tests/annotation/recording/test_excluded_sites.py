"""Sites that are never recorded, in a real Chromium: on the way out of one, in frames and windows that one fills itself, and in frames of
pages of other sites."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from test_browser_recorder import Person, clicked, until

from annotation.recorder.browser.browser_recorder import BrowserRecorder
from annotation.recorder.browser.pages import Tab
from annotation.recorder.review.finish import finish
from annotation.recorder.screen.pixels import pixels_of
from annotation.recorder.settings import RecordSettings
from annotation.recorder.store import store as stores
from annotation.recordings.bundle import Manifest, TaskQuery
from annotation.recordings.consent import sign
from sandbox.actions import Click, Navigate, TypeText
from sandbox.browser.chromium import find_chromium

EXCLUDED_RGB = (255, 0, 255)
SHOP = "<!doctype html><title>Shop</title><style>body{background:#eee}input{font:20px sans-serif}</style><p><br><input id=what>"
BANK = """<!doctype html><title>Kassel account</title><style>body{background:#f0f}iframe{width:300px;height:90px}</style><p><br>
<button id=other onclick="const w = window.open('about:blank'); fill(w.document); w.document.title = 'Kassel'">Open</button>
<iframe id=blank></iframe><iframe id=srcdoc></iframe><iframe id=blob></iframe><script>
const inner = '<title>Kassel</title><body style="background:#f0f"><p><br><input id=in style="width:200px;height:40px">';
const fill = (page) => { page.body.style.background = '#f0f'; page.body.innerHTML = inner; };
fill(blank.contentDocument); srcdoc.srcdoc = inner; blob.src = URL.createObjectURL(new Blob([inner], {type: 'text/html'}));
</script>"""


NEWS = "<!doctype html><title>News</title><iframe src=//bank.test:{port}/ style='width:280px;height:80px'></iframe>"


TITLES = {"shop": "Shop", "bank": "Kassel account"}


class Sites(BaseHTTPRequestHandler):
    """Whatever is called bank is one; the news have a bank in a frame; all others are shops."""

    def do_GET(self) -> None:
        site, _, port = self.headers["host"].partition(":")
        body = (BANK if "bank" in site else NEWS.format(port=port) if "news" in site else SHOP).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def serving() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Sites) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def record(
    tmp_path: Path, site: str, work: Callable[[BrowserRecorder, Person, int], Awaitable[None]], *more: str
) -> tuple[Manifest, stores.Store]:
    """What is recorded of `work`, which begins on a site; banks are excluded. `more`: flags of Chromium's. Pixels are not read, so that
    what elements tell decides."""
    store = stores.create(tmp_path / "recordings", "web")

    async def main(port: int) -> None:
        consent = sign("Ann Example", with_microphone=False)
        recorder = BrowserRecorder(store, RecordSettings(), TaskQuery(query="Buy"), consent, excluded_sites=("*bank*",))
        flags = ("--no-sandbox", "--headless", "--window-size=900,600", "--host-resolver-rules=MAP *.test 127.0.0.1", *more)
        await recorder.start(find_chromium().path, tmp_path / "profile", f"http://{site}.test:{port}/", flags)
        running_ = asyncio.create_task(recorder.run(60))
        try:
            person = Person(recorder.pages)
            await person.sees(TITLES[site])
            await work(recorder, person, port)
        finally:
            recorder.ask_to_stop()
            await running_
            await recorder.stop("done")

    with serving() as port:
        asyncio.run(main(port))
    return finish(store), store


async def pictured(tab: Tab) -> None:
    """Once there is a picture: of a page that was left for another also where the new one stands still."""
    await until(lambda: bool(tab.png))


async def pictured_again(person: Person) -> None:
    """Once a change of the page was pictured, whether or not the picture was kept."""
    person._tab.size_px = None
    await person.evaluate("document.body.append('more')")
    await until(lambda: person._tab.size_px is not None)


def nothing_of_the_bank(store: stores.Store) -> bool:
    stored = b"\0".join(path.read_bytes() for path in store.folder.rglob("*") if path.is_file())
    shows = [screen_id for screen_id in store.screen_ids() if np.all(pixels_of(store.screen(screen_id)) == EXCLUDED_RGB, axis=2).any()]
    return shows == [] and b"Kassel" not in stored and b"bank.test" not in stored


@pytest.mark.slow
def test_leaving_an_excluded_site_by_the_address_bar_shows_nothing_of_it(tmp_path: Path):
    async def work(recorder: BrowserRecorder, person: Person, port: int) -> None:
        tab = next(iter(recorder.pages.tabs.values()))
        await clicked(recorder, person, "#what")
        for site, title in (("bank", TITLES["bank"]), ("shop", TITLES["shop"])):
            tab.asked_by_page_s = 0.0  # what the page itself asked for is long over
            await person.do("Page.navigate", url=f"http://{site}.test:{port}/")
            await person.sees(title)
            if site == "bank":
                await pictured_again(person)
                assert tab.png == b"", "not kept"
            else:
                await pictured(tab)
        await clicked(recorder, person, "#what")

    manifest, store = record(tmp_path, "shop", work)
    assert [type(action.action) for action in manifest.actions] == [Click, Navigate, Click]
    assert [action.screen_id is not None for action in manifest.actions] == [True, False, True]
    assert nothing_of_the_bank(store)


@pytest.mark.slow
def test_what_an_excluded_page_fills_itself_is_excluded_with_it(tmp_path: Path):
    async def work(recorder: BrowserRecorder, person: Person, port: int) -> None:
        for frame in ("blank", "srcdoc", "blob"):
            x, y = await person.evaluate(f"(({{x, y}}) => [x + 60, y + 60])({frame}.getBoundingClientRect())")
            for kind in ("mousePressed", "mouseReleased"):
                await person.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            await person.type("Kassel")
            typed = f"{frame}.contentDocument.querySelector('#in').value"
            assert await person.evaluate(typed) == "Kassel", "it was typed into the frame"
        await person.press("#other")
        await until(lambda: len(recorder.pages.tabs) == 2)
        opened = Person(recorder.pages)
        opened._tab = list(recorder.pages.tabs.values())[1]
        await opened.press("#in")
        await opened.type("Kassel")
        assert await opened.evaluate("document.querySelector('#in').value") == "Kassel"
        await until(lambda: recorder.hidden["excluded"] >= 4)  # three frames and a button were pressed
        await until(lambda: opened._tab.size_px is not None)
        assert recorder.num_actions == 0 and opened._tab.png == b"", "pictured, and not kept"
        await person.do("Page.navigate", url=f"http://shop.test:{port}/")
        await pictured(person._tab)
        await clicked(recorder, person, "#what")
        await person.type("tulips")

    manifest, store = record(tmp_path, "bank", work)
    assert [action.action for action in manifest.actions if isinstance(action.action, TypeText)] == [TypeText(text="tulips")]
    assert nothing_of_the_bank(store) and manifest.machine.width_px > 700


async def frame(person: Person, url: str) -> None:
    """A frame in the page, once it has loaded."""
    assert await person.do(
        "Runtime.evaluate",
        awaitPromise=True,
        returnByValue=True,
        expression=f"""new Promise((loaded) => {{
            const made = Object.assign(document.createElement('iframe'), {{id: 'made', width: 300, height: 120, src: '{url}'}});
            made.onload = () => loaded(true);
            document.body.append(made);
        }})""",
    )


async def sees_the_bank(person: Person) -> bool:
    """Whether the person does: the recorder shall not."""
    shot = (await person.do("Page.captureScreenshot", format="png"))["data"]
    return bool(np.all(pixels_of(b64decode(shot)) == EXCLUDED_RGB, axis=2).any())


async def shown_by_sign(recorder: BrowserRecorder, tab: Tab) -> str:
    asked = {"expression": "window.__flywheelShows", "contextId": recorder.pages._contexts[tab.session_id]}
    answer = await recorder.pages.connection.send("Runtime.evaluate", asked, tab.session_id)
    return str(answer["result"]["value"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "processes_of"), [("--site-per-process", (2, 1, 3)), ("--disable-site-isolation-trials", (1, 1, 1))], ids=["apart", "together"]
)
def test_a_page_is_excluded_for_as_long_as_it_has_a_frame_of_an_excluded_site(tmp_path: Path, flag: str, processes_of: tuple[int, ...]):
    """Of another site, of a part of the page's own, inside a third one's frame; where sites have processes of their own, and where not."""

    async def work(recorder: BrowserRecorder, person: Person, port: int) -> None:
        (tab,) = recorder.pages.tabs.values()
        processes = recorder.pages._frames[tab.session_id]._processes
        sites = ("bank.test", "bank.shop.test", "news.test")
        for num, (site, num_processes) in enumerate(zip(sites, processes_of, strict=True), start=1):
            await frame(person, f"http://{site}:{port}/")
            await until(lambda: recorder.pages.is_excluded(tab))
            async with asyncio.timeout(10):
                while not await sees_the_bank(person):
                    await asyncio.sleep(0.05)
            await until(lambda num=num_processes: len(processes) == num)
            num_heard = recorder.hidden["excluded"]
            await person.press("#what")
            await person.type("Kassel")
            await until(lambda num=num_heard: recorder.hidden["excluded"] > num)
            assert await person.evaluate("what.value") == "Kassel", "it was typed"
            await pictured_again(person)
            assert tab.png == b"" and recorder.num_actions == num - 1, f"{site} in a frame: nothing of the page is recorded"
            assert await shown_by_sign(recorder, tab) == "EXCLUDED"
            await person.evaluate(f"made.src = 'http://flowers.test:{port}/'" if num % 2 else "made.remove()")
            await until(lambda: not recorder.pages.is_excluded(tab))
            await person.evaluate("document.querySelector('#made')?.remove(); what.value = ''")
            await pictured(tab)
            await clicked(recorder, person, "#what")
            await until(lambda num=num: recorder.num_actions == num)
            assert await shown_by_sign(recorder, tab) == "RECORDING"
        await frame(person, f"http://bank.test:{port}/")
        await until(lambda: recorder.pages.is_excluded(tab))
        await person.do("Page.navigate", url=f"http://flowers.test:{port}/")
        await until(lambda: not recorder.pages.is_excluded(tab))
        await pictured(tab)
        await clicked(recorder, person, "#what")

    manifest, store = record(tmp_path, "shop", work, flag)
    assert [action.screen_id is not None for action in manifest.actions if isinstance(action.action, Click)] == [True] * 4
    assert not [action for action in manifest.actions if isinstance(action.action, TypeText)]
    assert nothing_of_the_bank(store)
