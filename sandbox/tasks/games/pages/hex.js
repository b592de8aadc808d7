// Hex blocks: place pieces on a board of hexagons; full lines of any of the three directions clear. Of the kind of Hexa block puzzles.
"use strict";

game((kit) => {
  // Places are axial coordinates [q, r]: q goes to the right, r down and half a cell to the right.
  const STEPS = [[1, 0], [0, 1], [-1, 1], [-1, 0], [0, -1], [1, -1]];
  const SHAPES = {
    dot: [[0, 0]], "bar 2": [[0, 0], [1, 0]], "bar 3": [[0, 0], [1, 0], [2, 0]], "bar 4": [[0, 0], [1, 0], [2, 0], [3, 0]],
    triangle: [[0, 0], [1, 0], [0, 1]], boomerang: [[0, 0], [1, 0], [1, 1]], diamond: [[0, 0], [1, 0], [0, 1], [1, 1]],
    bowl: [[0, 0], [0, 1], [1, 1], [2, 0]],
  };
  const COLOURS = ["teal", "orange", "purple", "green", "pink", "blue", "yellow", "red"].map((name) => kit.colours[name]);
  const sixth = ([q, r]) => [-r, q + r];
  const bag = (names) => names.flatMap((name) => kit.placing.turned(name, SHAPES[name], sixth, 1 + Object.keys(SHAPES).indexOf(name)));

  function create({ radius, pieces }, random) {
    const numbers = Array.from({ length: 2 * radius + 1 }, (_, at) => at - radius);
    const places = numbers.flatMap((r) => numbers.map((q) => [q, r])).filter(([q, r]) => Math.abs(q + r) <= radius);
    const line = (along) => numbers.map((number) => places.flatMap(([q, r], cell) => (along(q, r) === number ? [cell] : [])));
    const lines = [...line((q, r) => r), ...line((q) => q), ...line((q, r) => q + r)];
    return kit.placing.start(kit.placing.grid(places, lines, STEPS), bag(pieces), random);
  }

  // ---- looks

  const corners = (x, y, size) =>
    Array.from({ length: 6 }, (_, at) => {
      const angle = (at + 0.5) * (Math.PI / 3);
      return [x + size * Math.cos(angle), y + size * Math.sin(angle)];
    });

  function background(ctx, view) {
    const { x, y, size } = view.board;
    kit.polygon(ctx, corners(160, 157, 128).map(([left, top]) => [160 + (top - 157), 157 + (left - 160) * 0.9]), "#232849");
    kit.box(ctx, x, y + 231, size, 69, 12, "#262c50");
  }

  function paint(ctx, x, y, unit, colour) {
    if (!colour) {
      kit.polygon(ctx, corners(x, y, unit * 0.92), "#363d6b", "#2b315a", 1);
      return;
    }
    const own = COLOURS[colour - 1];
    kit.polygon(ctx, corners(x, y, unit * 0.94), kit.shade(own, -0.3));
    kit.polygon(ctx, corners(x, y - unit * 0.06, unit * 0.84), own);
    const shine = corners(x, y - unit * 0.06, unit * 0.84);
    kit.polygon(ctx, [shine[2], shine[3], shine[4], [x, y - unit * 0.06]], kit.shade(own, 0.2));
    kit.polygon(ctx, corners(x, y - unit * 0.06, unit * 0.56), kit.shade(own, 0.08));
  }

  const look = {
    point: ([q, r], unit) => [unit * Math.sqrt(3) * (q + r / 2), unit * 1.5 * r],
    unit: ({ on }) => 216 / (1.5 * Math.sqrt((4 * on.places.length - 1) / 3) + 0.5),
    trayUnit: 8.5, reach: 1, paint, background, mark: "#ffffff",
  };
  const placing = kit.placing.game({ look, isDragging: true });
  const small = ["dot", "bar 2", "bar 3", "triangle"];

  return {
    ...placing,
    name: "hex",
    title: "Hex blocks",
    tagline: "Fill lines of hexagons",
    version: 1,
    keys: "Drag a piece to the board, or click it and then a cell",
    controls: "Drag a piece to the board, or click it and then the cell for its first hexagon. Full lines of any direction clear.",
    theme: { background: "#171a33", panel: "#262c50", muted: "#9aa3cf" },
    levels: [
      { radius: 2, pieces: small },
      { radius: 3, pieces: [...small, "boomerang", "diamond", "bar 4"] },
      { radius: 4, pieces: [...small, "boomerang", "diamond", "bar 4", "bowl"] },
    ],
    create,
  };
});
