"""Tasks of links: one that is opened, one that its row or part of the page tells from others of its name, a sort, and two in turn."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sandbox.adopting.records import (
    DEEPEST_PX,
    AdoptedTask,
    Link,
    Look,
    Site,
    Step,
    UrlCheck,
    is_leaving,
    is_of_date,
    is_sayable,
    origin_of,
    page_key,
    path_of,
)
from warehouse.core.identity import stable_fraction

OPEN = ('Open "{}".', 'Go to "{}".', 'Click the link "{}".')


class Links:
    """The links of a site's pages, and their tasks."""

    def __init__(self, site: Site, pages: Mapping[str, Look], dropped: Counter[str]) -> None:
        self._site, self._pages, self._dropped = site, pages, dropped
        self.start = page_key(site.origin + site.start)

    def tasks(self, key: str) -> Iterator[AdoptedTask]:
        links = self._usable(key, self._dropped)
        yield from self._open_link(key, links)
        yield from self._open_grouped(key, self._pages[key])
        yield from self._open_path(key, links)

    def usable(self, key: str) -> dict[str, Link]:
        """Links of a page by name, of those that lead to one known page each. Those that do not are not counted here, but by `tasks`."""
        return self._usable(key, Counter())

    def _usable(self, key: str, dropped: Counter[str]) -> dict[str, Link]:
        look = self._pages[key]
        found: dict[str, Link] = {}
        if look.has_more_links:
            dropped["a page with too many links to compare their names"] += 1
            return found
        for links in _by_name(look.links):
            first = min(links, key=lambda link: link.top)
            target = page_key(first.url)
            if not is_sayable(first.at.name):
                dropped["a link without a name that can be said"] += 1
            elif len({page_key(link.url) for link in links}) > 1:
                if not self._grouped(key, links):
                    dropped["several links of one name lead to different pages"] += 1
            elif not self._is_known(first):
                dropped["a link to what was not crawled"] += 1
            elif target == key:
                dropped["a link to the page itself"] += 1
            elif first.top > DEEPEST_PX:
                dropped["too far down the page"] += 1
            else:
                found[first.at.name] = first
        return found

    def _is_known(self, link: Link) -> bool:
        return origin_of(link.url) == self._site.origin and page_key(link.url) in self._pages and not is_leaving(link.url)

    def _grouped(self, key: str, links: Sequence[Link]) -> list[Link]:
        """Of links of one name those that their row, or the part of the page that they stand in, tells from the others."""
        by_group: dict[tuple[str, bool], list[Link]] = defaultdict(list)
        for link in links:
            by_group[link.group.casefold(), link.is_in_row].append(link)
        first = [members[0] for members in by_group.values() if len({page_key(link.url) for link in members}) == 1]
        usable = [each for each in first if is_sayable(each.group) and each.group.casefold() != each.at.name.casefold()]
        return [each for each in usable if self._is_known(each) and page_key(each.url) != key and each.top <= DEEPEST_PX]

    def _open_grouped(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        for links in _by_name(() if look.has_more_links else look.links):
            if len({page_key(link.url) for link in links}) == 1 or not is_sayable(links[0].at.name):
                continue
            for link in self._grouped(key, links):
                where = f'In the row "{link.group}"' if link.is_in_row else f'Under "{link.group}"'
                yield AdoptedTask(
                    family="open-link",
                    instruction=f'{where}, click "{link.at.name}".',
                    start=key,
                    checks=(UrlCheck(key=page_key(link.url)),),
                    steps=(Step(do="click", key=key, at=link.at, top=link.top),),
                )

    def _open_link(self, key: str, links: Mapping[str, Link]) -> Iterator[AdoptedTask]:
        for name, link in links.items():
            target = page_key(link.url)
            is_sorting = is_sort(key, link)
            columns = {column for table in self._pages[key].tables for column in table.columns}
            if is_sorting and columns and name not in columns:
                self._dropped["a sort that does not name its column"] += 1
                continue
            order = _order(self._pages[target], name) if is_sorting else ""
            said = f'Sort the list by "{name}"{order}.' if is_sorting else _varied(OPEN, key, name).format(name)
            yield AdoptedTask(
                family="sort" if is_sorting else "open-link",
                instruction=said,
                start=key,
                checks=(UrlCheck(key=target),),
                steps=(Step(do="click", key=key, at=link.at, top=link.top),),
            )

    def _open_path(self, key: str, links: Mapping[str, Link]) -> Iterator[AdoptedTask]:
        """Two clicks: by a page that is linked here to one that is not."""
        if key != self.start:
            return
        direct = {page_key(link.url) for link in links.values()} | {key}
        for name, link in links.items():
            if is_sort(key, link):
                continue
            middle = page_key(link.url)
            for second, then in self.usable(middle).items():
                if page_key(then.url) not in direct and not is_sort(middle, then) and second.casefold() != name.casefold():
                    yield AdoptedTask(
                        family="open-path",
                        instruction=f'Open "{name}", then open "{second}" there.',
                        start=key,
                        checks=(UrlCheck(key=page_key(then.url)),),
                        steps=(Step(do="click", key=key, at=link.at, top=link.top), Step(do="click", key=middle, at=then.at, top=then.top)),
                    )


def is_sort(key: str, link: Link) -> bool:
    return link.is_head and path_of(link.url) == path_of(key)


def _by_name(links: Iterable[Link]) -> Iterable[list[Link]]:
    found: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        found[link.at.name.casefold()].append(link)
    return found.values()


def _order(look: Look, column: str) -> str:
    """How a list that was sorted by a column shows that it is; nothing where it does not."""
    for table in look.tables:
        if table.columns.count(column) != 1:
            continue
        texts = [row[table.columns.index(column)].text for row in table.rows]
        if len(set(texts)) > 1 and not any(is_of_date(text) for text in texts):
            are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", text) for text in texts)
            values: list[Any] = [float(text) for text in texts] if are_numbers else [text.casefold() for text in texts]
            if values == sorted(values):
                return ", in ascending order"
            if values == sorted(values, reverse=True):
                return ", in descending order"
    return ""


def _varied(templates: Sequence[str], *content: str) -> str:
    return templates[int(stable_fraction("adopted wording", *content) * len(templates))]
