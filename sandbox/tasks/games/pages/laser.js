// Laser maze: turn the mirrors until the beam has lit every crystal. Drawn in WebGL.
"use strict";

game((kit) => {
  // Directions are numbers, clockwise from the top. A mirror's turn is 0 to 3, an eighth of a full turn each: / — \ |
  const STEPS = [[0, -1], [1, 0], [0, 1], [-1, 0]];
  const WAYS = ["up", "right", "down", "left"];
  const TURNS = ["rising", "flat", "falling", "upright"];
  const LIT_SCORE = 20;
  const PAR_SCORE = 100;

  // ---- rules. Cells are null or {kind: "emitter" | "mirror" | "crystal" | "wall"}; a mirror has its `turn`.

  const next = (size, cell, way) => {
    const [x, y] = [(cell % size) + STEPS[way][0], Math.floor(cell / size) + STEPS[way][1]];
    return x < 0 || y < 0 || x >= size || y >= size ? -1 : y * size + x;
  };

  /** The way on after a mirror: edge-on it is passed. */
  const reflect = (turn, way) => [way ^ 1, way % 2 ? way : (way + 2) % 4, 3 - way, way % 2 ? (way + 2) % 4 : way][turn];

  /** Where the beam goes: {path: cells in order, the first the emitter's, end: the way it leaves or stops in, lit: crystals}. */
  function trace({ size, cells, emitter, way: first }) {
    const [path, lit, seen] = [[emitter], new Set(), new Set()];
    let way = first;
    for (let cell = next(size, emitter, way); ; cell = next(size, cell, way)) {
      if (cell < 0) return { path, lit, leaves: way };
      path.push(cell);
      const there = cells[cell];
      if (there?.kind === "wall" || there?.kind === "emitter") return { path, lit, leaves: -1 };
      if (there?.kind === "crystal") lit.add(cell);
      if (there?.kind === "mirror") way = reflect(there.turn, way);
      if (seen.has(cell * 4 + way)) return { path, lit, leaves: -1 };
      seen.add(cell * 4 + way);
    }
  }

  /** A way through the empty board with `turns` mirrors and crystals on it, or null where the draw led into a corner. */
  function lay({ size, turns, crystals }, random) {
    const cells = new Array(size * size).fill(null);
    let way = random.int(4);
    const along = random.int(size);
    let cell = [[along, size - 1], [0, along], [along, 0], [size - 1, along]].map(([x, y]) => y * size + x)[way];
    const [emitter, first] = [cell, way];
    cells[cell] = { kind: "emitter" };
    const [used, mirrors] = [[], []];
    for (let leg = 0; leg <= turns; leg++) {
      const reach = [];
      for (let to = next(size, cell, way); to >= 0 && !cells[to]; to = next(size, to, way)) reach.push(to);
      const ends = reach.filter((to) => !used.includes(to));
      if (!ends.length) return null;
      const end = random.pick(ends);
      used.push(...reach.slice(0, reach.indexOf(end) + 1));
      cell = end;
      if (leg === turns) break;
      const to = (way + (random() < 0.5 ? 1 : 3)) % 4;
      cells[end] = { kind: "mirror", turn: reflect(0, way) === to ? 0 : 2 };
      mirrors.push(end);
      way = to;
    }
    cells[cell] = { kind: "crystal" };
    const after = used.slice(used.indexOf(mirrors[0]) + 1).filter((each) => !cells[each]);
    for (const each of random.shuffle([...new Set(after)]).slice(0, crystals - 1)) cells[each] = { kind: "crystal" };
    return { size, cells, emitter, way: first, mirrors, used };
  }

  /** The lit board with more mirrors and walls off the beam's way, and its mirrors turned away until no crystal is lit. */
  function create(params, random) {
    for (;;) {
      const model = lay(params, random);
      if (!model) continue;
      const free = random.shuffle(model.cells.flatMap((each, cell) => (each || model.used.includes(cell) ? [] : [cell])));
      const step = params.isEighths ? 1 : 2;
      for (const cell of free.splice(0, params.decoys)) model.cells[cell] = { kind: "mirror", turn: step * random.int(4 / step) };
      for (const cell of free.splice(0, params.walls)) model.cells[cell] = { kind: "wall" };
      model.solution = model.cells.map((each) => each?.turn ?? -1);
      model.numCrystals = model.cells.filter((each) => each?.kind === "crystal").length;
      if (trace(model).lit.size < params.crystals) continue;
      const turned = random.shuffle(model.mirrors.slice(1)).slice(0, params.turned - 1);
      for (const cell of [model.mirrors[0], ...turned]) {
        model.cells[cell].turn = (model.cells[cell].turn + step * (1 + random.int(4 / step - 1))) % 4;
      }
      Object.assign(model, { step, moves: 0, best: 0, turnedAt: {} });
      model.shortest = model.mirrors.reduce((sum, cell) => sum + clicks(model, cell), 0);
      if (trace(model).lit.size === 0 && !isShort(model)) return model;
    }
  }

  /** Whether the beam finds another way before the mirrors are all turned back, one after another. */
  function isShort(model) {
    const cells = model.cells.map((each) => each && { ...each });
    for (let num = 1; num < model.shortest; num++) {
      const cell = model.mirrors.find((each) => cells[each].turn !== model.solution[each]);
      cells[cell].turn = (cells[cell].turn + model.step) % 4;
      if (trace({ ...model, cells }).lit.size === model.numCrystals) return true;
    }
    return false;
  }

  const clicks = (model, cell) => ((model.solution[cell] - model.cells[cell].turn + 4) % 4) / model.step;

  function pointer(model, event, view) {
    if (event.type !== "down") return false;
    const { side, x, y } = layout(model, view);
    const [column, row] = [Math.floor((event.x - x) / side), Math.floor((event.y - y) / side)];
    const cell = row * model.size + column;
    if (column < 0 || row < 0 || column >= model.size || row >= model.size || model.cells[cell]?.kind !== "mirror") return false;
    model.cells[cell].turn = (model.cells[cell].turn + model.step) % 4;
    model.turnedAt = { ...model.turnedAt, [cell]: view.tick };
    model.moves += 1;
    model.best = Math.max(model.best, trace(model).lit.size);
    model.solved = trace(model).lit.size === model.numCrystals;
    model.score = LIT_SCORE * model.best + (model.solved ? Math.max(20, PAR_SCORE - 5 * Math.max(0, model.moves - model.shortest)) : 0);
    return true;
  }

  // ---- looks

  function layout(model, view) {
    const side = Math.floor((view.board.size - 12) / model.size);
    const margin = (view.board.size - side * model.size) / 2;
    return { side, x: view.board.x + margin, y: view.board.y + margin };
  }

  let painter = null;

  function draw(ctx, model, view) {
    painter ??= kit.light(view.gl);
    const { side, x: left, y: top } = layout(model, view);
    const middle = (cell) => [left + ((cell % model.size) + 0.5) * side, top + (Math.floor(cell / model.size) + 0.5) * side];
    painter.still(model, () => drawBoard(model, left, top, side, middle));
    const beam = trace(model);
    drawBeam(beam, middle, side);
    model.cells.forEach((there, cell) => {
      const [x, y] = middle(cell);
      const turning = model.step * (1 - view.since(model.turnedAt[cell], 7));
      if (there?.kind === "mirror") drawMirror(x, y, side, there.turn - turning, beam.path.includes(cell));
      if (there?.kind === "crystal") drawCrystal(x, y, side, beam.lit.has(cell));
      if (there?.kind === "emitter") drawEmitter(x, y, side, STEPS[model.way]);
    });
    painter.paint();
  }

  /** What no click changes: the board, its walls, and what the mirrors stand on. */
  function drawBoard(model, left, top, side, middle) {
    painter.sky("#0b1026", "#1b1240", 60);
    painter.box(left - 5, top - 5, side * model.size + 10, side * model.size + 10, 12, { colour: "#2b3566", alpha: 0.9 });
    model.cells.forEach((there, cell) => {
      const [x, y] = middle(cell);
      painter.box(x - side / 2 + 1, y - side / 2 + 1, side - 2, side - 2, side * 0.12, { colour: "#141a3a", toColour: "#10142e" });
      if (there?.kind === "mirror") painter.disc(x, y, side * 0.43, { colour: "#37427c", alpha: 0.5 });
      if (there?.kind !== "wall") return;
      painter.box(x - side * 0.44, y - side * 0.44, side * 0.88, side * 0.88, side * 0.14, { colour: "#566092", toColour: "#3a4270" });
    });
  }

  function drawBeam({ path, leaves }, middle, side) {
    const points = path.map(middle);
    if (leaves >= 0) {
      const [x, y] = points.at(-1);
      points.push([x + (STEPS[leaves][0] * side) / 2, y + (STEPS[leaves][1] * side) / 2]);
    } else if (path.length > 1) {
      const [[fromX, fromY], [toX, toY]] = points.slice(-2);
      points[points.length - 1] = [kit.mix(fromX, toX, 0.56), kit.mix(fromY, toY, 0.56)];
    }
    // One line from corner to corner: the glow of lines that meet adds up.
    const isStraight = ([x, y], at) => at > 0 && at + 1 < points.length && (points[at - 1][0] === x) === (points[at + 1][0] === x);
    const corners = points.filter((point, at) => !isStraight(point, at));
    for (const [width, how] of [[3.4, { colour: "#ff3b5c", glow: 11, alpha: 0.8 }], [1.6, { colour: "#ffe9ee" }]]) {
      for (let at = 1; at < corners.length; at++) painter.line(...corners[at - 1], ...corners[at], width, how);
    }
  }

  function drawMirror(x, y, side, turn, isLit) {
    const angle = (turn - 1) * (Math.PI / 4);
    const [dx, dy] = [Math.cos(angle) * side * 0.34, Math.sin(angle) * side * 0.34];
    painter.line(x - dx, y - dy, x + dx, y + dy, side * 0.15, { colour: "#20264d" });
    painter.line(x - dx, y - dy, x + dx, y + dy, side * 0.1, { colour: isLit ? "#ffffff" : "#a9c7ff", glow: isLit ? 8 : 3 });
    painter.disc(x, y, side * 0.05, { colour: "#20264d" });
  }

  function drawCrystal(x, y, side, isLit) {
    const colour = isLit ? "#7dffb2" : "#2f7f74";
    painter.star(x, y, side * 0.38, 4, 0.6, { colour, shine: 0.25, glow: isLit ? 16 : 2 });
    painter.star(x, y, side * 0.2, 4, 0.6, { colour: isLit ? "#ffffff" : "#55b3a4" });
  }

  function drawEmitter(x, y, side, [dx, dy]) {
    painter.line(x, y, x + dx * side * 0.3, y + dy * side * 0.3, side * 0.34, { colour: "#8b93c4" });
    painter.disc(x, y, side * 0.34, { colour: "#c3c9ee", shine: 0.3 });
    painter.disc(x, y, side * 0.17, { colour: "#ff3b5c", glow: 9 });
  }

  function elements(model, view) {
    const { side, x, y } = layout(model, view);
    const { path, lit } = trace(model);
    return model.cells.flatMap((there, cell) => {
      if (!there) return [];
      const [column, row] = [cell % model.size, Math.floor(cell / model.size)];
      const text = { mirror: TURNS[there.turn], emitter: WAYS[model.way] }[there.kind] ?? "";
      const ofMirror = there.kind === "mirror" && path.includes(cell) ? ["lit"] : [];
      const states = there.kind === "crystal" ? [lit.has(cell) ? "lit" : "dark"] : ofMirror;
      const place = `${text} column ${column + 1} row ${row + 1}`.trim();
      return [kit.element(there.kind, place, x + (column + 0.5) * side, y + (row + 0.5) * side, side, side, states)];
    });
  }

  // ---- oracle: turns the mirrors of the way that was laid, in the order in which the beam comes to them

  function hint(model, { view }) {
    const cell = model.mirrors.find((each) => clicks(model, each));
    if (cell === undefined) return null;
    const { side, x, y } = layout(model, view);
    return kit.click(x + ((cell % model.size) + 0.5) * side, y + (Math.floor(cell / model.size) + 0.5) * side);
  }

  return {
    name: "laser",
    title: "Laser maze",
    tagline: "Light every crystal",
    version: 1,
    webgl: true,
    keys: "Click a mirror to turn it",
    controls: "Click a mirror to turn it; the beam passes through crystals and stops at walls.",
    theme: { background: "#0b1026", panel: "#232a55", muted: "#97a2d8" },
    levels: [
      { size: 5, turns: 5, turned: 5, crystals: 2, decoys: 2, walls: 2 },
      { size: 7, turns: 8, turned: 7, crystals: 3, decoys: 5, walls: 5 },
      { size: 8, turns: 10, turned: 10, crystals: 4, decoys: 8, walls: 8, isEighths: true },
    ],
    goals: { solve: { text: () => "Light all crystals with the beam.", measure: (model) => Number(model.solved) } },
    create, pointer, draw, elements, hint,
    describe: (model) => ({
      size: model.size,
      cells: model.cells.map((there) => (there ? (there.kind === "mirror" ? TURNS[there.turn] : there.kind) : "")),
      emitter: WAYS[model.way],
      crystals: model.numCrystals,
      lit: trace(model).lit.size,
      moves: model.moves,
      shortest: model.shortest,
    }),
  };
});
