// What every page behind the login has: the bar at the top, who is logged in, the theme, the way out.

import { get, post, Refused, set_csrf } from "/pages/api.js";
import { at, make, store, toast } from "/pages/dom.js";

const RANKS = { annotator: 0, reviewer: 1, admin: 2 };
const PAGES = [
  ["home", "/", "My work", "annotator"],
  ["work", "/work", "Annotate", "annotator"],
  ["runs", "/runs", "Runs", "annotator"],
  ["recordings", "/recordings", "Recordings", "annotator"],
  ["review", "/review", "Review", "reviewer"],
  ["quality", "/quality", "Quality", "reviewer"],
  ["design", "/design", "Task design", "reviewer"],
  ["campaigns", "/campaigns", "Campaigns", "admin"],
  ["people", "/people", "People", "admin"],
];

export function may(person, role) {
  return RANKS[person.role] >= RANKS[role];
}

/** Builds the bar into #bar-place and answers who is logged in; others are sent to the login. */
export async function start_page(name) {
  let person;
  for (;;) {
    try {
      person = await get("/me");
      break;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return log_in_again();
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  set_csrf(person.csrf_token);
  const links = PAGES.filter(([, , , role]) => may(person, role)).map(([page, href, text]) => make("li", {}, make("a", { href, "aria-current": page === name ? "page" : null }, text)));
  at("bar-place").replaceWith(make("header", { class: "bar" },
    make("a", { class: "brand", href: "/" }, make("img", { src: "/pages/icon.svg", alt: "", width: "24", height: "24" }), "Flywheel"),
    make("nav", { "aria-label": "Pages" }, make("ul", {}, links)),
    make("div", { class: "far" }, theme_button(), make("span", { class: "small" }, make("b", {}, person.name), make("span", { class: "quiet" }, ` ${person.role}`)),
      make("button", { type: "button", class: "plain", on: { click: log_out } }, "Log out")),
  ));
  // Until its buttons do something, a page cannot be clicked: a quick click is not ignored. What follows this runs before any click.
  at("main")?.removeAttribute("inert");
  return person;
}

function theme_button() {
  const root = document.documentElement;
  const is_dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const button = make("button", { type: "button", class: "plain", id: "theme", "aria-pressed": String(is_dark()), "aria-label": "Dark theme", title: "Dark or light" }, "◐");
  button.addEventListener("click", () => {
    root.dataset.theme = is_dark() ? "light" : "dark";
    button.setAttribute("aria-pressed", String(is_dark()));
    try {
      localStorage.setItem("flywheel.theme", root.dataset.theme);
    } catch {
      // It holds for this page then.
    }
  });
  return button;
}

async function log_out() {
  try {
    await post("/logout");
  } catch (error) {
    if (!(error instanceof Refused && error.status === 401)) return toast(error.message, "bad");
  }
  for (const name of store.names("")) if (name.startsWith("draft.") || name === "outbox") store.set(name, null);
  location.assign("/login");
}

/** Comes back to this page afterwards; never resolves, so that nothing goes on without a person. */
export function log_in_again() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  return new Promise(() => {});
}

/** Runs what a form or button asks for; problems are shown, never lost. Answers whether it worked. */
export async function attempt(action, done_text = null) {
  try {
    await action();
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
  if (done_text) toast(done_text, "good");
  return true;
}
