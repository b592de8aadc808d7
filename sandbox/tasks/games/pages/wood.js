// Wood blocks: place pieces on a square board; full rows and columns clear. Of the kind of Woodoku and 1010!.
"use strict";

game((kit) => {
  const SHAPES = {
    dot: ["#"], "bar 2": ["##"], "bar 3": ["###"], "bar 4": ["####"], "bar 5": ["#####"], "square 2": ["##", "##"],
    "square 3": ["###", "###", "###"], "corner 2": ["##", "#."], "corner 3": ["###", "#..", "#.."], hook: ["###", "#.."],
    tee: ["###", ".#."], zigzag: ["##.", ".##"],
  };
  const COLOURS = ["#d99a56", "#c9814a", "#e0b06a", "#b9713f"];
  const quarter = ([x, y]) => [-y, x];

  const bag = (names) =>
    names.flatMap((name, at) => {
      const cells = SHAPES[name].flatMap((row, y) => [...row].flatMap((mark, x) => (mark === "#" ? [[x, y]] : [])));
      return kit.placing.turned(name, cells, quarter, 1 + (at % COLOURS.length));
    });

  function create({ size, pieces }, random) {
    const numbers = Array.from({ length: size }, (_, at) => at);
    const places = numbers.flatMap((y) => numbers.map((x) => [x, y]));
    const rows = numbers.map((y) => numbers.map((x) => y * size + x));
    const columns = numbers.map((x) => numbers.map((y) => y * size + x));
    const on = kit.placing.grid(places, [...rows, ...columns], [[1, 0], [-1, 0], [0, 1], [0, -1]]);
    return kit.placing.start(on, bag(pieces), random);
  }

  // ---- looks

  function background(ctx, view) {
    const { x, y, size } = view.board;
    kit.box(ctx, x, y, size, 226, 12, "#5b3b25");
    kit.box(ctx, x, y + 231, size, 69, 12, "#4d311f");
  }

  function paint(ctx, x, y, unit, colour) {
    const [left, top, side] = [x - unit / 2 + 0.6, y - unit / 2 + 0.6, unit - 1.2];
    if (!colour) {
      kit.box(ctx, left, top, side, side, unit * 0.14, "#3f2818");
      return;
    }
    const wood = COLOURS[colour - 1];
    kit.block(ctx, left, top, side, side, unit * 0.18, wood);
    ctx.strokeStyle = kit.shade(wood, -0.16);
    ctx.lineWidth = Math.max(0.6, unit * 0.045);
    for (const share of [0.32, 0.52, 0.7]) {
      ctx.beginPath();
      ctx.moveTo(left + side * 0.14, top + side * share);
      ctx.quadraticCurveTo(left + side * 0.5, top + side * (share - 0.1), left + side * 0.86, top + side * share);
      ctx.stroke();
    }
  }

  const unit = ({ on }) => Math.min(42, 216 / Math.sqrt(on.places.length));
  const look = { point: ([x, y], side) => [x * side, y * side], unit, trayUnit: 13, reach: 0.75, paint, background, mark: "#ffe2b0" };
  const placing = kit.placing.game({ look, isDragging: false });
  const small = ["dot", "bar 2", "bar 2", "bar 3", "corner 2", "square 2"];
  const usual = ["dot", "bar 2", "bar 3", "bar 4", "square 2", "corner 2", "hook", "tee", "zigzag"];

  return {
    ...placing,
    name: "wood",
    title: "Wood blocks",
    tagline: "Fill rows and columns",
    version: 1,
    keys: "Drag a piece to the board, or click it and then a cell",
    controls: "Drag a piece to the board, or click it and then the cell for its first square. Full rows and columns clear.",
    theme: { background: "#2b1c12", panel: "#4d311f", text: "#f7e6cf", muted: "#bd9a78" },
    levels: [{ size: 5, pieces: small }, { size: 10, pieces: usual }, { size: 10, pieces: [...usual, "bar 5", "square 3", "corner 3"] }],
    create,
  };
});
