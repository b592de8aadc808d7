// Shapes: drag each shape into the outline that it fits; on the last level shapes are turned by a click first.
"use strict";

game((kit) => {
  const PLACED_SCORE = 10;
  const TRAY_SCALE = 0.7;
  const CLICK_PX = 5; // a longer way of the pointer is a drag
  const WAYS = ["up", "right", "down", "left"];
  const COLOUR_NAMES = ["red", "orange", "yellow", "green", "teal", "blue", "indigo", "purple", "pink", "brown"];
  const COLOURS = COLOUR_NAMES.map((name) => kit.colours[name]);

  /** Points of a ring around the middle: radius(angle) for each of `num` angles from the top, clockwise. */
  const ring = (num, radius) =>
    Array.from({ length: num }, (_, at) => {
      const angle = (at * 2 * Math.PI) / num;
      return [Math.sin(angle) * radius(at, angle), -Math.cos(angle) * radius(at, angle)];
    });

  function heart() {
    return Array.from({ length: 40 }, (_, at) => {
      const angle = (at * 2 * Math.PI) / 40;
      const y = 13 * Math.cos(angle) - 5 * Math.cos(2 * angle) - 2 * Math.cos(3 * angle) - Math.cos(4 * angle);
      return [(16 * Math.sin(angle) ** 3) / 17, -y / 16 - 0.1];
    });
  }

  function moon() {
    const arc = (from, to, radius, x) =>
      Array.from({ length: 21 }, (_, at) => {
        const angle = kit.mix(from, to, at / 20);
        return [x + radius * Math.cos(angle), radius * Math.sin(angle)];
      });
    return [...arc(0.28 * Math.PI, 1.72 * Math.PI, 1, 0.1), ...arc(-0.42 * Math.PI, -1.58 * Math.PI, 0.79, 0.5)];
  }

  // Outlines as points within about 1 of the middle.
  const SHAPES = {
    circle: ring(48, () => 0.92), square: [[-0.81, -0.81], [0.81, -0.81], [0.81, 0.81], [-0.81, 0.81]],
    triangle: ring(3, () => 1.08).map(([x, y]) => [x, y + 0.2]),
    star: ring(10, (at) => (at % 2 ? 0.45 : 1.05)), heart: heart(), moon: moon(), diamond: [[0, -1.05], [0.72, 0], [0, 1.05], [-0.72, 0]],
    hexagon: ring(6, () => 1), flower: ring(60, (_, angle) => 0.82 + 0.2 * Math.cos(6 * angle)),
    cross: [
      [-0.34, -1], [0.34, -1], [0.34, -0.34], [1, -0.34], [1, 0.34], [0.34, 0.34],
      [0.34, 1], [-0.34, 1], [-0.34, 0.34], [-1, 0.34], [-1, -0.34], [-0.34, -0.34],
    ],
    arrow: [[0, -1.05], [0.95, 0], [0.4, 0], [0.4, 0.95], [-0.4, 0.95], [-0.4, 0], [-0.95, 0]],
    bridge: [[-1, -0.7], [1, -0.7], [1, 0.8], [0.45, 0.8], [0.45, 0], [-0.45, 0], [-0.45, 0.8], [-1, 0.8]],
    boot: [[-0.6, -1], [0.15, -1], [0.15, 0.2], [0.95, 0.2], [0.95, 0.95], [-0.6, 0.95]],
  };
  // Where a face is that is not in the middle.
  const FACES = { triangle: [0, 0.3], moon: [-0.62, 0], arrow: [0, -0.2], bridge: [0, -0.36], boot: [-0.2, 0.42] };
  const UPRIGHT = ["circle", "square", "triangle", "star", "heart", "moon", "diamond", "hexagon", "flower", "cross"];
  const TURNED = ["triangle", "heart", "moon", "arrow", "bridge", "boot"];

  // ---- rules. A piece and an outline are {kind, turn, x, y}; a piece has the outline it fills as `filled`, or -1.

  /** Places in rows of a part of the board, from y on. */
  const places = (columns, rows, y, height) =>
    Array.from({ length: columns * rows }, (_, at) => ({
      x: 10 + ((at % columns) + 0.5) * (300 / columns),
      y: y + (Math.floor(at / columns) + 0.5) * (height / rows),
    }));

  /** Every outline has a piece of its kind, turned otherwise where pieces can be turned. */
  function create({ columns, rows, trayRows, radius, isTurning }, random) {
    const num = columns * rows;
    const names = isTurning ? [...TURNED, ...TURNED] : UPRIGHT;
    const kinds = random.shuffle([...names]).slice(0, num);
    const jitter = () => (random() - 0.5) * 12;
    const holes = places(columns, rows, 48, 196).map(({ x, y }, at) => {
      const turn = isTurning ? random.int(4) : 0;
      return { kind: kinds[at], turn, x: Math.round(x + jitter()), y: Math.round(y + jitter() / 2), isFilled: false };
    });
    const order = random.shuffle(holes.map((_, at) => at));
    const pieces = places(num / trayRows, trayRows, 252, 92).map(({ x, y }, at) => {
      const { kind, turn } = holes[order[at]];
      const away = isTurning ? 1 + random.int(3) : 0;
      return { kind, turn: (turn + away) % 4, homeX: x, homeY: y, x, y, filled: -1, colour: COLOURS[at % COLOURS.length] };
    });
    return { holes, pieces, radius, isTurning: Boolean(isTurning), hand: null, placed: 0, mistakes: 0, shown: null, turnedAt: {} };
  }

  const matches = (piece, hole) => !hole.isFilled && hole.kind === piece.kind && hole.turn === piece.turn;
  const near = (model, { x, y }, place, share) => Math.hypot(place.x - x, place.y - y) <= model.radius * share;

  function pointer(model, event, view) {
    if (event.type === "down") {
      const number = model.pieces.findIndex((piece) => piece.filled < 0 && near(model, event, piece, 0.8));
      model.hand = number < 0 ? null : { number, fromX: event.x, fromY: event.y, isDrag: false };
      return false;
    }
    if (!model.hand) return false;
    const { number, fromX, fromY } = model.hand;
    const piece = model.pieces[number];
    Object.assign(piece, { x: piece.homeX + event.x - fromX, y: piece.homeY + event.y - fromY });
    model.hand.isDrag ||= Math.hypot(event.x - fromX, event.y - fromY) > CLICK_PX;
    if (event.type === "move") return false;
    const { isDrag } = model.hand;
    model.hand = null;
    return isDrag ? letGo(model, number, view) : turn(model, number, view);
  }

  function turn(model, number, view) {
    const piece = model.pieces[number];
    Object.assign(piece, { x: piece.homeX, y: piece.homeY });
    if (!model.isTurning) return false;
    piece.turn = (piece.turn + 1) % 4;
    model.turnedAt = { ...model.turnedAt, [number]: view.tick };
    return true;
  }

  function letGo(model, number, view) {
    const piece = model.pieces[number];
    const hole = model.holes.findIndex((each) => matches(piece, each) && near(model, piece, each, 0.7));
    model.shown = { at: view.tick, number, x: piece.x, y: piece.y };
    if (hole >= 0) {
      Object.assign(piece, { x: model.holes[hole].x, y: model.holes[hole].y, filled: hole });
      model.holes[hole].isFilled = true;
      model.placed += 1;
      model.score += PLACED_SCORE;
      model.solved = model.placed === model.pieces.length;
      return true;
    }
    if (model.holes.some((each) => near(model, piece, each, 0.7))) {
      model.mistakes += 1;
      model.score = Math.max(0, model.score - 1);
    }
    Object.assign(piece, { x: piece.homeX, y: piece.homeY });
    return true;
  }

  // ---- looks

  /** Where a point of a shape comes to lie. */
  function placed([left, top], x, y, radius, quarters) {
    const angle = (quarters * Math.PI) / 2;
    const [cos, sin] = [Math.cos(angle) * radius, Math.sin(angle) * radius];
    return [x + left * cos - top * sin, y + left * sin + top * cos];
  }

  const trace = (kind, ...where) => SHAPES[kind].map((point) => placed(point, ...where));

  function draw(ctx, model, view) {
    kit.box(ctx, 10, 46, 300, 200, 14, "#fffaf0");
    kit.box(ctx, 10, 250, 300, 96, 14, "#e9dcc3");
    for (const hole of model.holes) {
      const points = trace(hole.kind, hole.x, hole.y, model.radius, hole.turn);
      kit.polygon(ctx, points, "#eadfc8");
      ctx.setLineDash([5, 4]);
      kit.polygon(ctx, points, null, "#b59f78", 1.8);
      ctx.setLineDash([]);
    }
    const numbers = model.pieces.map((_, number) => number);
    for (const number of numbers.filter((each) => each !== model.hand?.number)) drawPiece(ctx, model, number, view);
    if (model.hand) drawPiece(ctx, model, model.hand.number, view);
  }

  function drawPiece(ctx, model, number, view) {
    const piece = model.pieces[number];
    const moved = number === model.shown?.number ? view.since(model.shown.at, 7) : 1;
    const [x, y] = moved < 1 ? [kit.mix(model.shown.x, piece.x, moved), kit.mix(model.shown.y, piece.y, moved)] : [piece.x, piece.y];
    const isHeld = number === model.hand?.number && model.hand.isDrag;
    const radius = model.radius * (isHeld || piece.filled >= 0 ? 1 : moved < 1 ? kit.mix(1, TRAY_SCALE, moved) : TRAY_SCALE);
    const quarters = piece.turn - 1 + view.since(model.turnedAt[number], 7);
    if (isHeld) kit.polygon(ctx, trace(piece.kind, x + 4, y + 7, radius, quarters), "#00000030");
    const dark = kit.shade(piece.colour, -0.3);
    kit.polygon(ctx, trace(piece.kind, x, y + radius * 0.07, radius, quarters), dark, dark, 3);
    kit.polygon(ctx, trace(piece.kind, x, y - radius * 0.03, radius, quarters), piece.colour, kit.shade(piece.colour, 0.12), 3);
    drawFace(ctx, ...placed(FACES[piece.kind] ?? [0, 0], x, y, radius, quarters), radius, piece.filled >= 0);
  }

  function drawFace(ctx, x, y, radius, isHappy) {
    for (const sign of [-1, 1]) {
      kit.disc(ctx, x + sign * radius * 0.17, y - radius * 0.06, radius * 0.1, "#ffffff");
      kit.disc(ctx, x + sign * radius * 0.17, y - radius * 0.04, radius * 0.055, "#2b2f3a");
    }
    ctx.beginPath();
    if (isHappy) ctx.arc(x, y + radius * 0.08, radius * 0.15, 0.1 * Math.PI, 0.9 * Math.PI);
    else {
      ctx.moveTo(x - radius * 0.09, y + radius * 0.18);
      ctx.lineTo(x + radius * 0.09, y + radius * 0.18);
    }
    ctx.strokeStyle = "#2b2f3a";
    ctx.lineWidth = Math.max(1, radius * 0.055);
    ctx.stroke();
  }

  function elements(model) {
    const side = model.radius * 1.6;
    const small = side * TRAY_SCALE;
    const loose = model.pieces.filter(({ filled }) => filled < 0);
    const states = (turn) => (model.isTurning ? [WAYS[turn]] : []);
    const holes = model.holes.map(({ kind, turn, x, y, isFilled }) =>
      kit.element("outline", kind, x, y, side, side, [...states(turn), isFilled ? "filled" : "empty"]),
    );
    return [...holes, ...loose.map(({ kind, turn, x, y }) => kit.element("shape", kind, x, y, small, small, states(turn)))];
  }

  // ---- oracle: the first loose piece to an outline of its kind, turned as that is

  function hint(model) {
    const piece = model.pieces.find(({ filled }) => filled < 0);
    if (!piece) return null;
    const open = model.holes.filter(({ kind, isFilled }) => !isFilled && kind === piece.kind);
    const quarters = (hole) => (hole.turn - piece.turn + 4) % 4;
    const [hole] = open.sort((one, other) => quarters(one) - quarters(other));
    return quarters(hole) ? kit.click(piece.x, piece.y) : kit.drag(piece.x, piece.y, hole.x, hole.y);
  }

  return {
    name: "shapes",
    title: "Shapes",
    tagline: "Find the right outline",
    version: 1,
    keys: "Drag each shape into its outline; on level 3 a click turns it",
    controls: "Drag each shape into the outline it fits; where shapes lie turned, a click turns one by a quarter.",
    theme: { background: "#f6efe2", panel: "#e9dcc3", text: "#5b4a33", muted: "#96836a" },
    levels: [
      { columns: 3, rows: 2, trayRows: 1, radius: 34 },
      { columns: 5, rows: 2, trayRows: 2, radius: 28 },
      { columns: 4, rows: 3, trayRows: 2, radius: 29, isTurning: true },
    ],
    goals: { shapes: { text: (num) => `Put ${num} shapes into their outlines.`, measure: (model) => model.placed } },
    create, pointer, draw, elements, hint,
    describe: (model) => ({
      outlines: model.holes.map(({ kind, turn, isFilled }) => ({ kind, turn, filled: isFilled })),
      pieces: model.pieces.map(({ kind, turn, filled }) => ({ kind, turn, filled })),
      placed: model.placed,
      mistakes: model.mistakes,
    }),
  };
});
