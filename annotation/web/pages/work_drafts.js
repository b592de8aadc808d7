// Drafts: every keystroke is kept at once in this browser and, as soon as the line allows, on the server. Numbers grow, the newest wins.

import { part, put, Refused, Unreachable } from "/pages/api.js";
import { store } from "/pages/dom.js";

export class Drafts {
  /** `said(kind)` is told "saving", "saved", "local" (kept here only). */
  constructor(said) {
    this.said = said;
    this.run_id = null;
    this.number = 0;
    this.waiting = null;
    this.is_sending = false;
  }

  /** The newest draft of the state's step, of the server's and this browser's; null where there is none. */
  open(state) {
    if (this.run_id !== state.run_id) {
      this.run_id = state.run_id;
      this.number = 0;
      this.waiting = null;
      this.forget_others();
    }
    const local = store.get(`draft.${state.run_id}`);
    this.number = Math.max(this.number, local?.number ?? 0, state.draft?.number ?? 0);
    const here = [local, state.draft].filter((draft) => draft && draft.step_index === state.step_index);
    const newest = here.reduce((best, draft) => (best && best.number >= draft.number ? best : draft), null);
    if (newest && newest === local && newest.number > (state.draft?.number ?? 0)) this.send(newest);
    return newest;
  }

  save(draft) {
    this.number += 1;
    const numbered = { ...draft, number: this.number };
    store.set(`draft.${this.run_id}`, numbered);
    this.said("saving");
    this.send(numbered);
  }

  overtake(draft, number) {
    this.number = Math.max(this.number, number) + 1;
    this.waiting = { ...(this.waiting ?? draft), number: this.number };
    store.set(`draft.${this.run_id}`, this.waiting);
  }

  /** After the decision: what was typed is now the decision's. */
  clear() {
    this.waiting = null;
    if (this.run_id) store.set(`draft.${this.run_id}`, null);
    this.said("");
  }

  /** One request at a time, always with the newest text: a slow line is never flooded and never ends with an old draft. */
  async send(draft) {
    this.waiting = draft;
    if (this.is_sending) return;
    this.is_sending = true;
    const run_id = this.run_id;
    while (this.waiting && this.run_id === run_id) {
      const next = this.waiting;
      this.waiting = null;
      try {
        const stands = await put(`/runs/${part(run_id)}/draft`, next);
        // Another page, or an earlier one, has counted further: what is typed here now is newer all the same.
        if (stands && stands.number > next.number && run_id === this.run_id) this.overtake(next, stands.number);
        if (!this.waiting) this.said("saved");
      } catch (error) {
        if (error instanceof Unreachable || (error instanceof Refused && error.status >= 500)) {
          this.waiting = this.waiting ?? draft;
          this.said("local");
          break;
        }
        this.said("");
      }
    }
    this.is_sending = false;
  }

  /** The line is back, or the page is about to be hidden. */
  flush() {
    const draft = this.waiting;
    if (draft) this.send(draft);
  }

  /** Of other runs only the newest few are kept. */
  forget_others() {
    for (const name of store.names("draft.")) if (name !== `draft.${this.run_id}`) store.set(name, null);
  }
}
