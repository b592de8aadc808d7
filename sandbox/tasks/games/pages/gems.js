// Gems: swap two neighbours so that three or more of a kind stand in a line; they go, others fall, chains score more. Of the kind of Bejeweled.
"use strict";

game((kit) => {
  const KINDS = ["red", "blue", "green", "yellow", "purple", "orange", "white"];
  const NAMES = ["ruby", "sapphire", "emerald", "topaz", "amethyst", "amber", "pearl"];
  const NUM_SIDES = [4, 6, 8, 3, 5, 4, 0]; // of each kind's outline; 0 is round
  const GEM_SCORE = 10;
  const MAX_CHAIN = 3; // a longer chain scores no more a gem
  const EMPTY = -1;

  // ---- rules. A board is an array of kinds, row by row.

  /** Cells that stand in a line of three or more. */
  function matches(board, size) {
    const found = new Set();
    for (let cell = 0; cell < board.length; cell++) {
      if (board[cell] === EMPTY) continue;
      for (const [far, fits] of [[1, (cell % size) + 2 < size], [size, cell + 2 * size < board.length]]) {
        if (fits && board[cell] === board[cell + far] && board[cell] === board[cell + 2 * far]) {
          for (const part of [0, 1, 2]) found.add(cell + part * far);
        }
      }
    }
    return found;
  }

  const swapped = (board, [one, other]) => board.with(one, board[other]).with(other, board[one]);

  /** Every swap of neighbours that makes a line, with the cells that would go. */
  function swaps(board, size) {
    const found = [];
    for (let cell = 0; cell < board.length; cell++) {
      for (const other of [(cell + 1) % size ? cell + 1 : -1, cell + size < board.length ? cell + size : -1]) {
        if (other < 0 || board[cell] === board[other]) continue;
        const gone = matches(swapped(board, [cell, other]), size);
        if (gone.size) found.push({ cells: [cell, other], gone });
      }
    }
    return found;
  }

  /** The board after gems went and the rest fell; new ones come from `next()`. `heights`: how many cells each gem fell. */
  function fallen(board, size, gone, next) {
    const [after, heights] = [new Array(board.length).fill(EMPTY), new Array(board.length).fill(0)];
    for (let column = 0; column < size; column++) {
      let row = size - 1;
      for (let from = size - 1; from >= 0; from--) {
        const cell = from * size + column;
        if (gone.has(cell) || board[cell] === EMPTY) continue;
        after[row * size + column] = board[cell];
        heights[row * size + column] = row - from;
        row -= 1;
      }
      for (let num = row + 1; row >= 0; row--) {
        after[row * size + column] = next();
        heights[row * size + column] = num;
      }
    }
    return { board: after, heights };
  }

  /** A board without lines that has a swap. */
  function freshBoard(model) {
    for (;;) {
      const board = Array.from({ length: model.size ** 2 }, () => model.random.int(model.kinds));
      if (!matches(board, model.size).size && swaps(board, model.size).length) return board;
    }
  }

  function create({ size, kinds, moves }, random) {
    const model = { size, kinds, random, movesLeft: moves, gems: 0, moves: 0, chosen: -1, grip: -1, shown: null };
    model.board = freshBoard(model);
    return model;
  }

  function trySwap(model, cells, view) {
    model.chosen = model.grip = -1;
    let board = swapped(model.board, cells);
    let gone = matches(board, model.size);
    if (!gone.size) {
      model.shown = { at: view.tick, refused: cells };
      return false;
    }
    const heights = new Array(board.length).fill(0);
    const burst = new Map();
    for (let chain = 1; gone.size; chain++) {
      model.score += GEM_SCORE * gone.size * Math.min(chain, MAX_CHAIN);
      model.gems += gone.size;
      for (const cell of gone) burst.set(cell, board[cell]);
      const next = fallen(board, model.size, gone, () => model.random.int(model.kinds));
      board = next.board;
      next.heights.forEach((height, cell) => (heights[cell] = Math.max(height, heights[cell])));
      gone = matches(board, model.size);
    }
    model.board = swaps(board, model.size).length ? board : freshBoard(model);
    model.shown = { at: view.tick, heights, burst };
    model.moves += 1;
    model.movesLeft -= 1;
    if (model.movesLeft === 0) {
      model.over = true;
      model.reason = "no moves left";
    }
    return true;
  }

  const areNeighbours = (size, one, other) =>
    Math.abs((one % size) - (other % size)) + Math.abs(Math.floor(one / size) - Math.floor(other / size)) === 1;

  /** A drag from one gem to its neighbour, or clicks on one after the other. */
  function pointer(model, event, view) {
    const { side, x, y } = layout(model, view);
    const [column, row] = [Math.floor((event.x - x) / side), Math.floor((event.y - y) / side)];
    const isInside = column >= 0 && row >= 0 && column < model.size && row < model.size;
    const cell = isInside ? row * model.size + column : -1;
    if (event.type === "down") {
      if (cell >= 0 && model.chosen >= 0 && areNeighbours(model.size, model.chosen, cell)) return trySwap(model, [model.chosen, cell], view);
      model.chosen = model.chosen === cell ? -1 : cell;
      model.grip = cell;
      return false;
    }
    if (model.grip >= 0 && cell >= 0 && areNeighbours(model.size, model.grip, cell)) return trySwap(model, [model.grip, cell], view);
    if (event.type === "up") model.grip = -1;
    return false;
  }

  // ---- looks

  function layout(model, view) {
    const side = Math.floor((view.board.size - 8) / model.size);
    const margin = (view.board.size - side * model.size) / 2;
    return { side, x: view.board.x + margin, y: view.board.y + margin };
  }

  function draw(ctx, model, view) {
    const { side, x: left, y: top } = layout(model, view);
    kit.box(ctx, view.board.x, view.board.y, view.board.size, view.board.size, 12, "#201a3a");
    for (let cell = 0; cell < model.board.length; cell++) {
      const [x, y] = [left + (cell % model.size) * side, top + Math.floor(cell / model.size) * side];
      kit.box(ctx, x + 1, y + 1, side - 2, side - 2, 6, cell === model.chosen ? "#5a4d94" : "#2c2450");
    }
    ctx.beginPath();
    ctx.rect(view.board.x, top, view.board.size, side * model.size);
    ctx.clip();
    const share = model.shown ? view.since(model.shown.at, 8) : 1;
    model.board.forEach((kind, cell) => {
      let [x, y] = [left + (cell % model.size + 0.5) * side, top + (Math.floor(cell / model.size) + 0.5) * side];
      if (model.shown?.heights) y -= model.shown.heights[cell] * side * (1 - share);
      if (model.shown?.refused?.includes(cell)) x += Math.sin(share * 3 * Math.PI) * side * 0.12 * (1 - share);
      drawGem(ctx, kind, x, y, side * 0.39);
    });
    if (!model.shown?.burst || share === 1) return;
    for (const [cell, kind] of model.shown.burst) {
      ctx.globalAlpha = 1 - share;
      const [x, y] = [left + (cell % model.size + 0.5) * side, top + (Math.floor(cell / model.size) + 0.5) * side];
      kit.disc(ctx, x, y, side * (0.2 + 0.5 * share), null, kit.shade(kit.colours[KINDS[kind]], 0.4), 3);
      ctx.globalAlpha = 1;
    }
  }

  function outline(num, radius, x, y) {
    const turn = num === 4 ? 0 : num === 8 ? Math.PI / 8 : -Math.PI / 2;
    return Array.from({ length: num }, (_, at) => {
      const angle = turn + (at * 2 * Math.PI) / num;
      return [x + radius * Math.cos(angle), y + radius * Math.sin(angle)];
    });
  }

  function drawGem(ctx, kind, x, y, radius) {
    const colour = kit.colours[KINDS[kind]];
    const [num, dark, light] = [NUM_SIDES[kind], kit.shade(colour, -0.35), kit.shade(colour, 0.3)];
    if (!num) {
      kit.disc(ctx, x, y, radius * 0.95, colour, dark, 2);
      kit.disc(ctx, x - radius * 0.25, y - radius * 0.3, radius * 0.3, "#ffffff");
      return;
    }
    if (kind === 5) {
      kit.box(ctx, x - radius * 0.8, y - radius * 0.8, radius * 1.6, radius * 1.6, radius * 0.2, colour, dark, 2);
      kit.box(ctx, x - radius * 0.48, y - radius * 0.48, radius * 0.96, radius * 0.96, radius * 0.12, light);
      return;
    }
    const grown = num === 3 ? 1.12 : 1;
    const centre = num === 3 ? y + radius * 0.18 : y;
    kit.polygon(ctx, outline(num, radius * grown, x, centre), colour, dark, 2);
    kit.polygon(ctx, outline(num, radius * grown * 0.55, x, centre), light);
    kit.disc(ctx, x - radius * 0.16, centre - radius * 0.2, radius * 0.12, "#ffffff");
  }

  function elements(model, view) {
    const { side, x, y } = layout(model, view);
    return model.board.map((kind, cell) =>
      kit.element("gem", NAMES[kind], x + (cell % model.size + 0.5) * side, y + (Math.floor(cell / model.size) + 0.5) * side, side, side, cell === model.chosen ? ["selected"] : []),
    );
  }

  // ---- oracle: the swap that is worth most by what can be seen, chains included, new gems not

  function worth(board, size, { cells, gone }) {
    let value = 0;
    let now = swapped(board, cells);
    for (let chain = 1; gone.size; chain++) {
      value += gone.size * Math.min(chain, MAX_CHAIN);
      now = fallen(now, size, gone, () => EMPTY).board;
      gone = matches(now, size);
    }
    return value;
  }

  function hint(model, { view }) {
    const possible = swaps(model.board, model.size);
    const values = possible.map((each) => worth(model.board, model.size, each));
    const [one, other] = possible[values.indexOf(Math.max(...values))].cells;
    const { side, x, y } = layout(model, view);
    const middle = (cell) => [x + (cell % model.size + 0.5) * side, y + (Math.floor(cell / model.size) + 0.5) * side];
    return kit.drag(...middle(one), ...middle(other));
  }

  return {
    name: "gems",
    title: "Gems",
    tagline: "Three in a line",
    version: 1,
    keys: "Drag a gem to its neighbour, or click both",
    controls: "Drag a gem onto its neighbour to swap them; three or more of a kind in a line go.",
    theme: { background: "#171229", panel: "#2c2450", muted: "#a99fd0" },
    levels: [{ size: 6, kinds: 6, moves: 15 }, { size: 7, kinds: 6, moves: 20 }, { size: 8, kinds: 7, moves: 30 }],
    goals: {
      score: { text: (target) => `Score ${target} points.`, measure: (model) => model.score },
      gems: { text: (target) => `Clear ${target} gems.`, measure: (model) => model.gems },
    },
    stat: (model) => ["MOVES", model.movesLeft],
    create, pointer, draw, elements, hint,
    describe: (model) => ({ size: model.size, board: model.board, moves: model.moves, moves_left: model.movesLeft, gems: model.gems }),
  };
});
