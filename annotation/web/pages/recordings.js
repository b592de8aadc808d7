// Recordings of people's own work: one's own to look at and withdraw, a reviewer's to judge. `?recording=ID` opens one; with `&from=review` the
// way back, and on after a word, is the review queue.

import { address, get, part, post } from "/pages/api.js";
import { table } from "/pages/chart.js";
import { announce, ask, at, cancel_button, duration, make, ok_button, time_text, toast } from "/pages/dom.js";
import { opinion_note, step_mark, step_opinions, take_back, withdrawal_note } from "/pages/finished.js";
import { Keys } from "/pages/keys.js";
import { Opinion } from "/pages/opinion.js";
import { Replay } from "/pages/replay.js";
import { attempt, may, start_page } from "/pages/shell.js";
import { Sounds } from "/pages/sounds.js";
import { show_wanted } from "/pages/wanted.js";

const STATES = { pending: ["waiting", "warn"], approved: ["approved", "good"], rejected: ["rejected", "bad"] };
const person = await start_page("recordings");
const asked = new URLSearchParams(location.search);
const is_from_review = asked.get("from") === "review";
let current = null;

/** Where one came from. */
function leave() {
  if (is_from_review && current) return location.assign("/review");
  return show_list();
}

async function show_list() {
  current = null;
  history.replaceState(null, "", "/recordings");
  at("case").hidden = true;
  at("list").hidden = at("list-head").hidden = at("wanted").hidden = false;
  let items;
  try {
    items = await get("/recordings");
  } catch (error) {
    return toast(error.message, "bad");
  }
  const wanted = at("state").value;
  const rows = items.filter((item) => !wanted || item.state === wanted);
  if (!rows.length) return at("list").replaceChildren(make("p", { class: "empty" }, "No recordings here. They are made with `flywheel record` on one's own machine and sent after a review."));
  at("list").replaceChildren(table(rows, [
    { title: "Query", text: (item) => make("button", { type: "button", class: "opens plain", on: { click: () => open_recording(item.recording_id) } }, item.query || "without a query") },
    { title: "State", text: (item) => state_badge(item) },
    { title: "Person", text: (item) => item.person }, { title: "Track", text: (item) => item.track ?? "–" }, { title: "Applications", text: (item) => item.applications.join(", ") },
    { title: "Actions", text: (item) => item.num_actions, is_number: true }, { title: "Length", text: (item) => duration(item.length_s), is_number: true },
    { title: "Replayed", text: (item) => (item.is_executable === null ? "–" : item.is_executable ? "yes" : "no") }, { title: "Uploaded", text: (item) => time_text(item.created_at_s) },
  ], "Recordings"));
}

function state_badge({ state }) {
  const [text, kind] = STATES[state] ?? [state, ""];
  return make("span", { class: `badge ${kind}` }, text);
}

async function open_recording(recording_id) {
  let detail = null;
  if (!(await attempt(async () => (detail = await get(`/recordings/${part(recording_id)}`))))) return show_list();
  const { item } = detail;
  history.replaceState(null, "", `/recordings?recording=${part(item.recording_id)}${is_from_review ? "&from=review" : ""}`);
  const opinion = new Opinion(detail.steps.length);
  const sounds = new Sounds(detail.sounds, (id) => address(`/recordings/${part(item.recording_id)}/sounds/${part(id)}`));
  const replay = new Replay({
    title: item.track ? `${item.person}, ${item.track}` : item.person, steps: detail.steps, address_of: (id) => address(`/recordings/${part(item.recording_id)}/screens/${part(id)}`),
    on_step: (index) => opinion.show(index), mark_of: (index) => opinion.mark_of(index) || step_mark(detail.reviews, detail.steps[index]),
    said: (step) => [
      make("p", { class: "small quiet" }, `at ${duration(step.at_s)} in ${step.window || "an unnamed window"}`), step.heard && make("p", { class: "small quiet wrap" }, `heard: ${step.heard}`), sounds.button(step.at_s),
      step.hidden.length > 0 && make("p", { class: "small" }, `taken out: ${step.hidden.join(", ")}`), ...step_opinions(detail.reviews, step),
    ],
  });
  opinion.on_change = () => replay.mark();
  current = { item, detail, opinion, replay };
  const may_review = !item.is_own && may(person, "reviewer") && item.state === "pending";
  const hidden = Object.entries(detail.hidden).map(([kind, num]) => `${num} ${kind}`).join(", ");
  at("case").replaceChildren(
    make("div", { class: "card-head" }, make("button", { type: "button", on: { click: leave } }, is_from_review ? "← Review" : "← Recordings", make("kbd", {}, "Esc")), make("h1", { tabindex: "-1" }, item.query || "Without a query"),
      state_badge(item), make("span", { class: "badge" }, `result: ${detail.result}`)),
    ...[withdrawal_note(detail.withdrawal), ...detail.reviews.map(opinion_note)].filter(Boolean),
    make("p", { class: "quiet" }, hidden ? `Taken out before the upload: ${hidden}.` : "Nothing had to be taken out before the upload."),
    ...[replay.node, sounds.node].filter(Boolean),
    make("div", { class: "card verdict" }, may_review && opinion.node, make("div", { class: "row" },
      may_review && make("button", { type: "button", class: "primary", on: { click: () => submit(true) } }, "Approve…", make("kbd", {}, "A")),
      may_review && make("button", { type: "button", class: "danger", on: { click: () => submit(false) } }, "Reject…", make("kbd", {}, "X")),
      (item.is_own || may(person, "reviewer")) && item.state !== "withdrawn" && make("button", { type: "button", class: "far", on: { click: () => withdraw(item) } }, "Withdraw…"))),
  );
  at("list").hidden = at("list-head").hidden = at("wanted").hidden = true;
  at("case").hidden = false;
  if (detail.steps.length) opinion.show(0);
  at("case").querySelector("h1").focus();
  announce(`Recording with ${detail.steps.length} actions`);
}

async function ask_note(approves) {
  const field = make("textarea", { id: "words", name: "words", rows: "3", maxlength: "500", required: !approves });
  const verb = approves ? "Approve" : "Reject";
  const answer = await ask({
    title: `${verb} this recording`, body: [make("p", {}, approves ? "It may be learned from." : "It is not learned from."), make("label", { for: "words" }, approves ? "Note" : "Reason"), field],
    buttons: [cancel_button(), ok_button(verb)], on_open: () => field.focus(),
  });
  return answer ? answer.get("words").trim() : null;
}

async function submit(approves) {
  const note = await ask_note(approves);
  if (note === null) return;
  const { item, opinion } = current;
  const body = { kind: "second", approves, verdict: null, steps: opinion.steps, note };
  if (await attempt(() => post(`/recordings/${part(item.recording_id)}/review`, body), "Review sent.")) leave();
}

async function withdraw(item) {
  if (await take_back(`/recordings/${part(item.recording_id)}`, "this recording")) leave();
}

const is_open = () => current !== null;
const may_judge = () => is_open() && Boolean(at("step-note"));
const keys = new Keys([
  { keys: ["ArrowRight", "j"], shown: "→", what: "Next action", group: "Recording", when: is_open, repeats: true, run: () => current.replay.go(current.replay.index + 1) },
  { keys: ["ArrowLeft", "k"], shown: "←", what: "Action before", group: "Recording", when: is_open, repeats: true, run: () => current.replay.go(current.replay.index - 1) },
  { keys: ["r"], shown: "R", what: "Right; on to the next", group: "Recording", when: may_judge, run: () => (current.opinion.set({ is_right: true }), current.replay.go(current.replay.index + 1)) },
  { keys: ["w"], shown: "W", what: "Wrong", group: "Recording", when: may_judge, run: () => current.opinion.set({ is_right: false }) },
  { keys: ["t"], shown: "T", what: "The thought fits, or does not", group: "Recording", when: may_judge, run: () => current.opinion.toggle_thought() },
  { keys: ["z"], shown: "Z", what: "Enlarge the picture; Z or Esc again", group: "Recording", when: is_open, run: () => current.replay.enlarge() },
  { keys: ["a"], shown: "A", what: "Approve", group: "Recording", when: may_judge, run: () => submit(true) },
  { keys: ["x"], shown: "X", what: "Reject", group: "Recording", when: may_judge, run: () => submit(false) },
  { keys: ["Escape"], shown: "Esc", what: "Back", group: "Recording", when: is_open, run: leave },
  { keys: [], shown: "Ctrl Enter", what: "In a dialog: send it", group: "Recording" },
  { keys: [], shown: "Esc", what: "In a dialog: leave it", group: "Recording" },
  { keys: ["?"], what: "These shortcuts", group: "Recording", run: () => keys.help() },
]);
at("state").addEventListener("change", show_list);
if (asked.get("recording")) open_recording(asked.get("recording"));
else show_list();
show_wanted();
