// 2048: slide all tiles one way; equal ones that meet merge and their sum scores. After Gabriele Cirulli's 2048 (2014).
"use strict";

game((kit) => {
  const DIRECTIONS = { left: [0, -1], right: [0, 1], up: [-1, 0], down: [1, 0] };
  const COLOURS = {
    2: "#eee4da", 4: "#ede0c4", 8: "#f4b27a", 16: "#f6965f", 32: "#f77d5d", 64: "#f55f3a", 128: "#f0d072", 256: "#eecb58",
    512: "#ecc540", 1024: "#e9bf2c", 2048: "#5cc98a",
  };
  const FOUR_SHARE = 0.1; // of the new tiles

  // ---- rules. A board is an array of values, row by row, 0 where empty.

  /** The cells of each line in the order in which tiles arrive. */
  function lines(size, direction) {
    return Array.from({ length: size }, (_, line) =>
      Array.from({ length: size }, (_, at) => {
        const along = direction === "right" || direction === "down" ? size - 1 - at : at;
        return direction === "left" || direction === "right" ? line * size + along : along * size + line;
      }),
    );
  }

  /** What a slide leads to: {board, gain, moves: [[from, to]], merged: [cells]}, or null where nothing moves. */
  function slide(board, size, direction) {
    const after = new Array(board.length).fill(0);
    const [moves, merged] = [[], []];
    let gain = 0;
    for (const line of lines(size, direction)) {
      let at = 0;
      let canMerge = false;
      for (const cell of line.filter((each) => board[each])) {
        if (canMerge && after[line[at - 1]] === board[cell]) {
          after[line[at - 1]] *= 2;
          gain += after[line[at - 1]];
          merged.push(line[at - 1]);
          canMerge = false;
        } else {
          after[line[at]] = board[cell];
          at += 1;
          canMerge = true;
        }
        moves.push([cell, line[at - 1]]);
      }
    }
    return moves.some(([from, to]) => from !== to) ? { board: after, gain, moves, merged } : null;
  }

  const empty = (board) => board.flatMap((value, cell) => (value ? [] : [cell]));
  const canMove = (board, size) => Object.keys(DIRECTIONS).some((direction) => slide(board, size, direction));

  function addTile(model) {
    const cell = model.random.pick(empty(model.board));
    model.board[cell] = model.random() < FOUR_SHARE ? 4 : 2;
    return cell;
  }

  function create({ size }, random) {
    const model = { size, random, board: new Array(size * size).fill(0), shown: null };
    addTile(model);
    addTile(model);
    return model;
  }

  function key(model, name, view) {
    const result = DIRECTIONS[name] && slide(model.board, model.size, name);
    if (!result) return false;
    const before = model.board;
    model.board = result.board;
    model.score += result.gain;
    const fresh = addTile(model);
    model.shown = { at: view.tick, before, moves: result.moves, merged: new Set(result.merged), fresh };
    model.over = !canMove(model.board, model.size);
    model.reason = model.over ? "no move left" : "";
    return true;
  }

  // ---- looks

  function layout(model, view) {
    const gap = model.size > 4 ? 7 : 9;
    const side = (view.board.size - gap * (model.size + 1)) / model.size;
    const at = (cell) => ({
      x: view.board.x + gap + (cell % model.size) * (side + gap),
      y: view.board.y + gap + Math.floor(cell / model.size) * (side + gap),
    });
    return { side, at };
  }

  function drawTile(ctx, value, x, y, side, grown) {
    const [middleX, middleY, shown] = [x + side / 2, y + side / 2, side * grown];
    kit.block(ctx, middleX - shown / 2, middleY - shown / 2, shown, shown, 8, COLOURS[value] ?? "#3c3a52");
    const size = (value < 100 ? 0.44 : value < 1000 ? 0.36 : 0.28) * shown;
    kit.text(ctx, String(value), middleX, middleY - 1, { size, weight: "bold", colour: value <= 4 ? "#6b6156" : "#ffffff" });
  }

  function draw(ctx, model, view) {
    const { side, at } = layout(model, view);
    kit.box(ctx, view.board.x, view.board.y, view.board.size, view.board.size, 12, "#a99a8b");
    for (let cell = 0; cell < model.board.length; cell++) {
      const { x, y } = at(cell);
      kit.box(ctx, x, y, side, side, 8, "#c0b2a3");
    }
    const slid = model.shown ? view.since(model.shown.at, 5) : 1;
    if (slid < 1) {
      for (const [from, to] of model.shown.moves) {
        const [start, end] = [at(from), at(to)];
        drawTile(ctx, model.shown.before[from], kit.mix(start.x, end.x, slid), kit.mix(start.y, end.y, slid), side, 1);
      }
      return;
    }
    const popped = model.shown ? view.since(model.shown.at + 4, 5) : 1;
    model.board.forEach((value, cell) => {
      if (!value) return;
      const { x, y } = at(cell);
      const grown = cell === model.shown?.fresh ? popped : model.shown?.merged.has(cell) ? 1.12 - 0.12 * popped : 1;
      drawTile(ctx, value, x, y, side, grown);
    });
  }

  function elements(model, view) {
    const { side, at } = layout(model, view);
    return model.board.map((value, cell) => kit.element("cell", value || "empty", at(cell).x + side / 2, at(cell).y + side / 2, side, side));
  }

  // ---- oracle: looks two slides ahead (the worst of a few new tiles between them) for room, order and equal neighbours

  function worth(board, size) {
    let value = 0;
    for (let cell = 0; cell < board.length; cell++) {
      const row = Math.floor(cell / size);
      const place = row % 2 ? size - 1 - (cell % size) : cell % size;
      if (!board[cell]) value += 12;
      else value += Math.log2(board[cell]) ** 2 * (board.length - row * size - place) * 0.25;
      const neighbours = [(cell + 1) % size ? cell + 1 : -1, cell + size < board.length ? cell + size : -1];
      for (const other of neighbours) {
        if (other < 0 || !board[cell] || !board[other]) continue;
        const apart = Math.abs(Math.log2(board[cell]) - Math.log2(board[other]));
        value += apart ? -2 * apart : 3 * Math.log2(board[cell]);
      }
    }
    return value;
  }

  function best(board, size, depth) {
    let found = { name: null, value: -1e9 };
    for (const name of Object.keys(DIRECTIONS)) {
      const result = slide(board, size, name);
      if (!result) continue;
      const value = result.gain + (depth ? expected(result.board, size, depth) : worth(result.board, size));
      if (value > found.value) found = { name, value };
    }
    return found;
  }

  function expected(board, size, depth) {
    const cells = empty(board);
    const tried = cells.filter((_, at) => at % Math.ceil(cells.length / 6) === 0);
    const values = tried.map((cell) => best(board.with(cell, 2), size, depth - 1).value);
    return values.reduce((sum, value) => sum + Math.max(value, -2000), 0) / values.length;
  }

  const hint = (model) => kit.press(best(model.board, model.size, 2).name);

  return {
    name: "2048",
    title: "2048",
    tagline: "Join the tiles",
    version: 1,
    keys: "Arrow keys slide the tiles",
    controls: "Press an arrow key to slide all tiles; equal tiles that meet merge.",
    theme: { background: "#faf6ef", panel: "#e6dbcd", text: "#6b6156", muted: "#9a8d7f" },
    levels: [{ size: 4 }, { size: 5 }, { size: 3 }],
    goals: {
      tile: { text: (target) => `Reach the tile ${target}.`, measure: (model) => Math.max(...model.board) },
      score: { text: (target) => `Score ${target} points.`, measure: (model) => model.score },
    },
    create, key, draw, elements, hint,
    describe: (model) => ({ size: model.size, board: model.board, max_tile: Math.max(...model.board) }),
  };
});
