// Sokoban: push every crate onto a mark; crates cannot be pulled. After Hiroyuki Imabayashi's Sokoban (1982).
"use strict";

game((kit) => {
  const DIRECTIONS = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] };
  const NAMES = Object.keys(DIRECTIONS);
  const CRATE_SCORE = 50;
  const MAX_STATES = 60000; // of the solver: more is taken for unsolvable

  // ---- rules. A room is {size, walls: Set, marks: Set}; a cell is y * size + x; the border is all wall.

  const step = (room, cell, name, num = 1) => cell + num * (DIRECTIONS[name][1] * room.size + DIRECTIONS[name][0]);

  /** Cells that can be walked to, each with the cell before it. */
  function walkable(room, from, crates) {
    const cameFrom = new Map([[from, -1]]);
    const queue = [from];
    for (const cell of queue) {
      for (const name of NAMES) {
        const other = step(room, cell, name);
        if (cameFrom.has(other) || room.walls.has(other) || crates.includes(other)) continue;
        cameFrom.set(other, cell);
        queue.push(other);
      }
    }
    return cameFrom;
  }

  const isSolved = (room, crates) => crates.every((cell) => room.marks.has(cell));

  function randomRoom({ size, walls, crates: num }, random) {
    const room = { size, walls: new Set(), marks: new Set() };
    const inside = [];
    for (let cell = 0; cell < size * size; cell++) {
      const [x, y] = [cell % size, Math.floor(cell / size)];
      if (x === 0 || y === 0 || x === size - 1 || y === size - 1) room.walls.add(cell);
      else inside.push(cell);
    }
    random.shuffle(inside);
    for (const cell of inside.slice(0, walls)) room.walls.add(cell);
    for (const cell of inside.slice(walls, walls + num)) room.marks.add(cell);
    return { room, player: inside[walls + num], floor: inside.slice(walls) };
  }

  /** Crates start on the marks and are pulled off them, so they can be pushed back; the solver says how far that is. */
  function create(params, random) {
    for (;;) {
      const { room, player: start, floor } = randomRoom(params, random);
      if (walkable(room, start, []).size !== floor.length) continue;
      let [player, crates] = [start, [...room.marks]];
      for (let pulls = 0; pulls < params.pulls; pulls++) {
        const near = walkable(room, player, crates);
        const possible = crates.flatMap((crate, number) =>
          NAMES.filter((name) => near.has(step(room, crate, name)) && near.has(step(room, crate, name, 2))).map((name) => [number, name]),
        );
        if (!possible.length) break;
        const [number, name] = random.pick(possible);
        player = step(room, crates[number], name, 2);
        crates = crates.with(number, step(room, crates[number], name));
      }
      if (crates.some((crate) => room.marks.has(crate))) continue;
      const plan = solve(room, player, crates);
      if (!plan || plan.length < params.moves[0] || plan.length > params.moves[1]) continue;
      return { room, player, crates, facing: "down", moves: 0, shortest: plan.length, history: [], moved: null };
    }
  }

  const numPlaced = (model) => model.crates.filter((cell) => model.room.marks.has(cell)).length;

  function settle(model) {
    model.score = CRATE_SCORE * numPlaced(model);
    model.solved = isSolved(model.room, model.crates);
  }

  function go(model, name, view) {
    model.facing = name;
    const [to, beyond] = [step(model.room, model.player, name), step(model.room, model.player, name, 2)];
    const crate = model.crates.indexOf(to);
    if (model.room.walls.has(to) || (crate >= 0 && (model.room.walls.has(beyond) || model.crates.includes(beyond)))) return false;
    model.history.push([model.player, model.crates]);
    model.moved = { at: view.tick, from: model.player, crate };
    model.player = to;
    model.moves += 1;
    if (crate >= 0) model.crates = model.crates.with(crate, beyond);
    settle(model);
    return true;
  }

  function key(model, name, view) {
    if (DIRECTIONS[name]) return go(model, name, view);
    if ((name !== "z" && name !== "backspace") || !model.history.length) return false;
    [model.player, model.crates] = model.history.pop();
    model.moved = null;
    settle(model);
    return true;
  }

  /** A click walks to a cell that can be walked to, or pushes the crate beside the player. */
  function pointer(model, event, view) {
    if (event.type !== "down") return false;
    const { side, x, y } = layout(model, view);
    const [column, row] = [Math.floor((event.x - x) / side), Math.floor((event.y - y) / side)];
    if (column < 0 || row < 0 || column >= model.room.size || row >= model.room.size) return false;
    const cell = row * model.room.size + column;
    const beside = NAMES.find((name) => step(model.room, model.player, name) === cell);
    if (beside) return go(model, beside, view);
    const near = walkable(model.room, model.player, model.crates);
    if (!near.has(cell) || cell === model.player) return false;
    model.history.push([model.player, model.crates]);
    model.moved = { at: view.tick, from: model.player, crate: -1 };
    model.player = cell;
    model.moves += 1;
    return true;
  }

  // ---- looks

  function layout(model, view) {
    const side = Math.floor(view.board.size / model.room.size);
    const margin = (view.board.size - side * model.room.size) / 2;
    return { side, x: view.board.x + margin, y: view.board.y + margin };
  }

  function draw(ctx, model, view) {
    const { side, x: left, y: top } = layout(model, view);
    const { room } = model;
    const place = (cell) => [left + (cell % room.size) * side, top + Math.floor(cell / room.size) * side];
    kit.box(ctx, left, top, side * room.size, side * room.size, 10, "#454b6b");
    for (let cell = 0; cell < room.size ** 2; cell++) {
      const [x, y] = place(cell);
      if (room.walls.has(cell)) kit.block(ctx, x + 1, y + 1, side - 2, side - 2, 5, "#5d6489");
      else {
        ctx.fillStyle = (cell % room.size + Math.floor(cell / room.size)) % 2 ? "#e6dcc8" : "#dfd4be";
        ctx.fillRect(x, y, side, side);
      }
      if (room.marks.has(cell)) {
        kit.disc(ctx, x + side / 2, y + side / 2, side * 0.24, null, kit.colours.red, 3);
        kit.disc(ctx, x + side / 2, y + side / 2, side * 0.09, kit.colours.red);
      }
    }
    const moved = model.moved ? view.since(model.moved.at, 6) : 1;
    model.crates.forEach((cell, number) => {
      let [x, y] = place(cell);
      if (number === model.moved?.crate) [x, y] = between(place(step(room, cell, model.facing, -1)), [x, y], moved);
      drawCrate(ctx, x, y, side, room.marks.has(cell));
    });
    const [x, y] = model.moved ? between(place(model.moved.from), place(model.player), moved) : place(model.player);
    drawPlayer(ctx, x + side / 2, y + side / 2, side, DIRECTIONS[model.facing]);
  }

  const between = (from, to, share) => [kit.mix(from[0], to[0], share), kit.mix(from[1], to[1], share)];

  function drawCrate(ctx, x, y, side, isPlaced) {
    const colour = isPlaced ? kit.colours.green : "#c98a4b";
    const [inset, dark] = [side * 0.08, kit.shade(colour, -0.3)];
    kit.block(ctx, x + inset, y + inset, side - 2 * inset, side - 2 * inset, 5, colour);
    ctx.strokeStyle = dark;
    ctx.lineWidth = Math.max(2, side * 0.06);
    ctx.strokeRect(x + side * 0.2, y + side * 0.18, side * 0.6, side * 0.58);
    ctx.beginPath();
    ctx.moveTo(x + side * 0.2, y + side * 0.76);
    ctx.lineTo(x + side * 0.8, y + side * 0.18);
    ctx.stroke();
  }

  function drawPlayer(ctx, x, y, side, [dx, dy]) {
    kit.disc(ctx, x, y + side * 0.06, side * 0.36, "#2f5f9e");
    kit.disc(ctx, x, y, side * 0.34, kit.colours.blue);
    kit.disc(ctx, x - side * 0.1, y - side * 0.12, side * 0.08, "#a9d0ff");
    for (const sign of [-1, 1]) {
      const eye = [x + dx * side * 0.13 - dy * sign * side * 0.13, y + dy * side * 0.13 + dx * sign * side * 0.13];
      kit.disc(ctx, ...eye, side * 0.095, kit.colours.white);
      kit.disc(ctx, eye[0] + dx * side * 0.03, eye[1] + dy * side * 0.03, side * 0.05, kit.colours.black);
    }
  }

  function elements(model, view) {
    const { side, x, y } = layout(model, view);
    const at = (role, label, cell, states) =>
      kit.element(role, label, x + (cell % model.room.size + 0.5) * side, y + (Math.floor(cell / model.room.size) + 0.5) * side, side, side, states);
    const walls = [...model.room.walls].filter((cell) => {
      const [column, row] = [cell % model.room.size, Math.floor(cell / model.room.size)];
      return column > 0 && row > 0 && column < model.room.size - 1 && row < model.room.size - 1;
    });
    return [
      at("player", "player", model.player),
      ...model.crates.map((cell) => at("crate", "crate", cell, model.room.marks.has(cell) ? ["placed"] : [])),
      ...[...model.room.marks].map((cell) => at("mark", "mark", cell)),
      ...walls.map((cell) => at("wall", "wall", cell)),
    ];
  }

  // ---- oracle: a plan with the fewest pushes; where there is none any more, it takes moves back

  /** Keys that solve a room, or null. Breadth first over crates and the part of the room that the player can walk in. */
  function solve(room, player, crates) {
    const dead = deadCells(room);
    const textOf = (near, places) => `${Math.min(...near.keys())}:${[...places].sort((a, b) => a - b).join()}`;
    const queue = [{ player, crates, before: null, push: null }];
    const known = new Set();
    for (const state of queue) {
      if (isSolved(room, state.crates)) return keysOf(room, state);
      if (queue.length > MAX_STATES) return null;
      const near = walkable(room, state.player, state.crates);
      const text = textOf(near, state.crates);
      if (known.has(text)) continue;
      known.add(text);
      state.crates.forEach((crate, number) => {
        for (const name of NAMES) {
          const to = step(room, crate, name);
          if (!near.has(step(room, crate, name, -1)) || room.walls.has(to) || dead.has(to) || state.crates.includes(to)) continue;
          queue.push({ player: crate, crates: state.crates.with(number, to), before: state, push: { number, name } });
        }
      });
    }
    return null;
  }

  /** Floor that no crate can be pushed from to any mark, other crates aside. */
  function deadCells(room) {
    const live = new Set(room.marks);
    for (const cell of live) {
      for (const name of NAMES) {
        const [from, stand] = [step(room, cell, name), step(room, cell, name, 2)];
        if (!room.walls.has(from) && !room.walls.has(stand)) live.add(from);
      }
    }
    const dead = new Set();
    for (let cell = 0; cell < room.size ** 2; cell++) if (!room.walls.has(cell) && !live.has(cell)) dead.add(cell);
    return dead;
  }

  function keysOf(room, last) {
    const keys = [];
    for (let state = last; state.before; state = state.before) {
      const { number, name } = state.push;
      const cameFrom = walkable(room, state.before.player, state.before.crates);
      const way = [name];
      for (let cell = step(room, state.before.crates[number], name, -1); cameFrom.get(cell) >= 0; cell = cameFrom.get(cell)) {
        way.unshift(NAMES.find((each) => step(room, cameFrom.get(cell), each) === cell));
      }
      keys.unshift(...way);
    }
    return keys;
  }

  function hint(model) {
    const plan = solve(model.room, model.player, model.crates);
    if (plan) return kit.press(plan[0]);
    return model.history.length ? kit.press("backspace") : kit.press("r");
  }

  return {
    name: "sokoban",
    title: "Sokoban",
    tagline: "Crates onto the marks",
    version: 1,
    keys: "Arrow keys walk and push · Z takes a move back",
    controls: "Arrow keys walk and push; backspace takes a move back.",
    theme: { background: "#2b3050", panel: "#3d4468", muted: "#aab2d5" },
    levels: [
      { size: 6, walls: 1, crates: 1, pulls: 6, moves: [5, 14] },
      { size: 7, walls: 3, crates: 2, pulls: 14, moves: [14, 30] },
      { size: 8, walls: 6, crates: 3, pulls: 30, moves: [28, 60] },
    ],
    goals: { solve: { text: () => "Push every crate onto a mark.", measure: (model) => Number(model.solved) } },
    create, key, pointer, draw, elements, hint,
    describe: (model) => ({
      size: model.room.size, walls: [...model.room.walls], marks: [...model.room.marks], crates: model.crates, player: model.player,
      moves: model.moves, shortest: model.shortest,
    }),
  };
});
