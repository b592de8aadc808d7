// What the annotator's page says about a run besides its screen, candidates and history. Functions of the state, nothing is kept.

import { at, duration, make, shortened, show, store } from "/pages/dom.js";

const PHASES = {
  starting: "starting", proposing: "the policy is thinking", deciding: "your turn", executing: "carrying out", rewinding: "stepping back", ended: "episode over",
  finished: "finished", abandoned: "given up", broken: "broken",
};

export function show_task(state) {
  at("task-bar").hidden = at("bench").hidden = false;
  document.title = `${state.task.name} · Annotate · Flywheel`;
  show(at("task-name"), `${state.campaign.name} · ${state.task.name} · step ${state.step_index + 1} of ${state.task.max_steps}`);
  at("mode").hidden = state.campaign.mode !== "relabel";
  show(at("phase"), PHASES[state.phase] ?? state.phase);
  at("phase").className = `badge ${{ deciding: "accent", ended: "warn", broken: "bad" }[state.phase] ?? ""}`;
  show(at("policy"), shortened(state.policy_id, 22));
  at("policy").title = `Policy ${state.policy_id}, grammar ${state.grammar}`;
  if (at("instruction").textContent !== (state.instruction ?? "")) show(at("instruction"), state.instruction ?? "");
  show(at("address"), state.screen?.url ?? "");
  at("no-cards").hidden = state.phase !== "deciding" || state.proposals.length > 0;
  at("verifier").hidden = state.verifier === null;
  show(at("verifier"), state.verifier ? "verifier: done" : "verifier: not done");
  at("verifier").className = `badge ${state.verifier ? "good" : "bad"}`;
  show_lease(state);
  show_guidelines_mark(state);
}

/** Reminds those who have not read the present guidelines. */
export function show_guidelines_mark({ campaign }) {
  const is_new = Boolean(campaign.guidelines) && store.get(`read.${campaign.campaign_id}`) !== campaign.guidelines;
  at("guidelines").classList.toggle("is-new", is_new);
  at("guidelines").title = is_new ? "Not read yet" : "";
}

export function screen_label({ screen, step_index }) {
  return screen ? `Screen before step ${step_index + 1}, ${screen.width_px} by ${screen.height_px}, ${screen.elements.length} elements. Press / to choose one.` : "Screen";
}

/** `is_free`: no decision is under way. */
export function show_buttons({ phase, history }, is_free) {
  const is_open = is_free && phase === "deciding";
  for (const id of ["override", "beyond", "find", "execute", "more"]) at(id).disabled = !is_open;
  at("finish").disabled = !is_free || !["deciding", "ended"].includes(phase);
  at("back").disabled = !is_free || !["deciding", "proposing", "ended", "broken"].includes(phase) || history.length === 0;
  for (const id of ["skip", "flag"]) at(id).disabled = !is_free || phase === "rewinding";
}

export function show_problem(state, pass_on) {
  at("problem").hidden = !state.problem;
  if (!state.problem) return;
  show(at("problem-text"), state.problem);
  const button = (kind, text) => make("button", { type: "button", on: { click: () => pass_on(kind) } }, text);
  at("problem-buttons").replaceChildren(...(state.phase === "broken" ? [button("skip", "Skip it"), button("flag", "Flag it")] : []));
}

export function show_lease(state) {
  const left_s = state ? state.lease_until_s - Date.now() / 1000 : Infinity;
  show(at("lease"), left_s < 60 ? (left_s > 0 ? `yours for ${duration(left_s)}` : "lease over") : "");
}
