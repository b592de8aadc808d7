// What the pages of finished work share: words for verdicts and statuses, the facts of a run, what reviewers said, taking something back.

import { address, part, post } from "/pages/api.js";
import { ask, cancel_button, duration, make, ok_button, time_text } from "/pages/dom.js";
import { attempt } from "/pages/shell.js";

const STATUSES = { counts: ["counts", "good"], waiting: ["waits for a review", "warn"], rejected: ["rejected", "bad"], withdrawn: ["withdrawn", ""] };

export const picture_of = (run_id) => (screenshot_id) => address(`/runs/${part(run_id)}/screens/${part(screenshot_id)}`);

export function verdict_text(verdict) {
  return verdict === null ? "–" : verdict ? "done" : "not done";
}

export function status_badge(status) {
  const [text, kind] = STATUSES[status] ?? [status, ""];
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

/** A reviewer's opinion of the whole; recordings have no verdict. */
export function opinion_note(one) {
  const verdict = one.verdict === null ? "" : ` The task was ${verdict_text(one.verdict)}.`;
  return make("p", { class: `note wrap ${one.approves ? "good" : "bad"}` }, make("b", {}, `${one.approves ? "Approved" : "Rejected"} by ${one.reviewer}`), `, ${time_text(one.created_at_s)}.${verdict} ${one.note ?? ""}`);
}

/** Who took it back, when and why; nothing where nobody has. */
export function withdrawal_note(withdrawal) {
  if (!withdrawal) return null;
  const who = withdrawal.by === null ? "from the command line" : `by ${withdrawal.by}`;
  return make("p", { class: "note wrap" }, make("b", {}, `Withdrawn ${who}`), `, ${time_text(withdrawal.at_s)}: ${withdrawal.reason}`);
}

/** Reviewers' opinions of one step. */
export function step_opinions(reviews, step) {
  return reviews.filter((one) => one.steps[step.step_index]).map((one) => {
    const { is_right, thought_fits, note } = one.steps[step.step_index];
    const words = [is_right !== null && (is_right ? "right" : "wrong"), thought_fits !== null && (thought_fits ? "the thought fits" : "the thought does not fit"), note].filter(Boolean);
    return make("p", { class: "small wrap" }, make("b", {}, `${one.reviewer}: `), words.join("; "));
  });
}

/** "right" or "wrong", as the last reviewer has it who said so; else "". */
export function step_mark(reviews, step) {
  const said = reviews.map((one) => one.steps[step.step_index]?.is_right ?? null).filter((is_right) => is_right !== null).at(-1);
  return said === undefined ? "" : said ? "right" : "wrong";
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
