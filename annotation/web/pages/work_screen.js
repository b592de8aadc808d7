// The live screen: the newest picture at an integer scale, and over it the points of the candidates, the element beneath the pointer,
// the pointer's place. A click or a drag on it is sent as a point in the screen's own pixels; what it means the server says.

import { address, part } from "/pages/api.js";
import { at, draw, shortened, show } from "/pages/dom.js";
import { arrow_node, box_node, mark_nodes } from "/pages/marks.js";

const ZOOMS = [0.25, 0.33, 0.5, 0.67, 0.75, 1, 2, 3, 4, 6, 8];
const DRAG_PX = 5;
const LEAST_PANES_PX = 150;
const LEAST_BOX_PX = 6;

/** The box between two points; null for what is a line, as the server has it. */
function box_of(start, end) {
  const [width, height] = [Math.abs(end.x - start.x), Math.abs(end.y - start.y)];
  return Math.min(width, height) < LEAST_BOX_PX ? null : { x: Math.min(start.x, end.x), y: Math.min(start.y, end.y), width, height };
}

/** Both that a drag may mean: the way from here to there, and the box with its middle. */
function drag_nodes(drag, unit) {
  const box = box_of(drag, { x: drag.to_x, y: drag.to_y });
  const arrow = arrow_node(drag, "edit", unit);
  if (!box) return [arrow];
  const [x, y, arm] = [Math.floor((drag.x + drag.to_x) / 2), Math.floor((drag.y + drag.to_y) / 2), 6 * unit];
  return [box_node(box, "box is-drawn"), draw("path", { class: "middle", d: `M${x - arm} ${y}h${2 * arm}M${x} ${y - arm}v${2 * arm}` }), arrow];
}

export class Screen {
  /** `on_point(point, place)`: clicked or dragged; `place` is where on the page. `on_frame()`: a new picture is on the screen. */
  constructor({ on_point, on_frame }) {
    this.on_point = on_point;
    this.on_frame = on_frame;
    this.screen = null;
    this.marks = [];
    this.hovered = null;
    this.pointer = null;
    this.started = null;
    this.drawn = null;
    this.zoom = null;
    this.shows_boxes = false;
    this.shows_marks = true;
    this.is_open = false;
    this.shown_id = null;
    const frame = at("frame");
    frame.addEventListener("pointermove", (event) => this.moved(event));
    frame.addEventListener("pointerleave", () => this.started || this.left());
    frame.addEventListener("pointerdown", (event) => this.pressed(event));
    frame.addEventListener("pointerup", (event) => this.released(event));
    frame.addEventListener("pointercancel", () => this.left());
    frame.addEventListener("dragstart", (event) => event.preventDefault());
    at("stage").addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    new ResizeObserver(() => this.fit()).observe(at("centre"));
    new MutationObserver(() => this.fit()).observe(at("panes"), { attributes: true, attributeFilter: ["hidden"] });
  }

  get has_picture() {
    return Boolean(this.screen?.screenshot_id);
  }

  async show(run_id, screen, label) {
    this.screen = screen;
    at("frame").hidden = !this.has_picture;
    at("no-screen").hidden = this.has_picture || !screen;
    this.hovered = null;
    if (!this.has_picture) return this.fit();
    const canvas = at("screen");
    canvas.setAttribute("aria-label", label);
    if (this.shown_id !== screen.screenshot_id) await this.load(run_id, screen);
    this.fit();
  }

  /** The old picture stays until the new one can be painted whole. */
  async load(run_id, screen) {
    const image = new Image();
    image.src = address(`/runs/${part(run_id)}/screens/${part(screen.screenshot_id)}`);
    try {
      await image.decode();
    } catch {
      return;
    }
    if (this.screen !== screen && this.screen?.screenshot_id !== screen.screenshot_id) return;
    const canvas = at("screen");
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    canvas.getContext("2d").drawImage(image, 0, 0);
    canvas.dataset.screenshot = screen.screenshot_id;
    this.shown_id = screen.screenshot_id;
    this.drawn = null;
    requestAnimationFrame(() => this.on_frame());
  }

  // ---- scale ------------------------------------------------------------------------------------------------------------------------

  get scale() {
    if (this.zoom !== null) return this.zoom;
    const stage = at("stage");
    const room = Math.min((stage.clientWidth - 12) / this.screen.width_px, (stage.clientHeight - 12) / this.screen.height_px);
    return room >= 1 ? Math.floor(room) : Math.max(0.2, room);
  }

  /** Beside the terminal the stage takes just the height of the largest whole scale that leaves the terminal enough. */
  share_height() {
    const stage = at("stage");
    stage.style.flex = "";
    if (at("panes").hidden || !this.has_picture) return;
    const room = stage.clientHeight + at("panes").clientHeight - LEAST_PANES_PX;
    const scale = Math.floor(Math.min((stage.clientWidth - 12) / this.screen.width_px, (room - 12) / this.screen.height_px));
    if (this.zoom === null && scale >= 1) stage.style.flex = `0 0 ${this.screen.height_px * scale + 14}px`;
  }

  fit() {
    if (!this.has_picture) return;
    this.share_height();
    const scale = this.scale;
    for (const id of ["frame", "screen"]) {
      at(id).style.width = `${this.screen.width_px * scale}px`;
      at(id).style.height = `${this.screen.height_px * scale}px`;
    }
    at("screen").classList.toggle("is-crisp", Number.isInteger(scale) && scale > 1);
    at("overlay").setAttribute("viewBox", `0 0 ${this.screen.width_px} ${this.screen.height_px}`);
    show(at("zoom-text"), `${Math.round(scale * 100)} %${this.zoom === null ? " fit" : ""}`);
    this.redraw();
  }

  zoom_by(direction) {
    if (!this.has_picture) return;
    const now = this.scale;
    const next = direction > 0 ? ZOOMS.find((zoom) => zoom > now + 0.01) : ZOOMS.findLast((zoom) => zoom < now - 0.01);
    if (next) this.zoom_to(next);
  }

  zoom_to(zoom) {
    this.zoom = zoom;
    this.fit();
  }

  wheeled(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoom_by(event.deltaY < 0 ? 1 : -1);
  }

  // ---- pointer ----------------------------------------------------------------------------------------------------------------------

  place(event) {
    const box = at("screen").getBoundingClientRect();
    const limit = (value, size) => Math.max(0, Math.min(size - 1, Math.floor(value * size)));
    return { x: limit((event.clientX - box.left) / box.width, this.screen.width_px), y: limit((event.clientY - box.top) / box.height, this.screen.height_px) };
  }

  moved(event) {
    if (!this.has_picture) return;
    this.pointer = this.place(event);
    const { x, y } = this.pointer;
    const inside = this.screen.elements.filter((box) => x >= box.x && y >= box.y && x < box.x + box.width && y < box.y + box.height);
    this.hovered = inside.reduce((best, box) => (!best || box.width * box.height <= best.width * best.height ? box : best), null);
    const box = this.started && box_of(this.started, this.pointer);
    show(at("pointer"), this.started ? `${this.started.x}, ${this.started.y} → ${x}, ${y}${box ? ` · ${box.width} × ${box.height}` : ""}` : `${x}, ${y}`);
    show(at("hovered"), this.hovered ? `[${this.hovered.index}] ${this.hovered.role} “${shortened(this.hovered.name, 90)}”` : "");
    this.redraw();
  }

  left() {
    this.pointer = this.hovered = this.started = null;
    show(at("pointer"), "");
    show(at("hovered"), "");
    this.redraw();
  }

  pressed(event) {
    if (event.button !== 0 || !this.has_picture || !this.is_open) return;
    event.preventDefault();
    at("frame").setPointerCapture(event.pointerId);
    this.started = { ...this.place(event), client_x: event.clientX, client_y: event.clientY };
  }

  released(event) {
    const start = this.started;
    this.started = null;
    if (!start || !this.has_picture) return;
    const end = this.place(event);
    const is_drag = Math.hypot(event.clientX - start.client_x, event.clientY - start.client_y) > DRAG_PX;
    const point = is_drag ? { x: start.x, y: start.y, to_x: end.x, to_y: end.y } : { x: start.x, y: start.y };
    this.drawn = is_drag ? point : null;
    this.redraw();
    this.on_point(point, { x: event.clientX, y: event.clientY });
  }

  /** What was dragged stays to be seen until it is known what it means. */
  forget_drag() {
    if (!this.drawn) return;
    this.drawn = null;
    this.redraw();
  }

  cancel_drag() {
    this.started = null;
    this.redraw();
  }

  // ---- what is drawn ------------------------------------------------------------------------------------------------------------------

  /** `marks`: {points, label, kind}; kind is candidate, selected, edit or offer. Later ones are drawn over earlier ones. */
  set_marks(marks) {
    this.marks = marks;
    this.redraw();
  }

  redraw() {
    const overlay = at("overlay");
    overlay.replaceChildren();
    if (!this.has_picture) return;
    const unit = 1 / this.scale;
    if (this.shows_boxes) for (const box of this.screen.elements) overlay.append(box_node(box, "box"));
    if (this.hovered) overlay.append(box_node(this.hovered, "box is-hovered"));
    if (this.pointer) {
      const { x, y } = this.pointer;
      overlay.append(draw("path", { class: "hair", d: `M0 ${y + 0.5}H${this.screen.width_px}M${x + 0.5} 0V${this.screen.height_px}` }));
    }
    const drag = this.started && this.pointer ? { ...this.started, to_x: this.pointer.x, to_y: this.pointer.y } : this.drawn;
    if (drag) overlay.append(...drag_nodes(drag, unit));
    if (this.shows_marks) overlay.append(...mark_nodes(this.marks, unit, this.screen));
  }
}
