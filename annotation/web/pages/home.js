// My work: what I am in the middle of, what is next, how today went.

import { get, part, post } from "/pages/api.js";
import { at, duration, make, percent, shortened, toast } from "/pages/dom.js";
import { ask_form } from "/pages/forms.js";
import { start_page } from "/pages/shell.js";

function number(name, text) {
  return make("div", { class: "number" }, make("dt", {}, name), make("dd", {}, text));
}

function show_now(work) {
  const run = work.current;
  at("now-body").replaceChildren(...(run
    ? [make("p", {}, `You are in the middle of ${run.task_name}, step ${run.step_index + 1}.`), run.instruction && make("p", { class: "wrap" }, make("b", {}, shortened(run.instruction, 300))), make("a", { class: "button primary", href: "/work" }, "Go on")]
    : [make("p", {}, "Nothing is in your hands."), make("a", { class: "button primary", href: "/work" }, "Annotate the next task")]).filter(Boolean));
}

function show_today(today) {
  const { num_runs, num_steps, accept_share, edit_share, override_share, worked_s } = today;
  at("today").replaceChildren(number("Episodes", String(num_runs)), number("Steps", String(num_steps)), number("Accepted", percent(accept_share)), number("Edited", percent(edit_share)), number("Overridden", percent(override_share)),
    number("At work", duration(worked_s)));
}

function show_campaigns(campaigns) {
  at("campaigns").replaceChildren(...(campaigns.length ? campaigns.map((one) => make("article", { class: "card", "aria-label": one.name },
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

await start_page("home");
at("password").addEventListener("click", change_password);
try {
  const [work, campaigns] = await Promise.all([get("/work"), get("/campaigns")]);
  show_now(work);
  show_today(work.today);
  show_campaigns(campaigns);
} catch (error) {
  toast(error.message, "bad");
}
