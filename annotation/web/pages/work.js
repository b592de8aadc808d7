// The annotator's page: takes work, shows the run as the server tells it, and turns keys, clicks and words into decisions.
// What is shown is always the newest state; what a person typed is never thrown away by one.

import { get, part, post, Refused, Unreachable } from "/pages/api.js";
import { announce, at, show, toast } from "/pages/dom.js";
import { Keys } from "/pages/keys.js";
import { log_in_again, start_page } from "/pages/shell.js";
import { Between } from "/pages/work_between.js";
import { Cards } from "/pages/work_cards.js";
import { ask_beyond_repair, ask_reason, ask_verdict, show_guidelines } from "/pages/work_dialogs.js";
import { Drafts } from "/pages/work_drafts.js";
import { Editor } from "/pages/work_editor.js";
import { find_element, Meanings } from "/pages/work_finder.js";
import { ask_step_back, History } from "/pages/work_history.js";
import { shortcuts } from "/pages/work_keys.js";
import { Outbox } from "/pages/work_outbox.js";
import { Panes } from "/pages/work_panes.js";
import { Screen } from "/pages/work_screen.js";
import { Stream } from "/pages/work_stream.js";
import { screen_label, show_buttons, show_lease, show_problem, show_task } from "/pages/work_view.js";

const SAVED = { saving: "saving…", saved: "draft saved", local: "draft kept in this browser" };
const OVER = ["finished", "abandoned"];

class Work {
  constructor() {
    this.state = null;
    this.preview = null;
    this.decided_at = null;
    this.asked_verdict = null;
    this.is_online = true;
    const run_id = () => this.state.run_id;
    this.drafts = new Drafts((kind) => show(at("saved"), SAVED[kind] ?? ""));
    this.screen = new Screen({ on_point: (point, place) => this.meanings.open(point, place), on_frame: () => this.framed() });
    this.cards = new Cards({ on_accept: (proposal) => this.accept(proposal), on_edit: (proposal) => this.edit(proposal), on_select: (proposal) => this.selected(proposal) });
    this.editor = new Editor({
      run_id, on_execute: (answer) => this.execute(answer), on_change: (text) => this.drafts.save({ step_index: this.state.step_index, ...text }),
      on_close: () => this.redraw(), on_marks: () => this.redraw(),
    });
    this.meanings = new Meanings({
      run_id, on_take: (view, is_at_once) => this.take_meaning(view, is_at_once),
      on_preview: (view) => {
        this.preview = view;
        this.redraw();
      },
    });
    this.history = new History({ on_choose: (index) => this.step_back(index) });
    this.panes = new Panes({ run_id, is_open: () => this.is_open, on_action: (view) => this.take_meaning(view, false) });
    this.outbox = new Outbox({
      on_state: (state) => this.apply(state), on_refused: (item, error, was_repeated) => this.refused(item, error, was_repeated), on_change: () => this.show_waiting(),
      on_online: (is_online) => this.set_online(is_online),
    });
    this.stream = new Stream({
      on_state: (state) => this.apply(state), on_lease: (until_s) => this.state && (this.state = { ...this.state, lease_until_s: until_s }), on_online: (is_online) => this.set_online(is_online), on_lost: (error) => this.lost(error),
    });
    this.between = new Between((campaign_id) => this.next(campaign_id));
    this.keys = new Keys(shortcuts(this));
    this.listen();
    setInterval(() => show_lease(this.state), 5000);
  }

  listen() {
    const clicks = {
      override: () => this.override(), more: () => this.propose(), finish: () => this.finish(), beyond: () => this.beyond_repair(), skip: () => this.pass_on("skip"), flag: () => this.pass_on("flag"),
      guidelines: () => show_guidelines(this.state), help: () => this.keys.help(), back: () => this.step_back(), find: () => this.find(), boxes: () => this.toggle_boxes(),
      "zoom-in": () => this.screen.zoom_by(1), "zoom-out": () => this.screen.zoom_by(-1), "zoom-fit": () => this.screen.zoom_to(null),
    };
    for (const [id, run] of Object.entries(clicks)) at(id).addEventListener("click", run);
    addEventListener("pagehide", () => this.drafts.flush());
  }

  get is_open() {
    return this.state?.phase === "deciding" && !this.outbox.item;
  }

  // ---- getting work -------------------------------------------------------------------------------------------------------------------

  async next(campaign_id = null) {
    this.between.wait();
    let state;
    try {
      state = await post("/work/next", campaign_id ? { campaign_id } : {});
    } catch (error) {
      return this.between.failed(error, campaign_id);
    }
    if (!state?.run_id) return this.between.nothing();
    this.state = null;
    this.asked_verdict = null;
    this.editor.hide();
    this.outbox.restore(state.run_id);
    this.apply(state);
    this.stream.follow(state);
  }

  // ---- a new state --------------------------------------------------------------------------------------------------------------------

  apply(state) {
    const before = this.state;
    if (before && (state.run_id !== before.run_id || state.version < before.version)) return;
    this.state = state;
    if (OVER.includes(state.phase)) return this.over();
    this.between.hide();
    show_task(state);
    this.history.show(state);
    this.cards.show(state);
    this.panes.show(state);
    const is_new_step = !before || before.step_index !== state.step_index || before.history.length !== state.history.length;
    const came_to_decide = state.phase === "deciding" && (is_new_step || before.phase !== "deciding");
    if (is_new_step && before) this.editor.hide();
    if (came_to_decide || !before) this.restore_draft(state);
    this.screen.is_open = state.phase === "deciding";
    this.screen.show(state.run_id, state.screen, screen_label(state));
    at("loading").hidden = Boolean(state.screen);
    document.body.classList.toggle("is-busy", !["deciding", "ended", "broken"].includes(state.phase));
    show_buttons(this.state, !this.outbox.item);
    show_problem(state, (kind) => this.pass_on(kind));
    this.redraw();
    if (came_to_decide) {
      this.say_step(state);
      if (state.screen?.screenshot_id === this.screen.shown_id) requestAnimationFrame(() => this.framed());
    }
    if (state.phase === "ended" && this.asked_verdict !== state.version) this.finish();
  }

  say_step(state) {
    const first = state.proposals[0];
    const said = first ? `${state.proposals.length} ${state.proposals.length === 1 ? "candidate" : "candidates"}. First: ${first.line || first.action || first.text}` : "No candidates.";
    announce(`Step ${state.step_index + 1}. ${said}`);
    at("cards").scrollTop = 0;
  }

  framed() {
    if (this.decided_at === null) return;
    const passed_ms = performance.now() - this.decided_at;
    this.decided_at = null;
    show(at("latency"), `${Math.round(passed_ms)} ms`);
    document.body.dataset.latency_ms = String(Math.round(passed_ms));
  }

  redraw() {
    const offered = this.preview ? [{ points: this.preview.points, label: "?", kind: "offer" }] : [];
    this.screen?.set_marks([...(this.state?.phase === "deciding" ? this.cards.marks() : []), ...(this.editor?.marks() ?? []), ...offered]);
  }

  // ---- deciding -----------------------------------------------------------------------------------------------------------------------

  restore_draft(state) {
    const draft = this.drafts.open(state);
    if (!draft || state.phase !== "deciding" || this.editor.is_open || (!draft.action && !draft.thought)) return;
    this.editor.open({ source: null, ...this.source_of(draft), thought: draft.thought, action: draft.action, focus: draft.action ? "thought" : "action" });
    show(at("saved"), "draft restored");
  }

  source_of(draft) {
    const source = Number.isInteger(draft.candidate) ? this.cards.by_rank(draft.candidate) : null;
    return { source };
  }

  selected(proposal) {
    const index = this.cards.proposals.indexOf(proposal) + 1;
    announce(`Candidate ${index}: ${proposal.line || proposal.action}`);
    this.redraw();
  }

  accept(proposal) {
    if (!this.is_open || !proposal) return;
    if (proposal.problem) return toast(`This candidate cannot be carried out: ${proposal.problem}. Edit it instead.`, "warn");
    this.send("decide", { decision: "accept", candidate: proposal.rank });
    at("cards").children[this.cards.proposals.indexOf(proposal)]?.classList.add("is-chosen");
  }

  edit(proposal) {
    if (!this.is_open || !proposal) return;
    this.cards.select(this.cards.proposals.indexOf(proposal));
    this.editor.open({ source: proposal, thought: proposal.thought ?? "", action: proposal.action });
  }

  /** Opens the editor with what was typed at this step before, if anything was. */
  override() {
    if (!this.is_open) return;
    if (this.editor.is_open) return this.editor.focus("action");
    this.editor.open({ thought: "", action: "" });
  }

  async find() {
    if (!this.is_open) return;
    const box = await find_element(this.state.screen, (element) => {
      this.screen.hovered = element;
      this.screen.redraw();
    });
    if (!box || !this.is_open) return;
    const frame = at("frame").getBoundingClientRect();
    const point = { x: Math.round(box.x + box.width / 2), y: Math.round(box.y + box.height / 2) };
    this.meanings.open(point, { x: frame.left + point.x * this.screen.scale, y: frame.top + point.y * this.screen.scale });
  }

  take_meaning(view, is_at_once) {
    if (!this.is_open) return;
    if (is_at_once && !view.problem) return this.execute({ candidate: null, thought: this.editor.is_open ? this.editor.draft.thought : view.thought ?? "", action: view.action });
    if (this.editor.is_open) return this.editor.set_action(view.action, "thought");
    this.editor.open({ thought: "", action: view.action, focus: "thought" });
    this.editor.on_change(this.editor.draft);
  }

  execute({ candidate, thought, action, is_as_proposed = false }) {
    if (!this.is_open) return;
    if (is_as_proposed) return this.send("decide", { decision: "accept", candidate });
    const decision = candidate === null ? "override" : "edit";
    this.send("decide", { decision, candidate, thought: thought.trim() || null, action });
  }

  async propose() {
    if (!this.is_open || at("more").disabled) return;
    at("more").disabled = true;
    announce("The policy is asked again.");
    try {
      this.apply(await post(`/runs/${part(this.state.run_id)}/propose`, { version: this.state.version }));
    } catch (error) {
      toast(error.message, "bad");
    }
    show_buttons(this.state, !this.outbox.item);
  }

  async beyond_repair() {
    if (this.is_open && (await ask_beyond_repair()) && this.is_open) this.send("decide", { decision: "beyond_repair" });
  }

  async step_back(index = this.state.history.length - 1) {
    if (at("back").disabled) return;
    const chosen = await ask_step_back(this.state, index);
    if (chosen !== null && !at("back").disabled) this.send("back", { to_step: chosen });
  }

  async finish() {
    if (at("finish").disabled || document.querySelector("dialog[open]")) return;
    this.asked_verdict = this.state.version;
    const verdict = await ask_verdict(this.state);
    if (verdict && !at("finish").disabled) this.send("finish", verdict);
  }

  async pass_on(kind) {
    if (at(kind).disabled) return;
    const reason = await ask_reason(kind);
    if (!reason) return;
    try {
      await post(`/assignments/${part(this.state.assignment_id)}/${kind}`, { reason });
    } catch (error) {
      return toast(error.message, "bad");
    }
    this.leave();
    toast(kind === "skip" ? "Skipped." : "Flagged.", "good");
    this.next();
  }

  /** The version that the person saw goes along: what was decided on an older one is not carried out. */
  send(verb, body) {
    this.decided_at = performance.now();
    this.meanings.close();
    this.outbox.put(this.state.run_id, verb, { version: this.state.version, ...body }, this.state.step_index);
    show_buttons(this.state, !this.outbox.item);
    if (this.outbox.item) at("cards").classList.add("is-waiting");
  }

  async refused(item, error, was_repeated) {
    if (error instanceof Refused && error.status === 401) return log_in_again();
    if (error instanceof Refused && error.status === 410) return this.lost(error);
    let state = null;
    try {
      state = await get(`/runs/${part(item.run_id)}`);
    } catch (failure) {
      if (failure instanceof Unreachable) this.set_online(false);
    }
    if (state?.run_id === this.state?.run_id) this.apply(state);
    const arrived = was_repeated && error.status === 409 && state && state.version > item.body.version;
    if (!arrived) toast(error.message, "bad");
    this.cards.show(this.state);
    show_buttons(this.state, !this.outbox.item);
  }

  // ---- the line, the end --------------------------------------------------------------------------------------------------------------

  set_online(is_online) {
    if (is_online === this.is_online) return;
    this.is_online = is_online;
    this.show_waiting();
    if (!is_online) return announce("The connection is lost. Go on: what you type is kept.");
    announce("The connection is back.");
    this.drafts.flush();
    this.outbox.send();
    if (!this.stream.events) this.stream.connect();
    if (this.editor.is_open) this.editor.check(0);
  }

  show_waiting() {
    const { item, is_queued } = this.outbox;
    at("offline").hidden = this.is_online;
    show(at("offline"), this.is_online ? "" : `The server cannot be reached. What you type is kept${item ? "; your decision is sent as soon as it answers" : ""}.`);
    show(at("waiting"), item ? (is_queued ? "decision queued" : "sending…") : "");
    if (this.state) show_buttons(this.state, !item);
  }

  lost(error) {
    if (error.status === 401) return log_in_again();
    this.leave();
    this.between.lost(error);
  }

  leave() {
    this.stream.stop();
    this.drafts.clear();
    this.editor.hide();
    this.meanings.close();
    at("task-bar").hidden = at("bench").hidden = true;
    at("problem").hidden = true;
  }

  over() {
    const state = this.state;
    this.leave();
    this.between.done(state);
  }

  toggle_boxes() {
    this.screen.shows_boxes = !this.screen.shows_boxes;
    at("boxes").setAttribute("aria-pressed", String(this.screen.shows_boxes));
    this.screen.redraw();
  }

  toggle_marks() {
    this.screen.shows_marks = !this.screen.shows_marks;
    this.screen.redraw();
  }
}

await start_page("work");
const work = new Work();
work.next(new URLSearchParams(location.search).get("campaign"));
