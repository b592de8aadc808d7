// Terminal and files of hybrid sessions. The terminal shows what each tool call printed and takes a command; the files pane lists the
// workspace and shows its texts, beside the agent. Commands become actions in the editor: nothing runs past a decision.

import { get, part, post } from "/pages/api.js";
import { at, make, show, toast } from "/pages/dom.js";

export class Panes {
  /** `on_action(view)`: an action to put into the editor; `is_open()`: whether one may decide. */
  constructor({ run_id, is_open, on_action }) {
    Object.assign(this, { run_id, is_open, on_action });
    this.signature = null;
    this.is_wanted = null;
    this.run = null;
    this.has_workspace = false;
    this.looked_at = null;
    this.path = null;
    at("terminal-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = at("command");
      if (field.value.trim()) this.write("execute_bash", { command: field.value }, () => (field.value = ""));
    });
    at("file-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const path = at("file-path").value.trim();
      if (path) this.write("str_replace_editor", { command: "view", path }, () => {});
    });
    for (const name of ["terminal", "files"]) at(`tab-${name}`).addEventListener("click", () => this.choose(name));
    // What was printed last stays in view when the window becomes another size.
    this.is_at_end = true;
    const log = at("terminal");
    log.addEventListener("scroll", () => (this.is_at_end = log.scrollHeight - log.scrollTop - log.clientHeight < 4));
    new ResizeObserver(() => this.is_at_end && (log.scrollTop = log.scrollHeight)).observe(log);
    at("pane-tabs").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.choose(at("terminal-pane").hidden ? "terminal" : "files", true);
    });
  }

  show(state) {
    if (this.run !== state.run_id) {
      this.run = state.run_id;
      this.has_workspace = false;
      this.looked_at = this.path = this.is_wanted = null;
      at("file-list").replaceChildren();
      this.say_file("");
    }
    const calls = state.history.filter((step) => step.kind === "tool");
    this.lay_out(state, this.has_workspace || Boolean(state.screen?.output) || calls.length > 0);
    const signature = JSON.stringify([state.run_id, calls.map((step) => [step.step_index, step.text, step.output]), state.screen?.output]);
    if (signature !== this.signature) this.print(state, calls);
    this.signature = signature;
    if (state.phase === "deciding" && this.looked_at !== state.version) this.look(state);
  }

  lay_out(state, has_tools) {
    at("panes").hidden = !(this.is_wanted ?? has_tools);
    at("centre").classList.toggle("prints-only", Boolean(state.screen) && !state.screen.screenshot_id && has_tools);
  }

  /** The workspace as it is now; a session without one is asked once. */
  async look(state) {
    if (this.looked_at !== null && !this.has_workspace) return;
    this.looked_at = state.version;
    let found;
    try {
      found = await get(`/runs/${part(state.run_id)}/files`);
    } catch {
      return;
    }
    if (this.run !== state.run_id) return;
    this.has_workspace = found.has_workspace;
    if (!found.has_workspace) return;
    this.lay_out(state, true);
    at("file-list").replaceChildren(...found.files.map((file) => this.file_item(file)));
    at("no-files").hidden = found.files.length > 0;
    at("known-paths").replaceChildren(...found.files.map((file) => make("option", { value: file.path })));
    if (this.path && !at("files-pane").hidden) this.open_file(this.path);
  }

  file_item({ path, kind, num_bytes }) {
    if (kind === "folder") return make("li", { class: "mono folder quiet" }, `${path}/`);
    return make("li", {}, make("button", { type: "button", class: "plain mono", "aria-current": String(path === this.path), on: { click: () => this.open_file(path) } },
      path, make("span", { class: "small quiet far" }, size_text(num_bytes))));
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

  async open_file(path) {
    this.path = path;
    at("file-path").value = path;
    for (const button of at("file-list").querySelectorAll("button")) button.setAttribute("aria-current", String(button.firstChild.textContent === path));
    try {
      const file = await get(`/runs/${part(this.run_id())}/files/text?path=${part(path)}`);
      if (this.path === path) this.say_file(file.text);
    } catch (error) {
      if (this.path === path) this.say_file(error.message);
    }
  }

  say_file(text) {
    if (at("file-text").textContent !== text) show(at("file-text"), text);
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

function size_text(num_bytes) {
  return num_bytes < 1000 ? `${num_bytes} B` : `${(num_bytes / 1000).toFixed(1)} kB`;
}
