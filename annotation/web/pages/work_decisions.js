// What a person decides, and how it is put to the server: the half of the annotator's page (work.js) that acts. It works on what the other
// half has: state, outbox, cards, editor, screen, meanings, drafts.

import { get, part, post, Refused, Unreachable } from "/pages/api.js";
import { announce, at, show, toast } from "/pages/dom.js";
import { log_in_again } from "/pages/shell.js";
import { ask_beyond_repair, ask_reason, ask_verdict } from "/pages/work_dialogs.js";
import { find_element } from "/pages/work_finder.js";
import { ask_step_back } from "/pages/work_history.js";
import { show_buttons } from "/pages/work_view.js";

/** What a decision is about: the same decision may be sent again only about the same. */
function what_is_seen({ run_id, step_index, history, screen, proposals, phase }) {
  const candidates = phase === "deciding" ? proposals.map((proposal) => proposal.text) : [];
  return JSON.stringify([run_id, step_index, history.map((step) => step.text), screen?.screenshot_id ?? null, candidates]);
}

export class Decisions {
  restore_draft(state) {
    const draft = this.drafts.open(state);
    if (!draft || state.phase !== "deciding" || this.editor.is_open || (!draft.action && !draft.thought)) return;
    this.editor.open({ source: null, ...this.source_of(draft), thought: draft.thought, action: draft.action, focus: draft.action ? "thought" : "action" });
    show(at("saved"), "draft restored");
  }

  source_of(draft) {
    const source = Number.isInteger(draft.candidate) ? this.cards.by_rank(draft.candidate) : null;
    return { source };
  }

  selected(proposal) {
    const index = this.cards.proposals.indexOf(proposal) + 1;
    announce(`Candidate ${index}: ${proposal.line || proposal.action}`);
    this.redraw();
  }

  accept(proposal) {
    if (!this.is_open || !proposal) return;
    if (proposal.problem) return toast(`This candidate cannot be carried out: ${proposal.problem}. Edit it instead.`, "warn");
    this.send("decide", { decision: "accept", candidate: proposal.rank });
    at("cards").children[this.cards.proposals.indexOf(proposal)]?.classList.add("is-chosen");
  }

  /** By key: not while something is written that would be lost by it, nor what was meant for a menu that is about to open. */
  accept_by_key(proposal) {
    if (!this.is_open || !this.is_seen || !proposal || this.meanings.is_asking) return;
    if (!this.editor.is_open) return this.accept(proposal);
    this.editor.focus("action");
    toast("The editor is open: Ctrl Enter carries out what is written, Esc closes it.", "warn");
  }

  edit(proposal) {
    if (!this.is_open || !proposal) return;
    this.cards.select(this.cards.proposals.indexOf(proposal));
    this.editor.open({ source: proposal, thought: proposal.thought ?? "", action: proposal.action });
  }

  /** Opens the editor with what was typed at this step before, if anything was. */
  override() {
    if (!this.is_open) return;
    if (this.editor.is_open) return this.editor.focus("action");
    this.editor.open({ thought: "", action: "" });
  }

  async find() {
    if (!this.is_open) return;
    const box = await find_element(this.state.screen, (element) => {
      this.screen.hovered = element;
      this.screen.redraw();
    });
    if (!box || !this.is_open) return;
    const frame = at("frame").getBoundingClientRect();
    const point = { x: Math.round(box.x + box.width / 2), y: Math.round(box.y + box.height / 2) };
    this.meanings.open(point, { x: frame.left + point.x * this.screen.scale, y: frame.top + point.y * this.screen.scale });
  }

  take_meaning(view, is_at_once) {
    if (!this.is_open) return;
    if (is_at_once && !view.problem) return this.execute({ candidate: null, thought: this.editor.is_open ? this.editor.draft.thought : view.thought ?? "", action: view.action });
    if (this.editor.is_open) return this.editor.set_action(view.action, "thought");
    this.editor.open({ thought: "", action: view.action, focus: "thought" });
    this.editor.on_change(this.editor.draft);
  }

  execute({ candidate, thought, action, is_as_proposed = false }) {
    if (!this.is_open) return;
    if (is_as_proposed) return this.send("decide", { decision: "accept", candidate });
    const decision = candidate === null ? "override" : "edit";
    this.send("decide", { decision, candidate, thought: thought.trim() || null, action });
  }

  async propose() {
    if (!this.is_open || at("more").disabled) return;
    at("more").disabled = true;
    announce("The policy proposes again.");
    try {
      this.apply(await post(`/runs/${part(this.state.run_id)}/propose`, { version: this.state.version }));
    } catch (error) {
      toast(error.message, "bad");
    }
    show_buttons(this.state, !this.outbox.item);
  }

  async beyond_repair() {
    if (this.is_open && (await ask_beyond_repair()) && this.is_open) this.send("decide", { decision: "beyond_repair" });
  }

  async step_back(index = this.state.history.length - 1) {
    if (at("back").disabled) return;
    const chosen = await ask_step_back(this.state, index);
    if (chosen !== null && !at("back").disabled) this.send("back", { to_step: chosen });
  }

  async finish() {
    if (at("finish").disabled || document.querySelector("dialog[open]")) return;
    this.asked_verdict = this.state.version;
    const verdict = await ask_verdict(this.state);
    if (!verdict || at("finish").disabled) return;
    this.verdict = verdict.is_success;
    this.send("finish", verdict);
  }

  async pass_on(kind) {
    if (at(kind).disabled) return;
    const reason = await ask_reason(kind);
    if (!reason) return;
    try {
      await post(`/assignments/${part(this.state.assignment_id)}/${kind}`, { reason });
    } catch (error) {
      return toast(error.message, "bad");
    }
    this.leave();
    toast(kind === "skip" ? "Skipped." : "Flagged.", "good");
    this.next();
  }

  /** The version that the person saw goes along: what was decided on an older one is not carried out. */
  send(verb, body) {
    this.decided_at = performance.now();
    this.meanings.close();
    this.outbox.put(this.state.run_id, verb, { version: this.state.version, ...body }, what_is_seen(this.state), this.state.history.length);
    show_buttons(this.state, !this.outbox.item);
    if (this.outbox.item) at("cards").classList.add("is-waiting");
  }

  /** What was refused for its version only, on a state that shows the same as the one that it was decided on. */
  send_again(state) {
    const item = this.again;
    if (!item || !["deciding", "ended"].includes(state.phase)) return false;
    this.again = null;
    if (item.run_id !== state.run_id || what_is_seen(state) !== item.seen) return false;
    return this.outbox.put(item.run_id, item.verb, { ...item.body, version: state.version }, item.seen, item.num_decided, true);
  }

  async refused(item, error, was_repeated) {
    if (error instanceof Refused && error.status === 401) return log_in_again();
    if (error instanceof Refused && error.status === 410) return this.lost(error);
    let state = null;
    try {
      state = await get(`/runs/${part(item.run_id)}`);
    } catch (failure) {
      if (failure instanceof Unreachable) this.set_online(false);
    }
    if (state?.run_id === this.state?.run_id) this.apply(state);
    // Only the number is another one: what was decided is about what is there still.
    if (error.status === 409 && state && !item.is_again) {
      this.again = item;
      if (this.send_again(state)) return;
      // A server that was restarted brings the run back first.
      if (["starting", "proposing", "rewinding"].includes(state.phase)) return;
      this.again = null;
    }
    const arrived = was_repeated && error.status === 409 && state && state.version > item.body.version;
    if (!arrived) toast(error.message, "bad");
    this.cards.show(this.state);
    show_buttons(this.state, !this.outbox.item);
  }
}
