"""A small GTK program for tasks: a window with a question, some controls and buttons. Pressing a button writes what was answered as JSON
and ends it; closing the window answers nothing.

    python3 -m sandbox.desktop.inside.form FORM.json      # answers go to FORM.json.answer

The form: {"title", "question", "entries": [label], "checks": [label], "radios": [label], "buttons": [label]}; the answer: {"button",
"entries": [text], "checks": [checked labels], "radio": label}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gi

gi.require_version("Gtk", "3.0")
from gi.repository import Gdk, Gtk  # noqa: E402


class Form:
    def __init__(self, form: dict[str, Any], answer_path: Path) -> None:
        self._answer_path = answer_path
        self._window = Gtk.Window(title=form["title"])
        self._window.set_border_width(16)
        self._window.set_default_size(360, -1)
        self._window.connect("destroy", Gtk.main_quit)
        column = Gtk.Box(orientation=Gtk.Orientation.VERTICAL, spacing=10)
        self._window.add(column)
        column.add(Gtk.Label(label=form["question"], xalign=0.0))
        self._entries = [self._entry(column, label) for label in form.get("entries", ())]
        self._checks = [Gtk.CheckButton(label=label) for label in form.get("checks", ())]
        self._radios: list[Any] = []
        for label in form.get("radios", ()):
            first = self._radios[0] if self._radios else None
            self._radios.append(Gtk.RadioButton.new_with_label_from_widget(first, label))
        for control in (*self._checks, *self._radios):
            column.add(control)
        row = Gtk.Box(spacing=8, halign=Gtk.Align.END)
        column.add(row)
        for label in form["buttons"]:
            button = Gtk.Button(label=label)
            button.connect("clicked", self._press, label)
            row.add(button)
        self._window.show_all()

    @staticmethod
    def _entry(column: Any, label: str) -> Any:
        row = Gtk.Box(spacing=8)
        entry = Gtk.Entry(hexpand=True)
        row.add(Gtk.Label(label=label))
        row.add(entry)
        column.add(row)
        return entry

    def _press(self, _: Any, label: str) -> None:
        chosen = next((radio.get_label() for radio in self._radios if radio.get_active()), "")
        answer = {
            "button": label,
            "entries": [entry.get_text() for entry in self._entries],
            "checks": [check.get_label() for check in self._checks if check.get_active()],
            "radio": chosen,
        }
        self._answer_path.write_text(json.dumps(answer), encoding="utf-8")
        self._window.destroy()


def main() -> None:
    path = Path(sys.argv[1])
    Gdk.set_program_class("Form")
    Form(json.loads(path.read_text(encoding="utf-8")), path.with_name(path.name + ".answer"))
    Gtk.main()


if __name__ == "__main__":
    main()
