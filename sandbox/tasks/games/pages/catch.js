// Catch: stars fall, bombs fall beside them; move the dish below the stars. By the clock, drawn in WebGL.
"use strict";

game((kit) => {
  const STAR_SCORE = 10;
  const TICKS_PER_COLUMN = 3; // of the dish on its way to where the pointer was
  const [HOLD_TICKS, REPEAT_TICKS] = [12, 4]; // a key held down moves the dish on
  const LIVES = 3;

  // ---- rules. A wave is a row with one star and some bombs; rows count from the top, the last is the dish's.

  /** A wave's star is never where the one before was, so nobody catches all by standing still, and never too far from it to get there. */
  function wave(model) {
    const { columns, jump, bombs } = model;
    const numbers = Array.from({ length: columns }, (_, column) => column);
    const star = model.random.pick(numbers.filter((column) => column !== model.last && Math.abs(column - model.last) <= jump));
    const beside = model.random.shuffle(numbers.filter((column) => column !== star)).slice(0, model.random.int(bombs + 1));
    model.last = star;
    model.waves.push({ row: 0, star, bombs: beside });
  }

  function create(params, random) {
    const paddle = Math.floor(params.columns / 2);
    const model = { ...params, random, paddle, last: paddle, aim: null, pressed: null, fellAt: null, moved: null, burst: null };
    Object.assign(model, { waves: [], rowsFallen: 0, caught: 0, missed: 0, lives: LIVES });
    wave(model);
    return model;
  }

  function move(model, to, view) {
    const place = kit.clamp(to, 0, model.columns - 1);
    if (place === model.paddle) return false;
    model.moved = { at: view.tick, from: model.paddle };
    model.paddle = place;
    return true;
  }

  function key(model, name, view) {
    const step = { left: -1, right: 1 }[name];
    if (!step || model.pressed?.name === name) return false;
    model.pressed = { name, step, at: view.tick };
    model.aim = null;
    return move(model, model.paddle + step, view);
  }

  function pointer(model, event, view) {
    if (event.type === "up" || event.y < view.board.y) return false;
    const column = kit.clamp(Math.floor((event.x - view.board.x) / wide(model, view)), 0, model.columns - 1);
    const isNew = event.type === "down" && column !== model.paddle && column !== model.aim;
    model.aim = column;
    return isNew;
  }

  function tick(model, view) {
    if (model.pressed && !view.held.has(model.pressed.name)) model.pressed = null;
    const heldFor = model.pressed ? view.tick - model.pressed.at : 0;
    if (heldFor >= HOLD_TICKS && heldFor % REPEAT_TICKS === 0) move(model, model.paddle + model.pressed.step, view);
    if (model.aim === model.paddle) model.aim = null;
    if (model.aim !== null && view.tick % TICKS_PER_COLUMN === 0) move(model, model.paddle + Math.sign(model.aim - model.paddle), view);
    if (view.tick % model.ticksPerRow === 0) fall(model, view);
  }

  function fall(model, view) {
    model.fellAt = view.tick;
    model.rowsFallen += 1;
    for (const each of model.waves) each.row += 1;
    if (model.waves[0]?.row === model.rows - 1) land(model, model.waves.shift(), view);
    if (model.rowsFallen % model.gap === 0) wave(model);
  }

  function land(model, { star, bombs }, view) {
    const isCaught = star === model.paddle;
    const isHit = bombs.includes(model.paddle);
    model.burst = { at: view.tick, column: isHit || isCaught ? model.paddle : star, kind: isHit ? "bomb" : isCaught ? "star" : "miss" };
    if (isCaught) {
      model.caught += 1;
      model.score += STAR_SCORE;
      return;
    }
    model.missed += 1;
    model.lives = Math.max(0, model.lives - 1 - Number(isHit));
    model.over = model.lives === 0;
    model.reason = model.over ? "no life left" : "";
  }

  // ---- looks

  const wide = (model, view) => view.board.size / model.columns;
  const tall = (model, view) => (view.board.size - 12) / model.rows;
  const middleX = (model, view, column) => view.board.x + (column + 0.5) * wide(model, view);
  const middleY = (model, view, row) => view.board.y + (row + 0.5) * tall(model, view);

  let painter = null;

  function draw(ctx, model, view) {
    painter ??= kit.light(view.gl);
    painter.still(model, () => drawNight(model, view));
    drawLane(model, view, model.paddle, 0.08);
    // A thing reaches a row by the end of its ticks; it is drawn where it is between.
    const along = model.fellAt === null ? 0 : kit.clamp((view.tick - model.fellAt) / model.ticksPerRow, 0, 1) - 1;
    const size = Math.min(wide(model, view), tall(model, view) * 1.3, 44) * 0.42;
    for (const { row, star, bombs } of model.waves) {
      const y = middleY(model, view, Math.max(-0.4, row + (row ? along : 0)));
      drawStar(middleX(model, view, star), y, size, view);
      for (const column of bombs) drawBomb(middleX(model, view, column), y, size);
    }
    drawDish(model, view);
    if (model.burst) drawBurst(model, view);
    painter.paint();
  }

  function drawNight(model, view) {
    painter.sky("#101a3c", "#3a2a5e", 90);
    painter.disc(262, 96, 24, { colour: "#f6ecc9", glow: 26, alpha: 0.4 });
    painter.disc(253, 90, 21, { colour: "#17204a" });
    for (let column = 0; column < model.columns; column++) drawLane(model, view, column, 0.05);
  }

  function drawLane(model, view, column, alpha) {
    const x = view.board.x + column * wide(model, view);
    painter.box(x + 1.5, view.board.y, wide(model, view) - 3, view.board.size, 8, { colour: "#8fa4ff", alpha });
  }

  function drawStar(x, y, size, view) {
    painter.star(x, y, size, 5, 0.5, { colour: "#ffd45e", glow: size * 1.1, angle: 0.25 * Math.sin(view.tick / 14) });
    painter.star(x, y, size * 0.55, 5, 0.5, { colour: "#fff6d8", angle: 0.25 * Math.sin(view.tick / 14) });
  }

  function drawBomb(x, y, size) {
    painter.star(x, y, size, 9, 0.7, { colour: "#ff4d5e", glow: size * 0.5 });
    painter.disc(x, y, size * 0.66, { colour: "#2a1226", shine: 0.5 });
    painter.disc(x - size * 0.2, y - size * 0.2, size * 0.14, { colour: "#ffb3ba" });
  }

  function drawDish(model, view) {
    const slid = model.moved ? view.since(model.moved.at, 4) : 1;
    const x = kit.mix(middleX(model, view, model.moved?.from ?? model.paddle), middleX(model, view, model.paddle), slid);
    const y = middleY(model, view, model.rows - 1) + 8;
    const width = Math.min(wide(model, view) * 0.86, 78);
    painter.box(x - width / 2, y - 7, width, 14, 7, { colour: "#5fe3ff", glow: 14, shine: 0.3 });
    painter.box(x - width / 2 + 5, y - 4.5, width - 10, 4, 2, { colour: "#e8fbff", alpha: 0.85 });
    painter.disc(x, y + 7, 5, { colour: "#2a7fb8", glow: 6 });
  }

  /** Sparks that fly apart from where something came down. */
  function drawBurst(model, view) {
    const share = view.since(model.burst.at, 12);
    if (share >= 1) return;
    const [x, y] = [middleX(model, view, model.burst.column), middleY(model, view, model.rows - 1)];
    const colour = { star: "#ffe58a", bomb: "#ff4d5e", miss: "#8d93b8" }[model.burst.kind];
    for (let num = 0; num < 10; num++) {
      const angle = (num * Math.PI) / 5;
      const [dx, dy] = [Math.cos(angle) * 34 * share, Math.sin(angle) * 26 * share];
      painter.disc(x + dx, y + dy, 3.2 * (1 - share), { colour, glow: 7 * (1 - share) });
    }
  }

  /** What falls, the lowest first, then the dish: each says its column and its row. */
  function elements(model, view) {
    const [width, height] = [wide(model, view), tall(model, view)];
    const at = (role, name, column, row) =>
      kit.element(role, `${name} ${column + 1} row ${row + 1}`, middleX(model, view, column), middleY(model, view, row), width, height);
    const falling = ({ row, star, bombs }) => [at("item", "star", star, row), ...bombs.map((column) => at("item", "bomb", column, row))];
    const [x, y] = [middleX(model, view, model.paddle), middleY(model, view, model.rows - 1)];
    return [...model.waves.flatMap(falling), kit.element("paddle", `paddle ${model.paddle + 1}`, x, y, width, height)];
  }

  // ---- oracle: goes below the lowest star; with keys where the board is small, else by pointing there

  function hint(model, { view }) {
    const to = model.waves[0]?.star ?? model.paddle;
    if (to === (model.aim ?? model.paddle)) return kit.wait(0.1);
    if (model.byKeys) return kit.press(to < model.paddle ? "left" : "right");
    return kit.click(middleX(model, view, to), middleY(model, view, model.rows - 1));
  }

  return {
    name: "catch",
    title: "Catch",
    tagline: "Catch stars, not bombs",
    version: 1,
    webgl: true,
    hasLives: true,
    keys: "Left and right arrow keys, or point where to go",
    controls: "Left and right arrow keys move the dish, a click sends it to a column. A missed star costs a life, a caught bomb another.",
    theme: { background: "#101a3c", panel: "#28336a", muted: "#9fb0ea" },
    levels: [
      { columns: 3, rows: 5, ticksPerRow: 9, gap: 4, jump: 2, bombs: 0, byKeys: true },
      { columns: 5, rows: 7, ticksPerRow: 9, gap: 5, jump: 3, bombs: 0, byKeys: true },
      { columns: 7, rows: 9, ticksPerRow: 8, gap: 5, jump: 4, bombs: 2 },
      { columns: 9, rows: 10, ticksPerRow: 6, gap: 5, jump: 4, bombs: 4 },
    ],
    goals: { stars: { text: (num) => `Catch ${num} stars.`, measure: (model) => model.caught } },
    create, key, pointer, tick, draw, elements, hint,
    describe: ({ columns, rows, paddle, waves, caught, missed }) => ({ columns, rows, paddle, waves, caught, missed }),
  };
});
