// My work: what I am in the middle of, what is next, how today went.

import { get, part, post, remove } from "/pages/api.js";
import { table } from "/pages/chart.js";
import { at, make, shortened, time_text, toast } from "/pages/dom.js";
import { ask_form, show_once } from "/pages/forms.js";
import { attempt, start_page } from "/pages/shell.js";

function number(name, text) {
  return make("div", { class: "number" }, make("dt", {}, name), make("dd", {}, text));
}

function show_now({ held }) {
  at("now-body").replaceChildren(...(held
    ? [make("p", {}, "You are in the middle of ", make("b", {}, held.task_name), ` (${held.campaign_name}). It stays yours until ${time_text(held.lease_until_s)}.`), make("a", { class: "button primary", href: "/work" }, "Go on")]
    : [make("p", {}, "Nothing is in your hands."), make("a", { class: "button primary", href: "/work" }, "Annotate the next task")]));
}

function show_today(work) {
  at("today").replaceChildren(number("Episodes today", String(work.num_today)), number("Decisions today", String(work.num_decisions_today)), number("Episodes in all", make("a", { href: "/runs", title: "My runs" }, String(work.num_finished))));
}

function show_campaigns(campaigns) {
  const open = campaigns.filter((one) => one.state === "active");
  at("campaigns").replaceChildren(...(open.length ? open.map((one) => make("article", { class: "card", "aria-label": one.name },
    make("div", { class: "card-head" }, make("h3", {}, one.name), make("span", { class: "badge" }, one.mode)),
    make("p", { class: "wrap small" }, shortened(one.guidelines || "No guidelines.", 240)),
    make("a", { class: "button", href: `/work?campaign=${part(one.campaign_id)}` }, "Work on this"))) : [make("p", { class: "empty" }, "No campaign is open to you now.")]));
}

async function change_password() {
  await ask_form({
    title: "Change my password", ok: "Change", fields: [
      { name: "old", label: "Password now", kind: "password", required: true, autocomplete: "current-password" },
      { name: "new", label: "New password", kind: "password", required: true, autocomplete: "new-password", hint: "at least 12 characters" },
    ],
    send: async ({ old, new: fresh }) => {
      await post("/me/password", { old, new: fresh });
      toast("The password is changed; other logins have ended.", "good");
      setTimeout(() => location.reload(), 1200);
    },
  });
}

async function show_tokens() {
  const tokens = await get("/me/tokens");
  at("tokens").replaceChildren(tokens.length ? table(tokens, [
    { title: "For", text: (one) => one.label }, { title: "Made", text: (one) => time_text(one.created_at_s) }, { title: "Used", text: (one) => time_text(one.seen_at_s) },
    { title: "Until", text: (one) => time_text(one.expires_at_s) },
    { title: "", text: (one) => make("button", { type: "button", "aria-label": `End the token for ${one.label}`, on: { click: () => end_token(one) } }, "End") },
  ], "Tokens of my programs") : make("p", { class: "quiet" }, "No program works in my name."));
}

async function end_token(one) {
  await attempt(() => remove(`/me/tokens/${part(one.token_id)}`), "The token is ended.");
  show_tokens();
}

async function add_token() {
  const made = await ask_form({
    title: "Token for a program", ok: "Make it", fields: [
      { name: "label", label: "What it is for", required: true, max: 100, hint: "e.g. the recorder on my laptop" }, { name: "days", label: "Days it lasts", kind: "number", min: 1, max: 366, step: 1, value: 90, required: true },
      { name: "password", label: "My password", kind: "password", required: true, autocomplete: "current-password" },
    ],
    send: (values) => post("/me/tokens", values),
  });
  if (!made) return;
  await show_once({ title: "The token", words: "It is not shown again. Anyone who holds it works in your name.", label: "Token", value: made.token, id: "token" });
  show_tokens();
}

await start_page("home");
at("add-token").addEventListener("click", add_token);
at("password").addEventListener("click", change_password);
try {
  const [work, campaigns] = await Promise.all([get("/work"), get("/campaigns")]);
  show_now(work);
  show_today(work);
  show_campaigns(campaigns);
  await show_tokens();
} catch (error) {
  toast(error.message, "bad");
}
