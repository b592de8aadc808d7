// The annotator's page: takes work, shows the run as the server tells it. What turns keys, clicks and words into decisions is
// work_decisions.js.
// What is shown is always the newest state; what a person typed is never thrown away by one.

import { post } from "/pages/api.js";
import { announce, at, show, store, toast } from "/pages/dom.js";
import { Keys } from "/pages/keys.js";
import { log_in_again, start_page } from "/pages/shell.js";
import { Between } from "/pages/work_between.js";
import { Cards } from "/pages/work_cards.js";
import { Decisions } from "/pages/work_decisions.js";
import { show_guidelines } from "/pages/work_dialogs.js";
import { Drafts } from "/pages/work_drafts.js";
import { Editor } from "/pages/work_editor.js";
import { Meanings } from "/pages/work_finder.js";
import { History } from "/pages/work_history.js";
import { shortcuts } from "/pages/work_keys.js";
import { Outbox } from "/pages/work_outbox.js";
import { Panes } from "/pages/work_panes.js";
import { Screen } from "/pages/work_screen.js";
import { Stream } from "/pages/work_stream.js";
import { screen_label, show_buttons, show_guidelines_mark, show_lease, show_problem, show_task } from "/pages/work_view.js";

const SAVED = { saving: "saving…", saved: "draft saved", local: "draft kept in this browser", unkept: "draft not saved yet" };
const OVER = ["finished", "abandoned"];
const UNSEEN_MS = 120;

class Work extends Decisions {
  constructor() {
    super();
    this.state = null;
    this.preview = null;
    this.decided_at = null;
    this.is_seen = true;
    this.again = this.verdict = null;
    this.breath = null;
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
        if (!view) this.screen.forget_drag();
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
      guidelines: () => this.guidelines(), help: () => this.keys.help(), back: () => this.step_back(), find: () => this.find(), boxes: () => this.toggle_boxes(),
      "zoom-in": () => this.screen.zoom_by(1), "zoom-out": () => this.screen.zoom_by(-1), "zoom-fit": () => this.screen.zoom_to(null),
    };
    for (const [id, run] of Object.entries(clicks)) at(id).addEventListener("click", run);
    addEventListener("pagehide", () => this.drafts.leave());
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
    this.asked_verdict = this.verdict = null;
    this.editor.hide();
    this.outbox.restore(state.run_id);
    this.apply(state);
    this.stream.follow(state);
    if (campaign_id && state.campaign.campaign_id !== campaign_id) toast(`You are still at this task of ${state.campaign.name}: finish or skip it, then the other campaign is asked.`, "warn", { stays: true });
  }

  // ---- a new state --------------------------------------------------------------------------------------------------------------------

  apply(state) {
    const before = this.state;
    if (before && (state.run_id !== before.run_id || state.version < before.version)) return;
    this.state = state;
    if (["deciding", "ended"].includes(state.phase)) this.outbox.settle(state.run_id, state.history.length);
    if (OVER.includes(state.phase)) return this.over();
    this.between.hide();
    show_task(state);
    this.history.show(state);
    this.cards.show(state);
    this.panes.show(state);
    const is_new_step = !before || before.step_index !== state.step_index || before.history.length !== state.history.length;
    const came_to_decide = state.phase === "deciding" && (is_new_step || before.phase !== "deciding");
    if (is_new_step && before) {
      this.editor.hide();
      this.drafts.clear();
    }
    if (came_to_decide) this.take_breath();
    if (came_to_decide || !before) this.restore_draft(state);
    this.screen.is_open = state.phase === "deciding";
    this.screen.show(state.run_id, state.screen, screen_label(state));
    at("loading").hidden = Boolean(state.screen);
    document.body.classList.toggle("is-busy", !["deciding", "ended", "broken"].includes(state.phase));
    show_buttons(this.state, !this.outbox.item);
    show_problem(state, (kind) => this.pass_on(kind));
    this.redraw();
    if (came_to_decide || state.phase === "ended") this.send_again(state);
    if (came_to_decide) {
      this.say_step(state);
      if (state.screen?.screenshot_id === this.screen.shown_id) requestAnimationFrame(() => this.framed());
    }
    this.ask_when_over();
  }

  say_step(state) {
    const first = state.proposals[0];
    const said = first ? `${state.proposals.length} ${state.proposals.length === 1 ? "candidate" : "candidates"}. First: ${first.line || first.action || first.text}` : "No candidates.";
    announce(`Step ${state.step_index + 1}. ${said}`);
    at("cards").scrollTop = 0;
  }

  /** Once for each end; the end may be announced before the last decision's own answer has come. */
  ask_when_over() {
    const { phase, version } = this.state;
    if (phase === "ended" && this.asked_verdict !== version && !this.outbox.item) this.finish();
  }

  /** A key that was meant for the step before must not decide this one, which nobody has seen yet. */
  take_breath() {
    this.is_seen = false;
    document.body.dataset.ready = "false";
    clearTimeout(this.breath);
    this.breath = setTimeout(() => {
      this.is_seen = true;
      document.body.dataset.ready = "true";
    }, UNSEEN_MS);
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
    if (!this.state) return;
    show_buttons(this.state, !item);
    this.ask_when_over();
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
    this.between.done(state, this.verdict);
  }

  guidelines() {
    store.set(`read.${this.state.campaign.campaign_id}`, this.state.campaign.guidelines);
    show_guidelines_mark(this.state);
    return show_guidelines(this.state);
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
