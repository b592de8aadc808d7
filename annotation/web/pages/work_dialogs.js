// The questions of the annotator's page: the verdict on the whole, why a task is passed on, whether it is beyond repair.

import { ask, cancel_button, make, ok_button } from "/pages/dom.js";

function plural(num, noun) {
  return `${num} ${noun}${num === 1 ? "" : "s"}`;
}

/** {is_success, note}, or null to go on. `note` is what an earlier answer that failed to arrive said. */
export async function ask_verdict(state) {
  const counts = {};
  for (const step of state.history) counts[step.decision] = (counts[step.decision] ?? 0) + 1;
  const said = Object.entries(counts).map(([decision, num]) => `${num} ${{ accept: "accepted", edit: "edited", override: "overridden", beyond_repair: "beyond repair" }[decision] ?? decision}`);
  const is_over = state.phase === "ended";
  const verifier = state.verifier === null
    ? make("p", { class: "note" }, is_over ? "The environment has no verifier's verdict on this episode." : "The verifier speaks when the run is finished.")
    : make("p", { class: `note ${state.verifier ? "good" : "bad"}` }, `The verifier says: ${state.verifier ? "the task was done" : "the task was not done"}.`);
  const note = make("textarea", { id: "verdict-note", name: "note", rows: "3", maxlength: "20000" });
  const disagreement = make("p", { class: "small quiet" }, state.verifier === null ? "" : "Judge by what you see: where you and the verifier differ, a reviewer looks at it.");
  const answer = await ask({
    title: is_over ? "The episode is over. Was the task done?" : "Finish here? Was the task done?",
    body: [
      make("p", { class: "wrap" }, state.instruction ?? ""),
      make("p", { class: "quiet small" }, `${plural(state.history.length, "step")}${said.length ? `: ${said.join(", ")}` : ""}${state.outcome ? ` · outcome: ${state.outcome}` : ""}`),
      verifier, disagreement,
      make("label", { for: "verdict-note" }, "Note (optional) ", make("kbd", {}, "M")), note,
    ],
    buttons: [
      cancel_button(is_over ? "Later" : "Go on"), ok_button("No, not done", "no", "danger", "N"), ok_button("Yes, done", "yes", "primary", "Y"),
    ],
    on_open: (dialog) => dialog.querySelector("button[value=yes]").focus(),
    on_key: (event, dialog) => {
      // The Ctrl Enter that carries out the last step must not give the verdict as well.
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return event.preventDefault();
      if (event.target === note) return;
      const key = event.key.toLowerCase();
      if (event.ctrlKey || event.altKey || event.metaKey || !["y", "n", "m"].includes(key)) return;
      event.preventDefault();
      if (key === "m") return note.focus();
      dialog.answer(key === "y" ? "yes" : "no");
    },
  });
  return answer ? { is_success: answer.get("button") === "yes", note: answer.get("note").trim() } : null;
}

const SKIP_REASONS = ["I do not understand the task", "I lack the knowledge it needs", "It takes too long", "No time now"];
const FLAG_REASONS = ["The task is broken", "The instruction is ambiguous", "The environment misbehaves", "Offensive or personal content"];

/** A reason in words, or null. */
export async function ask_reason(kind) {
  const reasons = kind === "skip" ? SKIP_REASONS : FLAG_REASONS;
  const field = make("input", { id: "reason", name: "reason", required: true, minlength: "1", maxlength: "500", list: "reasons", autocomplete: "off" });
  const quick = reasons.map((reason, index) => make("button", {
    type: "button", data: { reason }, on: { click: () => ((field.value = reason), field.focus()) },
  }, make("kbd", {}, String(index + 1)), reason));
  const answer = await ask({
    title: kind === "skip" ? "Skip this task" : "Flag this task",
    body: [
      make("p", {}, kind === "skip" ? "It goes back to the queue, for somebody else." : "It leaves the queue until an administrator has looked at it."),
      make("div", { class: "stack quick" }, quick), make("label", { for: "reason" }, "Reason"), field,
    ],
    buttons: [cancel_button(), ok_button(kind === "skip" ? "Skip" : "Flag", kind, "primary", "Enter")],
    on_open: () => quick[0].focus(),
    on_key: (event) => {
      const index = Number(event.key) - 1;
      if (event.target === field || !reasons[index]) return;
      event.preventDefault();
      field.value = reasons[index];
      field.focus();
    },
  });
  return answer ? answer.get("reason").trim() : null;
}

export async function ask_beyond_repair() {
  const answer = await ask({
    title: "Beyond repair?",
    body: [make("p", {}, "Nothing that could be done now would still lead to success. The episode ends as failed; the steps before this one count."),
      make("p", { class: "quiet" }, "If one of your own steps went wrong, step back instead.")],
    buttons: [cancel_button(), ok_button("It is beyond repair", "yes", "danger", "Enter")],
    on_open: (dialog) => dialog.querySelector("button[value=yes]").focus(),
  });
  return Boolean(answer);
}

export function show_guidelines(state) {
  const { campaign, task } = state;
  return ask({
    title: `Guidelines: ${campaign.name}`, wide: true,
    body: [
      campaign.mode === "relabel" && make("p", { class: "note" }, "Relabelling: the policy's own first proposal is carried out, whatever you choose; your answer is stored as what would have been right."),
      make("div", { class: "guidelines wrap", tabindex: "0", role: "document", "aria-label": "Guidelines" }, campaign.guidelines || "This campaign has no guidelines."),
      make("p", { class: "small quiet" }, `Task ${task.name}, instance ${task.seed}; at most ${task.max_steps} steps.`),
    ],
    buttons: [cancel_button("Close")],
    on_key: (event, dialog) => event.key.toLowerCase() === "g" && dialog.close(),
  });
}
