// Auto-completion of the action editor: a list of what may stand at the cursor, driven by the keyboard, announced to screen readers.
// The server knows the grammar; this only asks, shows and inserts.

import { part, post } from "/pages/api.js";
import { announce, at, make } from "/pages/dom.js";

const DEBOUNCE_MS = 60;

export class Completer {
  /** `on_preview(points)`: what the selected completion points at. `run_id()`, `is_valid()`: whether the text reads as an action. */
  constructor({ run_id, is_valid, on_preview }) {
    Object.assign(this, { run_id, is_valid, on_preview });
    this.field = at("action-field");
    this.list = at("completions");
    this.items = [];
    this.selected = -1;
    this.number = 0;
    this.timer = null;
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    this.field.addEventListener("blur", () => setTimeout(() => document.activeElement !== this.field && this.close(), 150));
    this.field.addEventListener("click", () => this.ask());
  }

  get is_open() {
    return !this.list.hidden;
  }

  ask(delay_ms = DEBOUNCE_MS) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), delay_ms);
  }

  async fetch() {
    const number = ++this.number;
    const { value: action, selectionStart: cursor, selectionEnd: end } = this.field;
    if (cursor !== end || document.activeElement !== this.field) return this.close();
    let answer;
    try {
      answer = await post(`/runs/${part(this.run_id())}/complete`, { action, cursor: [...action.slice(0, cursor)].length });
    } catch {
      return this.close();
    }
    if (number !== this.number || action !== this.field.value || document.activeElement !== this.field) return;
    const offers = Array.isArray(answer) ? answer : answer?.completions ?? [];
    this.items = offers.filter((item) => item.text !== inside(action, item.start, item.end) || item.text === "");
    this.show();
  }

  show() {
    if (!this.items.length) return this.close();
    const was_closed = !this.is_open;
    this.list.replaceChildren(...this.items.map((item, index) => make("li", {
      id: `completion-${index}`, role: "option", "aria-selected": "false",
      on: { pointerdown: (event) => (event.preventDefault(), this.take(index)), pointermove: () => this.selected !== index && this.select(index) },
    }, make("span", { class: "mono" }, item.label), make("span", { class: "quiet small" }, item.detail))));
    this.list.hidden = false;
    if (was_closed) announce(`${this.items.length} ${this.items.length === 1 ? "completion" : "completions"}`);
    // An action that is already whole is not completed further by Enter: Enter then carries it out.
    this.select(this.is_valid() ? -1 : 0);
  }

  close() {
    clearTimeout(this.timer);
    this.number += 1;
    this.items = [];
    this.list.hidden = true;
    this.list.replaceChildren();
    this.field.removeAttribute("aria-activedescendant");
    if (this.selected !== -1) this.on_preview([]);
    this.selected = -1;
  }

  select(index) {
    this.selected = index;
    [...this.list.children].forEach((node, position) => node.setAttribute("aria-selected", String(position === index)));
    const node = this.list.children[index];
    if (node) {
      node.scrollIntoView({ block: "nearest" });
      this.field.setAttribute("aria-activedescendant", node.id);
    } else this.field.removeAttribute("aria-activedescendant");
    this.on_preview(this.items[index]?.points ?? []);
  }

  pressed(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === " " && event.ctrlKey) {
        event.preventDefault();
        this.ask(0);
      }
      return;
    }
    if (!this.is_open) {
      if (event.key === "ArrowDown" && this.field.selectionStart === this.field.value.length) {
        event.preventDefault();
        this.ask(0);
      }
      return;
    }
    const num = this.items.length;
    if (event.key === "ArrowDown") this.select((this.selected + 1) % num);
    else if (event.key === "ArrowUp") this.select((this.selected - 1 + num) % num);
    else if (event.key === "Tab" && !event.shiftKey) this.take(Math.max(0, this.selected));
    else if (event.key === "Enter" && this.selected >= 0) this.take(this.selected);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  take(index) {
    const item = this.items[index];
    const { value } = this.field;
    this.close();
    this.field.focus();
    this.field.setSelectionRange(offset(value, item.start), offset(value, item.end));
    insert(this.field, item.text);
    const cursor = offset(this.field.value, item.cursor);
    this.field.setSelectionRange(cursor, cursor);
    this.ask(0);
  }
}

/** Server's offsets count characters, the browser's count UTF-16 units. */
function offset(text, characters) {
  return [...text].slice(0, characters).join("").length;
}

function inside(text, start, end) {
  return [...text].slice(start, end).join("");
}

/** As if typed, so that the browser's undo knows of it. */
export function insert(field, text) {
  field.focus();
  const done = text === "" ? document.execCommand("delete") : document.execCommand("insertText", false, text);
  if (!done) {
    field.setRangeText(text, field.selectionStart, field.selectionEnd, "end");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
}
