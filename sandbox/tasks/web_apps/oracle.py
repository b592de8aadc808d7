"""The oracle: what to do next on the page that is shown, by clicks, typing, choices and scrolling, until the plan of an instance is done.

It looks at the state of the application to know what is done, and at the page to know where to click. Where nothing on the page leads on,
it types an address.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sandbox.actions import Action, Click, Finished, Hotkey, Navigate, Scroll, SelectOption, TypeText
from sandbox.tasks.web_apps.apps import ORIGIN
from sandbox.tasks.web_apps.state import Change
from sandbox.tasks.web_apps.tasks import Look, Route, Search, Use, WebInstance, is_done

Seen = Mapping[str, Any]
"""The value of look.js."""


@cache
def _script() -> str:
    return Path(__file__).with_name("look.js").read_text(encoding="utf-8").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """One look. `found` is what has changed so far."""

    instance: WebInstance
    found: Sequence[Change]
    last: Action | None
    evaluate: Callable[[str], Awaitable[Any]]

    async def next_action(self) -> Action | None:
        """None where what was done cannot be undone."""
        if any(not _is_wanted(change, self.instance.changes) for change in self.found):
            return None
        for step in self.instance.plan:
            if isinstance(step, Use):
                if not is_done(step, self.found):
                    return await self._use(step)
            else:
                action = await self._look(step)
                if action is not None:
                    return action
        return Finished(answer=self.instance.answer or "")

    async def _see(self, paths: Sequence[str] = (), names: Sequence[str] = (), submit: str = "", texts: Sequence[str] = ()) -> Seen | None:
        asked = json.dumps({"paths": list(paths), "names": list(names), "submit": submit, "texts": list(texts)})
        seen = await self.evaluate(f"({_script()})({asked})")
        return seen if isinstance(seen, dict) else None

    async def _look(self, step: Look) -> Action | None:
        """None once the answer can be read."""
        seen = await self._see(step.route.paths, texts=step.texts)
        if seen is None:
            return _open(step.route.paths[0])
        if step.texts and seen["line"] is not None:
            return _scrolled(seen["line"])
        if not step.texts and _is_at(seen, step.route.paths[0]):
            return None
        if not step.texts or not _is_at(seen, step.route.paths[0], exactly=False):
            return await self._go(step.route, seen)
        return await self._search(step.route.search) or _open(step.route.paths[0])

    async def _use(self, step: Use) -> Action | None:
        function = step.function
        checks = [field.check for field in function.fields if field.name in step.values and field.check]
        seen = await self._see(step.route.paths, [*step.values, *checks], function.submit)
        if seen is None or seen["form"] is None or not _is_at(seen, step.route.paths[0], exactly="?" in step.route.paths[0]):
            return await self._go(step.route, seen)
        controls = seen["form"]["controls"]
        companions = {field.name: field.check for field in function.fields}
        for name, value in step.values.items():
            check = companions.get(name)
            if check and not controls[check][0]["isChecked"]:
                return _click(controls[check][0])
            action = self._set(controls[name], value)
            if action is not None:
                return action
        return _click(seen["form"]["submit"])

    def _set(self, controls: Sequence[Mapping[str, Any]], value: str) -> Action | None:
        """Gives a control its value; None once it has it."""
        first = controls[0]
        if first["type"] == "radio":
            button = next((each for each in controls if each["value"] == value), None)
            return None if button is None or button["isChecked"] else _click(button)
        if first["type"].startswith("select"):
            if first["chosen"] == value:
                return None
            if first.get("isFolded"):  # the point is that of the handle which unfolds it
                return _click(first)
            return _scrolled(first) or SelectOption(x=first["x"], y=first["y"], option=value)
        if first["value"].rstrip("\n") == value:
            return None
        if not first["isFocused"]:
            return _click(first)
        is_marked = isinstance(self.last, Hotkey)
        return TypeText(text=value) if not first["value"] or is_marked else Hotkey(keys=("ctrl", "a"))

    async def _go(self, route: Route, seen: Seen | None) -> Action:
        """Nearer to a page: by a link, by a search, by its address."""
        if seen is None:
            return _open(route.paths[0])
        nearest = seen["link"]
        here = next((index for index, path in enumerate(route.paths) if _is_at(seen, path)), len(route.paths))
        if nearest is not None and nearest["index"] < here:
            return _click(nearest)
        return await self._search(route.search) or _open(route.paths[0])

    async def _search(self, search: Search | None) -> Action | None:
        """One step of a search on this page; None where it has no such form, or its answer is already shown."""
        if search is None:
            return None
        values = {search.finder.field: search.text}
        if search.finder.column_field is not None:
            values = {search.finder.column_field: search.column} | values
        seen = await self._see(names=list(values), submit=search.finder.submit)
        if seen is None or seen["form"] is None or values[search.finder.field] in seen["path"].replace("+", " "):
            return None
        for name, value in values.items():
            action = self._set(seen["form"]["controls"][name], value)
            if action is not None:
                return action
        return _click(seen["form"]["submit"])


def _is_wanted(change: Change, wanted: Sequence[Change]) -> bool:
    return any(
        (change.op, change.table, change.key) == (each.op, each.table, each.key) and change.cells.items() <= each.cells.items()
        for each in wanted
    )


def _is_at(seen: Seen, path: str, *, exactly: bool = True) -> bool:
    here, there = str(seen["path"]), unquote(path)
    return here == there or (not exactly and here.partition("?")[0] == there.partition("?")[0])


def _click(place: Mapping[str, Any]) -> Action:
    return _scrolled(place) or Click(x=place["x"], y=place["y"])


def _scrolled(place: Mapping[str, Any]) -> Action | None:
    """What brings a place into view, where it is not."""
    return Scroll(direction="up" if place["where"] == "above" else "down") if place["where"] in {"above", "below"} else None


def _open(path: str) -> Action:
    return Navigate(url=f"{ORIGIN}{path}")
