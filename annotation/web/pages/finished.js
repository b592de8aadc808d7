// What the pages of finished work share: words for verdicts and standings, the facts of a run, taking something back.

import { address, part, post } from "/pages/api.js";
import { ask, cancel_button, duration, make, ok_button } from "/pages/dom.js";
import { attempt } from "/pages/shell.js";

const STANDINGS = { counts: ["counts", "good"], waiting: ["waits for a review", "warn"], rejected: ["rejected", "bad"], withdrawn: ["withdrawn", ""] };

export const picture_of = (run_id) => (screenshot_id) => address(`/runs/${part(run_id)}/screens/${part(screenshot_id)}`);

export function verdict_text(verdict) {
  return verdict === null ? "–" : verdict ? "done" : "not done";
}

export function standing_badge(standing) {
  const [text, kind] = STANDINGS[standing] ?? [standing, ""];
  return make("span", { class: `badge ${kind}` }, text);
}

/** `more`: further [name, text] pairs. */
export function facts(run, more = []) {
  const pairs = [
    ["Annotator", run.annotator], ["Policy", run.policy_id], ["Outcome", run.outcome ?? "–"], ["Annotator says", verdict_text(run.person_verdict)], ["Verifier says", verdict_text(run.verifier_verdict)],
    ["Stepped back", String(run.num_backs)], ["Took", run.finished_at_s ? duration(run.finished_at_s - run.started_at_s) : "–"], ...more,
  ];
  return make("article", { class: "card", "aria-label": "The run" }, make("h2", {}, "The run"), make("dl", { class: "facts" }, pairs.map(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])));
}

export function step_facts(step) {
  return [step.took_s !== null && make("p", { class: "small quiet" }, `decided in ${duration(step.took_s)}`)];
}

export function opinion_note(one) {
  return make("p", { class: "note wrap" }, `${one.reviewer}: ${one.approves ? "approved" : "rejected"}, ${verdict_text(one.verdict)}. ${one.note ?? ""}`);
}

/** Asks for the reason and takes a run or a recording back; whether it was. `what` names it: it cannot be undone. */
export async function take_back(path, what) {
  const field = make("textarea", { id: "withdraw-reason", name: "reason", rows: "2", required: true, maxlength: "500" });
  const answer = await ask({
    title: `Withdraw ${what}?`,
    body: [make("p", {}, "It disappears from the next version of the data sets, and counts for nothing any more. This cannot be undone."), make("label", { for: "withdraw-reason" }, "Reason"), field],
    buttons: [cancel_button(), ok_button("Withdraw", "ok", "danger")], on_open: () => field.focus(),
  });
  const reason = answer?.get("reason").trim();
  return Boolean(reason) && attempt(() => post(`${path}/withdraw`, { reason }), "Withdrawn.");
}
