// A step's picture as large as the window allows, with what was drawn on it: opened from a replay, left by Esc.

import { draw, make, show, when_closed } from "/pages/dom.js";

const ZOOMS = [0.25, 0.33, 0.5, 0.67, 0.75, 1, 1.5, 2, 3, 4, 6, 8];

/** `replay`: of replay.js; its steps can be gone through from here. */
export function enlarge(replay) {
  let zoom = null;
  const title = make("h2", { id: "zoom-title", "aria-live": "polite" });
  const picture = make("div", { class: "zoom-picture" });
  const room = make("div", { class: "zoom-room", tabindex: "0", role: "group", "aria-label": "The picture" }, picture);
  const text = make("span", {});
  const button = (label, name, run) => make("button", { type: "button", "aria-label": name, on: { click: run } }, label);
  const dialog = make("dialog", { class: "zoom", "aria-labelledby": "zoom-title" },
    make("div", { class: "row" }, title, make("div", { class: "row far" },
      button("←", "Step before", () => go(-1)), button("→", "Next step", () => go(1)), button("−", "Zoom out", () => zoom_by(-1)), button(text, "Fit the window", () => zoom_to(null)), button("+", "Zoom in", () => zoom_by(1)),
      make("button", { type: "button", on: { click: () => dialog.close() } }, "Close", make("kbd", {}, "Esc")))),
    room);

  function scale_of({ width_px, height_px }) {
    if (zoom !== null) return zoom;
    const fit = Math.min(room.clientWidth / width_px, room.clientHeight / height_px);
    return fit >= 1 ? Math.floor(fit) : fit;
  }

  function paint() {
    const step = replay.steps[replay.index];
    const screen = step.screen;
    show(title, `${replay.title} · ${step.is_end ? "after the last step" : `step ${replay.index + 1} of ${replay.num_steps}`}`);
    if (!screen?.screenshot_id) return picture.replaceChildren(make("p", {}, "No picture"));
    const scale = scale_of(screen);
    picture.style.width = `${screen.width_px * scale}px`;
    picture.style.height = `${screen.height_px * scale}px`;
    picture.classList.toggle("is-crisp", Number.isInteger(scale) && scale > 1);
    show(text, `${Math.round(scale * 100)} %${zoom === null ? " fit" : ""}`);
    picture.replaceChildren(
      make("img", { src: replay.address_of(screen.screenshot_id), alt: `${replay.caption_of(step)}${step.action ? `: ${step.action}` : ""}` }),
      draw("svg", { viewBox: `0 0 ${screen.width_px} ${screen.height_px}`, "aria-hidden": "true" }, replay.marks_of(step, 1 / scale)),
    );
  }

  function go(by) {
    replay.go(replay.index + by);
    paint();
  }

  function zoom_to(value) {
    zoom = value;
    paint();
  }

  function zoom_by(direction) {
    const screen = replay.steps[replay.index].screen;
    if (!screen?.screenshot_id) return;
    const now = scale_of(screen);
    const next = direction > 0 ? ZOOMS.find((one) => one > now + 0.01) : ZOOMS.findLast((one) => one < now - 0.01);
    if (next) zoom_to(next);
  }

  dialog.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const scrolls = room.scrollWidth > room.clientWidth + 1;
    const run = {
      j: () => go(1), k: () => go(-1), ArrowRight: !scrolls && (() => go(1)), ArrowLeft: !scrolls && (() => go(-1)), "+": () => zoom_by(1), "=": () => zoom_by(1), "-": () => zoom_by(-1), 0: () => zoom_to(null),
      z: () => dialog.close(), Escape: () => dialog.close(),
    }[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  const watch = new ResizeObserver(() => zoom === null && paint());
  when_closed(dialog, () => watch.disconnect());
  document.body.append(dialog);
  dialog.showModal();
  room.focus();
  paint();
  watch.observe(room);
}
