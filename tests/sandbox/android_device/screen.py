"""The simulated device's screen: a launcher, Settings and Contacts, as views that can be drawn, dumped and touched. NOT Android: a small
stand-in for its interface, so that what lies above adb can be tested without an emulator. Commands are commands.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from PIL import Image, ImageDraw, ImageFont

SIZE_PX = (360, 640)
BAR_PX, TITLE_PX, ROW_PX, FIELD_PX = 24, 48, 56, 48
LAUNCHER, SETTINGS, CONTACTS = "com.android.launcher3", "com.android.settings", "com.android.contacts"
TIMEOUTS = {"15000": "15 seconds", "60000": "1 minute", "120000": "2 minutes", "300000": "5 minutes", "600000": "10 minutes"}

Box = tuple[int, int, int, int]


@dataclass(kw_only=True)
class View:
    """One node of the tree."""

    kind: str
    box: Box
    text: str = ""
    label: str = ""
    tap: Callable[[], None] | None = None
    checked: bool | None = None
    focused: bool = False
    selected: bool = False
    scrolls: bool = False
    children: list[View] = field(default_factory=list)

    def walk(self) -> Iterator[View]:
        yield self
        for child in self.children:
            yield from child.walk()

    def holds(self, x: int, y: int) -> bool:
        left, top, right, bottom = self.box
        return left <= x < right and top <= y < bottom


@dataclass(kw_only=True)
class Phone:
    """The state of the device, and what touching it does."""

    settings: dict[tuple[str, str], str] = field(default_factory=dict)
    contacts: dict[int, dict[str, str]] = field(default_factory=dict)
    last_contact: int = 0
    pages: list[tuple[str, ...]] = field(default_factory=list)
    """What is open, the top one last: package, page, arguments. Empty: the launcher."""
    is_awake: bool = False
    is_locked: bool = True
    draft: dict[str, str] = field(default_factory=lambda: {"Name": "", "Phone": ""})
    focus: str = ""
    scroll_px: int = 0

    def get(self, space: str, key: str) -> str:
        return self.settings.get((space, key), "null")

    @property
    def rotation(self) -> int:
        return int(self.settings.get(("system", "user_rotation"), "0"))

    @property
    def size_px(self) -> tuple[int, int]:
        return (SIZE_PX[1], SIZE_PX[0]) if self.rotation % 2 else SIZE_PX

    @property
    def package(self) -> str:
        return "com.android.systemui" if self.is_locked else self.pages[-1][0] if self.pages else LAUNCHER

    # --- what is open

    def open(self, *page: str) -> None:
        self.pages.append(page)
        self.focus, self.scroll_px = "", 0

    def home(self) -> None:
        self.pages, self.focus, self.scroll_px = [], "", 0

    def back(self) -> None:
        if self.pages:
            self.pages.pop()
        self.focus, self.scroll_px = "", 0

    def launch(self, package: str) -> None:
        """As a launcher does: bring the app to the front as it was, or start it."""
        mine = [page for page in self.pages if page[0] == package]
        self.pages = mine or [(package, "main")]
        self.focus, self.scroll_px = "", 0

    def stop(self, package: str) -> None:
        self.pages = [page for page in self.pages if page[0] != package]

    # --- touch and keys

    def tap(self, x: int, y: int) -> None:
        hit = [view for view in self.root().walk() if view.tap is not None and view.holds(x, y)]
        if self.is_awake and hit and hit[-1].tap is not None:
            hit[-1].tap()

    def swipe(self, x: int, y: int, to_x: int, to_y: int, duration_ms: int) -> None:
        if abs(x - to_x) + abs(y - to_y) < 8:
            self.tap(x, y)
        elif any(view.scrolls and view.holds(x, y) for view in self.root().walk()):
            self.scroll_px = min(max(self.scroll_px + y - to_y, 0), self._most_scroll_px())

    def type(self, text: str) -> None:
        if self.focus and self.is_awake:
            self.draft[self.focus] += text

    def key(self, name: str) -> None:
        if name == "WAKEUP":
            self.is_awake = True
        elif name == "SLEEP":
            self.is_awake, self.is_locked = False, True
        elif name == "HOME":
            self.home()
        elif name == "BACK":
            self.back()
        elif name == "DEL" and self.focus:
            self.draft[self.focus] = self.draft[self.focus][:-1]
        elif name in ("TAB", "ENTER") and self.focus:
            self.focus = "Phone" if self.focus == "Name" else ""
        elif len(name) == 1 and self.focus:
            self.type(name.lower())

    def combine(self, names: list[str]) -> None:
        """Keys together: only Ctrl+A followed by a deletion is known, as clearing the field."""
        if names == ["CTRL_LEFT", "A"] and self.focus:
            self.draft[self.focus] = ""

    # --- views

    def root(self) -> View:
        width, height = self.size_px
        views = self._views()
        bar = View(kind="TextView", box=(0, 0, width, BAR_PX), text="12:00")
        return View(kind="FrameLayout", box=(0, 0, width, height), children=[bar, *views])

    def _views(self) -> list[View]:
        if self.is_locked:
            return [self._line(1, "Locked")]
        if not self.pages:
            return [self._icon(0, "Settings", SETTINGS), self._icon(1, "Contacts", CONTACTS)]
        package, page, *arguments = self.pages[-1]
        builder = {
            (SETTINGS, "main"): self._settings_main,
            (SETTINGS, "network"): self._settings_network,
            (SETTINGS, "internet"): self._settings_internet,
            (SETTINGS, "display"): self._settings_display,
            (SETTINGS, "timeout"): self._settings_timeout,
            (CONTACTS, "main"): self._contact_list,
            (CONTACTS, "edit"): self._contact_editor,
        }.get((package, page))
        if builder is not None:
            return builder()
        return self._contact_page(page, int(arguments[0]))

    def _settings_main(self) -> list[View]:
        return [
            self._title("Settings"),
            self._row(0, "Network & internet", "Mobile, Wi-Fi, hotspot", lambda: self.open(SETTINGS, "network")),
            self._row(1, "Display", "Dark theme, font size, brightness", lambda: self.open(SETTINGS, "display")),
        ]

    def _settings_network(self) -> list[View]:
        return [
            self._title("Network & internet"),
            self._row(0, "Internet", "Networks available", lambda: self.open(SETTINGS, "internet")),
            self._switch(1, "Airplane mode", "global", "airplane_mode_on"),
        ]

    def _settings_internet(self) -> list[View]:
        return [self._title("Internet"), self._switch(0, "Wi-Fi", "global", "wifi_on")]

    def _settings_display(self) -> list[View]:
        timeout = TIMEOUTS.get(self.get("system", "screen_off_timeout"), "unknown")
        return [
            self._title("Display"),
            self._row(0, "Screen timeout", f"After {timeout} of inactivity", lambda: self.open(SETTINGS, "timeout")),
            self._switch(1, "Dark theme", "secure", "ui_night_mode", on="2", off="1"),
            self._switch(2, "Auto-rotate screen", "system", "accelerometer_rotation"),
        ]

    def _settings_timeout(self) -> list[View]:
        current = self.get("system", "screen_off_timeout")
        rows = []
        for number, (value, label) in enumerate(TIMEOUTS.items()):
            row = self._row(number, label, "", self._setter("system", "screen_off_timeout", value))
            row.children.append(View(kind="RadioButton", box=self._knob(row), checked=value == current))
            rows.append(row)
        return [self._title("Screen timeout"), *rows]

    def _contact_list(self) -> list[View]:
        width, height = self.size_px
        top = BAR_PX + TITLE_PX
        area = View(kind="ListView", box=(0, top, width, height), scrolls=True)
        for number, (contact, entry) in enumerate(sorted(self.contacts.items(), key=lambda item: item[1]["name"])):
            y = top + number * ROW_PX - self.scroll_px
            if top <= y and y + ROW_PX <= height - ROW_PX:
                area.children.append(self._row_at(y, entry["name"], "", lambda contact=contact: self.open(CONTACTS, "show", str(contact))))
        create = View(
            kind="ImageButton", box=(width - 64, height - 64, width - 8, height - 8), label="Create contact", tap=lambda: self._edit()
        )
        return [self._title("Contacts"), area, create]

    def _most_scroll_px(self) -> int:
        return max(0, len(self.contacts) * ROW_PX - (self.size_px[1] - BAR_PX - TITLE_PX - ROW_PX))

    def _edit(self) -> None:
        self.draft = {"Name": "", "Phone": ""}
        self.open(CONTACTS, "edit")

    def _contact_editor(self) -> list[View]:
        width = self.size_px[0]
        fields = []
        for number, name in enumerate(("Name", "Phone")):
            top = BAR_PX + TITLE_PX + 8 + number * (FIELD_PX + 8)
            fields.append(
                View(
                    kind="EditText",
                    box=(8, top, width - 8, top + FIELD_PX),
                    text=self.draft[name] or name,
                    focused=self.focus == name,
                    tap=lambda name=name: setattr(self, "focus", name),
                )
            )
        save = View(kind="Button", box=(width - 88, BAR_PX + 4, width - 8, BAR_PX + 44), text="Save", tap=self._save)
        return [self._title("Create contact", width - 96), save, *fields]

    def _save(self) -> None:
        if self.draft["Name"]:
            self.last_contact += 1
            self.contacts[self.last_contact] = {"name": self.draft["Name"], "phone": self.draft["Phone"]}
        self.back()

    def _contact_page(self, page: str, contact: int) -> list[View]:
        width = self.size_px[0]
        entry = self.contacts.get(contact)
        if entry is None:
            return [self._title("Contact does not exist")]
        if page == "menu":
            return [self._row(0, "Delete", "", lambda: self._replace("confirm", contact))]
        if page == "confirm":
            top, bottom = self.size_px[1] // 2, self.size_px[1] // 2 + 40
            return [
                View(kind="TextView", box=(32, top - 60, width - 32, top - 20), text="Delete this contact?"),
                View(kind="Button", box=(32, top, width // 2 - 4, bottom), text="Cancel", tap=self.back),
                View(kind="Button", box=(width // 2 + 4, top, width - 32, bottom), text="Delete", tap=lambda: self._delete(contact)),
            ]
        more = View(
            kind="ImageButton",
            box=(width - 56, BAR_PX + 4, width - 8, BAR_PX + 44),
            label="More options",
            tap=lambda: self.open(CONTACTS, "menu", str(contact)),
        )
        return [self._title(entry["name"], width - 64), more, self._line(1, entry["phone"])]

    def _replace(self, page: str, contact: int) -> None:
        self.back()
        self.open(CONTACTS, page, str(contact))

    def _delete(self, contact: int) -> None:
        self.contacts.pop(contact, None)
        self.back()
        self.back()

    # --- pieces of views

    def _setter(self, space: str, key: str, value: str) -> Callable[[], None]:
        return lambda: self.settings.update({(space, key): value})

    def _title(self, text: str, width_px: int | None = None) -> View:
        return View(kind="TextView", box=(16, BAR_PX, (width_px or self.size_px[0]) - 16, BAR_PX + TITLE_PX), text=text)

    def _line(self, number: int, text: str) -> View:
        top = BAR_PX + number * TITLE_PX
        return View(kind="TextView", box=(16, top, self.size_px[0] - 16, top + TITLE_PX), text=text)

    def _row(self, number: int, title: str, summary: str, tap: Callable[[], None]) -> View:
        return self._row_at(BAR_PX + TITLE_PX + number * ROW_PX, title, summary, tap)

    def _row_at(self, top: int, title: str, summary: str, tap: Callable[[], None]) -> View:
        width = self.size_px[0]
        words = [View(kind="TextView", box=(16, top + 6, width - 72, top + 28), text=title)]
        if summary:
            words.append(View(kind="TextView", box=(16, top + 28, width - 72, top + 50), text=summary))
        return View(kind="LinearLayout", box=(0, top, width, top + ROW_PX), tap=tap, children=words)

    def _switch(self, number: int, title: str, space: str, key: str, on: str = "1", off: str = "0") -> View:
        is_on = self.get(space, key) == on
        row = self._row(number, title, "On" if is_on else "Off", self._setter(space, key, off if is_on else on))
        row.children.append(View(kind="Switch", box=self._knob(row), checked=is_on))
        return row

    @staticmethod
    def _knob(row: View) -> Box:
        _, top, right, bottom = row.box
        return (right - 64, top + 14, right - 16, bottom - 14)

    def _icon(self, number: int, name: str, package: str) -> View:
        left = 24 + number * 104
        return View(kind="TextView", box=(left, 80, left + 88, 176), text=name, tap=lambda: self.launch(package))

    # --- pictures

    def dump(self) -> str:
        """The tree as `uiautomator dump` writes it."""
        body = _xml(self.root(), self.package, 0)
        return f"<?xml version='1.0' encoding='UTF-8' standalone='yes' ?><hierarchy rotation=\"{self.rotation}\">{body}</hierarchy>"

    def png(self) -> bytes:
        image = Image.new("RGB", self.size_px, "white" if self.is_awake else "black")
        if self.is_awake:
            draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
            dark = self.get("secure", "ui_night_mode") == "2"
            paper, ink = ("#202124", "#f0f0f0") if dark else ("#fafafa", "#202124")
            draw.rectangle((0, 0, *self.size_px), fill=paper)
            for view in self.root().walk():
                _draw(draw, font, view, ink)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()


def _draw(draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, view: View, ink: str) -> None:
    left, top, right, bottom = view.box
    box = (left, top, right - 1, bottom - 1)
    if view.checked is not None:
        draw.rounded_rectangle(box, 8, outline=ink, fill="#1a73e8" if view.checked else None)
    elif view.kind in ("Button", "ImageButton", "EditText") or (view.kind == "TextView" and view.tap is not None):
        draw.rounded_rectangle(box, 6, outline="#1a73e8" if view.focused else ink, width=2 if view.focused else 1)
    elif view.tap is not None:
        draw.line((left, bottom - 1, right, bottom - 1), fill="#b0b0b0")
    words = view.text or view.label
    if words:
        draw.text((left + 4, (top + bottom) // 2 - 8), words[: (right - left) // 6], fill=ink, font=font)


def _xml(view: View, package: str, index: int) -> str:
    left, top, right, bottom = view.box
    flags = {
        "checkable": view.checked is not None,
        "checked": bool(view.checked),
        "clickable": view.tap is not None,
        "enabled": True,
        "focusable": view.kind == "EditText",
        "focused": view.focused,
        "scrollable": view.scrolls,
        "long-clickable": False,
        "password": False,
        "selected": view.selected,
    }
    attributes = {
        "index": str(index),
        "text": view.text,
        "resource-id": "",
        "class": f"android.widget.{view.kind}",
        "package": package,
        "content-desc": view.label,
        **{name: str(value).lower() for name, value in flags.items()},
        "bounds": f"[{left},{top}][{right},{bottom}]",
    }
    children = "".join(_xml(child, package, number) for number, child in enumerate(view.children))
    return f"<node {' '.join(f'{name}={quoteattr(value)}' for name, value in attributes.items())}>{children}</node>"
