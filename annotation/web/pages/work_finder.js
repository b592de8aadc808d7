// What a click on the screen means, and the same without a mouse: a list of the screen's elements to search and choose from.

import { part, post } from "/pages/api.js";
import { announce, ask, at, cancel_button, make, ok_button, shortened, toast } from "/pages/dom.js";

/** Asks the server what a point may mean and offers it near the pointer. */
export class Meanings {
  /** `on_take(view, is_at_once)`: chosen; `on_preview(view)`: looked at (null: none). */
  constructor({ run_id, on_take, on_preview }) {
    Object.assign(this, { run_id, on_take, on_preview });
    this.views = [];
    this.selected = 0;
    this.number = 0;
    this.is_asking = false;
    this.menu = at("meanings");
    this.menu.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("pointerdown", (event) => !this.menu.hidden && !this.menu.contains(event.target) && this.close(), true);
  }

  async open(point, place) {
    const number = ++this.number;
    let views;
    this.is_asking = true;
    try {
      views = await post(`/runs/${part(this.run_id())}/at`, { point });
    } catch (error) {
      if (number !== this.number) return;
      this.on_preview(null);
      return toast(error.message, "bad");
    } finally {
      if (number === this.number) this.is_asking = false;
    }
    if (number !== this.number) return;
    if (!views?.length) this.on_preview(null);
    if (!views?.length) return toast("The policy's grammar has no action for this place.", "warn");
    this.views = views.slice(0, 9);
    this.menu.replaceChildren(
      make("p", { class: "small quiet" }, point.to_x === undefined ? `At ${point.x}, ${point.y}` : `From ${point.x}, ${point.y} to ${point.to_x}, ${point.to_y}, or the box between them`),
      ...this.views.map((view, index) => make("button", {
        type: "button", role: "menuitem", class: "meaning", tabindex: "-1",
        on: { click: (event) => this.take(index, event.ctrlKey || event.metaKey), pointerenter: () => this.select(index), focus: () => this.select(index, false) },
      }, make("kbd", {}, String(index + 1)), make("span", {}, make("span", { class: "mono" }, view.action), view.line && view.line !== view.action && make("span", { class: "small quiet block" }, shortened(view.line, 90))))),
      make("p", { class: "small quiet" }, make("kbd", {}, "Enter"), " into the editor, ", make("kbd", {}, "Ctrl"), make("kbd", {}, "Enter"), " carry out"),
    );
    this.menu.hidden = false;
    this.put(place);
    this.select(0);
    announce(`${this.views.length} ${this.views.length === 1 ? "action" : "actions"} for this place. First: ${this.views[0].line || this.views[0].action}`);
  }

  put({ x, y }) {
    const { offsetWidth: width, offsetHeight: height } = this.menu;
    this.menu.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    this.menu.style.top = `${Math.max(8, Math.min(y + 10, innerHeight - height - 8))}px`;
  }

  get buttons() {
    return [...this.menu.querySelectorAll("button")];
  }

  select(index, with_focus = true) {
    this.selected = index;
    if (with_focus) this.buttons[index].focus();
    this.on_preview(this.views[index]);
  }

  pressed(event) {
    const num = this.views.length;
    const digit = /^Digit([1-9])$/.exec(event.code)?.[1];
    if (event.key === "ArrowDown") this.select((this.selected + 1) % num);
    else if (event.key === "ArrowUp") this.select((this.selected - 1 + num) % num);
    else if (event.key === "Enter") this.take(this.selected, event.ctrlKey || event.metaKey);
    else if (digit && Number(digit) <= num) this.take(Number(digit) - 1, event.ctrlKey || event.metaKey);
    else if (event.key === "Escape" || event.key === "Tab") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  take(index, is_at_once) {
    const view = this.views[index];
    this.close();
    this.on_take(view, is_at_once);
  }

  close() {
    this.number += 1;
    this.is_asking = false;
    if (this.menu.hidden) return this.on_preview(null);
    this.menu.hidden = true;
    this.menu.replaceChildren();
    this.views = [];
    this.on_preview(null);
  }
}

/** Chooses an element by typing; null when none was. */
export async function find_element(screen, on_preview) {
  const elements = screen?.elements ?? [];
  let found = elements;
  let selected = 0;
  const list = make("ul", { id: "found", role: "listbox", "aria-label": "Elements", class: "found" });
  const field = make("input", {
    id: "find-field", type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "found", "aria-autocomplete": "list", autocomplete: "off", placeholder: "name, role or number",
  });
  const select = (index) => {
    selected = Math.max(0, Math.min(index, found.length - 1));
    [...list.children].forEach((node, position) => node.setAttribute("aria-selected", String(position === selected)));
    field.setAttribute("aria-activedescendant", found.length ? `found-${selected}` : "");
    list.children[selected]?.scrollIntoView({ block: "nearest" });
    on_preview(found[selected] ?? null);
  };
  const search = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = elements.filter((box) => words.every((word) => `[${box.index}] ${box.index} ${box.role} ${box.name}`.toLowerCase().includes(word)));
    list.replaceChildren(...found.slice(0, 200).map((box, index) => make("li", {
      id: `found-${index}`, role: "option", "aria-selected": "false", on: { click: (event) => (select(index), event.target.closest("dialog").answer("take")) },
    }, make("span", { class: "mono quiet" }, `[${box.index}]`), make("span", { class: "badge" }, box.role), make("span", {}, shortened(box.name, 100) || "no name"))));
    select(0);
  };
  field.addEventListener("input", search);
  const answer = await ask({
    title: "Find an element", body: [make("label", { for: "find-field" }, "Element of the screen"), field, list],
    buttons: [cancel_button(), ok_button("Choose", "take", "primary", "Enter")],
    on_open: () => {
      search();
      field.focus();
    },
    on_key: (event) => {
      if (event.key === "ArrowDown") select(selected + 1);
      else if (event.key === "ArrowUp") select(selected - 1);
      else return;
      event.preventDefault();
    },
  });
  on_preview(null);
  return answer ? found[selected] ?? null : null;
}
