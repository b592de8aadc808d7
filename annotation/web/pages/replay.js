// One run or recording, step by step: the screen as it was, with what was proposed and what was decided drawn on it; behind the steps, where it
// was kept, the screen that they led to.

import { draw, make, show } from "/pages/dom.js";
import { mark_nodes } from "/pages/marks.js";
import { enlarge } from "/pages/zoom.js";

const SIGNS = { accept: "✓ accepted", edit: "✎ edited", override: "↺ overridden", beyond_repair: "✕ beyond repair" };

/** `last_screen`: after the last step; `address_of(screenshot_id)`; `on_step(index)`, which counts it as one more; `said(step)`: more nodes about a step; `mark_of(index)`: "right", "wrong" or ""; `key`: which
 *  enlarges the picture, null where none does. */
export class Replay {
  constructor({ title, steps, last_screen = null, address_of, on_step = () => {}, said = () => [], mark_of = () => "", key = "Z" }) {
    Object.assign(this, { title, address_of, on_step, said, mark_of, key });
    this.num_steps = steps.length;
    this.steps = last_screen && steps.length ? [...steps, { screen: last_screen, is_end: true }] : steps;
    this.index = 0;
    this.shot = make("div", { class: "shot", on: { click: () => this.enlarge() } });
    this.words = make("div", { class: "said" });
    this.buttons = make("div", { class: "steps", role: "group", "aria-label": `Steps, ${title}` }, this.steps.map((_, index) =>
      make("button", { type: "button", on: { click: () => this.go(index) } })));
    this.node = make("article", { class: "card replay", "aria-label": title }, make("h2", {}, title), this.buttons, make("div", { class: "replay-body" }, this.shot, this.words));
    if (steps.length) this.go(0, false);
    else show(this.words, "No steps.");
  }

  go(index, tells = true) {
    if (!this.steps.length) return;
    this.index = Math.max(0, Math.min(index, this.steps.length - 1));
    this.show_step(this.steps[this.index]);
    this.mark();
    if (tells) this.on_step(this.index);
  }

  mark() {
    [...this.buttons.children].forEach((button, index) => {
      const is_end = index >= this.num_steps;
      const said = is_end ? "" : this.mark_of(index);
      button.className = said;
      show(button, is_end ? "End" : `${index + 1}${{ right: " ✓", wrong: " ✗" }[said] ?? ""}`);
      button.setAttribute("aria-label", is_end ? "End: the screen after the last step" : `Step ${index + 1}${said ? `, ${said}` : ""}`);
      button.setAttribute("aria-current", String(index === this.index));
    });
  }

  show_step(step) {
    const screen = step.screen;
    if (screen?.screenshot_id) {
      const unit = Math.max(screen.width_px / 420, screen.height_px / 300);
      const name = step.is_end ? "Enlarge the picture of the end" : `Enlarge the picture of step ${this.index + 1}`;
      this.shot.replaceChildren(
        make("img", { src: this.address_of(screen.screenshot_id), alt: this.caption_of(step) }),
        draw("svg", { viewBox: `0 0 ${screen.width_px} ${screen.height_px}`, "aria-hidden": "true" }, this.marks_of(step, unit)),
        make("button", { type: "button", class: "enlarge", "aria-label": name, title: name }, "⤢", this.key && make("kbd", {}, this.key)),
      );
    } else this.shot.replaceChildren(make("p", {}, "No picture"));
    const proposals = step.proposals ?? [];
    this.words.replaceChildren(
      step.is_end ? make("p", {}, make("b", {}, "After the last step")) : make("p", {}, make("b", {}, SIGNS[step.decision] ?? ""), " ", make("span", { class: "mono wrap" }, step.action)),
      ...(step.thought ? [make("p", { class: "wrap" }, step.thought)] : []),
      ...(screen?.output ? [make("pre", { class: "mono wrap small", tabindex: "0" }, screen.output)] : []),
      ...(proposals.length ? [make("details", {}, make("summary", {}, `${proposals.length} proposed`), make("ol", { class: "stack" }, proposals.map((proposal, rank) =>
        make("li", { class: "small" }, make("b", {}, `${rank + 1} `), make("span", { class: "mono" }, proposal.action || proposal.text), proposal.thought && make("span", { class: "quiet" }, ` ${proposal.thought}`)))))] : []),
      ...(step.is_end ? [] : this.said(step, this.index)).filter(Boolean),
    );
  }

  /** What a step's picture is of. */
  caption_of(step) {
    return step.is_end ? "Screen after the last step" : `Screen before step ${this.index + 1}`;
  }

  /** What is drawn on a step's picture; `unit` is one pixel of the display in the screen's own. */
  marks_of(step, unit) {
    const others = (step.proposals ?? []).map((proposal, rank) => ({ points: proposal.points, label: String(rank + 1), kind: "candidate" }));
    return mark_nodes([...others, { points: step.points ?? [], label: "✓", kind: "selected" }], unit, step.screen);
  }

  enlarge() {
    if (this.steps[this.index]?.screen?.screenshot_id) enlarge(this);
  }
}
