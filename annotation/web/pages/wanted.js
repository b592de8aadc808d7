// What to record: the queries of the task design, by application, each with the command that records it on one's own machine.

import { get, part } from "/pages/api.js";
import { at, make, toast } from "/pages/dom.js";
import { copy_text } from "/pages/forms.js";
import { attempt } from "/pages/shell.js";

const LEVELS = { novice: "good", intermediate: "accent", advanced: "warn", expert: "bad" };

/** One word for a POSIX shell; nothing in it can end the line. */
function quoted(text) {
  const line = text.replace(/[\s\p{Cc}]+/gu, " ").trim();
  return `'${line.replaceAll("'", "'\\''")}'`;
}

/** The recording is named after its query: the ids of queries are names of recordings too. */
function command(query, application) {
  return `flywheel record start ${query.query_id} --query=${quoted(query.text)} --app=${quoted(application.name)} --track ${query.track} --node ${query.query_id}`;
}

/** Those that nobody has recorded yet come first. */
function queries_of({ application, nodes, queries }) {
  const titles = new Map(nodes.map((node) => [node.node_id, node.title]));
  const asked = queries.filter((query) => !query.is_retired).sort((one, other) => one.num_recordings - other.num_recordings);
  if (!asked.length) return [make("p", { class: "quiet" }, "Nothing is asked for here.")];
  return asked.map((query) => {
    const field = make("input", { class: "mono", readonly: true, value: command(query, application), "aria-label": `Command to record: ${query.text}`, on: { focus: (event) => event.target.select() } });
    return make("article", { class: "query", "aria-label": query.text },
      make("div", { class: "row" }, make("span", { class: `badge ${LEVELS[query.difficulty]}` }, query.difficulty), make("span", { class: "badge" }, `${query.track} track`), make("span", { class: "small quiet" }, titles.get(query.node_id) ?? ""),
        make("span", { class: "small quiet far" }, `${query.num_recordings} ${query.num_recordings === 1 ? "recording" : "recordings"}`)),
      make("p", { class: "wrap" }, query.text),
      make("div", { class: "row command" }, field, make("button", { type: "button", "aria-label": `Copy the command to record: ${query.text}`, on: { click: () => copy_text(field) } }, "Copy")));
  });
}

/** Fills #wanted-list; an application's queries come when it is opened. */
export async function show_wanted() {
  let applications;
  try {
    applications = (await get("/design/applications")).filter((one) => one.num_queries > 0);
  } catch (error) {
    return toast(error.message, "bad");
  }
  if (!applications.length) return at("wanted-list").replaceChildren(make("p", { class: "quiet" }, "Nothing in particular is asked for now: record what you do anyway, with `flywheel record start NAME --query \"…\"`."));
  at("wanted-list").replaceChildren(...applications.map((one, index) => {
    const list = make("div", { class: "stack" });
    const open = async (details) => details.open && !list.children.length && attempt(async () => list.replaceChildren(...queries_of(await get(`/design/applications/${part(one.application_id)}/graph`))));
    const node = make("details", { on: { toggle: (event) => open(event.target) } }, make("summary", {}, make("b", {}, one.name), ` ${one.num_queries} ${one.num_queries === 1 ? "query" : "queries"}`), list);
    node.open = index === 0;
    return node;
  }));
}
