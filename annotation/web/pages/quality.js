// Quality: agreement, people, throughput, and what people did with each policy version's proposals.

import { get, part } from "/pages/api.js";
import { bar_chart, line_chart, table } from "/pages/chart.js";
import { at, duration, make, percent, shortened, toast } from "/pages/dom.js";
import { start_page } from "/pages/shell.js";

const number = (value) => (value === null ? "–" : value.toFixed(2));
const nothing = (text) => make("p", { class: "empty" }, text);
let wanted = 0;

async function load() {
  const number = ++wanted;
  const query = new URLSearchParams({ days: at("days").value });
  if (at("campaign").value) query.set("campaign_id", at("campaign").value);
  let quality;
  try {
    quality = await get(`/quality?${query}`);
  } catch (error) {
    return toast(error.message, "bad");
  }
  if (number !== wanted) return;
  show_policies(quality.policies);
  show_days(quality.days);
  show_agreement(quality.agreement);
  show_people(quality.people);
}

function show_policies(policies) {
  if (!policies.length) return at("policies").replaceChildren(nothing("No step was decided in this time."));
  const names = policies.map((policy) => shortened(policy.policy_id, 12));
  const series = ["accept", "edit", "override"].map((name) => ({ name: `${name} rate`, values: policies.map((policy) => policy[name]) }));
  at("policies").replaceChildren(line_chart("Shares of accepted, edited and overridden steps by policy version", names, series), table(policies, [
    { title: "Policy", text: (row) => make("span", { class: "mono" }, row.policy_id), is_whole: true }, { title: "Steps", text: (row) => row.num_steps, is_number: true },
    ...["accept", "edit", "override", "beyond_repair"].map((name) => ({ title: name.replace("_", " "), text: (row) => percent(row[name]), is_number: true })),
  ], "Rates by policy version"));
}

function show_days(days) {
  if (!days.some((day) => day.num_runs)) return at("throughput").replaceChildren(nothing("Nothing was finished in this time."));
  at("throughput").replaceChildren(bar_chart("Finished runs by day", days.map((day) => day.day.slice(5)), days.map((day) => day.num_runs)),
    make("details", {}, make("summary", {}, "As a table"), table(days, [
      { title: "Day", text: (row) => row.day }, { title: "Runs", text: (row) => row.num_runs, is_number: true }, { title: "Steps", text: (row) => row.num_steps, is_number: true },
      { title: "People", text: (row) => row.num_people, is_number: true },
    ], "Throughput by day")));
}

function show_agreement(agreement) {
  if (!agreement.length) return at("agreement").replaceChildren(nothing("Nothing was judged by two people yet."));
  at("agreement").replaceChildren(table(agreement, [
    { title: "Field", text: (row) => row.field.replaceAll("_", " ") }, { title: "Cohen's κ", text: (row) => number(row.kappa), is_number: true },
    { title: "Krippendorff's α", text: (row) => number(row.alpha), is_number: true }, { title: "Equal answers", text: (row) => percent(row.observed), is_number: true },
    { title: "Items", text: (row) => row.num_items, is_number: true }, { title: "People", text: (row) => row.num_people, is_number: true },
  ], "Agreement by field"), make("p", { class: "small quiet" }, "κ and α: 1 is full agreement, 0 is chance. A dash: too few items, or nobody ever answered differently."));
}

function show_people(people) {
  if (!people.length) return at("people").replaceChildren(nothing("Nobody annotated in this time."));
  const share = (title, name) => ({ title, text: (row) => percent(row[name]), is_number: true });
  at("people").replaceChildren(table(people, [
    { title: "Name", text: (row) => row.name }, { title: "Runs", text: (row) => row.num_runs, is_number: true }, { title: "Steps", text: (row) => row.num_steps, is_number: true },
    { title: "Worked", text: (row) => duration(row.worked_s), is_number: true }, { title: "Median step", text: (row) => (row.median_step_s === null ? "–" : `${row.median_step_s.toFixed(1)} s`), is_number: true },
    share("Accept", "accept_share"), share("Edit", "edit_share"), share("Override", "override_share"), { title: "Backs", text: (row) => row.num_backs, is_number: true },
    share("With verifier", "agrees_with_verifier"), share("Approved", "approved_share"), share("Steps right", "right_share"),
  ], "Annotators"));
}

await start_page("quality");
for (const id of ["campaign", "days"]) at(id).addEventListener("change", load);
try {
  const campaigns = await get("/campaigns");
  at("campaign").append(...campaigns.map((one) => make("option", { value: part(one.campaign_id) }, one.name)));
} catch (error) {
  toast(error.message, "bad");
}
load();
