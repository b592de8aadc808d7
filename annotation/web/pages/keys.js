// Keyboard shortcuts of a page: one list from which both the handling and the help are made, so that they cannot differ.

import { ask, cancel_button, make, store } from "/pages/dom.js";

const TYPES = new Set(["INPUT", "TEXTAREA", "SELECT"]);

export class Keys {
  /** `shortcuts`: {keys, shown, what, group, run, when, anywhere}. `keys` are KeyboardEvent.key, or `Shift+Digit1`-like codes;
   *  `anywhere` works while typing as well and therefore has a modifier. */
  constructor(shortcuts) {
    this.shortcuts = shortcuts;
    this.are_single_on = store.get("single-keys") !== false;
    addEventListener("keydown", (event) => this.pressed(event));
  }

  pressed(event) {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const is_typing = TYPES.has(event.target.tagName) && !["checkbox", "radio", "range"].includes(event.target.type);
    const name = name_of(event);
    for (const shortcut of this.shortcuts) {
      if (!shortcut.keys.includes(name) && !shortcut.keys.includes(code_of(event))) continue;
      if (is_typing && !shortcut.anywhere) continue;
      if (!this.are_single_on && !shortcut.anywhere && name.length === 1 && name !== "?") continue;
      if (event.repeat && !shortcut.repeats) return event.preventDefault();
      // A focused button keeps Enter and space for itself.
      if (name === "Enter" && !shortcut.anywhere && event.target.closest("button, a, summary")) continue;
      if (shortcut.when && !shortcut.when()) continue;
      event.preventDefault();
      shortcut.run(event);
      return;
    }
  }

  help() {
    const groups = [...new Set(this.shortcuts.map((shortcut) => shortcut.group))];
    const lists = groups.map((group) =>
      make("section", {}, make("h3", {}, group), make("dl", { class: "keys" }, this.shortcuts.filter((s) => s.group === group && s.what).map((s) => [
        make("dt", {}, (s.shown ?? s.keys[0]).split(" ").map((key) => make("kbd", {}, key))), make("dd", {}, s.what),
      ]))),
    );
    const toggle = make("input", { type: "checkbox", on: { change: (event) => this.set_single(event.target.checked) } });
    toggle.checked = this.are_single_on;
    return ask({
      title: "Keyboard shortcuts", wide: true, body: [make("div", { class: "key-groups" }, lists), make("label", { class: "check" }, toggle, "Single-letter shortcuts are on")],
      buttons: [cancel_button("Close")],
      on_key: (event, dialog) => event.key === "?" && dialog.close(),
    });
  }

  set_single(is_on) {
    this.are_single_on = is_on;
    store.set("single-keys", is_on);
  }
}

function name_of(event) {
  const parts = [(event.ctrlKey || event.metaKey) && "Ctrl", event.altKey && "Alt"].filter(Boolean);
  return [...parts, event.key.length === 1 && !parts.length ? event.key.toLowerCase() : event.key].join("+");
}

function code_of(event) {
  const parts = [(event.ctrlKey || event.metaKey) && "Ctrl", event.altKey && "Alt", event.shiftKey && "Shift"].filter(Boolean);
  return [...parts, event.code].join("+");
}
