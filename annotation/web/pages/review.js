// Review: a second pair of eyes on finished runs and on recordings. The queue, then one run (and the second one of its instance) step by step, then the word on
// the whole. A recording is judged on its own page, which comes back here.

import { get, part, post } from "/pages/api.js";
import { announce, at, ask, cancel_button, make, ok_button, show, time_text, toast } from "/pages/dom.js";
import { table } from "/pages/chart.js";
import { facts, opinion_note, picture_of, step_facts, take_back, verdict_text } from "/pages/finished.js";
import { Keys } from "/pages/keys.js";
import { Opinion } from "/pages/opinion.js";
import { Replay } from "/pages/replay.js";
import { attempt, start_page } from "/pages/shell.js";

const WHY = {
  sampled: "sampled", verifier_disagrees: "verifier disagrees", annotators_disagree: "annotators disagree", reviewers_disagree: "reviewers disagree", asked: "asked for",
};
let current = null;

/** Runs that somebody disputes, then recordings, which count for nothing before somebody approves, then the sample; each as the server has it. */
function in_order({ waiting, recordings }) {
  const is_sampled = (item) => item.why.includes("sampled");
  const of_run = (item) => ({ item, at_s: item.finished_at_s });
  return [
    ...waiting.filter((item) => !is_sampled(item)).map(of_run), ...recordings.map((recording) => ({ recording, at_s: recording.created_at_s })), ...waiting.filter(is_sampled).map(of_run),
  ];
}

/** By a key or a button: what goes wrong is shown, and the run that is open stays. */
async function back_to_queue() {
  await attempt(show_queue);
}

/** Its rows. Throws where it cannot be had; nothing has changed then. */
async function show_queue() {
  const queue = await get("/reviews");
  current = null;
  history.replaceState(null, "", "/review");
  at("case").hidden = true;
  for (const id of ["queue", "queue-head", "flags"]) at(id).hidden = false;
  const num_waiting = queue.num_waiting + queue.num_recordings;
  show(at("numbers"), `${num_waiting} waiting · ${queue.num_reviewed_today} reviewed by me today`);
  const of_run = (text) => ({ item }) => item && text(item);
  const columns = [
    { title: "Why", text: ({ item }) => item ? make("div", { class: "badges" }, item.why.map((why) => make("span", { class: `badge ${why === "sampled" ? "" : "warn"}` }, WHY[why] ?? why))) : make("span", { class: "badge accent" }, "recording") },
    { title: "Task", text: ({ item, recording }) => item
      ? make("button", { type: "button", class: "opens plain", on: { click: () => open_run(item.run_id) } }, `${item.task_name} · ${item.seed}`)
      : make("a", { class: "opens", href: `/recordings?recording=${part(recording.recording_id)}&from=review` }, recording.query || "without a query") },
    { title: "Campaign", text: ({ item, recording }) => item?.campaign ?? recording.applications.join(", ") }, { title: "Person", text: ({ item, recording }) => item?.annotator ?? recording.person },
    { title: "Steps", text: ({ item, recording }) => item?.num_steps ?? recording.num_actions, is_number: true },
    { title: "Annotator says", text: of_run((item) => verdict_text(item.person_verdict)) }, { title: "Verifier says", text: of_run((item) => verdict_text(item.verifier_verdict)) },
    { title: "Finished", text: ({ at_s }) => time_text(at_s), is_whole: true },
  ];
  const rows = in_order(queue);
  at("queue").replaceChildren(rows.length ? table(rows, columns, "Waiting for a review") : make("p", { class: "empty" }, "Nothing waits for a review."));
  return rows;
}

async function show_flagged() {
  const flagged = await get("/assignments/flagged");
  at("flagged").replaceChildren(flagged.length ? table(flagged, [
    { title: "Task", text: (one) => `${one.task_name} · ${one.seed}` }, { title: "Reason", text: (one) => one.reason }, { title: "By", text: (one) => one.user ?? "–" },
    { title: "When", text: (one) => time_text(one.at_s) },
    { title: "", text: (one) => make("button", { type: "button", "aria-label": `Reopen ${one.task_name} ${one.seed}`, on: { click: () => reopen(one) } }, "Reopen") },
  ], "Flagged tasks") : make("p", { class: "quiet" }, "Nothing is flagged."));
}

async function reopen(one) {
  if (await attempt(() => post(`/assignments/${part(one.assignment_id)}/reopen`), "It is back in the queue.")) await attempt(show_flagged);
}

async function open_run(run_id) {
  let review = null;
  if (!(await attempt(async () => (review = await get(`/reviews/runs/${part(run_id)}`))))) return;
  const { item } = review;
  history.replaceState(null, "", `/review?run=${part(item.run_id)}`);
  for (const id of ["queue", "queue-head", "flags"]) at(id).hidden = true;
  at("case").hidden = false;
  const opinion = new Opinion(review.run.steps.length);
  const replay = new Replay({
    title: `${review.run.annotator}: ${verdict_text(review.run.person_verdict)}`, steps: review.run.steps, last_screen: review.run.last_screen, address_of: picture_of(review.run.run_id),
    on_step: (index) => (opinion.show(index), current.second_replay?.go(index < review.run.steps.length ? index : Infinity, false)), mark_of: (index) => opinion.mark_of(index), said: (step) => step_facts(step),
  });
  const second_replay = review.second_run && new Replay({
    title: `${review.second_run.annotator}: ${verdict_text(review.second_run.person_verdict)}`, steps: review.second_run.steps, last_screen: review.second_run.last_screen, address_of: picture_of(review.second_run.run_id), said: (step) => step_facts(step), key: null,
  });
  opinion.on_change = () => replay.mark();
  current = { item, review, opinion, replay, second_replay };
  at("case").replaceChildren(head(review), make("div", { class: "replays" }, replay.node, second_replay?.node ?? facts(review.run)), make("div", { class: "card verdict" }, opinion.node, word(review)));
  opinion.show(0);
  at("case").querySelector("h1").focus();
  announce(`${item.task_name}, ${item.num_steps} steps`);
}

function head(review) {
  const { item } = review;
  return make("header", { class: "stack" },
    make("div", { class: "card-head" }, make("button", { type: "button", on: { click: back_to_queue } }, "← Queue", make("kbd", {}, "Esc")),
      make("h1", { tabindex: "-1" }, `${item.task_name} · ${item.seed}`), item.kind === "adjudication" && make("span", { class: "badge warn" }, "adjudication"),
      item.why.map((why) => make("span", { class: "badge" }, WHY[why] ?? why)),
      make("span", { class: `badge ${review.run.verifier_verdict ? "good" : "bad"}` }, `verifier: ${verdict_text(review.run.verifier_verdict)}`)),
    make("p", { class: "wrap" }, make("b", {}, review.instruction ?? "")),
    review.run.note && make("p", { class: "note wrap" }, `Annotator's note: ${review.run.note}`),
    review.reviews.map(opinion_note),
  );
}

function word(review) {
  return make("div", { class: "row" },
    make("button", { type: "button", class: "primary", on: { click: () => submit(true) } }, "Approve…", make("kbd", {}, "A")),
    make("button", { type: "button", class: "danger", on: { click: () => submit(false) } }, "Reject…", make("kbd", {}, "X")),
    make("span", { class: "small quiet" }, "← → steps · R right · W wrong · T thought · N note · Z picture"),
    !review.run.is_withdrawn && make("button", { type: "button", class: "plain far", on: { click: () => withdraw() } }, "Withdraw…"));
}

async function submit(approves) {
  const { review, item, opinion } = current;
  const note = make("textarea", { id: "review-note", name: "note", rows: "3", maxlength: "20000" });
  const answer = await ask({
    title: approves ? "Approve: was the task done?" : "Reject: was the task done?",
    body: [make("p", { class: "wrap" }, review.instruction ?? ""), make("p", { class: "quiet" }, approves ? "The run may be learned from." : "The run is not learned from."), make("label", { for: "review-note" }, "Note"), note],
    buttons: [cancel_button(), ok_button("Cannot tell", "unknown", ""), ok_button("Not done", "no", approves ? "" : "primary", "N"), ok_button("Done", "yes", approves ? "primary" : "", "Y")],
    on_open: (dialog) => dialog.querySelector("button.primary").focus(),
    on_key: (event, dialog) => {
      const value = { y: "yes", n: "no" }[event.key.toLowerCase()];
      if (event.target === note || !value || event.ctrlKey) return;
      event.preventDefault();
      dialog.answer(value);
    },
  });
  if (!answer) return;
  const verdict = { yes: true, no: false, unknown: null }[answer.get("button")];
  const body = { kind: item.kind, approves, verdict, steps: opinion.steps, note: answer.get("note") };
  if (!(await attempt(() => post(`/reviews/runs/${part(item.run_id)}`, body), "Review sent."))) return;
  await attempt(async () => {
    const [next] = await show_queue();
    if (next?.item) await open_run(next.item.run_id);
  });
}

async function withdraw() {
  if (await take_back(`/runs/${part(current.item.run_id)}`, "this run")) await back_to_queue();
}

await start_page("review");
const is_open = () => current !== null;
const keys = new Keys([
  { keys: ["ArrowRight", "j"], shown: "→", what: "Next step", group: "Review", when: is_open, repeats: true, run: () => current.replay.go(current.replay.index + 1) },
  { keys: ["ArrowLeft", "k"], shown: "←", what: "Step before", group: "Review", when: is_open, repeats: true, run: () => current.replay.go(current.replay.index - 1) },
  { keys: ["r"], shown: "R", what: "The step is right; on to the next", group: "Review", when: is_open, run: () => (current.opinion.set({ is_right: true }), current.replay.go(current.replay.index + 1)) },
  { keys: ["w"], shown: "W", what: "The step is wrong", group: "Review", when: is_open, run: () => current.opinion.set({ is_right: false }) },
  { keys: ["t"], shown: "T", what: "The thought fits, or does not", group: "Review", when: is_open, run: () => current.opinion.toggle_thought() },
  { keys: ["n"], shown: "N", what: "Note on the step", group: "Review", when: is_open, run: () => current.opinion.note.focus() },
  { keys: ["z"], shown: "Z", what: "Enlarge the picture; Z or Esc again", group: "Review", when: is_open, run: () => current.replay.enlarge() },
  { keys: ["a"], shown: "A", what: "Approve", group: "Review", when: is_open, run: () => submit(true) },
  { keys: ["x"], shown: "X", what: "Reject", group: "Review", when: is_open, run: () => submit(false) },
  { keys: ["Escape"], shown: "Esc", what: "Back to the queue", group: "Review", when: is_open, run: back_to_queue },
  { keys: [], shown: "Ctrl Enter", what: "In a dialog: send it", group: "Review" },
  { keys: [], shown: "Esc", what: "In a dialog: leave it", group: "Review" },
  { keys: ["?"], what: "These shortcuts", group: "Review", run: () => keys.help() },
]);
try {
  await show_flagged();
  const asked = new URLSearchParams(location.search).get("run");
  await show_queue();
  if (asked) await open_run(asked);
} catch (error) {
  toast(error.message, "bad");
}
