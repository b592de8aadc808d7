// The stream of a run's states, and whether the server can be reached: server-sent events that reconnect, and the lease's heartbeat,
// which runs while the page is looked at or was worked in a moment ago.

import { address, part, post, Refused, Unreachable } from "/pages/api.js";

const HEARTBEAT_MS = 15_000;
const RETRY_MS = [300, 700, 1500, 3000, 5000];
const STILL_WORKING_MS = 120_000;

export class Stream {
  /** `on_state(state)`, `on_lease(until_s)`, `on_online(bool)`, `on_lost(error)`: the lease is gone. */
  constructor({ on_state, on_lease, on_online, on_lost }) {
    Object.assign(this, { on_state, on_lease, on_online, on_lost });
    this.run_id = this.assignment_id = null;
    this.events = null;
    this.timer = null;
    this.num_failures = 0;
    this.worked_at = Date.now();
    for (const kind of ["pointerdown", "keydown", "wheel"]) addEventListener(kind, () => (this.worked_at = Date.now()), { passive: true, capture: true });
    addEventListener("online", () => this.connect());
    addEventListener("offline", () => {
      this.on_online(false);
      this.close();
      this.later();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden || !this.run_id) return;
      this.beat();
      if (!this.events || this.events.readyState === EventSource.CLOSED) this.connect();
    });
    setInterval(() => this.beat(), HEARTBEAT_MS);
  }

  follow({ run_id, assignment_id }) {
    this.run_id = run_id;
    this.assignment_id = assignment_id;
    this.num_failures = 0;
    this.connect();
  }

  stop() {
    this.run_id = null;
    this.close();
  }

  close() {
    clearTimeout(this.timer);
    if (this.events) this.events.close();
    this.events = null;
  }

  connect() {
    this.close();
    if (!this.run_id) return;
    const events = new EventSource(address(`/runs/${part(this.run_id)}/events`));
    this.events = events;
    events.onopen = () => {
      this.num_failures = 0;
      this.on_online(true);
    };
    const take = (message) => {
      const state = JSON.parse(message.data);
      if (state.run_id) this.on_state(state);
    };
    events.onmessage = take;
    events.addEventListener("state", take);
    // The browser's own way back waits for seconds and gives up on some answers: this one is quicker and never gives up.
    events.onerror = () => {
      if (this.events !== events) return;
      this.close();
      this.num_failures += 1;
      if (this.num_failures > 1) this.on_online(false);
      this.later();
    };
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), RETRY_MS[Math.min(this.num_failures, RETRY_MS.length - 1)]);
  }

  async beat() {
    if (!this.run_id || (document.hidden && Date.now() - this.worked_at > STILL_WORKING_MS)) return;
    const run_id = this.run_id;
    try {
      const lease = await post(`/assignments/${part(this.assignment_id)}/heartbeat`);
      this.on_online(true);
      if (run_id === this.run_id) this.on_lease(lease.lease_until_s);
    } catch (error) {
      if (run_id !== this.run_id) return;
      if (error instanceof Unreachable) this.on_online(false);
      else if (error instanceof Refused && [401, 404, 409, 410].includes(error.status)) this.on_lost(error);
    }
  }
}
