// Task design: which applications matter, what can be done in each (a tree), and what people are asked to do there.

import { get, part, post, put, remove } from "/pages/api.js";
import { ask, at, cancel_button, counted, make, ok_button, percent, show, toast } from "/pages/dom.js";
import { ask_form } from "/pages/forms.js";
import { attempt, may, start_page } from "/pages/shell.js";
import { Tree } from "/pages/tree.js";

const LEVELS = { novice: "good", intermediate: "accent", advanced: "warn", expert: "bad" };
const SCORES = {
  application: [["industry_coverage", "Industry coverage"], ["user_engagement", "User engagement"], ["market_penetration", "Market penetration"]],
  node: [["usage_frequency", "Usage frequency"], ["user_benefit", "User benefit"], ["cross_scenario_transfer", "Transfer to other scenarios"]],
};
const person = await start_page("design");
const may_edit = may(person, "reviewer");
let applications = [];
let graph = null;

function scores(kind, values) {
  return SCORES[kind].map(([name, label]) => ({ name, label, kind: "share", value: values?.[name] ?? 0.5 }));
}

function meter(value, label) {
  const node = make("meter", { min: "0", max: "1", "aria-label": label });
  node.value = value;
  return node;
}

async function load_applications(chosen = null) {
  applications = await get("/design/applications");
  at("applications").replaceChildren(...applications.map((one) => make("li", {}, make("button", {
    type: "button", class: "choose", "aria-pressed": String(one.application_id === (chosen ?? graph?.application.application_id)), data: { id: one.application_id }, on: { click: () => load_graph(one.application_id) },
  }, make("span", {}, one.name), meter(one.importance, `Importance ${percent(one.importance)}`), make("span", { class: "small quiet" }, `${counted(one.num_nodes, "function")} · ${counted(one.num_queries, "query", "queries")} · ${counted(one.num_recordings, "recording")}`)))));
  if (!applications.length) at("applications").replaceChildren(make("li", { class: "empty" }, "No application yet."));
}

async function load_graph(application_id, node_id = null) {
  if (!(await attempt(async () => (graph = await get(`/design/applications/${part(application_id)}/graph`))))) return;
  for (const button of at("applications").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.id === application_id));
  show(at("graph-title"), `Task graph of ${graph.application.name}`);
  tree.show(graph.nodes, node_id ?? graph.nodes[0]?.node_id ?? null);
  show_queries();
  show_buttons();
}

function show_buttons() {
  for (const [id, is_on] of [["new-application", true], ["edit-application", Boolean(graph)], ["remove-application", Boolean(graph)], ["new-node", Boolean(graph)], ["edit-node", Boolean(tree.chosen)], ["remove-node", Boolean(tree.chosen)], ["new-query", Boolean(tree.chosen)]]) {
    at(id).hidden = !may_edit;
    at(id).disabled = !is_on;
  }
}

function show_queries() {
  const node = graph?.nodes.find((one) => one.node_id === tree.chosen);
  show(at("queries-title"), node ? `Queries: ${node.title}` : "Queries");
  const found = (graph?.queries ?? []).filter((query) => query.node_id === tree.chosen);
  at("queries").replaceChildren(...(found.length ? found.map(query_node) : [make("p", { class: "empty" }, node ? "No query yet." : "Choose a function of an application.")]));
}

function query_node(query) {
  const rubric = [counted(query.num_steps, "step"), query.crosses_pages && "crosses pages", query.num_prerequisites && counted(query.num_prerequisites, "prerequisite"), query.handles_exceptions && "exceptions"].filter(Boolean);
  return make("article", { class: "query" },
    make("div", { class: "row" }, make("span", { class: `badge ${LEVELS[query.difficulty]}` }, query.difficulty), make("span", { class: "badge" }, `${query.track} track`),
      query.is_retired && make("span", { class: "badge bad" }, "retired"), make("span", { class: "small quiet far" }, counted(query.num_recordings, "recording"))),
    make("p", { class: "wrap" }, query.text), make("p", { class: "small quiet" }, `${rubric.join(" · ")}${query.author ? ` · by ${query.author}` : ""} · `, make("code", { class: "mono", title: "What `flywheel record start --node` takes" }, query.query_id)),
    may_edit && !query.is_retired && make("div", { class: "row" }, make("button", { type: "button", on: { click: () => edit_query(query) } }, "Edit"),
      make("button", { type: "button", class: "danger", on: { click: () => retire(query) } }, "Retire")));
}

async function edit_application(one = null) {
  const saved = await ask_form({
    title: one ? "Edit application" : "New application", fields: [
      { name: "name", label: "Name", value: one?.name, required: true, max: 128 }, { name: "address", label: "Address", value: one?.address, hint: "of a site; empty for a program" }, ...scores("application", one),
    ],
    send: (values) => (one ? put(`/design/applications/${part(one.application_id)}`, { ...values, address: values.address || null }) : post("/design/applications", { ...values, address: values.address || null })),
  });
  if (saved) await attempt(() => load_applications(saved.application_id)) && load_graph(saved.application_id);
}

async function edit_node(node = null) {
  const { application_id } = graph.application;
  const parents = [["", "none: a main function"], ...graph.nodes.filter((one) => one.node_id !== node?.node_id).map((one) => [one.node_id, one.title])];
  const saved = await ask_form({
    title: node ? "Edit function" : "New function", fields: [
      { name: "title", label: "What it does", value: node?.title, required: true, max: 200 }, { name: "parent_id", label: "Part of", kind: "choice", options: parents, value: node ? node.parent_id ?? "" : tree.chosen ?? "" },
      ...scores("node", node),
    ],
    send: (values) => {
      const body = { application_id, ...values, parent_id: values.parent_id || null };
      return node ? put(`/design/nodes/${part(node.node_id)}`, body) : post("/design/nodes", body);
    },
  });
  if (saved) load_graph(application_id, saved.node_id);
}

async function edit_query(query = null) {
  const node_id = query?.node_id ?? tree.chosen;
  const saved = await ask_form({
    title: query ? "Edit query" : "New query", fields: [
      { name: "text", label: "What the person is asked to do", kind: "area", value: query?.text, required: true, max: 4000 },
      { name: "track", label: "Track", kind: "choice", options: [["expert", "expert: shows how it is done"], ["novice", "novice: finds out"]], value: query?.track ?? "expert" },
      { name: "num_steps", label: "Steps it takes", kind: "number", min: 1, max: 1000, step: 1, value: query?.num_steps ?? 5, required: true },
      { name: "num_prerequisites", label: "Prerequisites", kind: "number", min: 0, max: 100, step: 1, value: query?.num_prerequisites ?? 0, required: true },
      { name: "crosses_pages", label: "Works across pages or windows", kind: "check", value: query?.crosses_pages }, { name: "handles_exceptions", label: "Something goes wrong on the way", kind: "check", value: query?.handles_exceptions },
    ],
    send: (values) => (query ? put(`/design/queries/${part(query.query_id)}`, { node_id, ...values }) : post("/design/queries", { node_id, ...values })),
  });
  if (saved) load_graph(graph.application.application_id, node_id);
}

/** `nodes`: functions that would go along, with their queries. */
async function is_sure(what, nodes) {
  const ids = new Set(nodes.map((node) => node.node_id));
  const num_queries = graph.queries.filter((query) => ids.has(query.node_id)).length;
  const answer = await ask({
    title: `Remove ${what}?`, body: [make("p", {}, `${nodes.length} ${nodes.length === 1 ? "function goes" : "functions go"} with it, and ${num_queries} ${num_queries === 1 ? "query" : "queries"}. This cannot be undone.`)],
    buttons: [cancel_button(), ok_button("Remove", "ok", "danger")],
  });
  return Boolean(answer);
}

async function remove_application() {
  const { application_id, name } = graph.application;
  if (!(await is_sure(name, graph.nodes)) || !(await attempt(() => remove(`/design/applications/${part(application_id)}`), "Removed."))) return;
  graph = null;
  await attempt(() => load_applications());
  if (applications.length) return load_graph(applications[0].application_id);
  show(at("graph-title"), "Task graph");
  tree.show([], null);
  show_queries();
  show_buttons();
}

async function remove_node() {
  const node = graph.nodes.find((one) => one.node_id === tree.chosen);
  const gone = [node];
  for (const one of gone) gone.push(...graph.nodes.filter((other) => other.parent_id === one.node_id));
  if (!(await is_sure(node.title, gone)) || !(await attempt(() => remove(`/design/nodes/${part(node.node_id)}`), "Removed."))) return;
  await attempt(() => load_applications());
  load_graph(node.application_id, node.parent_id);
}

async function retire(query) {
  if (await attempt(() => post(`/design/queries/${part(query.query_id)}/retire`), "Retired.")) load_graph(graph.application.application_id, query.node_id);
}

const tree = new Tree(at("graph"), {
  on_choose: () => (show_queries(), show_buttons()), on_edit: (node) => may_edit && edit_node(node),
  said: (node) => [meter(node.importance, `Importance ${percent(node.importance)}`), make("span", { class: "small quiet" }, String(graph.queries.filter((query) => query.node_id === node.node_id && !query.is_retired).length))],
});
at("new-application").addEventListener("click", () => edit_application());
at("new-node").addEventListener("click", () => edit_node());
at("new-query").addEventListener("click", () => edit_query());
at("edit-application").addEventListener("click", () => edit_application(graph.application));
at("remove-application").addEventListener("click", remove_application);
at("remove-node").addEventListener("click", remove_node);
at("edit-node").addEventListener("click", () => edit_node(graph.nodes.find((node) => node.node_id === tree.chosen)));
show_buttons();
try {
  await load_applications();
  if (applications.length) await load_graph(applications[0].application_id);
} catch (error) {
  toast(error.message, "bad");
}
