// Mines: open every cell without a mine; numbers tell how many mines lie around a cell. Of the kind of Minesweeper. The mines are laid by
// the first click, so that it is safe and that logic alone, without a guess, opens all the rest.
"use strict";

game((kit) => {
  const [HIDDEN, FLAG] = [-1, -2];
  const MINE = -3; // shown once the game is lost
  const COLOURS = ["", "#3d7ede", "#3f9b5f", "#d9534f", "#6b4bb8", "#a0522d", "#2a9d9d", "#333333", "#777777"];
  const MAX_LAYOUTS = 400;

  // ---- rules. `shown` holds for each cell what is seen of it: a number, HIDDEN or FLAG. `mines` is null until the first click.

  function around(size, cell) {
    const [x, y] = [cell % size, Math.floor(cell / size)];
    const cells = [];
    for (let toY = Math.max(0, y - 1); toY <= Math.min(size - 1, y + 1); toY++) {
      for (let toX = Math.max(0, x - 1); toX <= Math.min(size - 1, x + 1); toX++) if (toX !== x || toY !== y) cells.push(toY * size + toX);
    }
    return cells;
  }

  const count = (size, mines, cell) => around(size, cell).filter((other) => mines.has(other)).length;

  /** Opens a cell, and where no mine is near, all around it, and so on. */
  function open(size, mines, shown, first) {
    const queue = [first];
    for (const cell of queue) {
      if (shown[cell] >= 0) continue;
      shown[cell] = count(size, mines, cell);
      if (shown[cell] === 0) queue.push(...around(size, cell));
    }
  }

  const numOpen = (shown) => shown.filter((value) => value >= 0).length;

  /** What logic says of the hidden cells around numbers: {safe, mined}, sets of cells. Flags count as hidden: they may be wrong. Rules: a
   * number with all its mines known, a number with as many hidden cells as mines, and one number's cells within another's; at last the
   * number of all mines. */
  function reason(size, shown, num) {
    const [safe, mined] = [new Set(), new Set()];
    for (let isNew = true; isNew; ) {
      isNew = false;
      const known = constraints(size, shown, num, safe, mined);
      for (const { cells, mines } of [...known, ...differences(known)]) {
        const found = mines === 0 ? safe : mines === cells.length ? mined : null;
        for (const cell of found ? cells : []) {
          if (found.has(cell)) continue;
          found.add(cell);
          isNew = true;
        }
      }
    }
    return { safe, mined };
  }

  /** Sets of undecided cells with the number of mines in each. */
  function constraints(size, shown, num, safe, mined) {
    const of = (cells, mines) => ({
      cells: cells.filter((cell) => shown[cell] < 0 && !safe.has(cell) && !mined.has(cell)),
      mines: mines - cells.filter((cell) => mined.has(cell)).length,
    });
    const numbered = shown.flatMap((value, cell) => (value > 0 ? [of(around(size, cell), value)] : []));
    return [...numbered, of(shown.map((_, cell) => cell), num)].filter(({ cells }) => cells.length);
  }

  function differences(known) {
    const found = [];
    for (const part of known) {
      for (const whole of known) {
        if (part === whole || part.cells.length >= whole.cells.length) continue;
        if (!part.cells.every((cell) => whole.cells.includes(cell))) continue;
        found.push({ cells: whole.cells.filter((cell) => !part.cells.includes(cell)), mines: whole.mines - part.mines });
      }
    }
    return found;
  }

  /** How many clicks logic needs after the first, or -1 where it comes to a guess. */
  function clicksToSolve(size, mines, first) {
    const shown = new Array(size * size).fill(HIDDEN);
    open(size, mines, shown, first);
    for (let clicks = 0; ; ) {
      if (numOpen(shown) === shown.length - mines.size) return clicks;
      const { safe } = reason(size, shown, mines.size);
      if (!safe.size) return -1;
      for (const cell of safe) {
        if (shown[cell] >= 0) continue;
        open(size, mines, shown, cell);
        clicks += 1;
      }
    }
  }

  /** Mines that leave the first cell and what is around it free; drawn until logic solves the board in enough clicks. Where none of many
   * does, the last one has fewer mines: with none at all every board is solved. */
  function layMines(model, first) {
    const near = new Set([first, ...around(model.size, first)]);
    const places = model.shown.map((_, cell) => cell).filter((cell) => !near.has(cell));
    for (let num = model.num; ; num--) {
      for (let tries = 0; tries < MAX_LAYOUTS; tries++) {
        const mines = new Set(model.random.shuffle([...places]).slice(0, num));
        const clicks = clicksToSolve(model.size, mines, first);
        if (clicks >= model.clicks || (clicks >= 0 && num < model.num)) {
          model.num = num;
          return mines;
        }
      }
    }
  }

  const create = ({ size, mines, clicks }, random) => ({
    size, num: mines, clicks, random, mines: null, shown: new Array(size * size).fill(HIDDEN), isFlagging: false, openedAt: null, fresh: [],
  });

  function dig(model, cell, view) {
    if (model.shown[cell] !== HIDDEN) return false;
    model.mines ??= layMines(model, cell);
    const before = [...model.shown];
    if (model.mines.has(cell)) {
      model.over = true;
      model.lives = 0;
      model.reason = "dug up a mine";
      model.hit = cell;
      for (const mine of model.mines) model.shown[mine] = MINE;
    } else {
      open(model.size, model.mines, model.shown, cell);
      model.score = numOpen(model.shown);
      model.solved = model.score === model.shown.length - model.num;
    }
    model.openedAt = view.tick;
    model.fresh = model.shown.flatMap((value, each) => (value !== before[each] ? [each] : []));
    return true;
  }

  function flag(model, cell) {
    if (model.shown[cell] >= 0) return false;
    model.shown[cell] = model.shown[cell] === FLAG ? HIDDEN : FLAG;
    return true;
  }

  function pointer(model, event, view) {
    if (event.type !== "down") return false;
    const { side, x, y } = layout(model, view);
    const button = flagButton(view);
    if (Math.abs(event.x - button.x) < button.width / 2 && Math.abs(event.y - button.y) < button.height / 2) {
      model.isFlagging = !model.isFlagging;
      return true;
    }
    const [column, row] = [Math.floor((event.x - x) / side), Math.floor((event.y - y) / side)];
    if (column < 0 || row < 0 || column >= model.size || row >= model.size) return false;
    const cell = row * model.size + column;
    return model.isFlagging || event.isRight ? flag(model, cell) : dig(model, cell, view);
  }

  function key(model, name) {
    if (name !== "f") return false;
    model.isFlagging = !model.isFlagging;
    return true;
  }

  // ---- looks

  function layout(model, view) {
    const side = Math.floor((view.board.size - 34) / model.size);
    return { side, x: view.board.x + (view.board.size - side * model.size) / 2, y: view.board.y + 34 };
  }

  const flagButton = (view) => ({ x: view.board.x + view.board.size - 50, y: view.board.y + 14, width: 92, height: 26 });

  function draw(ctx, model, view) {
    const { side, x, y } = layout(model, view);
    const left = model.num - model.shown.filter((value) => value === FLAG).length;
    const words = `${model.num} mines, ${left} without a flag`;
    kit.text(ctx, words, x + 2, view.board.y + 14, { size: 12, weight: "bold", colour: "#4a6272", align: "left" });
    const button = flagButton(view);
    const colour = model.isFlagging ? kit.colours.red : "#7b95a5";
    kit.block(ctx, button.x - button.width / 2, button.y - button.height / 2, button.width, button.height, 8, colour);
    kit.text(ctx, model.isFlagging ? "Set flags" : "Dig", button.x, button.y - 1, { size: 13, weight: "bold" });
    kit.box(ctx, x - 3, y - 3, side * model.size + 6, side * model.size + 6, 8, "#8fa9b8");
    const opened = view.since(model.openedAt, 7);
    model.shown.forEach((value, cell) => {
      const isFresh = model.fresh.includes(cell) && opened < 1;
      drawCell(ctx, value, x + (cell % model.size) * side, y + Math.floor(cell / model.size) * side, side, cell === model.hit);
      if (!isFresh) return;
      ctx.globalAlpha = 1 - opened;
      drawCell(ctx, HIDDEN, x + (cell % model.size) * side, y + Math.floor(cell / model.size) * side, side);
      ctx.globalAlpha = 1;
    });
  }

  function drawCell(ctx, value, x, y, side, isHit = false) {
    const [middleX, middleY] = [x + side / 2, y + side / 2];
    if (value === HIDDEN || value === FLAG) {
      kit.block(ctx, x + 1, y + 1, side - 2, side - 2, side * 0.16, "#5f9ec4");
      if (value === FLAG) {
        const cloth = [[-0.12, -0.3], [0.26, -0.12], [-0.12, 0.06]].map(([dx, dy]) => [middleX + dx * side, middleY + dy * side]);
        kit.polygon(ctx, cloth, kit.colours.red);
        kit.box(ctx, middleX - side * 0.18, middleY - side * 0.32, side * 0.07, side * 0.62, 1, "#fdfdfd");
      }
      return;
    }
    kit.box(ctx, x + 1, y + 1, side - 2, side - 2, side * 0.1, isHit ? "#f3b0ac" : "#e9f0f4");
    if (value > 0) kit.text(ctx, String(value), middleX, middleY, { size: side * 0.56, weight: "bold", colour: COLOURS[value] });
    if (value !== MINE) return;
    for (let at = 0; at < 4; at++) {
      const [dx, dy] = [Math.cos((at * Math.PI) / 4) * side * 0.34, Math.sin((at * Math.PI) / 4) * side * 0.34];
      kit.polygon(ctx, [[middleX - dx, middleY - dy], [middleX + dx, middleY + dy]], null, "#2b2f3a", side * 0.09);
    }
    kit.disc(ctx, middleX, middleY, side * 0.25, "#2b2f3a");
    kit.disc(ctx, middleX - side * 0.08, middleY - side * 0.08, side * 0.07, "#ffffff");
  }

  const TEXTS = { [HIDDEN]: "hidden", [FLAG]: "flag", [MINE]: "mine", 0: "clear" };

  function elements(model, view) {
    const { side, x, y } = layout(model, view);
    const button = flagButton(view);
    const cells = model.shown.map((value, cell) => {
      const [column, row] = [cell % model.size, Math.floor(cell / model.size)];
      return kit.element("cell", TEXTS[value] ?? value, x + (column + 0.5) * side, y + (row + 0.5) * side, side, side);
    });
    return [...cells, kit.element("button", model.isFlagging ? "set flags" : "dig", button.x, button.y, button.width, button.height)];
  }

  // ---- oracle: the first cell that logic calls safe; a flag on it is taken away first

  function hint(model, { view }) {
    const { side, x, y } = layout(model, view);
    const middle = Math.floor(model.size / 2) * (model.size + 1);
    const [cell] = model.mines ? [...reason(model.size, model.shown, model.num).safe].sort((one, other) => one - other) : [middle];
    if (cell === undefined) return null;
    const button = flagButton(view);
    if (model.isFlagging !== (model.shown[cell] === FLAG)) return kit.click(button.x, button.y);
    return kit.click(x + (cell % model.size + 0.5) * side, y + (Math.floor(cell / model.size) + 0.5) * side);
  }

  return {
    name: "mines",
    title: "Mines",
    tagline: "Dig where no mine is",
    version: 1,
    keys: "Click digs · right click, or F and a click, sets a flag",
    controls: "Click a cell to dig; a number tells how many mines lie around it. The first cell is safe, and no guess is ever needed.",
    theme: { background: "#dbe6ec", panel: "#c5d5de", text: "#2f4858", muted: "#64808f" },
    levels: [{ size: 5, mines: 4, clicks: 5 }, { size: 8, mines: 10, clicks: 12 }, { size: 10, mines: 18, clicks: 25 }],
    goals: {
      solve: { text: () => "Dig up every cell that has no mine.", measure: (model) => Number(model.solved) },
      cells: { text: (num) => `Open ${num} cells.`, measure: (model) => numOpen(model.shown) },
    },
    create, key, pointer, draw, elements, hint,
    describe: ({ size, shown, num }) => ({ size, cells: shown.map((value) => TEXTS[value] ?? value), mines: num, open: numOpen(shown) }),
  };
});
