"""The crawl: pages of one site, breadth-first in full Chromium, politely, twice each. What changes from one visit to the next is not used.

One page is loaded at a time, with a pause between two; robots.txt is obeyed; addresses that end a session or delete something are left
alone. What was seen lies in crawl.jsonl, page by page, and a crawl that was cut off goes on from there.

Pages drawn by scripts have buttons instead of links. Each is clicked once, with all writing refused; what came of it lies in presses.jsonl.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl
from urllib.robotparser import RobotFileParser

from pydantic import ValidationError

from sandbox.adopting.checks import find, look_script
from sandbox.adopting.login import log_in_again
from sandbox.adopting.records import (
    AGENT_NAME,
    Button,
    Folder,
    Look,
    PageField,
    PageTable,
    Press,
    Presses,
    Site,
    View,
    Visit,
    goes_by,
    is_leaving,
    is_sayable,
    names_of,
    origin_of,
    page_key,
    path_of,
    says_leaving,
)
from sandbox.adopting.session import FADE_S, run_reset
from sandbox.adopting.site_browser import SiteBrowser
from sandbox.adopting.window import SiteWindow
from sandbox.browser.page import call
from warehouse.core.errors import SandboxError

VISITS, PRESSES = "crawl.jsonl", "presses.jsonl"
GOTO_LIMIT_MS = 60_000
"""An application that has just started, on a busy machine, takes half a minute for its first page."""
VISIT_LIMIT_S = 120.0
MAX_FAILED = 5
"""So many visits in a row that fail as they do where the application is down end the crawl."""
MAX_VISITS = 5
"""Addresses that are asked for each page of --pages: most may not be pages."""
MAX_QUERIES = 6
"""Addresses of one path that differ in their query: a list sorted and filtered in every way is one page."""
SHAPE_PAGES = 4
"""Pages of one shape, such as /goods/12 and /goods/13, that are visited before pages of other shapes; of those with a query one."""
PRESSES_A_PAGE = 20
PAGES_A_BUTTON = 2
"""Pages on which a button of one name is tried: most pages of a site have the same ones at their top."""
PRESSES_LIMIT_S = 300.0
OnPage = Callable[[int, int], None]
"""Called with the number of pages seen, and of pages known so far."""


class Crawler:
    def __init__(self, folder: Folder, site: Site, browser: SiteBrowser, *, max_pages: int, max_depth: int, on_page: OnPage) -> None:
        self._folder, self._site, self._browser = folder, site, browser
        self._max_pages, self._max_depth, self._on_page = max_pages, max_depth, on_page
        self._robots = RobotFileParser()
        self._last_s = 0.0
        self._delay_s = site.delay_s
        self._failed: list[Visit] = []
        """Visits that may go well the next time, which are not kept."""
        self._num_failed_in_a_row = 0
        self._may_write = site.allow_writes and bool(site.reset)
        """Whether what a button writes is set back."""

    async def run(self) -> Counter[str]:
        """Visit what is still to be visited. How many pages are used, and how many are not by reason. Raises SandboxError where the first
        page cannot be reached, or many in a row cannot."""
        for number in (1, 2):
            self._window = await self._browser.open()
            try:
                if number == 1:
                    await self._read_robots(self._window)
                    first = await self._first_visits([])
                    while more := await self._try_buttons(first):
                        num_before, first = len(first), await self._first_visits(more)
                        if len(first) == num_before:
                            break
                else:
                    await self._second_visits(first)
            finally:
                await self._window.close()
        seen = {visit.url: visit for visit in (*self._failed, *self._folder.lines(VISITS, Visit)) if visit.visit == 1}
        return Counter(visit.why_not or "used" for visit in seen.values())

    async def _read_robots(self, window: SiteWindow) -> None:
        self._robots.parse([])
        if not self._site.obeys_robots:
            return
        status, text = await window.fetch(f"{self._site.origin}/robots.txt")
        if status == 200:
            self._robots.parse(text.splitlines())
            self._delay_s = max(self._delay_s, float(self._robots.crawl_delay(AGENT_NAME) or 0))
        elif status >= 500:  # RFC 9309, section 2.3.1.4
            raise SandboxError(
                f"{self._site.origin}/robots.txt answers with status {status}, so nothing may be crawled now. "
                "Is the application running there? Try again later, or give --ignore-robots where the site is yours."
            )

    async def _first_visits(self, more: Sequence[tuple[str, int]]) -> list[Visit]:
        """`more` are addresses, with their depths, that buttons led to."""
        known = {visit.url: visit for visit in self._folder.lines(VISITS, Visit) if visit.visit == 1 and visit.is_lasting}
        known |= {visit.url: visit for visit in self._failed}
        start = self._site.origin + self._site.start
        queue, asked = deque([(start, 0)]), {page_key(start)}
        later: deque[tuple[str, int]] = deque()
        paths, shapes = Counter[str](), Counter[str]()
        found: list[Visit] = []
        keys: set[str] = set()
        num_used = 0
        if not self._may_ask(start):
            raise SandboxError(f"robots.txt forbids {start}: name another page, or give --ignore-robots where the site is yours.")
        by_buttons = iter([(url, depth) for url, depth in more if self._is_wanted(url)])
        while num_used < self._max_pages and len(found) < MAX_VISITS * self._max_pages:
            if not queue and later:
                queue.append(later.popleft())
            if not queue:
                if (each := next(by_buttons, None)) is None:
                    break
                if page_key(each[0]) in asked:
                    continue
                asked.add(page_key(each[0]))
                queue.append(each)
            url, depth = queue.popleft()
            paths[path_of(url)] += "?" in page_key(url)
            if "?" in page_key(url) and paths[path_of(url)] > MAX_QUERIES:
                continue
            if (visit := known.get(url)) is None:
                visit = await self._visit(url, depth, 1)
                if visit.key in keys and not visit.why_not:
                    visit = visit.model_copy(update={"why_not": "is another page's", "look": None})
                if depth == 0 and visit.look is None:
                    wants_login = visit.why_not.endswith(("status 401", "status 403"))
                    hint = "Give --login-path and --user." if wants_login else "Is the application running there?"
                    raise SandboxError(f"{url} is not a page to start from: {visit.why_not}. {hint}")
                self._keep(visit)
            keys.add(visit.key)
            found.append(visit)
            num_used += not visit.why_not
            self._on_page(num_used, min(self._max_pages, num_used + len(queue) + len(later)))
            if visit.look is None or depth >= self._max_depth:
                continue
            for link in visit.look.links:
                key = page_key(link.url)
                if key not in asked and self._is_wanted(link.url):
                    asked.add(key)
                    shape = shape_of(key)
                    shapes[shape] += 1
                    to = queue if shapes[shape] <= (1 if "?" in key else SHAPE_PAGES) else later
                    to.append((link.url.partition("#")[0] if "#" not in key else link.url, depth + 1))
        return [visit for visit in found if visit.look is not None]

    def _is_wanted(self, url: str) -> bool:
        return origin_of(url) == self._site.origin and not is_leaving(url) and self._may_ask(url)

    def _may_ask(self, url: str) -> bool:
        return not self._site.obeys_robots or self._robots.can_fetch(AGENT_NAME, url)

    def _keep(self, visit: Visit) -> None:
        """What may go well the next time is retried then. Raises SandboxError where nothing goes well any more."""
        if visit.is_lasting:
            self._num_failed_in_a_row = 0
            self._folder.add(VISITS, visit)
            return
        self._failed.append(visit)
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row >= MAX_FAILED:
            raise SandboxError(
                f"{MAX_FAILED} pages in a row failed, at last {visit.url}: {visit.why_not}. Is the application still running? "
                "The same command goes on from here."
            )

    # ---- buttons ----

    async def _try_buttons(self, first: list[Visit]) -> list[tuple[str, int]]:
        """Click the buttons of the pages seen so far that were not tried. Addresses that they led to, with depths. In a window of its own:
        what a click stores is not there when pages are visited."""
        done = {each.url: each.presses for each in self._folder.lines(PRESSES, Presses)}
        num_tried: Counter[tuple[str, str]] = Counter((press.at.tag, press.at.name) for presses in done.values() for press in presses)
        held, self._window = self._window, await self._browser.open()
        try:
            for visit in first:
                if visit.look is None or visit.url in done:
                    continue
                buttons = [each for each in usable_buttons(visit.look) if num_tried[each.at.tag, each.at.name] < PAGES_A_BUTTON]
                buttons = buttons[:PRESSES_A_PAGE]
                num_tried.update((each.at.tag, each.at.name) for each in buttons)
                done[visit.url] = presses = await self._press_all(visit, buttons) if buttons else ()
                self._folder.add(PRESSES, Presses(url=visit.url, presses=presses))
        finally:
            await self._window.close()
            self._window = held
        depths = {visit.url: visit.depth for visit in first}
        return [
            (press.opens, depths[url] + 1)
            for url, presses in done.items()
            for press in presses
            if press.opens and depths.get(url, self._max_depth) < self._max_depth
        ]

    async def _press_all(self, visit: Visit, buttons: Sequence[Button]) -> tuple[Press, ...]:
        """A page on which a click ends the tab, or takes too long, keeps what was found before."""
        found: list[Press] = []
        try:
            async with asyncio.timeout(PRESSES_LIMIT_S):
                before: Look | None = None
                for button in buttons:
                    if before is None:
                        await asyncio.sleep(max(0.0, self._last_s + self._delay_s - time.monotonic()))
                        self._window.is_trying = not self._may_write
                        why_not = await self._go(self._window, visit.url)
                        self._last_s = time.monotonic()
                        if why_not:
                            break
                        before = await self._look()
                    press, is_changed = await self._press(before, button)
                    found.append(press)
                    if is_changed:  # also by what is not verified: a sidebar that is folded away takes its buttons with it
                        before = None
        except (SandboxError, TimeoutError, ValidationError):
            await self._window.end()
            self._window = await self._browser.open()
        if self._may_write:
            await run_reset(self._site)
        return tuple(found)

    async def _press(self, before: Look, button: Button) -> tuple[Press, bool]:
        """What came of it, and whether the page has changed. Raises SandboxError or ValidationError where the page cannot be read."""
        window, tried = self._window, Press(at=button.at, top=button.top)
        await window.evaluate(f"window.scrollTo(0, {max(0, button.top - 200)})")
        spot = await find(window.evaluate, button.at)
        if spot is None or spot["where"] != "here":
            return tried, True
        num_refused = len(window.traffic.writes)
        await window.click(max(0, spot["x"]), max(0, spot["y"]))
        if len(window.traffic.writes) > num_refused or origin_of(window.full_url) != self._site.origin:
            return tried.model_copy(update={"is_refused": True}), True
        if page_key(window.full_url) != page_key(before.url):
            return tried.model_copy(update={"opens": window.full_url}), True
        after = await self._look()
        if (view := new_view(before, after)) is None:
            await asyncio.sleep(FADE_S)  # what a click brings up often fades in
            after = await self._look()
            view = new_view(before, after)
        return tried.model_copy(update={"shows": view}), view is not None or not is_alike(before, after)

    async def _look(self) -> Look:
        return Look.model_validate(await self._window.evaluate(call(look_script(), {})))

    async def _second_visits(self, first: list[Visit]) -> None:
        done = {visit.url for visit in self._folder.lines(VISITS, Visit) if visit.visit == 2 and visit.is_lasting}
        for number, visit in enumerate(first, 1):
            if visit.url not in done:
                self._keep(await self._visit(visit.url, visit.depth, 2))
            self._on_page(len(first) + number, 2 * len(first))

    async def _visit(self, url: str, depth: int, number: int) -> Visit:
        """A page that never rests, or that ends its tab, is one that is not used; the next has a window of its own."""
        await asyncio.sleep(max(0.0, self._last_s + self._delay_s - time.monotonic()))
        try:
            async with asyncio.timeout(VISIT_LIMIT_S):
                return await self._visit_with(self._window, url, depth, number)
        except (SandboxError, TimeoutError) as error:
            self._last_s = time.monotonic()
            said = "took too long" if isinstance(error, TimeoutError) else str(error).splitlines()[0][:80]
            await self._window.end()
            self._window = await self._browser.open()
            return Visit(url=url, depth=depth, visit=number, why_not=f"did not load: {said}")

    async def _go(self, window: SiteWindow, url: str) -> str:
        """Open an address; log in again where the application has forgotten the log-in. Raises ConfigError where that needs a person."""
        why_not = await window.go(url, GOTO_LIMIT_MS)
        if self._site.has_login and window.asks_to_log_in(url):
            await log_in_again(self._folder, self._site, self._browser)
            await window.take(self._browser.state())
            why_not = await window.go(url, GOTO_LIMIT_MS)
        return why_not

    async def _visit_with(self, window: SiteWindow, url: str, depth: int, number: int) -> Visit:
        before, num_writes = len(window.traffic.elsewhere), len(window.traffic.writes)
        why_not = await self._go(window, url)
        self._last_s = time.monotonic()
        base: dict[str, Any] = {
            "url": url,
            "depth": depth,
            "visit": number,
            "num_blocked": len(window.traffic.elsewhere) - before,
            "writes": tuple(dict.fromkeys(window.traffic.writes[num_writes:])),
        }
        if why_not:
            return Visit(why_not=why_not, **base)
        try:
            look = await self._look()
        except ValidationError:
            return Visit(why_not="cannot be read", **base)
        return Visit(key=page_key(look.url), look=look, **base)


def shape_of(key: str) -> str:
    """What the addresses of pages of one kind share: the path without its numbers, and the names of the parameters."""
    path, _, query = key.partition("?")
    return re.sub(r"\d+", "0", path) + "?" + "&".join(sorted({name for name, _ in parse_qsl(query, keep_blank_values=True)}))


def usable_buttons(look: Look) -> list[Button]:
    """Those with a name of their own, which does not say that they destroy something."""
    names = names_of(look)
    own = [each for each in look.buttons if names[each.at.name.casefold()] == 1]
    return [each for each in own if is_sayable(each.at.name) and not says_leaving(each.at.name)]


def is_alike(before: Look, after: Look) -> bool:
    """Whether the same can be done on it, wherever it stands."""

    def things(look: Look) -> list[object]:
        states = [*((field.at, field.state) for field in look.fields), *((toggle.at, toggle.state) for toggle in look.toggles)]
        return [look.views, [link.at for link in look.links], [button.at for button in look.buttons], states]

    return things(before) == things(after)


def new_view(before: Look, after: Look) -> View | None:
    """What shows that did not: a dialog before a menu before a heading."""
    new = [view for view in after.views if view not in before.views and not goes_by(view.name)]
    return min(new, key=lambda view: ("dialog", "menu", "heading").index(view.kind), default=None)


def same_in_both(first: Look, second: Look) -> Look:
    """What two visits of a page saw alike."""

    def alike(name: str) -> tuple[Any, ...]:
        seen = {each.model_dump_json(exclude={"top"}) for each in getattr(second, name)}
        return tuple(each for each in getattr(first, name) if each.model_dump_json(exclude={"top"}) in seen)

    def unnamed_elsewhere(kept: tuple[Any, ...], name: str) -> tuple[Any, ...]:
        """Without those whose name something has that is not kept: which of the two is meant?"""
        num_kept = Counter(each.at.name.casefold() for each in kept)
        num_seen = [Counter(each.at.name.casefold() for each in getattr(look, name)) for look in (first, second)]
        return tuple(each for each in kept if all(num[each.at.name.casefold()] == num_kept[each.at.name.casefold()] for num in num_seen))

    facts_seen = {(fact.label, fact.value.text) for fact in second.facts}
    changed = {fact.label for fact in first.facts if (fact.label, fact.value.text) not in facts_seen}
    changed |= {fact.label for fact in second.facts if (fact.label, fact.value.text) not in {(f.label, f.value.text) for f in first.facts}}
    fields = tuple(field for field in first.fields if _shape(field) in {_shape(other) for other in second.fields})
    return first.model_copy(
        update={
            "links": unnamed_elsewhere(alike("links"), "links"),
            "fields": unnamed_elsewhere(fields, "fields"),
            "toggles": unnamed_elsewhere(alike("toggles"), "toggles"),
            "buttons": unnamed_elsewhere(alike("buttons"), "buttons"),
            "tables": tuple(_rows_in_both(*both) for both in zip(first.tables, second.tables, strict=False)),
            "facts": tuple(fact for fact in first.facts if fact.label not in changed),
            "has_more_links": first.has_more_links or second.has_more_links,
        }
    )


def _rows_in_both(first: PageTable, second: PageTable) -> PageTable:
    seen, again = ([tuple(cell.text for cell in row) for row in table.rows] for table in (first, second))
    return first.model_copy(
        update={
            "rows": tuple(row for row, texts in zip(first.rows, seen, strict=True) if texts in again),
            "others": (*(texts for texts in seen if texts not in again), *(texts for texts in again if texts not in seen)),
            "is_cut": first.is_cut or second.is_cut,
        }
    )


def _shape(field: PageField) -> tuple[Any, ...]:
    return field.at, field.type, field.options


def pages_of(folder: Folder, site: Site) -> tuple[dict[str, Look], int]:
    """Pages by key, of what both visits saw; and how many things changed between the two."""
    visits: dict[str, dict[int, Visit]] = {}
    for visit in folder.lines(VISITS, Visit):
        if visit.look is not None:
            visits.setdefault(visit.url, {})[visit.visit] = visit
    presses = {each.url: each.presses for each in folder.lines(PRESSES, Presses)}
    pages: dict[str, Look] = {}
    num_changed = 0
    for url, both in visits.items():
        first, second = both.get(1), both.get(2)
        if first is None or second is None or first.look is None or second.look is None or first.key != second.key:
            continue
        kept = same_in_both(first.look, second.look)
        num_changed += _size(first.look) - _size(kept)
        pages.setdefault(first.key, kept.model_copy(update={"presses": presses.get(url, ())}))
    return pages, num_changed


def _size(look: Look) -> int:
    rows = sum(len(table.rows) for table in look.tables)
    return len(look.links) + len(look.fields) + len(look.toggles) + len(look.buttons) + len(look.facts) + rows
