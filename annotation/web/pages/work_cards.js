// The candidates: what the policy would think and do, how sure it is, and the buttons that accept or edit one.

import { at, make, show } from "/pages/dom.js";

export const MAX_BY_KEY = 9;

export class Cards {
  constructor({ on_accept, on_edit, on_select }) {
    Object.assign(this, { on_accept, on_edit, on_select });
    this.proposals = [];
    this.selected = 0;
    this.signature = null;
  }

  get current() {
    return this.proposals[this.selected] ?? null;
  }

  by_rank(rank) {
    return this.proposals.find((proposal) => proposal.rank === rank) ?? null;
  }

  /** The same proposals again leave the cards, the selection and the focus as they are. */
  show(state) {
    const signature = JSON.stringify([state.run_id, state.step_index, state.proposals]);
    if (signature !== this.signature) {
      this.signature = signature;
      this.proposals = state.proposals;
      this.selected = 0;
      at("cards").replaceChildren(...this.proposals.map((proposal, index) => this.card(proposal, index)));
    }
    const is_open = state.phase === "deciding";
    at("cards").classList.toggle("is-waiting", !is_open);
    for (const button of at("cards").querySelectorAll("button")) button.disabled = !is_open || button.dataset.broken === "true";
    show(at("num-cards"), this.proposals.length ? String(this.proposals.length) : "");
    this.mark_selected();
  }

  card(proposal, index) {
    const key = index < MAX_BY_KEY ? String(index + 1) : null;
    const has_problem = Boolean(proposal.problem);
    const accept = make("button", {
      type: "button", class: "primary", data: { broken: String(has_problem) }, "aria-label": `Accept candidate ${index + 1}`, on: { click: () => this.on_accept(proposal) },
    }, "Accept", key && make("kbd", {}, key));
    const edit = make("button", { type: "button", "aria-label": `Edit candidate ${index + 1}`, on: { click: () => this.on_edit(proposal) } }, "Edit", key && make("kbd", {}, `⇧${key}`));
    const card = make("li", { class: "candidate item", on: { click: (event) => !event.target.closest("button") && this.select(index) } },
      make("div", { class: "candidate-head" },
        make("span", { class: "number-flag" }, String(index + 1)),
        proposal.rank === 0 && make("span", { class: "badge accent", title: "The policy's greedy answer: what it would do" }, "policy's choice"),
        this.sureness(proposal),
      ),
      make("div", { class: "candidate-row" },
        make("p", { class: "candidate-action mono" }, proposal.action || proposal.text), make("div", { class: "candidate-buttons" }, accept, edit)),
      proposal.thought && make("p", { class: "candidate-thought" }, proposal.thought),
      has_problem && make("p", { class: "candidate-problem" }, `Cannot be carried out: ${proposal.problem}`),
    );
    return card;
  }

  sureness({ score, num_samples }) {
    const samples = num_samples > 1 ? `${num_samples} samples` : "1 sample";
    const text = score === null ? samples : `${score.toFixed(2)} · ${samples}`;
    const title = score === null ? "How many samples gave this answer" : "Mean log-probability of its tokens in nats (0 is certain), and how many samples gave this answer";
    const bar = score === null ? null : make("meter", { class: "sureness", min: 0, max: 1, value: null, "aria-label": "Mean probability of a token" });
    if (bar) bar.value = Math.exp(score);
    return make("span", { class: "candidate-score small quiet", title }, bar, text);
  }

  select(index) {
    if (index < 0 || index >= this.proposals.length) return;
    this.selected = index;
    this.mark_selected();
    this.on_select(this.proposals[index]);
  }

  mark_selected() {
    [...at("cards").children].forEach((card, index) => {
      card.setAttribute("aria-current", String(index === this.selected));
      if (index === this.selected) card.scrollIntoView({ block: "nearest" });
    });
  }

  marks() {
    return this.proposals.map((proposal, index) => ({ points: proposal.points, label: String(index + 1), kind: index === this.selected ? "selected" : "candidate" }))
      .sort((one, other) => (one.kind === "selected") - (other.kind === "selected"));
  }
}
