"""A page as a crawler sees it: its links, forms and tables, and the texts it shows. From HTML alone; no script of the page is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lxml import etree, html

_TEXT_TYPES = {"", "text", "search", "number", "email", "url", "tel", "date"}
KINDS = {"text", "area", "select", "check", "radio", "hidden", "submit", "password", "file"}
_SHOWN = ".//text()[not(ancestor::script or ancestor::style or ancestor::template or ancestor::noscript)]"
_TEXTS, _TEXTS_OF_LABEL = etree.XPath(_SHOWN), etree.XPath(f"{_SHOWN}[not(ancestor::option)]")
_TEXTS_OF_PAGE = etree.XPath(f"{_SHOWN}[not(ancestor::title or ancestor::option or ancestor::textarea)]")


@dataclass(slots=True, kw_only=True)
class Control:
    """One control of a form. `kind`: one of KINDS. `options` are (value, shown text) of a select, one a radio button; `value` what is sent
    where nothing is changed, None where nothing is. A control that `is_locked` (disabled) is not sent and takes nothing until something on
    the page unlocks it."""

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
    try:
        root = html.document_fromstring(text.encode(errors="replace"), html.HTMLParser(encoding="utf-8"))
    except etree.ParserError:  # empty
        return Page()
    labels = {label.get("for"): _label_of(label) for label in root.iter("label")}
    page = Page(
        title=_clean("".join(title.text or "" for title in root.iter("title"))),
        links=[(link.get("href"), _text(link)) for link in root.iter("a") if "href" in link.attrib],
        forms=[
            Form(method=form.get("method", "get").lower(), action=form.get("action", ""), controls=_controls(form, labels))
            for form in root.iter("form")
        ],
        grids=[_grid(table) for table in root.iter("table")],
        texts=[text for part in _TEXTS_OF_PAGE(root) if (text := _clean(part))],
    )
    homeless = [each for each in root.iter("input") if next(each.iterancestors("form"), None) is None]
    controls = [control for each in homeless if (control := _control(each, labels)) is not None and control.kind == "password"]
    page.forms += [Form(method="post", action="", controls=[control]) for control in controls]
    return page


def _controls(form: Any, labels: dict[str | None, str]) -> list[Control]:
    found = [_control(element, labels) for element in form.iter("input", "textarea", "select", "button")]
    return [control for control in found if control is not None]


def _control(element: Any, labels: dict[str | None, str]) -> Control | None:
    """None for what sends nothing, such as a button for scripts."""
    control = Control(name=element.get("name", ""), kind=element.tag, value=element.get("value", ""), ident=element.get("id", ""))
    control.is_locked = "disabled" in element.attrib
    if element.tag == "input":
        _read_input(control, element)
    elif element.tag == "textarea":
        control.kind, control.label = "area", element.get("placeholder", "")
        control.value = (element.text or "").removeprefix("\n")
    elif element.tag == "select":
        options = list(element.iter("option"))
        control.options = [(option.get("value", shown), shown) for option in options for shown in [_text(option)]]
        chosen = [sent for (sent, _), option in zip(control.options, options, strict=True) if "selected" in option.attrib]
        control.value = chosen[-1] if chosen else control.options[0][0] if options else None
    else:
        control.kind, control.label = element.get("type", "submit"), _text(element)
    around = next(element.iterancestors("label"), None)
    control.label = labels.get(control.ident, "") or control.label or ("" if around is None else _label_of(around)) or control.name
    return control if control.kind in KINDS else None


def _read_input(control: Control, element: Any) -> None:
    kind, value = element.get("type", "").lower(), element.get("value", "")
    if kind in _TEXT_TYPES:
        control.kind, control.label = "text", element.get("placeholder", "")
    elif kind in {"checkbox", "radio"}:
        sent = value or "on" if kind == "checkbox" else value
        control.kind = "check" if kind == "checkbox" else kind
        control.value, control.options = sent if "checked" in element.attrib else None, [(sent, "")]
    else:
        control.kind, control.label = kind, (value or "Submit") if kind == "submit" else ""


def _grid(table: Any) -> Grid:
    """Its own rows, without those of tables in its cells."""
    grid = Grid()
    for row in table.iter("tr"):
        cells = [cell for cell in row.iter("td", "th") if next(cell.iterancestors("tr")) is row]
        if not cells or next(row.iterancestors("table")) is not table:
            continue
        texts = [_text(cell) for cell in cells]
        if not grid.header and all(cell.tag == "th" for cell in cells):
            grid.header = texts
        else:
            grid.rows.append(texts)
    return grid


def _label_of(label: Any) -> str:
    return _clean("".join(_TEXTS_OF_LABEL(label))).rstrip(":")


def _text(element: Any) -> str:
    return _clean("".join(_TEXTS(element)))


def _clean(text: str) -> str:
    return " ".join(text.split())
