// What all games share: the canvas, input, time, goals, the state that the outside reads, and what a person sees around the board.
// A game calls game((kit) => definition) once; from then on window.game is {state, start, hint} and nothing else is global.
// What a definition holds is told in docs/games.md. The rules of no game are here.
//
// Time is counted in ticks of 1/60 s from the frames' own timestamps, so frames of any length give the same play. Nothing else is a clock.
"use strict";

(() => {
  const kit = window.game;
  const ENGINE_VERSION = 1;
  const WIDTH = 320;
  const HEIGHT = 360;
  const TICK_MS = 1000 / 60;
  const TICK_ROUNDING = 0.41; // between what whole milliseconds leave of a tick, so that a timestamp's jitter never decides
  const SETTLED_TICKS = 10; // nothing moves any more so long after a change: animations are shorter
  const MAX_TICKS_PER_FRAME = 30; // a hidden tab does not catch up
  const SHORT_OF_GOAL = 0.9; // what is short of the goal never pays more
  const BOARD = Object.freeze({ x: 10, y: 46, size: 300 });
  const KEYS = {
    ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", " ": "space", Enter: "enter", Escape: "escape",
    Backspace: "backspace", a: "left", d: "right", w: "up", s: "down",
  };

  let rules;
  let model;
  let task;
  let seed = 0;
  let level = 1;
  let steps = 0;
  let ticks = 0;
  let origin = null;
  let changedAt = 0; // tick of the last input, or of the last thing that moved
  let drawnAt = -1;
  let isStarted = false;
  let front; // 2D context over everything
  let scale = 1;

  /** What a game may know of the moment: ticks since the start, the board's place, the pointer, keys held down. */
  const view = {
    tick: 0,
    board: BOARD,
    width: WIDTH,
    height: HEIGHT,
    pointer: { x: -1, y: -1, isDown: false },
    held: new Set(),
    gl: null,
    /** How far an animation of so many ticks is that began at `tick`: eased, 1 once it is over or never began. */
    since: (tick, length = 8) => (tick === undefined || tick === null ? 1 : kit.ease(kit.clamp((view.tick - tick) / length, 0, 1))),
  };

  // ---- goals and state

  const params = () => rules.levels[level - 1];
  const goal = () => (task.goal ? rules.goals[task.goal] : null);
  const measure = () => (goal() ? Number(goal().measure(model, params())) : 0);
  const isWon = () => (goal() ? measure() >= task.target : Boolean(model.solved));
  const isDone = () => isWon() || Boolean(model.over);

  function reward() {
    if (isWon()) return 1;
    return task.reference > 0 ? kit.clamp(model.score / task.reference, 0, SHORT_OF_GOAL) : 0;
  }

  function instruction() {
    return goal() ? `${goal().text(task.target)} ${rules.controls}` : rules.controls;
  }

  function state() {
    return {
      game: rules.name,
      version: `${rules.version}.${ENGINE_VERSION}`,
      checksum: task.checksum,
      seed,
      level: model.level ?? level,
      score: model.score,
      lives: model.lives,
      over: Boolean(model.over),
      won: isWon(),
      done: isDone(),
      reason: isWon() ? "goal" : model.over ? model.reason : "",
      steps,
      time_ms: Math.round(ticks * TICK_MS),
      goal: task.goal,
      target: task.target,
      progress: measure(),
      reference_score: task.reference,
      reward: reward(),
      instruction: instruction(),
      elements: task.elements ? rules.elements(model, view) : [],
      metadata: rules.describe(model),
    };
  }

  // ---- start and hint

  /** Start an instance. `how` (optional) makes it an episode: {goal, target, reference, elements, checksum}. */
  function start(newSeed, newLevel = 1, how = {}) {
    seed = newSeed;
    level = kit.clamp(Math.round(newLevel) || 1, 1, rules.levels.length);
    task = { goal: "", target: 0, reference: 0, elements: false, checksum: "", ...how };
    if (task.goal && !rules.goals[task.goal]) throw new Error(`${rules.name} has no goal ${task.goal}: ${Object.keys(rules.goals)}`);
    steps = 0;
    view.pointer = { x: -1, y: -1, isDown: false };
    view.held.clear();
    isStarted = Boolean(task.goal);
    ticks = view.tick = 0;
    origin = null;
    restart();
    return true;
  }

  /** The same instance from its beginning; steps and time go on. */
  function restart() {
    const random = kit.seeded(`${rules.name}/${level}/${seed}`);
    model = { score: 0, lives: 1, over: false, solved: false, reason: "", ...rules.create(params(), random) };
    changedAt = ticks;
    drawnAt = -1;
  }

  const hint = () => (isDone() ? null : rules.hint(model, { goal: task.goal, target: task.target, view, params: params() }));

  // ---- input

  function act(change) {
    changedAt = ticks;
    isStarted = true;
    if (!isDone() && change()) steps += 1;
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = KEYS[event.key] ?? (event.key.length === 1 ? event.key.toLowerCase() : "");
    if (event.type === "keyup") {
      view.held.delete(key);
      return;
    }
    if (KEYS[event.key]) event.preventDefault();
    if (!key) return;
    view.held.add(key);
    if (!task.goal && isDone() && key === "enter") start(seed + 1, model.solved ? level + 1 : level);
    else if (!task.goal && key === "n") start(seed + 1, level);
    else if (key === "r" && !isDone()) {
      restart();
      steps += 1;
    } else if (rules.key) act(() => rules.key(model, key, view));
  }

  function onPointer(event) {
    const shape = front.canvas.getBoundingClientRect();
    view.pointer.x = ((event.clientX - shape.left) * WIDTH) / shape.width;
    view.pointer.y = ((event.clientY - shape.top) * HEIGHT) / shape.height;
    if (event.type === "pointerdown") {
      event.preventDefault();
      front.canvas.setPointerCapture(event.pointerId);
      view.pointer.isDown = true;
    }
    if (event.type !== "pointermove") view.pointer.isDown = event.type === "pointerdown";
    const type = { pointerdown: "down", pointermove: "move", pointerup: "up", pointercancel: "up" }[event.type];
    if (type === "down" && !task.goal && isDone()) start(seed + 1, model.solved ? level + 1 : level);
    else if (rules.pointer && (type !== "move" || isStarted)) {
      act(() => rules.pointer(model, { type, x: view.pointer.x, y: view.pointer.y, isRight: event.button === 2 }, view));
    }
  }

  // ---- time and drawing

  function onFrame(timestamp) {
    requestAnimationFrame(onFrame);
    if (origin === null) origin = timestamp - ticks * TICK_MS;
    const now = Math.floor((timestamp - origin) / TICK_MS + TICK_ROUNDING);
    if (now - ticks > MAX_TICKS_PER_FRAME) origin += (now - ticks - MAX_TICKS_PER_FRAME) * TICK_MS;
    const last = Math.min(now, ticks + MAX_TICKS_PER_FRAME);
    for (; ticks < last; ticks++) {
      view.tick = ticks + 1;
      if (!rules.tick || !isStarted || isDone()) continue;
      if (rules.tick(model, view) !== false) changedAt = view.tick;
    }
    if (drawnAt < changedAt + SETTLED_TICKS) draw();
  }

  function draw() {
    drawnAt = ticks;
    front.setTransform(scale, 0, 0, scale, 0, 0);
    front.clearRect(0, 0, WIDTH, HEIGHT);
    const theme = rules.theme;
    front.fillStyle = theme.background;
    if (view.gl) front.fillRect(0, 0, WIDTH, BOARD.y - 4);
    else front.fillRect(0, 0, WIDTH, HEIGHT);
    drawHeader(theme);
    front.save();
    if (rules.webgl && !view.gl) kit.text(front, "This game needs WebGL.", WIDTH / 2, 180, { size: 16, colour: theme.text });
    else rules.draw(front, model, view);
    front.restore();
    kit.text(front, task.goal ? rules.keys : `${rules.keys} · R restart · N new`, WIDTH / 2, 353, { size: 9.5, colour: theme.muted, width: 306 });
    if (isDone()) drawEnd(theme);
    else if (rules.tick && !isStarted) drawBanner(theme, "Ready?", "Press a key or click to start");
  }

  function drawHeader(theme) {
    const stats = [["SCORE", model.score], ["LEVEL", model.level ?? level]];
    if (rules.stat) stats.push(rules.stat(model));
    if (rules.hasLives) stats.push(["LIVES", model.lives]);
    const width = 48;
    const left = WIDTH - 10 - stats.length * (width + 4) + 4;
    const wanted = goal() ? goal().text(task.target) : rules.tagline;
    kit.text(front, rules.title, 10, 15, { size: 17, weight: "bold", colour: theme.text, align: "left", width: left - 18 });
    kit.text(front, wanted, 10, 33, { size: 10.5, colour: theme.muted, align: "left", width: left - 18 });
    stats.forEach(([name, value], at) => {
      const x = left + at * (width + 4);
      kit.box(front, x, 6, width, 34, 6, theme.panel);
      kit.text(front, name, x + width / 2, 14, { size: 7.5, weight: "bold", colour: theme.muted });
      kit.text(front, String(value), x + width / 2, 28, { size: 15, weight: "bold", colour: theme.text, width: width - 8 });
    });
  }

  function drawEnd(theme) {
    const title = isWon() ? (task.goal ? "Goal reached!" : "Solved!") : "Game over";
    drawBanner(theme, title, task.goal ? `Score ${model.score}` : `Score ${model.score} · Enter to play on`, isWon() ? kit.colours.green : kit.colours.red);
  }

  function drawBanner(theme, title, line, colour = theme.text) {
    const share = view.since(changedAt, 8);
    front.globalAlpha = 0.6 * share;
    front.fillStyle = theme.background;
    front.fillRect(0, BOARD.y - 2, WIDTH, BOARD.size + 4);
    front.globalAlpha = share;
    kit.box(front, 50, 154, 220, 84, 14, theme.panel, colour, 2);
    kit.text(front, title, WIDTH / 2, 184, { size: 24, weight: "bold", colour, width: 200 });
    kit.text(front, line, WIDTH / 2, 214, { size: 12, colour: theme.text, width: 200 });
    front.globalAlpha = 1;
  }

  // ---- set-up

  /** A canvas of the game's size, drawn with as many pixels as the screen has. */
  function canvas(isFront) {
    const made = document.createElement("canvas");
    made.className = isFront ? "front" : "back";
    document.getElementById("stage").append(made);
    return made;
  }

  function fit() {
    const room = Math.min(innerWidth / WIDTH, innerHeight / HEIGHT);
    const shown = kit.clamp(room >= 1.25 ? room * 0.94 : room, 0.5, 2.6);
    scale = shown * (devicePixelRatio || 1);
    for (const each of document.querySelectorAll("canvas")) {
      each.style.width = `${WIDTH * shown}px`;
      each.style.height = `${HEIGHT * shown}px`;
      each.width = Math.round(WIDTH * scale);
      each.height = Math.round(HEIGHT * scale);
    }
    document.getElementById("stage").style.cssText = `width:${WIDTH * shown}px;height:${HEIGHT * shown}px`;
    drawnAt = -1;
  }

  window.game = (build) => {
    rules = build(kit);
    const light = { background: "#181b2c", panel: "#262a42", text: kit.colours.white, muted: "#9aa3c0" };
    rules.theme = { ...light, ...rules.theme };
    document.title = rules.title;
    document.body.style.background = kit.shade(rules.theme.background, -0.18);
    if (rules.webgl) view.gl = canvas(false).getContext("webgl", { antialias: false });
    front = canvas(true).getContext("2d");
    window.game = Object.freeze({ state, start, hint });
    const query = new URLSearchParams(location.search);
    const given = query.has("seed") ? Number(query.get("seed")) : crypto.getRandomValues(new Uint16Array(1))[0];
    start(given, Number(query.get("level") ?? 1));
    fit();
    addEventListener("resize", fit);
    addEventListener("keydown", onKey);
    addEventListener("keyup", onKey);
    for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) front.canvas.addEventListener(type, onPointer);
    front.canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    requestAnimationFrame(onFrame);
  };
})();
