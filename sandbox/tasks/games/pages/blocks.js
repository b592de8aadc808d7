// Falling blocks: fill rows with the pieces that fall by the clock; a full row goes. Of the kind of Alexey Pajitnov's Tetris (1985).
"use strict";

game((kit) => {
  // Each piece in its first turn, as [column, row] in a square of `side`; a turn is a quarter clockwise.
  const PIECES = {
    I: { side: 4, colour: "teal", cells: [[0, 1], [1, 1], [2, 1], [3, 1]] },
    O: { side: 2, colour: "yellow", cells: [[0, 0], [1, 0], [0, 1], [1, 1]] },
    T: { side: 3, colour: "purple", cells: [[1, 0], [0, 1], [1, 1], [2, 1]] },
    S: { side: 3, colour: "green", cells: [[1, 0], [2, 0], [0, 1], [1, 1]] },
    Z: { side: 3, colour: "red", cells: [[0, 0], [1, 0], [1, 1], [2, 1]] },
    J: { side: 3, colour: "blue", cells: [[0, 0], [0, 1], [1, 1], [2, 1]] },
    L: { side: 3, colour: "orange", cells: [[2, 0], [0, 1], [1, 1], [2, 1]] },
  };
  const ROW_SCORES = [0, 100, 300, 500, 800];
  const KICKS = [0, -1, 1, -2, 2]; // columns that a turn may shift by where it would not fit
  const FLASH_TICKS = 8;
  const NEXT_HEIGHT = 92;

  // ---- rules. The well is rows of piece names, "" where empty; a falling piece is {name, turn, x, y}.

  const turned = Object.fromEntries(
    Object.entries(PIECES).map(([name, { side, cells }]) => {
      const turns = [cells];
      for (let turn = 1; turn < 4; turn++) turns.push(turns[turn - 1].map(([x, y]) => [side - 1 - y, x]));
      return [name, turns];
    }),
  );

  const cellsOf = ({ name, turn, x, y }) => turned[name][turn].map(([dx, dy]) => [x + dx, y + dy]);
  const fits = (well, piece) => cellsOf(piece).every(([x, y]) => x >= 0 && x < well[0].length && y < well.length && (y < 0 || !well[y][x]));
  const emptyRow = (width) => new Array(width).fill("");

  function landed(well, piece) {
    let low = piece;
    while (fits(well, { ...low, y: low.y + 1 })) low = { ...low, y: low.y + 1 };
    return low;
  }

  function create({ width, height, ticks, names }, random) {
    const model = { random, names: [...names], bag: [], ticks, well: Array.from({ length: height }, () => emptyRow(width)), lines: 0, fallAt: ticks, cleared: null };
    model.next = nextName(model);
    spawn(model);
    return model;
  }

  function nextName(model) {
    if (!model.bag.length) model.bag = model.random.shuffle([...model.names]);
    return model.bag.pop();
  }

  function spawn(model) {
    const name = model.next;
    model.next = nextName(model);
    model.piece = { name, turn: 0, x: Math.floor((model.well[0].length - PIECES[name].side) / 2), y: name === "I" ? -1 : 0 };
    if (fits(model.well, model.piece)) return;
    model.over = true;
    model.lives = 0;
    model.reason = "the well is full";
  }

  /** The well with a piece in it and without its full rows, and which rows those were. */
  function placed(well, piece) {
    const filled = well.map((row) => [...row]);
    for (const [x, y] of cellsOf(piece)) if (y >= 0) filled[y][x] = piece.name;
    const full = filled.flatMap((row, y) => (row.every(Boolean) ? [y] : []));
    const rest = filled.filter((_, y) => !full.includes(y));
    return { well: [...full.map(() => emptyRow(well[0].length)), ...rest], full, filled };
  }

  function lock(model, view) {
    const { well, full, filled } = placed(model.well, model.piece);
    model.well = well;
    model.lines += full.length;
    model.score += ROW_SCORES[full.length];
    model.cleared = full.length ? { at: view.tick, rows: full, filled } : model.cleared;
    model.fallAt = view.tick + model.ticks;
    spawn(model);
  }

  function shift(model, change) {
    const moved = { ...model.piece, ...change };
    if (!fits(model.well, moved)) return false;
    model.piece = moved;
    return true;
  }

  function key(model, name, view) {
    const { x, y, turn } = model.piece;
    if (name === "left" || name === "right") return shift(model, { x: x + (name === "left" ? -1 : 1) });
    if (name === "up") return KICKS.some((far) => shift(model, { turn: (turn + 1) % 4, x: x + far }));
    if (name === "down") {
      model.fallAt = view.tick + model.ticks;
      return shift(model, { y: y + 1 });
    }
    if (name !== "space") return false;
    model.piece = landed(model.well, model.piece);
    lock(model, view);
    return true;
  }

  function tick(model, view) {
    if (view.tick < model.fallAt) return false;
    model.fallAt = view.tick + model.ticks;
    if (!shift(model, { y: model.piece.y + 1 })) lock(model, view);
    return true;
  }

  // ---- looks

  function layout(model, view) {
    const side = Math.floor((view.board.size - 8) / model.well.length);
    const [width, height] = [side * model.well[0].length, side * model.well.length];
    const panel = 84;
    return { side, width, height, x: view.board.x + (view.board.size - width - panel - 12) / 2, y: view.board.y + (view.board.size - height) / 2, panel };
  }

  const drawCell = (ctx, x, y, side, name) => kit.block(ctx, x + 0.5, y + 0.5, side - 1, side - 1, side * 0.18, kit.colours[PIECES[name].colour]);

  function draw(ctx, model, view) {
    const { side, width, height, x: left, y: top, panel } = layout(model, view);
    kit.box(ctx, left - 4, top - 4, width + 8, height + 8, 8, "#0d0f1b", "#333a5e", 2);
    for (let column = 1; column < model.well[0].length; column++) {
      ctx.fillStyle = "#191d31";
      ctx.fillRect(left + column * side - 0.5, top, 1, height);
    }
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    const shown = model.cleared && view.tick - model.cleared.at < FLASH_TICKS;
    const well = shown ? model.cleared.filled : model.well;
    well.forEach((row, y) => row.forEach((name, x) => name && drawCell(ctx, left + x * side, top + y * side, side, name)));
    if (shown) {
      ctx.globalAlpha = 1 - 0.5 * view.since(model.cleared.at, FLASH_TICKS);
      ctx.fillStyle = kit.colours.white;
      for (const row of model.cleared.rows) ctx.fillRect(left, top + row * side, width, side);
      ctx.globalAlpha = 1;
    } else if (!model.over) {
      for (const [x, y] of cellsOf(landed(model.well, model.piece))) {
        kit.box(ctx, left + x * side + 2, top + y * side + 2, side - 4, side - 4, side * 0.15, null, kit.colours[PIECES[model.piece.name].colour], 1.5);
      }
      for (const [x, y] of cellsOf(model.piece)) drawCell(ctx, left + x * side, top + y * side, side, model.piece.name);
    }
    ctx.restore();
    drawPanel(ctx, model, left + width + 16, top, panel);
  }

  function drawPanel(ctx, model, x, y, width) {
    kit.box(ctx, x, y - 4, width, NEXT_HEIGHT, 8, "#262a42");
    kit.text(ctx, "NEXT", x + width / 2, y + 9, { size: 9, weight: "bold", colour: "#9aa3c0" });
    const { side, cells } = PIECES[model.next];
    const small = 17;
    const [high, low] = [Math.min(...cells.map((cell) => cell[1])), Math.max(...cells.map((cell) => cell[1]))];
    for (const [column, row] of cells) {
      drawCell(ctx, x + width / 2 + (column - side / 2) * small, y + 50 + (row - (high + low + 1) / 2) * small, small, model.next);
    }
    kit.box(ctx, x, y + 98, width, 50, 8, "#262a42");
    kit.text(ctx, "ROWS", x + width / 2, y + 111, { size: 9, weight: "bold", colour: "#9aa3c0" });
    kit.text(ctx, String(model.lines), x + width / 2, y + 131, { size: 20, weight: "bold" });
  }

  function elements(model, view) {
    const { side, width, x: left, y: top, panel } = layout(model, view);
    const next = kit.element("text", `next ${model.next}`, left + width + 16 + panel / 2, top - 4 + NEXT_HEIGHT / 2, panel, NEXT_HEIGHT);
    const cell = (role, label, x, y, states) => kit.element(role, label, left + (x + 0.5) * side, top + (y + 0.5) * side, side, side, states);
    const falling = model.over ? [] : cellsOf(model.piece).filter(([, y]) => y >= 0);
    const lying = model.well.flatMap((row, y) => row.flatMap((name, x) => (name ? [cell("cell", name, x, y)] : [])));
    return [...falling.map(([x, y]) => cell("piece", model.piece.name, x, y)), next, ...lying];
  }

  // ---- oracle: of all places where the piece can come to lie, the one that leaves the lowest, closest pile

  /** The lower the better: rows cleared and height, holes, bumps between columns. After Y. Lee's weights (2013). */
  function cost(well, numFull) {
    const heights = well[0].map((_, x) => {
      const top = well.findIndex((row) => row[x]);
      return top < 0 ? 0 : well.length - top;
    });
    const holes = heights.reduce((sum, height, x) => sum + well.slice(well.length - height).filter((row) => !row[x]).length, 0);
    const bumps = heights.slice(1).reduce((sum, height, at) => sum + Math.abs(height - heights[at]), 0);
    return 0.51 * heights.reduce((sum, height) => sum + height, 0) + 0.36 * holes * 3 + 0.18 * bumps - 0.76 * numFull;
  }

  /** Where the piece can come by turning where it is, shifting, and dropping: [{turn, x, cost}]. */
  function places(model) {
    const found = [];
    for (let turn = 0; turn < 4; turn++) {
      const piece = KICKS.map((far) => ({ ...model.piece, turn, x: model.piece.x + far })).find((each) => fits(model.well, each));
      if (!piece) continue;
      for (const way of [-1, 1]) {
        for (let each = piece; fits(model.well, each); each = { ...each, x: each.x + way }) {
          const { well, full } = placed(model.well, landed(model.well, each));
          found.push({ turn, x: each.x, cost: cost(well, full.length) });
        }
      }
    }
    return found;
  }

  function hint(model) {
    const best = places(model).reduce((one, other) => (other.cost < one.cost - 1e-9 ? other : one));
    if (best.turn !== model.piece.turn) return kit.press("up");
    if (best.x !== model.piece.x) return kit.press(best.x < model.piece.x ? "left" : "right");
    return kit.press("space");
  }

  return {
    name: "blocks",
    title: "Falling blocks",
    tagline: "Fill whole rows",
    version: 1,
    keys: "← → move · ↑ turn · ↓ down · Space drop",
    controls: "Left and right arrow move the falling piece, up turns it, down lowers it, space drops it; a full row goes.",
    theme: { background: "#14172a" },
    levels: [
      { width: 6, height: 12, ticks: 90, names: "OILJ" },
      { width: 8, height: 16, ticks: 60, names: "IOTSZJL" },
      { width: 10, height: 18, ticks: 30, names: "IOTSZJL" },
    ],
    goals: {
      rows: { text: (target) => (target === 1 ? "Clear a row." : `Clear ${target} rows.`), measure: (model) => model.lines },
      score: { text: (target) => `Score ${target} points.`, measure: (model) => model.score },
    },
    create, key, tick, draw, elements, hint,
    describe: (model) => ({ well: model.well.map((row) => row.map((name) => name || ".").join("")), piece: model.piece, next: model.next, rows: model.lines }),
  };
});
