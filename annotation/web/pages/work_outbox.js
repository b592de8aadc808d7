// The outbox: one decision at a time, kept until the server has answered. The version it was made on goes with it, so that however often
// it is sent it counts once; a decision that arrived although its answer was lost is recognised and not reported as a failure.

import { part, post, Refused, Unreachable } from "/pages/api.js";
import { store } from "/pages/dom.js";

const WAITS_MS = [500, 1000, 2000, 4000, 8000];
/** The end of an episode waits for its verifier, for up to two minutes (service/runs.py). */
const FINISH_TIMEOUT_MS = 150_000;

export class Outbox {
  /** `on_state(state)`: an answer that is a run's new state. `on_refused(item, error)`; `on_change()`: what waits has changed. */
  constructor({ on_state, on_refused, on_change, on_online }) {
    Object.assign(this, { on_state, on_refused, on_change, on_online });
    this.item = null;
    this.timer = null;
    this.is_sending = false;
    this.num_tries = 0;
  }

  get is_queued() {
    return Boolean(this.item) && this.num_tries > 0;
  }

  /** Takes up what an earlier page of this run could not send. */
  restore(run_id) {
    const kept = store.get("outbox");
    if (!kept || kept.run_id !== run_id || this.item) return;
    this.item = kept;
    this.num_tries = 1;
    this.send();
  }

  /** False while another decision is under way. `seen`: what the decision is about; `num_decided`: decisions before it;
   *  `is_again`: it was refused once for its version only. */
  put(run_id, verb, body, seen, num_decided, is_again = false) {
    if (this.item) return false;
    this.item = { run_id, verb, body, seen, num_decided, is_again };
    this.num_tries = 0;
    store.set("outbox", this.item);
    this.send();
    return true;
  }

  async send() {
    clearTimeout(this.timer);
    if (!this.item || this.is_sending) return;
    const item = this.item;
    this.is_sending = true;
    this.on_change();
    try {
      const state = await post(`/runs/${part(item.run_id)}/${item.verb}`, item.body, item.verb === "finish" ? { timeout_ms: FINISH_TIMEOUT_MS } : {});
      if (this.item !== item) return;
      // The run is known to be over before anybody could be asked for its verdict again.
      if (item.verb === "finish" && state?.run_id) this.on_state(state);
      this.done();
      this.on_online(true);
      if (item.verb !== "finish" && state?.run_id) this.on_state(state);
    } catch (error) {
      if (this.item !== item) return;
      this.is_sending = false;
      if (error instanceof Unreachable || (error instanceof Refused && (error.status >= 500 || error.status === 429))) {
        if (error instanceof Unreachable) this.on_online(false);
        const wait_ms = WAITS_MS[Math.min(this.num_tries, WAITS_MS.length - 1)];
        this.num_tries += 1;
        this.timer = setTimeout(() => this.send(), Math.max(wait_ms, (error.retry_after_s ?? 0) * 1000));
        this.on_change();
        return;
      }
      const was_repeated = this.num_tries > 0;
      if (error instanceof Refused && error.status === 401) return this.on_refused(item, error, was_repeated);
      this.done();
      this.on_refused(item, error, was_repeated);
    }
  }

  /** The stream may tell that a decision has been taken before its own answer comes: a quick annotator need not wait for that. */
  settle(run_id, num_decided) {
    const item = this.item;
    if (item && item.verb === "decide" && item.run_id === run_id && num_decided > item.num_decided) this.done();
  }

  done() {
    clearTimeout(this.timer);
    this.item = null;
    this.is_sending = false;
    this.num_tries = 0;
    store.set("outbox", null);
    this.on_change();
  }
}
