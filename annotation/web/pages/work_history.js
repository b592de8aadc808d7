// The strip of decided steps, and the dialog that steps back to one of them.

import { address, part } from "/pages/api.js";
import { ask, at, cancel_button, make, ok_button, show } from "/pages/dom.js";

const SIGNS = { accept: "✓", edit: "✎", override: "↺", beyond_repair: "✕" };
const NAMES = { accept: "accepted", edit: "edited", override: "overridden", beyond_repair: "beyond repair" };

export class History {
  constructor({ on_choose }) {
    this.on_choose = on_choose;
    this.signature = null;
  }

  show(state) {
    const signature = JSON.stringify([state.run_id, state.history.map((step) => [step.step_index, step.text, step.decision])]);
    show(at("num-steps"), state.history.length ? String(state.history.length) : "");
    at("no-history").hidden = state.history.length > 0;
    if (signature === this.signature) return;
    this.signature = signature;
    const list = at("history");
    list.replaceChildren(...state.history.map((step) => this.item(state, step)));
    list.scrollTop = list.scrollHeight;
  }

  item(state, step) {
    const said = step.line || step.action || step.text;
    return make("li", {}, make("button", {
      type: "button", class: "past item", title: said, "aria-label": `Step ${step.step_index + 1}, ${NAMES[step.decision] ?? step.decision}: ${said}. Go back to it.`,
      on: { click: () => this.on_choose(step.step_index) },
    },
    step.screenshot_id && make("img", { src: screen_address(state.run_id, step.screenshot_id), alt: "", loading: "lazy", draggable: "false" }),
    make("span", { class: "past-head" }, make("b", {}, String(step.step_index + 1)), make("span", { class: `sign ${step.decision}` }, SIGNS[step.decision] ?? "·"),
      step.reward ? make("span", { class: "small quiet" }, step.reward > 0 ? "+" : "−") : null),
    make("span", { class: "past-line small" }, said)));
  }
}

function screen_address(run_id, screenshot_id) {
  return address(`/runs/${part(run_id)}/screens/${part(screenshot_id)}`);
}

/** Which step to go back to; null when the person stays. The restart replays all steps before it. */
export async function ask_step_back(state, first) {
  const last = state.history.length - 1;
  let chosen = Math.max(0, Math.min(first, last));
  const picture = make("img", { class: "back-picture", alt: "" });
  const line = make("p", { class: "mono wrap" });
  const explanation = make("p", { id: "back-explanation", role: "status" });
  const range = make("input", { type: "range", min: 0, max: last, step: 1, id: "back-step", "aria-describedby": "back-explanation" });
  const choose = (index) => {
    chosen = Math.max(0, Math.min(index, last));
    const step = state.history[chosen];
    range.value = String(chosen);
    range.setAttribute("aria-valuetext", `step ${chosen + 1}`);
    picture.hidden = !step.screenshot_id;
    if (step.screenshot_id) picture.src = screen_address(state.run_id, step.screenshot_id);
    show(line, step.line || step.action);
    const undone = last - chosen + 1;
    show(explanation, `Step ${chosen + 1}: ${undone === 1 ? "this decision is" : `${undone} decisions are`} taken back. The environment starts afresh and replays ${
      chosen === 0 ? "nothing" : chosen === 1 ? "1 step" : `${chosen} steps`}.`);
  };
  range.addEventListener("input", () => choose(Number(range.value)));
  choose(chosen);
  const answer = await ask({
    title: "Step back", wide: true,
    body: [explanation, make("div", { class: "back-row" }, make("label", { for: "back-step" }, "Step"), range), make("div", { class: "back-view" }, picture, line)],
    buttons: [cancel_button("Stay here"), ok_button("Step back", "back", "primary", "Enter")],
    on_open: (dialog) => dialog.querySelector("button[value=back]").focus(),
    on_key: (event) => {
      if (event.key === "[" || (event.key === "ArrowLeft" && event.target !== range)) choose(chosen - 1);
      else if (event.key === "]" || (event.key === "ArrowRight" && event.target !== range)) choose(chosen + 1);
      else return;
      event.preventDefault();
    },
  });
  return answer ? chosen : null;
}
