// Terminal and files of hybrid sessions. The terminal shows what each tool call printed and takes a command; the files pane lists what the
// run has touched, with what was seen of it last, and opens more. Commands become actions in the editor: nothing runs past a decision.

import { part, post } from "/pages/api.js";
import { at, make, show, shortened, toast } from "/pages/dom.js";

const TOOL_DOMAINS = ["hybrid", "terminal", "tools", "files"];
const PATH = /(?:^|[\s"'=:(])((?:\/|\.{1,2}\/|~\/)?(?:[\w.-]+\/)*[\w-]+\.[A-Za-z][A-Za-z0-9]{0,7}|\/(?:[\w.-]+\/)*[\w.-]+)/g;

export class Panes {
  /** `on_action(view)`: an action to put into the editor; `is_open()`: whether one may decide. */
  constructor({ run_id, is_open, on_action }) {
    Object.assign(this, { run_id, is_open, on_action });
    this.signature = null;
    this.is_wanted = null;
    at("terminal-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = at("command");
      if (field.value.trim()) this.write("execute_bash", { command: field.value }, () => (field.value = ""));
    });
    at("file-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const path = at("file-path").value.trim();
      if (path) this.view(path);
    });
    for (const name of ["terminal", "files"]) at(`tab-${name}`).addEventListener("click", () => this.choose(name));
    at("pane-tabs").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.choose(at("terminal-pane").hidden ? "terminal" : "files", true);
    });
  }

  show(state) {
    const has_tools = TOOL_DOMAINS.includes(state.task.domain) || Boolean(state.screen?.output) || state.history.some((step) => step.kind === "tool");
    at("panes").hidden = !(this.is_wanted ?? has_tools);
    at("centre").classList.toggle("has-panes", !at("panes").hidden);
    at("centre").classList.toggle("prints-only", Boolean(state.screen) && !state.screen.screenshot_id && has_tools);
    const calls = state.history.filter((step) => step.kind === "tool");
    const signature = JSON.stringify([state.run_id, calls.map((step) => [step.step_index, step.text, step.output]), state.screen?.output]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.print(state, calls);
    this.list(state, calls);
  }

  print(state, calls) {
    const log = at("terminal");
    const blocks = calls.map((step) => {
      const is_newest = step === state.history.at(-1);
      const output = step.output ?? (is_newest ? state.screen?.output : null);
      return [make("p", { class: "prompt" }, `${step.step_index + 1} $ ${step.line || step.action}`), output ? make("p", {}, output) : null];
    });
    if (!calls.length && state.screen?.output) blocks.push(make("p", {}, state.screen.output));
    log.replaceChildren(...blocks.flat().filter(Boolean));
    if (!blocks.length) log.append(make("p", { class: "prompt" }, "Nothing has been printed yet."));
    log.scrollTop = log.scrollHeight;
  }

  list(state, calls) {
    const seen = new Map();
    for (const step of calls) {
      const output = step.output ?? (step === state.history.at(-1) ? state.screen?.output : null);
      for (const path of paths_in(step.action)) seen.set(path, output ?? seen.get(path) ?? null);
      for (const path of paths_in(output ?? "").slice(0, 40)) if (!seen.has(path)) seen.set(path, null);
    }
    const items = [...seen].map(([path, output]) => make("li", {}, make("button", {
      type: "button", class: "plain mono", on: { click: () => this.open_file(path, output) },
    }, path)));
    at("file-list").replaceChildren(...items);
    at("no-files").hidden = items.length > 0;
    at("known-paths").replaceChildren(...[...seen.keys()].map((path) => make("option", { value: path })));
  }

  open_file(path, output) {
    at("file-path").value = path;
    show(at("file-text"), output ?? "Not seen yet: View writes the action that opens it.");
    at("file-path").focus();
  }

  view(path) {
    this.write("str_replace_editor", { command: "view", path }, () => {});
  }

  async write(name, args, done) {
    if (!this.is_open()) return toast("Wait until the step is decided on: the environment is at work.", "warn");
    try {
      const view = await post(`/runs/${part(this.run_id())}/write`, { action: { kind: "tool", name, arguments: args } });
      done();
      this.on_action(view);
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  choose(name, with_focus = false) {
    for (const other of ["terminal", "files"]) {
      at(`${other}-pane`).hidden = other !== name;
      at(`tab-${other}`).setAttribute("aria-selected", String(other === name));
      at(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    if (with_focus) at(`tab-${name}`).focus();
  }

  /** Shown and with the cursor in the command line; once more: hidden. */
  toggle(state) {
    if (!at("panes").hidden && at("panes").contains(document.activeElement)) this.is_wanted = false;
    else this.is_wanted = true;
    this.show(state);
    if (!at("panes").hidden) {
      this.choose("terminal");
      at("command").focus();
    } else document.activeElement.blur();
  }
}

function paths_in(text) {
  return [...new Set([...shortened(text, 8000).matchAll(PATH)].map((match) => match[1]))];
}
