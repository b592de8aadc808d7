// What a reviewer says of each step: right or wrong, whether the thought fits, a note. Kept by step until it is sent with the whole. Of what
// comes after the last step nothing is said.

import { make, show } from "/pages/dom.js";

export class Opinion {
  constructor(num_steps) {
    this.num_steps = num_steps;
    this.index = 0;
    this.by_step = {};
    this.on_change = () => {};
    this.title = make("h3", { "aria-live": "polite" });
    this.choices = {};
    this.note = make("input", { id: "step-note", maxlength: "2000", placeholder: "note on this step", on: { input: () => this.set({ note: this.note.value || null }, false) } });
    this.note.addEventListener("keydown", (event) => ["Enter", "Escape"].includes(event.key) && (event.preventDefault(), this.note.blur()));
    this.node = make("div", { class: "opinion" }, this.title, this.choice("is_right", "Step", ["right", "wrong"]), this.choice("thought_fits", "Thought", ["fits", "does not fit"]),
      make("label", { for: "step-note", class: "sr" }, "Note on this step"), this.note);
  }

  choice(name, legend, [yes, no]) {
    const radio = (value, text) => {
      const node = make("input", { type: "radio", name, on: { change: () => this.set({ [name]: value }) } });
      this.choices[`${name}:${value}`] = node;
      return make("label", { class: "check" }, node, text);
    };
    return make("fieldset", { class: "choice" }, make("legend", {}, legend), radio(true, yes), radio(false, no));
  }

  get said() {
    return this.by_step[this.index] ?? { is_right: null, thought_fits: null, note: null };
  }

  /** Only steps on which something was said. */
  get steps() {
    return Object.fromEntries(Object.entries(this.by_step).filter(([, said]) => Object.values(said).some((value) => value !== null)));
  }

  show(index) {
    this.index = index;
    const said = this.said;
    const is_step = index < this.num_steps;
    show(this.title, is_step ? `Step ${index + 1} of ${this.num_steps}` : "After the last step");
    for (const name of ["is_right", "thought_fits"]) {
      for (const value of [true, false]) Object.assign(this.choices[`${name}:${value}`], { checked: said[name] === value, disabled: !is_step });
    }
    Object.assign(this.note, { value: said.note ?? "", disabled: !is_step });
  }

  set(change, shows = true) {
    if (this.index >= this.num_steps) return;
    this.by_step[this.index] = { ...this.said, ...change };
    if (shows) this.show(this.index);
    this.on_change();
  }

  toggle_thought() {
    this.set({ thought_fits: !(this.said.thought_fits ?? false) });
  }

  mark_of(index) {
    const said = this.by_step[index]?.is_right ?? null;
    return said === null ? "" : said ? "right" : "wrong";
  }
}
