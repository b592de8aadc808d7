// What stands in the page between two runs: waiting, the end of one, nothing to do, a lost lease.

import { part, post } from "/pages/api.js";
import { announce, at, make } from "/pages/dom.js";
import { attempt } from "/pages/shell.js";
import { ask_reason } from "/pages/work_dialogs.js";

const RETRY_MS = 15_000;

export class Between {
  constructor(next) {
    this.next = next;
    this.timer = null;
  }

  show(title, ...body) {
    clearTimeout(this.timer);
    at("between").hidden = false;
    at("bench").hidden = at("task-bar").hidden = true;
    const heading = make("h1", { tabindex: "-1" }, title);
    at("between-body").replaceChildren(heading, ...body.flat().filter(Boolean));
    heading.focus();
    announce(title);
  }

  hide() {
    clearTimeout(this.timer);
    at("between").hidden = true;
  }

  next_button(text, campaign_id = null) {
    return make("button", { type: "button", id: "next", class: "primary", on: { click: () => this.next(campaign_id) } }, text, make("kbd", {}, "Enter"));
  }

  home_link() {
    return make("a", { class: "button", href: "/" }, "My work");
  }

  wait() {
    this.show("Looking for work…");
  }

  nothing() {
    this.show("There is nothing to annotate now", make("p", { class: "quiet" }, "New work is looked for every few seconds."), this.next_button("Look again"), this.home_link());
    this.timer = setTimeout(() => this.next(), RETRY_MS);
  }

  /** Where it is about something that one holds, trying again brings the same: it can be let go here. */
  failed(error, campaign_id) {
    const held = error.problem?.extra?.assignment_id;
    const let_go = (verb, text) => make("button", { type: "button", data: { verb }, on: { click: () => this.let_go(held, verb) } }, text);
    this.show(held ? "Your task could not be gone on with" : "No work could be had", make("p", { class: "note bad", role: "alert" }, error.message), this.next_button("Try again", campaign_id),
      held && [let_go("skip", "Skip…"), let_go("flag", "Flag…"), let_go("release", "Give back")], this.home_link());
  }

  async let_go(assignment_id, verb) {
    const reason = verb === "release" ? null : await ask_reason(verb);
    if (verb !== "release" && !reason) return;
    if (!(await attempt(() => post(`/assignments/${part(assignment_id)}/${verb}`, reason ? { reason } : {}), { skip: "Skipped.", flag: "Flagged.", release: "Given back." }[verb]))) return;
    if (verb === "release") location.assign("/");
    else this.next();
  }

  lost(error) {
    this.show("This task is no longer yours", make("p", { class: "note warn" }, error.message), make("p", { class: "quiet" }, "A task returns to the queue when nobody works on it for as long as its lease lasts."),
      this.next_button("Next task"), this.home_link());
  }

  /** `said`: the person's own verdict, where it is known. */
  done(state, said = null) {
    const num = state.history.length;
    const corrected = state.history.filter((step) => ["edit", "override"].includes(step.decision)).length;
    const title = state.phase === "finished" ? "Finished" : "This run was given up";
    const verdict = state.verifier === null ? null : make("p", { class: `note ${state.verifier ? "good" : "warn"}` }, `The verifier says: ${state.verifier ? "done" : "not done"}.`);
    const differs = said !== null && state.verifier !== null && said !== state.verifier;
    this.show(title, make("p", {}, `${state.task.name}: ${num} ${num === 1 ? "step" : "steps"}, ${corrected} corrected.`), verdict, differs && make("p", { class: "quiet" }, "You see it otherwise: a reviewer looks at the run."), this.next_button("Next task"), this.home_link());
  }
}
