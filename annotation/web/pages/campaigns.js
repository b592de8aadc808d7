// Campaigns: what is annotated, by whom, how often; made, watched, changed, paused and ended here.

import { get, part, patch, post } from "/pages/api.js";
import { at, make, percent, time_text, toast } from "/pages/dom.js";
import { ask_form } from "/pages/forms.js";
import { attempt, start_page } from "/pages/shell.js";

const STATES = { active: "good", paused: "warn", ended: "" };
const MODES = [["intervene", "intervene: what the person chose is carried out"], ["relabel", "relabel: the policy's proposal is carried out, the answer is its label"]];

async function load() {
  let campaigns;
  try {
    campaigns = await get("/campaigns");
  } catch (error) {
    return toast(error.message, "bad");
  }
  at("list").replaceChildren(...(campaigns.length ? campaigns.map(campaign_card) : [make("p", { class: "card empty" }, "No campaign yet: make the first one.")]));
}

function campaign_card(one) {
  const { num_finished, num_leased, num_flagged } = one.progress;
  const bar = make("progress", { max: String(one.target_count), value: String(Math.min(num_finished, one.target_count)), "aria-label": `${num_finished} of ${one.target_count} finished` });
  const facts = [
    ["Tasks", one.tasks.join(", ")], ["Policy", one.policy], ["Candidates", `${one.num_candidates} at temperature ${one.temperature}`], ["Annotated twice", percent(one.double_share)], ["Priority", String(one.priority)],
    ["People", one.members?.length ? one.members.join(", ") : "every annotator"], ["Now", `${num_leased} at work, ${num_flagged} flagged`], ["Since", time_text(one.created_at_s)],
  ];
  const change = (state) => make("button", { type: "button", on: { click: async () => (await attempt(() => patch(`/campaigns/${part(one.campaign_id)}`, { state }), `${one.name}: ${state}.`)) && load() } },
    { active: "Resume", paused: "Pause", ended: "End" }[state]);
  return make("article", { class: "card", "aria-label": one.name },
    make("div", { class: "card-head" }, make("h2", {}, one.name), make("span", { class: `badge ${STATES[one.state]}` }, one.state), make("span", { class: "badge" }, one.mode),
      make("span", { class: "far small" }, `${num_finished} of ${one.target_count}`)),
    bar, make("dl", { class: "facts wide" }, facts.map(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
    make("div", { class: "row" }, make("button", { type: "button", on: { click: () => edit(one) } }, "Edit"),
      one.state === "active" && change("paused"), one.state === "paused" && change("active"), one.state !== "ended" && change("ended")));
}

const shared = (spec) => [
  { name: "target_count", label: "Episodes wanted", kind: "number", min: 1, max: 1000000, step: 1, value: spec?.target_count ?? 100, required: true, hint: "second copies not counted" },
  { name: "policy", label: "Policy", value: spec?.policy ?? "newest", required: true, max: 80, hint: "newest, or a checkpoint id; what is under way ends with the one that it began with" },
  { name: "double_share", label: "Share annotated twice", kind: "share", value: spec?.double_share ?? 0.1, hint: "of what nobody has begun" },
  { name: "priority", label: "Priority", kind: "number", min: -100, max: 100, step: 1, value: spec?.priority ?? 0, required: true, hint: "of several campaigns the higher one is asked for first" },
  { name: "members", label: "People", kind: "lines", rows: 3, value: spec?.members ?? [], hint: "names, one a line; none: every annotator" },
  { name: "guidelines", label: "Guidelines", kind: "area", rows: 6, value: spec?.guidelines ?? "", hint: "plain text, shown by G on the annotator's page" },
];

/** What a selection selects, and where the policy is weakest in it. */
async function count_tasks(text) {
  const query = new URLSearchParams(text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => ["select", line]));
  if (![...query].length) return "";
  const found = await get(`/tasks?${query}`);
  const weakest = found.tasks.slice(0, 3).map((task) => `${task.name} (${percent(1 - task.weakness)} solved)`);
  return `${found.num} ${found.num === 1 ? "task" : "tasks"}; weakest: ${weakest.join(", ") || "none"}`;
}

async function create() {
  const saved = await ask_form({
    title: "New campaign", wide: true, ok: "Create", fields: [
      { name: "name", label: "Name", required: true, max: 128 },
      { name: "tasks", label: "Tasks", kind: "lines", rows: 3, required: true, hint: "source, source:group, source/name, or pool; one a line", check: count_tasks },
      { name: "mode", label: "Mode", kind: "choice", options: MODES, value: "intervene" },
      { name: "num_candidates", label: "Candidates at each step", kind: "number", min: 1, max: 8, step: 1, value: 3, required: true },
      { name: "temperature", label: "Temperature of the further candidates", kind: "number", min: 0, max: 5, value: 1, required: true },
      { name: "lease_s", label: "Lease in seconds", kind: "number", min: 30, max: 7200, value: 300, required: true, hint: "after the last sign of life" },
      ...shared(null),
    ],
    send: (values) => post("/campaigns", values),
  });
  if (saved) load();
}

async function edit(one) {
  const saved = await ask_form({ title: `Edit ${one.name}`, wide: true, fields: shared(one), send: ({ policy, ...values }) => patch(`/campaigns/${part(one.campaign_id)}`, policy === one.policy ? values : { policy, ...values }) });
  if (saved) load();
}

await start_page("campaigns");
at("new").addEventListener("click", create);
load();
