// Drafts: every keystroke is kept at once in this browser and, as soon as the line allows, on the server. Numbers grow, the newest wins.

import { part, put, Refused, Unreachable } from "/pages/api.js";
import { store } from "/pages/dom.js";

const OTHERS_KEPT = 3;
const RETRY_MS = 4000;

/** Whether the same may be taken later: the line, the server, too many requests, a login that has ended. */
function is_for_later(error) {
  return error instanceof Unreachable || (error instanceof Refused && (error.status >= 500 || [401, 403, 408, 429].includes(error.status)));
}

/** What is sent: when it was typed stays here. */
function sent(draft) {
  const { typed_at_ms, ...body } = draft;
  return body;
}

export class Drafts {
  /** `said(kind)` gets "saving", "saved", "local" (kept here only), "unkept" (not even here). */
  constructor(said) {
    this.said = said;
    this.run_id = null;
    this.number = 0;
    this.waiting = null;
    this.under_way = null;
    this.is_sending = false;
    this.is_kept = true;
    this.timer = null;
  }

  /** The newest draft of the state's step, of the server's and this browser's; null where there is none. */
  open(state) {
    if (this.run_id !== state.run_id) {
      this.run_id = state.run_id;
      this.number = 0;
      this.waiting = this.under_way = null;
      this.forget_others();
    }
    const local = this.local();
    this.number = Math.max(this.number, local?.number ?? 0, state.draft?.number ?? 0);
    const here = [local, state.draft].filter((draft) => draft && draft.step_index === state.step_index);
    const newest = here.reduce((best, draft) => (best && best.number >= draft.number ? best : draft), null);
    if (newest && newest === local && newest.number > (state.draft?.number ?? 0)) this.send(newest);
    return newest;
  }

  local() {
    return store.get(`draft.${this.run_id}`);
  }

  keep(draft) {
    this.is_kept = store.set(`draft.${this.run_id}`, { ...draft, typed_at_ms: Date.now() });
  }

  save(draft) {
    this.number += 1;
    const numbered = { ...draft, number: this.number };
    this.keep(numbered);
    this.said("saving");
    this.send(numbered);
  }

  /** The server has counted further than what was sent: the newest of what is known here goes again, with a number above both. */
  overtake(draft, number) {
    const known = [draft, this.waiting, this.local()].filter((one) => one && one.step_index === draft.step_index);
    const newest = known.reduce((best, one) => (one.number > best.number ? one : best));
    this.number = Math.max(this.number, newest.number, number) + 1;
    this.waiting = { ...newest, number: this.number };
    this.keep(this.waiting);
  }

  /** After the decision: what was typed is now the decision's, also what is under way. */
  clear() {
    clearTimeout(this.timer);
    this.waiting = this.under_way = null;
    if (this.run_id) store.set(`draft.${this.run_id}`, null);
    this.said("");
  }

  /** One request at a time, always with the newest text: a slow line is never flooded and never ends with an old draft. What fails waits
   *  again, unless something newer does. */
  async send(draft) {
    clearTimeout(this.timer);
    this.waiting = draft;
    if (this.is_sending) return;
    this.is_sending = true;
    while (this.waiting) {
      const next = (this.under_way = this.waiting);
      this.waiting = null;
      try {
        const stands = await put(`/runs/${part(this.run_id)}/draft`, sent(next));
        if (this.under_way !== next) continue;
        // Another page, or an earlier one, has counted further: what is typed here now is newer all the same.
        if (stands && stands.number > next.number) this.overtake(next, stands.number);
        if (!this.waiting) this.said("saved");
      } catch (error) {
        if (this.under_way !== next) continue;
        if (is_for_later(error)) {
          this.waiting ??= next;
          this.timer = setTimeout(() => this.flush(), Math.max(RETRY_MS, (error.retry_after_s ?? 0) * 1000));
        }
        this.said(this.is_kept ? "local" : "unkept");
        if (is_for_later(error)) break;
      }
    }
    this.under_way = null;
    this.is_sending = false;
  }

  /** The line is back. */
  flush() {
    if (this.waiting) this.send(this.waiting);
  }

  /** The page goes: what the server may not have yet is sent by a request that outlives it. */
  leave() {
    const newest = this.waiting ?? this.under_way;
    if (newest) put(`/runs/${part(this.run_id)}/draft`, sent(newest), { keepalive: true }).catch(() => {});
  }

  /** Of other runs only the newest few are kept. */
  forget_others() {
    const others = store.names("draft.").filter((name) => name !== `draft.${this.run_id}`);
    const typed_at_ms = (name) => store.get(name)?.typed_at_ms ?? 0;
    others.sort((one, other) => typed_at_ms(other) - typed_at_ms(one));
    for (const name of others.slice(OTHERS_KEPT)) store.set(name, null);
  }
}
