"""A page as a crawler sees it: its links, forms and tables, and the texts it shows. From HTML alone; no script of the page is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_SILENT = {"script", "style", "template", "noscript"}
_TEXT_TYPES = {"", "text", "search", "number", "email", "url", "tel", "date"}


@dataclass(slots=True, kw_only=True)
class Control:
    """One control of a form. `kind`: text, area, select, check, radio, hidden, submit, password, file. `options` are (value, shown text) of
    a select, one a radio button; `value` what is sent where nothing is changed, None where nothing is. A control that `is_locked`
    (disabled) is not sent and takes nothing until something on the page unlocks it."""

    name: str
    kind: str
    value: str | None
    label: str = ""
    ident: str = ""
    is_locked: bool = False
    options: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Form:
    method: str
    action: str
    controls: list[Control] = field(default_factory=list)

    def defaults(self) -> dict[str, str]:
        """What is sent where nothing is changed, without a button's part."""
        return {
            control.name: control.value
            for control in self.controls
            if control.kind != "submit" and control.name and control.value is not None and not control.is_locked
        }

    def submits(self) -> list[Control]:
        return [control for control in self.controls if control.kind == "submit"]


@dataclass(slots=True, kw_only=True)
class Grid:
    """A table: the texts of its header and of its rows' cells."""

    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Page:
    title: str = ""
    links: list[tuple[str, str]] = field(default_factory=list)
    """Address as written, shown text."""
    forms: list[Form] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def read_page(text: str) -> Page:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.finished()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._form: Form | None = None
        self._silent = 0
        self._grids: list[Grid] = []
        self._cell: list[str] | None = None
        self._is_head = False
        self._row: list[str] | None = None
        self._link: tuple[str, list[str]] | None = None
        self._select: Control | None = None
        self._option: tuple[str | None, bool, list[str]] | None = None
        self._area: list[str] | None = None
        self._button: list[str] | None = None
        self._label: tuple[str, list[str], list[Control]] | None = None
        self._labels: dict[str, str] = {}
        self._is_title = False
        self._is_locked = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _SILENT:
            self._silent += 1
        elif tag == "title":
            self._is_title = True
        elif tag == "form":
            self._form = Form(method=given.get("method", "get").lower(), action=given.get("action", ""))
            self.page.forms.append(self._form)
        elif tag == "a" and "href" in given:
            self._link = (given["href"], [])
        elif tag == "table":
            self._grids.append(Grid())
            self.page.grids.append(self._grids[-1])
        elif tag == "tr" and self._grids:
            self._row, self._is_head = [], True
        elif tag in {"td", "th"} and self._row is not None:
            self._cell = []
            self._is_head = self._is_head and tag == "th"
        elif tag == "label":
            self._label = (given.get("for", ""), [], [])
        else:
            self._start_control(tag, given)

    def _start_control(self, tag: str, given: dict[str, str]) -> None:
        name, ident = given.get("name", ""), given.get("id", "")
        self._is_locked = "disabled" in given
        if tag == "input":
            self._input(given, name, ident)
        elif tag == "textarea":
            self._area = []
            self._add(Control(name=name, kind="area", value="", ident=ident, label=given.get("placeholder", "")))
        elif tag == "select":
            self._select = Control(name=name, kind="select", value=None, ident=ident)
            self._add(self._select)
        elif tag == "option" and self._select is not None:
            self._end_option()
            self._option = (given.get("value") if "value" in given else None, "selected" in given, [])
        elif tag == "button" and given.get("type", "submit") == "submit":
            self._button = []
            self._add(Control(name=name, kind="submit", value=given.get("value", ""), ident=ident))

    def _input(self, given: dict[str, str], name: str, ident: str) -> None:
        kind, value = given.get("type", "").lower(), given.get("value", "")
        is_checked = "checked" in given
        if kind in _TEXT_TYPES:
            self._add(Control(name=name, kind="text", value=value, ident=ident, label=given.get("placeholder", "")))
        elif kind == "checkbox":
            sent = value or "on"
            self._add(Control(name=name, kind="check", value=sent if is_checked else None, ident=ident, options=[(sent, "")]))
        elif kind == "radio":
            self._add(Control(name=name, kind="radio", value=value if is_checked else None, ident=ident, options=[(value, "")]))
        elif kind == "submit":
            self._add(Control(name=name, kind="submit", value=value, label=value or "Submit", ident=ident))
        elif kind in {"hidden", "password", "file"}:
            self._add(Control(name=name, kind=kind, value=value, ident=ident))

    def _add(self, control: Control) -> None:
        control.is_locked = self._is_locked
        if self._label is not None:
            self._label[2].append(control)
        if self._form is not None:
            self._form.controls.append(control)
        elif control.kind == "password":
            self.page.forms.append(Form(method="post", action="", controls=[control]))

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if self._is_title:
            self.page.title += data
            return
        for taker in (
            self._cell,
            self._link[1] if self._link else None,
            self._option[2] if self._option else None,
            self._area,
            self._button,
            self._label[1] if self._label and not self._option else None,
        ):
            if taker is not None:
                taker.append(data)
        if (text := _clean(data)) and self._option is None and self._area is None:
            self.page.texts.append(text)

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(self._silent - 1, 0)
        elif tag == "title":
            self._is_title = False
        elif tag == "form":
            self._form = None
        elif tag == "a" and self._link is not None:
            self.page.links.append((self._link[0], _clean("".join(self._link[1]))))
            self._link = None
        elif tag == "textarea" and self._area is not None:
            if self._form is not None:
                self._form.controls[-1].value = "".join(self._area).removeprefix("\n")
            self._area = None
        elif tag == "button" and self._button is not None:
            if self._form is not None:
                self._form.controls[-1].label = _clean("".join(self._button))
            self._button = None
        elif tag == "select" and self._select is not None:
            self._end_option()
            if self._select.value is None and self._select.options:
                self._select.value = self._select.options[0][0]
            self._select = None
        elif tag == "option":
            self._end_option()
        elif tag == "label" and self._label is not None:
            self._end_label()
        else:
            self._end_of_table(tag)

    def _end_of_table(self, tag: str) -> None:
        if tag in {"td", "th"} and self._cell is not None and self._row is not None:
            self._row.append(_clean("".join(self._cell)))
            self._cell = None
        elif tag == "tr" and self._row is not None and self._grids:
            grid = self._grids[-1]
            if self._is_head and self._row and not grid.header:
                grid.header = self._row
            elif self._row:
                grid.rows.append(self._row)
            self._row = None
        elif tag == "table" and self._grids:
            self._grids.pop()

    def _end_option(self) -> None:
        if self._option is None or self._select is None:
            return
        value, is_selected, parts = self._option
        text = _clean("".join(parts))
        self._select.options.append((text if value is None else value, text))
        if is_selected:
            self._select.value = self._select.options[-1][0]
        self._option = None

    def _end_label(self) -> None:
        target, parts, inside = self._label or ("", [], [])
        text = _clean("".join(parts)).rstrip(":")
        if target:
            self._labels[target] = text
        for control in inside:
            control.label = control.label or text
        self._label = None

    def finished(self) -> Page:
        for form in self.page.forms:
            for control in form.controls:
                control.label = self._labels.get(control.ident, "") or control.label or control.name
        self.page.title = _clean(self.page.title)
        return self.page


def _clean(text: str) -> str:
    return " ".join(text.split())
