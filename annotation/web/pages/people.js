// People: accounts and their roles, invitations, and the log of who did what.

import { get, part, patch, post } from "/pages/api.js";
import { at, make, time_text, toast } from "/pages/dom.js";
import { ask_form, show_once } from "/pages/forms.js";
import { attempt, start_page } from "/pages/shell.js";

const ROLES = ["annotator", "reviewer", "admin"];
const person = await start_page("people");
let oldest = null;

async function load_people() {
  const people = await get("/users");
  at("people").replaceChildren(...people.map((one) => {
    const is_disabled = one.disabled_at_s !== null && one.disabled_at_s !== undefined;
    const role = make("select", { "aria-label": `Role of ${one.name}`, disabled: one.user_id === person.user_id, on: { change: (event) => change(one, { role: event.target.value }) } },
      ROLES.map((name) => make("option", { value: name }, name)));
    role.value = one.role;
    return make("tr", {}, make("td", {}, make("b", {}, one.name), one.is_program && make("span", { class: "badge" }, "program")), make("td", {}, role), make("td", {}, time_text(one.created_at_s)),
      make("td", {}, make("span", { class: `badge ${is_disabled ? "bad" : "good"}` }, is_disabled ? "disabled" : "active")),
      make("td", {}, make("div", { class: "row" },
        one.user_id !== person.user_id && make("button", { type: "button", class: is_disabled ? "" : "danger", on: { click: () => change(one, { is_disabled: !is_disabled }) } }, is_disabled ? "Enable" : "Disable"),
        !one.is_program && !is_disabled && make("button", { type: "button", on: { click: () => invite_again(one) } }, "New password link"))));
  }));
}

async function change(one, body) {
  await attempt(() => patch(`/users/${part(one.user_id)}`, body), `${one.name} was changed.`);
  reload();
}

async function invite() {
  const answer = await ask_form({
    title: "Invite somebody", ok: "Make the link", fields: [{ name: "role", label: "Role", kind: "choice", options: [["annotator", "annotator: annotates"], ["reviewer", "reviewer: also reviews"], ["admin", "admin: also runs it all"]], value: "annotator" }],
    send: (values) => post("/invitations", values),
  });
  if (answer) show_link(answer);
}

async function invite_again(one) {
  let answer = null;
  if (await attempt(async () => (answer = await post("/invitations", { role: one.role, user_id: one.user_id })))) show_link(answer);
}

/** The server keeps only its digest. */
async function show_link(answer) {
  await show_once({ title: "The link", words: "Send it to the person; it works once and is not shown again.", label: "Link", value: new URL(answer.path, location.origin).href, id: "link" });
  reload();
}

async function load_audit(is_more = false) {
  const entries = await get(`/audit${is_more && oldest !== null ? `?before=${part(oldest)}` : ""}`);
  const rows = entries.map((entry) => make("tr", {}, make("td", {}, time_text(entry.at_s)), make("td", {}, entry.user ?? "–"), make("td", { class: "mono" }, entry.action), make("td", { class: "mono" }, entry.subject ?? ""),
    make("td", { class: "small" }, Object.entries(entry.detail ?? {}).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ")), make("td", { class: "mono" }, entry.address ?? "")));
  if (is_more) at("audit").append(...rows);
  else at("audit").replaceChildren(...rows);
  oldest = entries.at(-1)?.entry_id ?? oldest;
  at("more").hidden = entries.length === 0 || oldest <= 1; // they are numbered from 1
}

async function reload() {
  try {
    await Promise.all([load_people(), load_audit()]);
  } catch (error) {
    toast(error.message, "bad");
  }
}

at("invite").addEventListener("click", invite);
at("more").addEventListener("click", () => attempt(() => load_audit(true)));
reload();
