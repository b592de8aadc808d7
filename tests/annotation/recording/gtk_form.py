"""A window with a name field, a password field, remarks and a button, run by /usr/bin/python3 with GTK 3. A scripted person fills it.

What a person would see is told in a file (FORM_STATE): the field with the keyboard, and how many characters are in each. Not which.
"""

import json
import os
import sys

import gi

gi.require_version("Gtk", "3.0")
from gi.repository import Gdk, Gtk  # noqa: E402


def main() -> None:
    Gdk.set_program_class("Account")
    window = Gtk.Window(title=sys.argv[1] if len(sys.argv) > 1 else "Account")
    window.set_default_size(420, 300)
    state = {"focus": "", "lengths": {}}

    def tell(**changed: object) -> None:
        state.update(changed)
        if path := os.environ.get("FORM_STATE"):
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.replace(f"{path}.new", path)

    column = Gtk.Box(orientation=Gtk.Orientation.VERTICAL, spacing=12)
    window.add(column)
    for label, is_secret in (("User name", False), ("Key to the safe", True), ("Remarks", False)):
        row, entry, text = Gtk.Box(spacing=8), Gtk.Entry(hexpand=True), Gtk.Label(label=label)
        text.set_mnemonic_widget(entry)
        entry.connect("focus-in-event", lambda _, __, name=label: tell(focus=name))
        entry.connect("changed", lambda own, name=label: tell(lengths={**state["lengths"], name: own.get_text_length()}))
        if is_secret:
            entry.set_visibility(False)
            entry.set_input_purpose(Gtk.InputPurpose.PASSWORD)
        row.add(text)
        row.add(entry)
        column.add(row)
    for line in sys.argv[2:]:
        column.add(Gtk.Label(label=line, xalign=0.0))
    button = Gtk.Button(label="Sign in")
    column.add(button)
    window.connect("destroy", Gtk.main_quit)
    window.show_all()
    Gtk.main()


if __name__ == "__main__":
    main()
