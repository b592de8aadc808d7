// Small helpers for building pages. Every text goes in as a text node: nothing in these pages ever parses markup at run time.

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

/** An element. `attributes`: `class`, `on` ({click: f}), `data` ({name: value}), booleans, and strings; children: nodes or plain text. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [kind, listener] of Object.entries(value)) node.addEventListener(kind, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function show(node, text) {
  node.replaceChildren(String(text ?? ""));
}

export function shortened(text, length = 160) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

/** Says something to screen readers. Equal messages in a row are said again. */
export function announce(text) {
  const region = at("announcer");
  if (!region) return;
  region.append(make("p", {}, text));
  while (region.children.length > 4) region.firstElementChild.remove();
}

/** A message that goes away by itself, unless it is a problem or `stays`. */
export function toast(text, kind = "", { stays = false } = {}) {
  let host = at("toasts");
  // A modal dialog makes all the rest inert: messages go where they can be read and closed.
  const parent = document.querySelector("dialog[open]") ?? document.body;
  if (!host) host = make("div", { id: "toasts", role: "status" });
  if (host.parentElement !== parent) parent.append(host);
  const note = make("div", { class: `note ${kind}` }, make("span", {}, text));
  const close = make("button", { type: "button", class: "plain", "aria-label": "Close this message", on: { click: () => note.remove() } }, "✕");
  note.append(close);
  host.append(note);
  while (host.children.length > 4) host.firstElementChild.remove();
  if (kind !== "bad" && !stays) setTimeout(() => note.remove(), 6000);
  return note;
}

/** Calls `then` once a dialog is closed, and takes it out of the page. At once: the browser tells it a frame later, and keys that are
 *  pressed before that would still go to what had the focus in it. */
export function when_closed(dialog, then) {
  const gone = () => {
    if (!dialog.isConnected) return;
    then();
    dialog.remove();
  };
  dialog.addEventListener("close", gone);
  dialog.close = () => {
    HTMLDialogElement.prototype.close.call(dialog);
    gone();
  };
}

/** A dialog that answers with what its form was sent with: a FormData with `button` = the pressed one's value, or null. Esc leaves it,
 *  Ctrl Enter presses its first button of weight; `on_key` may keep either to itself. No key gets through it to the page. */
export function ask({ title, body = [], buttons, wide = false, on_open = () => {}, on_key = () => {} }) {
  return new Promise((resolve) => {
    const heading = make("h2", { id: `dialog-${Date.now()}` }, title);
    const form = make("form", { method: "dialog" }, heading, body, make("div", { class: "buttons" }, buttons));
    const dialog = make("dialog", { class: wide ? "wide" : "", "aria-labelledby": heading.id }, form);
    dialog.answer = (value) => {
      const data = new FormData(form);
      data.set("button", value);
      dialog.result = data;
      dialog.close();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.answer(event.submitter?.value ?? "ok");
    });
    dialog.addEventListener("keydown", (event) => {
      event.stopPropagation();
      on_key(event, dialog);
      if (event.key === "Escape" && !event.defaultPrevented && !event.isComposing) {
        event.preventDefault();
        return dialog.close();
      }
      if (event.defaultPrevented || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      const button = form.querySelector("button[type=submit].primary") ?? form.querySelector("button[type=submit]");
      if (button && !button.disabled && !event.repeat) form.requestSubmit(button);
    });
    when_closed(dialog, () => {
      const toasts = dialog.querySelector("#toasts");
      if (toasts) document.body.append(toasts);
      resolve(dialog.result ?? null);
    });
    document.body.append(dialog);
    dialog.showModal();
    on_open(dialog);
  });
}

export function cancel_button(text = "Cancel") {
  return make("button", { type: "button", on: { click: (event) => event.target.closest("dialog").close() } }, text, make("kbd", {}, "Esc"));
}

export function ok_button(text, value = "ok", kind = "primary", key = null) {
  return make("button", { type: "submit", class: kind, value }, text, key && make("kbd", {}, key));
}

/** "1 step", "2 steps". */
export function counted(num, one, many = `${one}s`) {
  return `${num} ${num === 1 ? one : many}`;
}

export function time_text(seconds) {
  return seconds === null || seconds === undefined ? "" : new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  return whole >= 3600 ? `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min` : `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** Storage that may be missing or full: what it keeps is a convenience on top of the server's copy. */
export const store = {
  get(name) {
    try {
      return JSON.parse(localStorage.getItem(`flywheel.${name}`));
    } catch {
      return null;
    }
  },
  /** Whether it is kept. */
  set(name, value) {
    try {
      if (value === null) localStorage.removeItem(`flywheel.${name}`);
      else localStorage.setItem(`flywheel.${name}`, JSON.stringify(value));
      return true;
    } catch {
      return false; // Full or forbidden.
    }
  },
  names(prefix) {
    try {
      return Object.keys(localStorage).filter((name) => name.startsWith(`flywheel.${prefix}`)).map((name) => name.slice("flywheel.".length));
    } catch {
      return [];
    }
  },
};
