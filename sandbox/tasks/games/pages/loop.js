// Loop: turn the pipes until no end is left open. Of the kind of Infinity Loop.
"use strict";

game((kit) => {
  // A pipe is a set of open sides as bits, clockwise from the top; a turn is a quarter clockwise.
  const SIDES = [[0, -1], [1, 0], [0, 1], [-1, 0]];
  const NAMES = ["", "end", "end", "corner", "end", "straight", "corner", "tee", "end", "corner", "straight", "tee", "corner", "tee", "tee", "cross"];
  const WAYS = ["up", "right", "down", "left"];
  const PAR_SCORE = 100;

  // ---- rules

  const turn = (pipe) => ((pipe << 1) | (pipe >> 3)) & 15;
  const opposite = (side) => (side + 2) % 4;

  /** Quarter turns from one position of a pipe to another. */
  function turnsBetween(from, to) {
    let num = 0;
    for (let pipe = from; pipe !== to; pipe = turn(pipe)) num += 1;
    return num;
  }

  function neighbour(size, cell, side) {
    const [x, y] = [(cell % size) + SIDES[side][0], Math.floor(cell / size) + SIDES[side][1]];
    return x < 0 || y < 0 || x >= size || y >= size ? -1 : y * size + x;
  }

  /** Pipes whose every end meets another: grown as a tree over the whole board, with some loops closed. */
  function solvedPipes(size, loops, random) {
    const pipes = new Array(size * size).fill(0);
    const join = (cell, side) => {
      pipes[cell] |= 1 << side;
      pipes[neighbour(size, cell, side)] |= 1 << opposite(side);
    };
    const reached = [random.int(size * size)];
    while (reached.length < size * size) {
      const cell = random.pick(reached);
      const open = [0, 1, 2, 3].filter((side) => neighbour(size, cell, side) >= 0 && !reached.includes(neighbour(size, cell, side)));
      if (!open.length) continue;
      const side = random.pick(open);
      join(cell, side);
      reached.push(neighbour(size, cell, side));
    }
    for (let num = 0; num < loops; num++) {
      const [cell, side] = [random.int(size * size), random.int(4)];
      if (neighbour(size, cell, side) >= 0) join(cell, side);
    }
    return pipes;
  }

  const isMet = (model, cell, side) => {
    const other = neighbour(model.size, cell, side);
    return other >= 0 && Boolean(model.pipes[other] & (1 << opposite(side)));
  };
  const isClosed = (model, cell) => [0, 1, 2, 3].every((side) => !(model.pipes[cell] & (1 << side)) || isMet(model, cell, side));
  const numOpen = (model) => model.pipes.filter((_, cell) => !isClosed(model, cell)).length;

  /** The solved board with some pipes turned away. */
  function create({ size, loops, turned }, random) {
    const solution = solvedPipes(size, loops, random);
    for (;;) {
      const pipes = [...solution];
      for (const cell of random.shuffle(pipes.map((_, each) => each)).slice(0, turned)) {
        for (let num = 1 + random.int(2); num > 0; num--) pipes[cell] = turn(pipes[cell]);
      }
      const model = { size, pipes, solution, moves: 0, turnedAt: {} };
      model.shortest = solution.reduce((sum, pipe, cell) => sum + turnsBetween(pipes[cell], pipe), 0);
      if (numOpen(model) > size) return model;
    }
  }

  function pointer(model, event, view) {
    if (event.type !== "down") return false;
    const { side, x, y } = layout(model, view);
    const [column, row] = [Math.floor((event.x - x) / side), Math.floor((event.y - y) / side)];
    if (column < 0 || row < 0 || column >= model.size || row >= model.size) return false;
    const cell = row * model.size + column;
    model.pipes[cell] = turn(model.pipes[cell]);
    model.turnedAt = { ...model.turnedAt, [cell]: view.tick };
    model.moves += 1;
    if (numOpen(model) === 0) {
      model.solved = true;
      model.score = Math.max(20, PAR_SCORE - 2 * Math.max(0, model.moves - model.shortest));
    }
    return true;
  }

  // ---- looks

  function layout(model, view) {
    const side = Math.min(84, Math.floor(view.board.size / model.size));
    const margin = (view.board.size - side * model.size) / 2;
    return { side, x: view.board.x + margin, y: view.board.y + margin };
  }

  function draw(ctx, model, view) {
    const { side, x: left, y: top } = layout(model, view);
    kit.box(ctx, view.board.x, view.board.y, view.board.size, view.board.size, 14, "#13343b");
    for (let cell = 0; cell < model.pipes.length; cell++) {
      const [x, y] = [left + (cell % model.size) * side, top + Math.floor(cell / model.size) * side];
      kit.box(ctx, x + 2, y + 2, side - 4, side - 4, side * 0.16, "#1a434b");
      const colour = model.solved ? kit.colours.yellow : isClosed(model, cell) ? "#7fe0d2" : "#4f8f95";
      ctx.save();
      ctx.translate(x + side / 2, y + side / 2);
      ctx.rotate((view.since(model.turnedAt[cell], 7) - 1) * (Math.PI / 2));
      drawPipe(ctx, model.pipes[cell], side, colour);
      ctx.restore();
    }
  }

  function drawPipe(ctx, pipe, side, colour) {
    const sides = [0, 1, 2, 3].filter((each) => pipe & (1 << each));
    const end = (each) => [(SIDES[each][0] * side) / 2, (SIDES[each][1] * side) / 2];
    const isCorner = NAMES[pipe] === "corner";
    for (const [width, shown] of [[0.26, kit.shade(colour, -0.45)], [0.17, colour]]) {
      ctx.strokeStyle = shown;
      ctx.lineWidth = side * width;
      ctx.lineCap = "butt";
      ctx.beginPath();
      if (isCorner) {
        ctx.moveTo(...end(sides[0]));
        ctx.quadraticCurveTo(0, 0, ...end(sides[1]));
      } else {
        for (const each of sides) {
          ctx.moveTo(0, 0);
          ctx.lineTo(...end(each));
        }
      }
      ctx.stroke();
      if (sides.length === 1) kit.disc(ctx, 0, 0, side * (width + 0.04), shown);
      else if (!isCorner) kit.disc(ctx, 0, 0, (side * width) / 2, shown);
    }
    if (sides.length === 1) kit.disc(ctx, 0, 0, side * 0.1, "#1a434b");
  }

  function elements(model, view) {
    const { side, x, y } = layout(model, view);
    return model.pipes.map((pipe, cell) => {
      const open = WAYS.filter((_, at) => pipe & (1 << at)).join(" ");
      const states = isClosed(model, cell) ? ["met"] : ["open"];
      return kit.element("pipe", open, x + (cell % model.size + 0.5) * side, y + (Math.floor(cell / model.size) + 0.5) * side, side, side, states);
    });
  }

  // ---- oracle: turns one pipe after another as the board was before it was mixed

  function hint(model, { view }) {
    const cell = model.pipes.findIndex((pipe, at) => pipe !== model.solution[at]);
    if (cell < 0) return null;
    const { side, x, y } = layout(model, view);
    return kit.click(x + (cell % model.size + 0.5) * side, y + (Math.floor(cell / model.size) + 0.5) * side);
  }

  return {
    name: "loop",
    title: "Loop",
    tagline: "Leave no end open",
    version: 1,
    keys: "Click a pipe to turn it",
    controls: "Click a pipe to turn it a quarter clockwise.",
    theme: { background: "#0f2a30", panel: "#1a434b", muted: "#8fb9bd" },
    levels: [{ size: 3, loops: 1, turned: 5 }, { size: 5, loops: 3, turned: 14 }, { size: 7, loops: 7, turned: 36 }],
    goals: { solve: { text: () => "Join all ends of the pipes.", measure: (model) => Number(Boolean(model.solved)) } },
    create, pointer, draw, elements, hint,
    describe: (model) => ({ size: model.size, pipes: model.pipes, open: numOpen(model), moves: model.moves, shortest: model.shortest }),
  };
});
