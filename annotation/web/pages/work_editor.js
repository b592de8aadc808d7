// The editors of thought and action: opened from a candidate (edit) or empty (override), checked as one types, kept as a draft.

import { part, post } from "/pages/api.js";
import { announce, at, show } from "/pages/dom.js";
import { Completer, insert } from "/pages/work_complete.js";

const CHECK_MS = 90;

export class Editor {
  /** `on_execute({candidate, thought, action, is_as_proposed})`, `on_change(draft)`, `on_close()`, `on_marks()`. */
  constructor({ run_id, on_execute, on_change, on_close, on_marks }) {
    Object.assign(this, { run_id, on_execute, on_change, on_close, on_marks });
    this.is_open = false;
    this.source = null;
    this.view = null;
    this.previewed = [];
    this.number = 0;
    this.timer = null;
    this.completer = new Completer({
      run_id, is_valid: () => Boolean(this.view && !this.view.problem && this.view.action_text === at("action-field").value),
      on_preview: (points) => {
        this.previewed = points;
        this.on_marks();
      },
    });
    for (const id of ["thought-field", "action-field"]) {
      at(id).addEventListener("input", () => this.typed(id));
      at(id).addEventListener("keydown", (event) => this.pressed(event, id));
    }
    at("execute").addEventListener("click", () => this.execute());
    at("close-editor").addEventListener("click", () => this.close());
  }

  /** `source` is the candidate that is edited, null for an override. */
  open({ source = null, thought = "", action = "", focus = "action" }) {
    this.is_open = true;
    this.source = source;
    this.view = null;
    at("editor").hidden = false;
    at("workbench").classList.add("is-editing");
    show(at("editor-title"), source ? `Edit candidate ${source.rank + 1}` : "Override");
    at("thought-field").value = thought;
    at("action-field").value = action;
    this.check(0);
    this.focus(focus);
    this.resize();
    this.on_marks();
  }

  focus(name) {
    const field = at(`${name}-field`);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
    if (name === "action") this.completer.ask(0);
  }

  close() {
    if (!this.is_open) return;
    this.hide();
    this.on_close();
  }

  hide() {
    this.is_open = false;
    this.source = this.view = null;
    this.previewed = [];
    this.completer.close();
    clearTimeout(this.timer);
    this.number += 1;
    at("editor").hidden = true;
    at("workbench").classList.remove("is-editing");
    if (at("editor").contains(document.activeElement)) document.activeElement.blur();
    this.on_marks();
  }

  /** Puts an action there as if typed: undo brings the old one back. */
  set_action(action, focus = null) {
    const field = at("action-field");
    field.focus();
    field.select();
    insert(field, action);
    this.completer.close();
    if (focus) this.focus(focus);
  }

  get draft() {
    return { thought: at("thought-field").value, action: at("action-field").value, candidate: this.source?.rank ?? null };
  }

  typed(id) {
    this.resize();
    this.check(CHECK_MS);
    if (id === "action-field") this.completer.ask();
    this.on_change({ ...this.draft });
  }

  resize() {
    for (const [id, most] of [["thought-field", 120], ["action-field", 110]]) {
      const field = at(id);
      field.style.height = "auto";
      field.style.height = `${Math.min(most, field.scrollHeight + 2)}px`;
    }
  }

  pressed(event, id) {
    if (event.defaultPrevented || event.isComposing) return;
    const is_enter = event.key === "Enter";
    if (is_enter && (event.ctrlKey || event.metaKey)) this.execute();
    else if (is_enter && id === "action-field" && !event.shiftKey && !event.altKey) this.execute();
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  check(delay_ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), delay_ms);
  }

  async fetch() {
    const number = ++this.number;
    const { thought, action } = this.draft;
    if (!action.trim()) return this.tell(null, "");
    try {
      const view = await post(`/runs/${part(this.run_id())}/check`, { thought: thought || null, action });
      if (number === this.number && this.is_open) this.tell({ ...view, action_text: action });
    } catch (error) {
      if (number === this.number) this.tell(null, error.message);
    }
  }

  tell(view, problem = view?.problem) {
    const had_problem = at("check").dataset.kind === "bad";
    this.view = view;
    at("check").dataset.kind = problem ? "bad" : view ? "good" : "";
    show(at("check"), problem ? `✗ ${problem}` : view ? `✓ ${view.line || view.action}` : "");
    at("action-field").setAttribute("aria-invalid", String(Boolean(problem)));
    if (problem && !had_problem) announce(problem);
    if (!problem && this.completer.is_open && this.completer.selected === 0) this.completer.select(-1);
    this.on_marks();
  }

  execute() {
    const { thought, action } = this.draft;
    if (!action.trim()) return this.tell(null, "There is no action yet.");
    if (this.view?.problem && this.view.action_text === action) return announce(this.view.problem);
    const source = this.source;
    const is_as_proposed = Boolean(source) && action === source.action && thought === (source.thought ?? "");
    this.on_execute({ candidate: source?.rank ?? null, thought, action, is_as_proposed });
  }

  marks() {
    if (!this.is_open) return [];
    const own = this.view && !this.view.problem ? [{ points: this.view.points, label: "✎", kind: "edit" }] : [];
    return [...own, ...(this.previewed.length ? [{ points: this.previewed, label: "?", kind: "offer" }] : [])];
  }
}
