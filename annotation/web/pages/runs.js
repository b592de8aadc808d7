// Finished runs: one's own; reviewers see everybody's. A list to filter, one of them step by step, and the way to take one back.
// The address says what is shown: ?campaign=, ?user=, ?status=, ?run=.

import { get, part } from "/pages/api.js";
import { table } from "/pages/chart.js";
import { announce, at, make, show, time_text, toast } from "/pages/dom.js";
import { facts, opinion_note, picture_of, status_badge, step_facts, step_mark, step_opinions, take_back, verdict_text, withdrawal_note } from "/pages/finished.js";
import { Keys } from "/pages/keys.js";
import { Replay } from "/pages/replay.js";
import { attempt, may, start_page } from "/pages/shell.js";

const FILTERS = ["campaign", "user", "status"];
const person = await start_page("runs");
const sees_all = may(person, "reviewer");
let current = null;
let items = [];
let asking = 0; // how often something was asked for: what is answered after another question is not shown

function asked() {
  return new URLSearchParams(location.search);
}

function go_to(query) {
  history.pushState(null, "", query.size ? `/runs?${query}` : "/runs");
  return show_asked();
}

async function show_asked() {
  const run_id = asked().get("run");
  if (run_id) return open_run(run_id);
  return show_list();
}

/** What the list is asked for, as the server calls it. */
function query_of(more = {}) {
  const wanted = asked();
  const query = new URLSearchParams(more);
  for (const [name, parameter] of [["campaign", "campaign_id"], ["user", "user"], ["status", "status"]]) if (wanted.get(name)) query.set(parameter, wanted.get(name));
  return query;
}

async function show_list() {
  const number = ++asking;
  current = null;
  at("case").hidden = true;
  at("list").hidden = at("list-head").hidden = false;
  let found;
  try {
    found = await get(`/runs?${query_of()}`);
  } catch (error) {
    if (number === asking) toast(error.message, "bad");
    return;
  }
  if (number !== asking) return;
  items = found.runs;
  show_filters(found);
  show(at("numbers"), `${found.num} ${found.num === 1 ? "run" : "runs"}`);
  show_rows(found.num);
}

function show_rows(num) {
  if (!items.length) return at("list").replaceChildren(make("p", { class: "empty" }, FILTERS.some((name) => asked().get(name)) ? "No finished run is like that." : "Nothing is finished yet."));
  const columns = [
    { title: "Task", text: (item) => make("a", { class: "opens", href: `/runs?run=${part(item.run_id)}`, on: { click: (event) => opened(event, item) } }, `${item.task_name} · ${item.seed}`) },
    { title: "Status", text: (item) => status_badge(item.status) }, { title: "Campaign", text: (item) => item.campaign },
    ...(sees_all ? [{ title: "Person", text: (item) => item.annotator }] : []),
    { title: "Steps", text: (item) => item.num_steps, is_number: true }, { title: "Annotator says", text: (item) => verdict_text(item.person_verdict) },
    { title: "Verifier says", text: (item) => verdict_text(item.verifier_verdict) }, { title: "Finished", text: (item) => time_text(item.finished_at_s) },
    { title: "", text: (item) => may_withdraw(item) && make("button", { type: "button", class: "plain", "aria-label": `Withdraw ${item.task_name} ${item.seed}`, on: { click: () => withdraw(item) } }, "Withdraw…") },
  ];
  const older = items.length < num && make("div", { class: "row" }, make("button", { type: "button", on: { click: () => add_older(num) } }, "Older runs"));
  at("list").replaceChildren(...[table(items, columns, "Finished runs"), older].filter(Boolean));
}

/** Opens here; with a key held, where the browser is asked to. */
function opened(event, item) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const query = asked();
  query.set("run", item.run_id);
  go_to(query);
}

async function add_older(num) {
  const [number, shown] = [asking, items];
  let older = [];
  if (!(await attempt(async () => (older = (await get(`/runs?${query_of({ before: shown.at(-1).run_id })}`)).runs)))) return;
  if (number !== asking || items !== shown) return;
  items = [...shown, ...older];
  show_rows(num);
  announce(`${older.length} more`);
}

function show_filters({ campaigns, people }) {
  for (const node of document.querySelectorAll(".of-others")) node.hidden = !sees_all;
  fill(at("campaign"), campaigns.map((one) => [one.campaign_id, one.name]));
  fill(at("user"), people.map((name) => [name, name]));
  for (const name of FILTERS) at(name).value = asked().get(name) ?? "";
}

function fill(select, options) {
  select.replaceChildren(select.options[0], ...options.map(([value, text]) => make("option", { value }, text)));
}

function may_withdraw(item) {
  return item.status !== "withdrawn" && (item.is_own || sees_all);
}

async function open_run(run_id) {
  const number = ++asking;
  let detail = null;
  const has_come = await attempt(async () => (detail = await get(`/runs/${part(run_id)}/replay`)));
  if (number !== asking) return;
  if (!has_come) return back();
  const { item, run, reviews } = detail;
  const replay = new Replay({
    title: `${run.annotator}: ${verdict_text(run.person_verdict)}`, steps: run.steps, last_screen: run.last_screen, address_of: picture_of(run.run_id), mark_of: (index) => step_mark(reviews, run.steps[index]),
    said: (step) => [...step_facts(step), ...step_opinions(reviews, step)],
  });
  current = { item, replay };
  at("case").replaceChildren(
    make("header", { class: "stack" },
      make("div", { class: "card-head" }, make("button", { type: "button", on: { click: back } }, "← Runs", make("kbd", {}, "Esc")), make("h1", { tabindex: "-1" }, `${item.task_name} · ${item.seed}`), status_badge(item.status),
        make("div", { class: "row far" },
          detail.review && make("a", { class: "button primary", href: `/review?run=${part(item.run_id)}` }, detail.review === "adjudication" ? "Adjudicate" : "Review it"),
          may_withdraw(item) && make("button", { type: "button", class: "danger", on: { click: () => withdraw(item) } }, "Withdraw…"))),
      make("p", { class: "wrap" }, make("b", {}, detail.instruction ?? "")),
      withdrawal_note(detail.withdrawal),
      run.note && make("p", { class: "note wrap" }, `Annotator's note: ${run.note}`),
      reviews.map(opinion_note)),
    make("div", { class: "replays" }, replay.node, facts(run, [["Campaign", item.campaign], ["Finished", time_text(item.finished_at_s)], ["Id", item.run_id]])),
  );
  at("list").hidden = at("list-head").hidden = true;
  at("case").hidden = false;
  at("case").querySelector("h1").focus();
  announce(`${item.task_name}, ${run.steps.length} steps`);
}

function back() {
  const query = asked();
  query.delete("run");
  return go_to(query);
}

async function withdraw(item) {
  if (await take_back(`/runs/${part(item.run_id)}`, item.is_own ? "this run of yours" : `this run of ${item.annotator}`)) show_asked();
}

const is_open = () => current !== null;
const keys = new Keys([
  { keys: ["ArrowRight", "j"], shown: "→", what: "Next step", group: "Run", when: is_open, repeats: true, run: () => current.replay.go(current.replay.index + 1) },
  { keys: ["ArrowLeft", "k"], shown: "←", what: "Step before", group: "Run", when: is_open, repeats: true, run: () => current.replay.go(current.replay.index - 1) },
  { keys: ["z"], shown: "Z", what: "Enlarge the picture; Z or Esc again", group: "Run", when: is_open, run: () => current.replay.enlarge() },
  { keys: ["Escape"], shown: "Esc", what: "Back to the list", group: "Run", when: is_open, run: back },
  { keys: ["?"], what: "These shortcuts", group: "Run", run: () => keys.help() },
]);
for (const name of FILTERS) {
  at(name).addEventListener("change", () => {
    const query = asked();
    if (at(name).value) query.set(name, at(name).value);
    else query.delete(name);
    go_to(query);
  });
}
addEventListener("popstate", show_asked);
show_asked();
