// Plays whole episodes inside a game's page, on a clock of its own: what sessions do step by step (sandbox/browser), without a round trip a
// step and without drawing. Inputs arrive as events, frames as calls of requestAnimationFrame's callbacks, in a session's order and at its times.
"use strict";

(() => {
  const GESTURE_MS = 1000 / 60;
  const FRAME_MS = 50;
  const STEP_FRAMES = 3;
  const DRAG_MOVES = 4;
  const KEYS = { left: "ArrowLeft", right: "ArrowRight", up: "ArrowUp", down: "ArrowDown", space: " " };
  const [WIDTH, HEIGHT] = [320, 360];

  let waiting = [];
  let now = 0;
  window.requestAnimationFrame = (callback) => waiting.push(callback);
  HTMLCanvasElement.prototype.setPointerCapture = () => {};
  const NOT_DRAWN = new Error("not drawn");
  CanvasRenderingContext2D.prototype.setTransform = () => {
    throw NOT_DRAWN; // the first thing that a drawing does, and a drawing the last that a frame does
  };

  function frame(ms) {
    now += ms;
    const callbacks = waiting;
    waiting = [];
    for (const callback of callbacks) {
      try {
        callback(now);
      } catch (error) {
        if (error !== NOT_DRAWN) throw error;
      }
    }
  }

  function settle(ms) {
    const num = Math.max(1, Math.round(ms / FRAME_MS));
    for (let n = 0; n < num; n++) frame(Math.max(ms, GESTURE_MS) / num);
  }

  function point(type, x, y) {
    const canvas = document.querySelector("canvas.front");
    canvas.dispatchEvent(new PointerEvent(type, { clientX: x, clientY: y, bubbles: true, pointerId: 1, button: 0 }));
  }

  /** One action and the time of its step. */
  function perform(action) {
    const { kind, x, y } = action;
    if (kind === "hotkey") {
      for (const type of ["keydown", "keyup"]) dispatchEvent(new KeyboardEvent(type, { key: KEYS[action.keys[0]] ?? action.keys[0] }));
    } else if (kind === "click") {
      for (const type of ["pointermove", "pointerdown", "pointerup"]) point(type, x, y);
    } else if (kind === "drag") {
      for (const type of ["pointermove", "pointerdown"]) point(type, x, y);
      frame(GESTURE_MS);
      for (let n = 1; n <= DRAG_MOVES; n++) {
        const at = (from, to) => Math.round(from + ((to - from) * n) / DRAG_MOVES);
        point("pointermove", at(x, action.to_x), at(y, action.to_y));
        frame(GESTURE_MS);
      }
      point("pointerup", action.to_x, action.to_y);
    } else if (kind === "wait") {
      settle(action.seconds * 1000);
    } else {
      throw new Error(`no such action: ${JSON.stringify(action)}`);
    }
    for (let n = 0; n < STEP_FRAMES; n++) frame(FRAME_MS);
  }

  /** Numbers in [0, 1) from a whole number (mulberry32). */
  function seeded(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) | 0;
      let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
      mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  /** A step of random play: one of the inputs that the game takes, each as likely, whatever the state. */
  function randomAction(elements, inputs, pick) {
    const input = pick(inputs);
    if (input.kind === "press") return { kind: "hotkey", keys: [pick(input.keys)] };
    const of = (role) => elements.filter((element) => element.role === role);
    const [things, targets] = [of(input.role), of(input.onto)];
    if (!things.length) return { kind: "wait", seconds: 0.15 };
    const { x, y, width, height } = pick(things);
    if (input.kind === "click") return { kind: "click", x, y };
    const [across, down] = pick([[-1, 0], [1, 0], [0, -1], [0, 1]]);
    const to = input.kind === "slide" || !targets.length ? { x: x + across * width, y: y + down * height } : pick(targets);
    const inside = (place, size) => Math.min(Math.max(Math.round(place), 0), size - 1);
    return { kind: "drag", x, y, to_x: inside(to.x, WIDTH), to_y: inside(to.y, HEIGHT) };
  }

  /** An episode: its score and what was done. `inputs`: of random play; null for the oracle. */
  window.playEpisode = ({ start, maxSteps, inputs, seed }) => {
    const random = seeded(seed);
    const pick = (list) => list[Math.floor(random() * list.length)];
    now = Math.ceil(now / 1000) * 1000;
    start();
    settle(STEP_FRAMES * FRAME_MS);
    const actions = [];
    while (actions.length < maxSteps) {
      const { done, elements } = game.state();
      const action = done ? null : inputs ? randomAction(elements, inputs, pick) : game.hint();
      if (!action) break;
      perform(action);
      actions.push(action);
    }
    const { score, won, reason } = game.state();
    return { score, won, reason, actions };
  };
})();
