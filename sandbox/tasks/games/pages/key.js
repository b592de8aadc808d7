// Free the key: blocks slide along their own line only; clear the way for the key to the gap on the right. Of the kind of Rush Hour.
"use strict";

game((kit) => {
  const SIZE = 6;
  const EXIT_ROW = 2;
  const CELL = 48;
  const MAX_STATES = 4000; // of one board's graph: larger ones are not used
  const PAR_SCORE = 100;

  // ---- rules. A block is {isAcross, line, length}; where it is along its line is a number in `at`, one for each block. The key is block 0.

  const cellsOf = (blocks, at, number) =>
    Array.from({ length: blocks[number].length }, (_, part) => {
      const along = at[number] + part;
      return blocks[number].isAcross ? blocks[number].line * SIZE + along : along * SIZE + blocks[number].line;
    });

  function occupied(blocks, at, without = -1) {
    const cells = new Uint8Array(SIZE * SIZE);
    for (let number = 0; number < blocks.length; number++) {
      if (number === without) continue;
      const { isAcross, line, length } = blocks[number];
      for (let part = 0; part < length; part++) cells[isAcross ? line * SIZE + at[number] + part : (at[number] + part) * SIZE + line] = 1;
    }
    return cells;
  }

  /** The lowest and highest place that a block can slide to. */
  function range(blocks, at, number, taken = occupied(blocks, at)) {
    const { isAcross, line, length } = blocks[number];
    const isTaken = (along) => taken[isAcross ? line * SIZE + along : along * SIZE + line];
    let [low, high] = [at[number], at[number]];
    while (low > 0 && !isTaken(low - 1)) low -= 1;
    while (high + length < SIZE && !isTaken(high + length)) high += 1;
    return [low, high];
  }

  const isFree = (blocks, at) => at[0] === SIZE - blocks[0].length;

  // A board is also one number, its code: the places of its blocks as digits, the key's the lowest. Creating a level looks at very many.
  const BASE = SIZE - 1; // places of the shortest block
  const codeOf = (at) => at.reduceRight((code, place) => code * BASE + place, 0);

  function placesOf(blocks, code) {
    const at = new Array(blocks.length);
    for (let number = 0; number < blocks.length; number++) {
      at[number] = code % BASE;
      code = (code - at[number]) / BASE;
    }
    return at;
  }

  /** The code of every board one slide away. */
  function slides(blocks, code) {
    const at = placesOf(blocks, code);
    const taken = occupied(blocks, at);
    const found = [];
    for (let number = 0, weight = 1; number < blocks.length; number++, weight *= BASE) {
      const [low, high] = range(blocks, at, number, taken);
      for (let place = low; place <= high; place++) if (place !== at[number]) found.push(code + (place - at[number]) * weight);
    }
    return found;
  }

  /** Codes of boards, each with the least number of slides from any of `starts`; null beyond MAX_STATES. */
  function distances(blocks, starts) {
    const found = new Map(starts.map((code) => [code, 0]));
    const queue = [...starts];
    for (const code of queue) {
      const far = found.get(code) + 1;
      for (const other of slides(blocks, code)) {
        if (found.has(other)) continue;
        if (found.size >= MAX_STATES) return null;
        found.set(other, far);
        queue.push(other);
      }
    }
    return found;
  }

  function randomBoard(num, random) {
    const blocks = [{ isAcross: true, line: EXIT_ROW, length: 2 }];
    const at = [random.int(2)];
    for (let tries = 0; blocks.length < num && tries < 200; tries++) {
      const block = { isAcross: random() < 0.4, line: random.int(SIZE), length: random() < 0.7 ? 2 : 3 };
      if (block.isAcross && block.line === EXIT_ROW) continue;
      const place = random.int(SIZE - block.length + 1);
      const taken = occupied(blocks, at);
      if (cellsOf([block], [place], 0).some((cell) => taken[cell])) continue;
      blocks.push(block);
      at.push(place);
    }
    return { blocks, at };
  }

  /** Boards are drawn until one's graph holds a state of the wanted distance from a freed key; slides can be undone, so it is solvable. */
  function create({ blocks: num, slides: [low, high] }, random) {
    for (;;) {
      const board = randomBoard(num, random);
      const reached = distances(board.blocks, [codeOf(board.at)]);
      if (!reached) continue;
      const far = distances(board.blocks, [...reached.keys()].filter((code) => isFree(board.blocks, placesOf(board.blocks, code))));
      const wanted = [...far].filter(([, distance]) => distance >= low && distance <= high);
      if (!wanted.length) continue;
      const at = random.pick(wanted.map(([code]) => placesOf(board.blocks, code).join()).sort()).split(",").map(Number);
      const par = far.get(codeOf(at));
      return { blocks: board.blocks, at, par, moves: 0, chosen: -1, hand: null, moved: null };
    }
  }

  function move(model, number, place, view) {
    if (place === model.at[number]) return false;
    model.moved = { number, from: model.hand?.shown ?? model.at[number], at: view.tick };
    model.at = model.at.with(number, place);
    model.moves += 1;
    if (isFree(model.blocks, model.at)) {
      model.solved = true;
      model.score = Math.max(20, PAR_SCORE - 5 * (model.moves - model.par));
    }
    return true;
  }

  const along = (model, number, { x, y }, view) =>
    (model.blocks[number].isAcross ? x - left(view) : y - top(view)) / CELL;

  function pointer(model, event, view) {
    if (event.type === "down") {
      const [column, row] = [Math.floor((event.x - left(view)) / CELL), Math.floor((event.y - top(view)) / CELL)];
      const inside = column >= 0 && row >= 0 && column < SIZE && row < SIZE;
      model.chosen = inside ? model.blocks.findIndex((_, number) => cellsOf(model.blocks, model.at, number).includes(row * SIZE + column)) : -1;
      if (model.chosen >= 0) model.hand = { grip: along(model, model.chosen, event, view) - model.at[model.chosen], shown: model.at[model.chosen] };
      return false;
    }
    if (!model.hand) return false;
    const [low, high] = range(model.blocks, model.at, model.chosen);
    model.hand.shown = kit.clamp(along(model, model.chosen, event, view) - model.hand.grip, low, high);
    if (event.type === "move") return false;
    const isMove = move(model, model.chosen, Math.round(model.hand.shown), view);
    model.hand = null;
    return isMove;
  }

  function key(model, name, view) {
    if (model.chosen < 0) return false;
    const step = { left: -1, up: -1, right: 1, down: 1 }[name];
    const isAcross = name === "left" || name === "right";
    if (!step || isAcross !== model.blocks[model.chosen].isAcross) return false;
    const [low, high] = range(model.blocks, model.at, model.chosen);
    return move(model, model.chosen, kit.clamp(model.at[model.chosen] + step, low, high), view);
  }

  // ---- looks

  const left = (view) => view.board.x + 6;
  const top = (view) => view.board.y + 6;
  const COLOURS = ["blue", "teal", "purple", "red", "green", "pink", "indigo", "brown"].map((name) => kit.colours[name]);

  function shape(model, number, view, place = model.at[number]) {
    const { isAcross, line, length } = model.blocks[number];
    const [column, row] = isAcross ? [place, line] : [line, place];
    const [width, height] = isAcross ? [length, 1] : [1, length];
    return { x: left(view) + column * CELL, y: top(view) + row * CELL, width: width * CELL, height: height * CELL };
  }

  function draw(ctx, model, view) {
    const { x, y, size } = view.board;
    kit.box(ctx, x, y, size, size, 12, "#6b4f3a");
    kit.box(ctx, left(view), top(view), SIZE * CELL, SIZE * CELL, 6, "#3d2c22");
    ctx.fillStyle = "#3d2c22";
    ctx.fillRect(x + size - 12, top(view) + EXIT_ROW * CELL + 2, 22, CELL - 4);
    kit.polygon(ctx, [[x + size - 3, y + 6 + 2.25 * CELL], [x + size + 7, y + 6 + 2.5 * CELL], [x + size - 3, y + 6 + 2.75 * CELL]], kit.colours.yellow);
    for (let cell = 0; cell < SIZE * SIZE; cell++) {
      kit.disc(ctx, left(view) + (cell % SIZE + 0.5) * CELL, top(view) + (Math.floor(cell / SIZE) + 0.5) * CELL, 3, "#52402f");
    }
    model.blocks.forEach((_, number) => {
      let place = model.at[number];
      if (number === model.chosen && model.hand) place = model.hand.shown;
      else if (number === model.moved?.number) place = kit.mix(model.moved.from, place, view.since(model.moved.at, 5));
      if (number === 0 && model.solved) place += 0.9 * view.since(model.moved.at, 8);
      drawBlock(ctx, model, number, shape(model, number, view, place));
    });
  }

  function drawBlock(ctx, model, number, { x, y, width, height }) {
    const colour = number === 0 ? kit.colours.yellow : COLOURS[number % COLOURS.length];
    kit.block(ctx, x + 2, y + 2, width - 4, height - 4, 9, colour);
    if (number === model.chosen) kit.box(ctx, x + 3, y + 3, width - 6, height - 6, 8, null, kit.colours.white, 2);
    if (number === 0) {
      const [middleX, middleY, dark] = [x + width / 2, y + height / 2 - 1, "#8a6410"];
      kit.disc(ctx, middleX - 20, middleY, 10, null, dark, 6);
      ctx.fillStyle = dark;
      ctx.fillRect(middleX - 10, middleY - 3, 42, 6);
      ctx.fillRect(middleX + 16, middleY, 5, 11);
      ctx.fillRect(middleX + 26, middleY, 5, 11);
    } else {
      const [across, down] = width > height ? [0.18, 0] : [0, 0.18];
      for (const part of [-1, 0, 1]) {
        kit.disc(ctx, x + width / 2 + part * across * width, y + height / 2 - 2 + part * down * height, 3.5, kit.shade(colour, -0.25));
      }
    }
  }

  const elements = (model, view) =>
    model.blocks.map(({ isAcross }, number) => {
      const { x, y, width, height } = shape(model, number, view);
      const states = number === model.chosen ? [isAcross ? "across" : "down", "selected"] : [isAcross ? "across" : "down"];
      return kit.element("block", number === 0 ? "key" : `block ${number}`, x + width / 2, y + height / 2, width, height, states);
    });

  // ---- oracle: the shortest way to a freed key, from the board as it is

  function hint(model, { view }) {
    const start = codeOf(model.at);
    const cameFrom = new Map([[start, start]]);
    const queue = [start];
    for (const code of queue) {
      if (isFree(model.blocks, placesOf(model.blocks, code))) {
        let first = code;
        while (cameFrom.get(first) !== start) first = cameFrom.get(first);
        const at = placesOf(model.blocks, first);
        const number = at.findIndex((place, number) => place !== model.at[number]);
        return number < 0 ? null : dragOf(model, [number, at[number]], view);
      }
      for (const other of slides(model.blocks, code)) {
        if (cameFrom.has(other)) continue;
        cameFrom.set(other, code);
        queue.push(other);
      }
    }
    return null;
  }

  function dragOf(model, [number, place], view) {
    const { x, y, width, height } = shape(model, number, view);
    const far = (place - model.at[number]) * CELL;
    const { isAcross } = model.blocks[number];
    return kit.drag(x + width / 2, y + height / 2, x + width / 2 + (isAcross ? far : 0), y + height / 2 + (isAcross ? 0 : far));
  }

  return {
    name: "key",
    title: "Free the key",
    tagline: "Slide the blocks aside",
    version: 1,
    keys: "Drag a block along its line, or click it and use the arrow keys",
    controls: "Drag the blocks along their lines to clear its way to the gap on the right.",
    theme: { background: "#2a211c", panel: "#463629", muted: "#b9a48f" },
    levels: [{ blocks: 7, slides: [5, 6] }, { blocks: 9, slides: [7, 9] }, { blocks: 11, slides: [11, 16] }],
    goals: { solve: { text: () => "Free the key.", measure: (model) => Number(model.solved) } },
    create, key, pointer, draw, elements, hint,
    describe: (model) => ({ blocks: model.blocks, at: model.at, moves: model.moves, shortest: model.par }),
  };
});
