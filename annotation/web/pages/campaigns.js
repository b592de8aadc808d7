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
  const spec = one.spec ?? one;
  const { num_finished = 0, num_leased = 0, num_flagged = 0 } = one.progress ?? {};
  const bar = make("progress", { max: String(spec.target_count), value: String(Math.min(num_finished, spec.target_count)), "aria-label": `${num_finished} of ${spec.target_count} finished` });
  const facts = [
    ["Tasks", spec.tasks.join(", ")], ["Policy", spec.policy], ["Candidates", `${spec.num_candidates} at temperature ${spec.temperature}`], ["Annotated twice", percent(spec.double_share)],
    ["People", spec.members?.length ? spec.members.join(", ") : "every annotator"], ["Now", `${num_leased} at work, ${num_flagged} flagged`], ["Since", time_text(one.created_at_s)],
  ];
  const change = (state) => make("button", { type: "button", on: { click: async () => (await attempt(() => patch(`/campaigns/${part(one.campaign_id)}`, { state }), `${spec.name}: ${state}.`)) && load() } },
    { active: "Resume", paused: "Pause", ended: "End" }[state]);
  return make("article", { class: "card", "aria-label": spec.name },
    make("div", { class: "card-head" }, make("h2", {}, spec.name), make("span", { class: `badge ${STATES[one.state]}` }, one.state), make("span", { class: "badge" }, spec.mode),
      make("span", { class: "far small" }, `${num_finished} of ${spec.target_count}`)),
    bar, make("dl", { class: "facts" }, facts.map(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
    make("div", { class: "row" }, make("button", { type: "button", on: { click: () => edit(one) } }, "Edit"),
      one.state === "active" && change("paused"), one.state === "paused" && change("active"), one.state !== "ended" && change("ended")));
}

const shared = (spec) => [
  { name: "target_count", label: "Episodes wanted", kind: "number", min: 1, max: 1000000, step: 1, value: spec?.target_count ?? 100, required: true, hint: "second copies not counted" },
  { name: "members", label: "People", kind: "lines", rows: 3, value: spec?.members ?? [], hint: "names, one a line; none: every annotator" },
  { name: "guidelines", label: "Guidelines", kind: "area", rows: 6, value: spec?.guidelines ?? "", hint: "plain text, shown by G on the annotator's page" },
];

async function create() {
  const saved = await ask_form({
    title: "New campaign", wide: true, ok: "Create", fields: [
      { name: "name", label: "Name", required: true, max: 128 },
      { name: "tasks", label: "Tasks", kind: "lines", rows: 3, required: true, hint: "source, source:group, source/name, or pool; one a line" },
      { name: "mode", label: "Mode", kind: "choice", options: MODES, value: "intervene" },
      { name: "policy", label: "Policy", value: "newest", required: true, hint: "newest, or a checkpoint id" },
      { name: "num_candidates", label: "Candidates at each step", kind: "number", min: 1, max: 8, step: 1, value: 3, required: true },
      { name: "temperature", label: "Temperature of the further candidates", kind: "number", min: 0, max: 5, value: 1, required: true },
      { name: "double_share", label: "Share annotated twice", kind: "share", value: 0.1 },
      { name: "lease_s", label: "Lease in seconds", kind: "number", min: 30, max: 7200, value: 300, required: true, hint: "after the last sign of life" },
      ...shared(null),
    ],
    send: (values) => post("/campaigns", values),
  });
  if (saved) load();
}

async function edit(one) {
  const saved = await ask_form({ title: `Edit ${(one.spec ?? one).name}`, wide: true, fields: shared(one.spec ?? one), send: (values) => patch(`/campaigns/${part(one.campaign_id)}`, values) });
  if (saved) load();
}

await start_page("campaigns");
at("new").addEventListener("click", create);
load();
