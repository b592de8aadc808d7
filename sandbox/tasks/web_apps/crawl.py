"""The crawler: walks a live application breadth-first over HTTP, within bounds, and writes down what it can do.

    python -m sandbox.tasks.web_apps.crawl                 # every application; rewrites maps/NAME.json
    python -m sandbox.tasks.web_apps.crawl trac --check    # fails where the map would come out otherwise

Pages are distinguished by kind: a part of a path that is a row's key stands for any row, and two pages of a kind are looked at. Pages that
cannot be reached, want a login, are not HTML or have nothing to do on them are dropped, and counted by reason.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import json
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit

from sandbox.tasks.web_apps.apps import APPS, ORIGIN, WebApp, app_named
from sandbox.tasks.web_apps.functions import Finder, Function, FunctionMap, View, map_file, path_of
from sandbox.tasks.web_apps.html import Form, Grid, Page, read_page
from sandbox.tasks.web_apps.probe import Dropped, Target, functions_of
from sandbox.tasks.web_apps.running import RunningApp
from sandbox.tasks.web_apps.state import Cells, State
from warehouse.core.errors import SandboxTimeout

MAX_PAGES = 120
MAX_DEPTH = 3
PER_KIND = 2
MIN_MATCH = 0.8


@dataclass(slots=True, kw_only=True)
class Kind:
    """A kind of page: the rows that it was seen for, and the pages themselves."""

    pattern: str
    entity: str | None
    came_from: str
    num_asked: int = 0
    keys: list[str | None] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)


class Crawler:
    def __init__(self, app: WebApp, running: RunningApp, state: State) -> None:
        self.app, self.running, self.state = app, running, state
        self.kinds: dict[str, Kind] = {}
        self.dropped: Counter[str] = Counter()
        self.num_pages = 0

    async def walk(self) -> None:
        queue = deque([(self.app.start, "", 0)])
        seen = {self.app.start}
        while queue and self.num_pages < MAX_PAGES:
            path, came_from, depth = queue.popleft()
            pattern, entity, key = self.kind_of(path)
            kind = self.kinds.setdefault(pattern, Kind(pattern=pattern, entity=entity, came_from=came_from))
            if kind.num_asked >= PER_KIND or (kind.num_asked and key is None):
                continue
            kind.num_asked += 1
            page = await self._fetch(path)
            if page is None:
                continue
            kind.keys.append(key)
            kind.pages.append(page)
            if depth < MAX_DEPTH:
                for target in _leads(path, page):
                    if target not in seen:
                        seen.add(target)
                        queue.append((target, pattern, depth + 1))
        self.kinds = {pattern: kind for pattern, kind in self.kinds.items() if kind.pages}

    async def _fetch(self, path: str) -> Page | None:
        """A page with something on it; None, counted, where it is none."""
        self.num_pages += 1
        try:
            answer = await self.running.get(path)
        except (SandboxTimeout, ConnectionError):
            self.dropped["unreachable"] += 1
            return None
        if answer.status in {401, 403}:
            self.dropped["wants a login"] += 1
        elif answer.status >= 400:
            self.dropped["unreachable"] += 1
        elif answer.content_type != "text/html":
            self.dropped["not a page"] += 1
        else:
            page = read_page(answer.text)
            if any(control.kind == "password" for form in page.forms for control in form.controls):
                self.dropped["wants a login"] += 1
                return None
            return page
        return None

    def kind_of(self, path: str) -> tuple[str, str | None, str | None]:
        """Pattern of a path, and which row of which table it is about."""
        parts = urlsplit(path)
        segments = parts.path.split("/")
        entity = key = None
        for index, segment in enumerate(segments):
            found = None if key is not None else self._row(unquote(segment), [*segments[:index]])
            if found is not None:
                entity, key, encoding = found
                segments[index] = "{" + entity + (f":{encoding}" if encoding != "plain" else "") + "}"
        query = [(name, value if name == "action" else "*") for name, value in parse_qsl(parts.query)]
        return "/".join(segments) + (f"?{urlencode(query, safe='*')}" if query else ""), entity, key

    def _row(self, text: str, before: Sequence[str]) -> tuple[str, str, str] | None:
        """Table, key and encoding of a row that a part of a path names; the parts before it name the table, where a number alone does
        not."""
        for encoding, key in (("plain", text), ("json64", _decoded(text))):
            for table, rows in self.state.items():
                if key and key in rows and table in before and table != "schema":
                    return table, key, encoding
        return None


def _decoded(text: str) -> str:
    try:
        listed = json.loads(base64.urlsafe_b64decode(text.encode()))
        return str(listed[0]) if isinstance(listed, list) and len(listed) == 1 else ""
    except (ValueError, binascii.Error):
        return ""


def _leads(path: str, page: Page) -> list[str]:
    """Where a page's links and plain buttons lead to, within the application."""
    targets = [href for href, _ in page.links]
    for form in page.forms:
        if form.method == "get" and all(control.kind in {"hidden", "submit"} for control in form.controls):
            targets.append(f"{form.action}?{urlencode(form.defaults())}")
    found = []
    for target in targets:
        parts = urlsplit(urljoin(ORIGIN + path, target.partition("#")[0]))
        if f"{parts.scheme}://{parts.netloc}" == ORIGIN and target and not target.startswith("#"):
            found.append(parts.path + (f"?{parts.query}" if parts.query else ""))
    return found


# ---- what pages show ----


def views_of(crawler: Crawler, kind: Kind) -> list[View]:
    """The rows of the state that a kind of page shows, where it does so on every page of the kind that was seen."""
    if "?" in kind.pattern:
        return []
    if kind.entity is None:
        for table in crawler.app.tables:
            for grid in kind.pages[0].grids:
                columns = _columns_of(crawler, grid, table)
                if len(columns) > 1:
                    return [View(page=kind.pattern, table=table, is_list=True, columns=columns)]
        return []
    shown = [_shown(crawler.state[kind.entity][str(key)], page) for key, page in zip(kind.keys, kind.pages, strict=True)]
    asked = crawler.app.tables[kind.entity].asked
    columns = {column: column for column in asked if all(column in each for each in shown)}
    return [View(page=kind.pattern, table=kind.entity, is_list=False, columns=columns)] if columns else []


def _columns_of(crawler: Crawler, grid: Grid, table: str) -> dict[str, str]:
    """Columns by header of a grid that lists a table: nearly every cell below a header is the value of that column in the row with the
    title, or the key, that stands in the same line."""
    rows = crawler.state[table]
    title = crawler.app.tables[table].title
    by_text = {str(cells.get(title, key)): (key, cells) for key, cells in rows.items()} | {key: (key, rows[key]) for key in rows}
    matched = [(line, next((by_text[text] for text in line if text in by_text), None)) for line in grid.rows]
    lines = [(line, row) for line, row in matched if row is not None and len(line) == len(grid.header)]
    if not grid.header or len(lines) < max(2, MIN_MATCH * len(grid.rows)):
        return {}
    found: dict[str, str] = {}
    for index, header in enumerate(grid.header):
        for column in next(iter(rows.values())):
            hits = sum(line[index] == row[1].get(column) for line, row in lines)
            if hits >= MIN_MATCH * len(lines) and column not in found.values() and column.split("_")[0] in header.lower():
                found[header] = column
    return found


def _shown(cells: Cells, page: Page) -> set[str]:
    """Columns whose values stand on a page, each as a text of its own."""
    texts = set(page.texts)
    return {name for name, value in cells.items() if value and value in texts}


# ---- what forms do ----


async def finders_of(crawler: Crawler, kind: Kind, views: Sequence[View]) -> list[Finder]:
    """GET forms that find: they narrow the list on their page, or lead to the page of the row with that title."""
    found = []
    for form in kind.pages[0].forms:
        texts = [control for control in form.controls if control.kind == "text" and control.name]
        if form.method != "get" or len(texts) != 1 or not form.submits():
            continue
        for table, described in crawler.app.tables.items():
            rows = crawler.state[table]
            if len(rows) < PER_KIND or not described.asked:
                continue
            finder = await _finder(crawler, kind, form, table, views)
            if finder is not None:
                found.append(finder)
    return found


async def _finder(crawler: Crawler, kind: Kind, form: Form, table: str, views: Sequence[View]) -> Finder | None:
    title = crawler.app.tables[table].title
    key, cells = list(crawler.state[table].items())[-1]
    wanted = str(cells.get(title, key))
    text = next(control for control in form.controls if control.kind == "text")
    columns = {title, *crawler.app.tables[table].asked}
    chooser = next((each for each in form.controls if each.kind == "select" and columns <= _values(each.options)), None)
    given = form.defaults() | {text.name: wanted} | ({chooser.name: title} if chooser else {})
    action = urlsplit(urljoin(ORIGIN + path_of(kind.pattern, kind.keys[0]), form.action)).path
    answer = await crawler.running.get(f"{action}?{urlencode(given)}")
    page = read_page(answer.text)
    submit = form.submits()[0].label
    listed = any(view.is_list and view.table == table and view.page == kind.pattern for view in views)
    if listed and any(len(grid.rows) == 1 and wanted in grid.rows[0] for grid in page.grids):
        return Finder(page=kind.pattern, table=table, field=text.name, submit=submit, column_field=chooser.name if chooser else None)
    for href, shown in page.links:
        parts = urlsplit(urljoin(ORIGIN, href))
        pattern, entity, row_key = crawler.kind_of(parts.path)
        if entity == table and row_key == key and wanted in shown:
            return Finder(page=kind.pattern, table=table, field=text.name, submit=submit, row_page=pattern)
    return None


def _values(options: Sequence[tuple[str, str]]) -> set[str]:
    return {value for value, _ in options}


def targets_of(kind: Kind) -> list[tuple[Form, Target]]:
    """Every button of every form that is sent by POST."""
    keys = tuple(dict.fromkeys(kind.keys)) or (None,)
    return [
        (
            form,
            Target(
                pattern=kind.pattern,
                entity=kind.entity,
                keys=keys,
                names=frozenset(control.name for control in form.controls),
                submit=submit,
            ),
        )
        for form in kind.pages[0].forms
        if form.method == "post"
        for submit in form.submits()
    ]


async def crawl(app: WebApp) -> FunctionMap:
    """Raises WebAppMissing, WebAppCrashed."""
    running = await RunningApp.start(app)
    try:
        crawler = Crawler(app, running, await running.state())
        await crawler.walk()
        views = [view for kind in crawler.kinds.values() for view in views_of(crawler, kind)]
        finders: dict[tuple[str, str | None], Finder] = {}
        for kind in crawler.kinds.values():
            for finder in await finders_of(crawler, kind, views):
                finders.setdefault((finder.table, finder.row_page), finder)
    finally:
        await running.close()
    functions, dropped = await _functions(app, crawler)
    pages = ([each.page for each in functions], [each.page for each in views], [each.page for each in finders.values()])
    useful = {page for listed in pages for page in listed}
    dropped["nothing to do on it"] += sum(pattern not in useful for pattern in crawler.kinds)
    return FunctionMap(
        app=app.name,
        app_version=app.version,
        world_id=app.world_id,
        num_pages=crawler.num_pages,
        patterns={kind.pattern: kind.came_from for kind in crawler.kinds.values()},
        functions=tuple(functions),
        views=tuple(views),
        finders=tuple(finders.values()),
        dropped=dict(sorted((crawler.dropped + dropped).items())),
    )


async def _functions(app: WebApp, crawler: Crawler) -> tuple[list[Function], Counter[str]]:
    """Of all forms, each once: those that are on every page are tried on the first."""
    found: dict[str, Function] = {}
    dropped: Counter[str] = Counter()
    tried: set[tuple[str, str, tuple[str, ...]]] = set()
    for kind in crawler.kinds.values():
        for form, target in targets_of(kind):
            action = crawler.kind_of(urlsplit(urljoin(ORIGIN + path_of(kind.pattern, kind.keys[0]), form.action)).path)[0]
            visible = tuple(control.name for control in form.controls if control.kind not in {"hidden", "submit"})
            place = action.rpartition("/")[0] if visible else action  # what differs in its last part alone is the same for another page
            identity = (place, f"{target.submit.name}={target.submit.label}", visible)
            if identity in tried:
                continue
            tried.add(identity)
            print(f"  {kind.pattern}: {target.submit.label}", file=sys.stderr, flush=True)
            try:
                for function in await functions_of(app, target):
                    if found.setdefault(function.name, function) is not function:
                        dropped["form: does what another does"] += 1
            except Dropped as reason:
                dropped[f"form: {reason}"] += 1
    return list(found.values()), dropped


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox.tasks.web_apps.crawl", description="Find out what web applications can do.")
    parser.add_argument("apps", nargs="*", help=f"default: all of {', '.join(APPS)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a stored map is another")
    options = parser.parse_args(arguments)
    is_same = True
    for name in options.apps or APPS:
        app = app_named(name)
        found = asyncio.run(crawl(app))
        text = found.model_dump_json(indent=1) + "\n"
        place = map_file(app)
        print(
            f"{name} {app.version}: {found.num_pages} pages of {len(found.patterns)} kinds, {len(found.functions)} functions, "
            f"{len(found.views)} views, {len(found.finders)} finders; dropped {sum(found.dropped.values())}: "
            + ", ".join(f"{number} {reason}" for reason, number in found.dropped.items())
        )
        if options.check:
            is_same = is_same and place.exists() and place.read_text(encoding="utf-8") == text
        else:
            place.parent.mkdir(exist_ok=True)
            place.write_text(text, encoding="utf-8")
    if not is_same:
        print("A stored map is another. Make it again without --check.", file=sys.stderr)
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
