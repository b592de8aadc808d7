// Pairs: take away tiles of a kind, two by two. A tile is free when none lies on it and its left or its right side is open (of the kind
// of mahjong solitaire); on covered boards tiles lie apart and face down, and show only while they are turned (the memory game).
"use strict";

game((kit) => {
  const SHAPES = ["circle", "square", "triangle", "diamond", "star", "cross", "moon", "heart"];
  const INKS = ["red", "blue", "green", "orange", "purple"];
  const PAIR_SCORE = 10;

  // ---- rules. A tile is {x, y, z, kind}, x and y in half tiles; taken tiles are null. On covered boards `known` are the tiles seen so far.

  const isOn = (above, below) => above.z === below.z + 1 && Math.abs(above.x - below.x) < 2 && Math.abs(above.y - below.y) < 2;
  const isBeside = (one, other, way) => one.z === other.z && other.x - one.x === 2 * way && Math.abs(one.y - other.y) < 2;

  function isFree(tiles, number) {
    const tile = tiles[number];
    const others = tiles.filter((other) => other && other !== tile);
    if (others.some((other) => isOn(other, tile))) return false;
    return [-1, 1].some((way) => !others.some((other) => isBeside(tile, other, way)));
  }

  /** Layers of columns × rows, each in the middle of the one below and half a tile up. */
  function places(layers) {
    const [[columns, rows]] = layers;
    return layers.flatMap(([across, down], z) =>
      Array.from({ length: across * down }, (_, at) => ({ x: columns - across + 2 * (at % across), y: rows - down + 2 * Math.floor(at / across), z })),
    );
  }

  /** Kinds are given out in the order in which pairs of free places can be taken, each kind once, so no choice can ever go wrong. */
  function create({ layers, isCovered }, random) {
    const tiles = places(layers);
    const kinds = random.shuffle(SHAPES.flatMap((shape, at) => INKS.map((_, ink) => at * INKS.length + ink)));
    for (;;) {
      const left = [...tiles];
      for (let pair = 0; left.some(Boolean); pair++) {
        const free = left.flatMap((tile, number) => (tile && (isCovered || isFree(left, number)) ? [number] : []));
        if (free.length < 2) break;
        for (const number of random.shuffle(free).slice(0, 2)) {
          tiles[number] = { ...tiles[number], kind: kinds[pair] };
          left[number] = null;
        }
      }
      if (!left.some(Boolean)) break;
    }
    return { tiles, layers, isCovered: Boolean(isCovered), chosen: [], known: [], pairs: 0, turns: 0, shown: null };
  }

  function pointer(model, event, view) {
    if (event.type !== "down") return false;
    const number = tileAt(model, event, view);
    if (number < 0) return false;
    if (model.chosen.length === 2) model.chosen = [];
    if (model.chosen.includes(number)) {
      if (!model.isCovered) model.chosen = [];
      return false;
    }
    if (!model.isCovered && !isFree(model.tiles, number)) {
      model.shown = { at: view.tick, refused: number };
      return false;
    }
    model.chosen = [...model.chosen, number];
    if (!model.known.includes(number)) model.known = [...model.known, number];
    model.shown = { at: view.tick, turned: number };
    if (model.chosen.length === 2) judge(model, view);
    return true;
  }

  function judge(model, view) {
    const [one, other] = model.chosen;
    model.turns += 1;
    if (model.tiles[one].kind === model.tiles[other].kind) {
      model.shown = { at: view.tick, taken: [model.tiles[one], model.tiles[other]] };
      model.tiles = model.tiles.with(one, null).with(other, null);
      model.chosen = [];
      model.pairs += 1;
      model.score += PAIR_SCORE;
      model.solved = model.tiles.every((tile) => !tile);
    } else if (!model.isCovered) model.chosen = [other];
  }

  // ---- looks

  function layout(model, view) {
    const [columns, rows] = model.layers[0];
    const width = Math.min(56, (view.board.size - 20) / columns);
    const height = Math.min(width * 1.25, (view.board.size - 20) / rows);
    const lift = 5;
    return {
      width, height: Math.min(height, width * 1.25), lift,
      x: view.board.x + (view.board.size - width * columns) / 2, y: view.board.y + (view.board.size - Math.min(height, width * 1.25) * rows) / 2,
    };
  }

  function place(model, tile, view) {
    const { width, height, lift, x, y } = layout(model, view);
    return { x: x + (tile.x * width) / 2 - tile.z * lift, y: y + (tile.y * height) / 2 - tile.z * lift, width, height };
  }

  /** The topmost tile at a point, or -1. */
  function tileAt(model, event, view) {
    for (let number = model.tiles.length - 1; number >= 0; number--) {
      if (!model.tiles[number]) continue;
      const { x, y, width, height } = place(model, model.tiles[number], view);
      if (event.x >= x && event.x < x + width && event.y >= y && event.y < y + height) return number;
    }
    return -1;
  }

  function draw(ctx, model, view) {
    kit.box(ctx, view.board.x, view.board.y, view.board.size, view.board.size, 14, "#1f5a46");
    const share = model.shown ? view.since(model.shown.at, 8) : 1;
    model.tiles.forEach((tile, number) => {
      if (!tile) return;
      const { x, y, width, height } = place(model, tile, view);
      const sway = model.shown?.refused === number ? Math.sin(share * 3 * Math.PI) * 3 * (1 - share) : 0;
      const isChosen = model.chosen.includes(number);
      const isOpen = !model.isCovered || isChosen;
      const turned = model.isCovered && model.shown?.turned === number ? Math.abs(1 - 2 * share) : 1;
      ctx.save();
      ctx.translate(x + width / 2 + sway, y + height / 2);
      ctx.scale(Math.max(0.02, turned), 1);
      drawTile(ctx, tile.kind, width, height, isOpen && (turned === 1 || share > 0.5), isChosen, model.isCovered || isFree(model.tiles, number));
      ctx.restore();
    });
    if (!model.shown?.taken || share === 1) return;
    for (const tile of model.shown.taken) {
      const { x, y, width, height } = place(model, tile, view);
      ctx.save();
      ctx.globalAlpha = 1 - share;
      ctx.translate(x + width / 2, y + height / 2);
      ctx.scale(1 + 0.3 * share, 1 + 0.3 * share);
      drawTile(ctx, tile.kind, width, height, true, true, true);
      ctx.restore();
    }
  }

  function drawTile(ctx, kind, width, height, isOpen, isChosen, isBright) {
    const [left, top] = [-width / 2 + 1, -height / 2 + 1];
    kit.box(ctx, left + 2.5, top + 3.5, width - 3, height - 3, 6, "rgba(0, 0, 0, 0.35)");
    if (!isOpen) {
      kit.block(ctx, left, top, width - 3, height - 3, 6, "#3f7fb8");
      kit.polygon(ctx, [[-1, top + 9], [width / 2 - 10, -2], [-1, height / 2 - 13], [-width / 2 + 8, -2]], null, "#8fc0ea", 2);
      return;
    }
    const paper = isChosen ? "#ffe9a8" : isBright ? "#faf5e6" : "#c9c3b1";
    kit.block(ctx, left, top, width - 3, height - 3, 6, paper);
    if (isChosen) kit.box(ctx, left, top, width - 3, height - 3, 6, null, kit.colours.orange, 2);
    const ink = kit.shade(kit.colours[INKS[kind % INKS.length]], isBright ? -0.12 : -0.3);
    drawShape(ctx, SHAPES[Math.floor(kind / INKS.length)], -1, -2, Math.min(width, height) * 0.29, ink);
  }

  function drawShape(ctx, shape, x, y, r, colour) {
    const around = (num, radius, turn = -Math.PI / 2) =>
      Array.from({ length: num }, (_, at) => [x + radius(at) * Math.cos(turn + (at * 2 * Math.PI) / num), y + radius(at) * Math.sin(turn + (at * 2 * Math.PI) / num)]);
    const cross = [[-1, -3], [1, -3], [1, -1], [3, -1], [3, 1], [1, 1], [1, 3], [-1, 3], [-1, 1], [-3, 1], [-3, -1], [-1, -1]];
    if (shape === "circle") kit.disc(ctx, x, y, r, colour);
    else if (shape === "square") kit.box(ctx, x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8, r * 0.2, colour);
    else if (shape === "triangle") kit.polygon(ctx, around(3, () => r * 1.2).map(([px, py]) => [px, py + r * 0.2]), colour);
    else if (shape === "diamond") kit.polygon(ctx, around(4, () => r * 1.15), colour);
    else if (shape === "star") kit.polygon(ctx, around(10, (at) => (at % 2 ? r * 0.5 : r * 1.2)), colour);
    else if (shape === "cross") kit.polygon(ctx, cross.map(([dx, dy]) => [x + (dx * r) / 3, y + (dy * r) / 3]), colour);
    else {
      ctx.beginPath();
      if (shape === "moon") {
        ctx.arc(x, y, r * 1.05, 0.6, 2 * Math.PI - 0.6);
        ctx.quadraticCurveTo(x - r * 0.3, y, x + r * 1.05 * Math.cos(0.6), y + r * 1.05 * Math.sin(0.6));
      } else {
        ctx.moveTo(x, y + r);
        ctx.bezierCurveTo(x - r * 1.9, y - r * 0.2, x - r * 0.9, y - r * 1.5, x, y - r * 0.5);
        ctx.bezierCurveTo(x + r * 0.9, y - r * 1.5, x + r * 1.9, y - r * 0.2, x, y + r);
      }
      ctx.fillStyle = colour;
      ctx.fill();
    }
  }

  const nameOf = (kind) => `${INKS[kind % INKS.length]} ${SHAPES[Math.floor(kind / INKS.length)]}`;

  /** Tiles of which something can be clicked, and what can be known of them by looking. On covered boards taken ones leave their place. */
  function elements(model, view) {
    const found = [];
    const board = places(model.layers);
    model.tiles.forEach((tile, number) => {
      if (!tile && !model.isCovered) return;
      const { x, y, width, height } = place(model, tile ?? board[number], view);
      const middle = { x: x + width / 2, y: y + height / 2 };
      if (tile && tileAt(model, middle, view) !== number) return;
      const isChosen = model.chosen.includes(number);
      const states = [...(isChosen ? ["selected"] : []), ...(!tile || model.isCovered || isFree(model.tiles, number) ? [] : ["blocked"])];
      const name = !tile ? "taken" : model.isCovered && !isChosen ? "covered" : nameOf(tile.kind);
      found.push(kit.element("tile", name, middle.x, middle.y, width, height, states));
    });
    return found;
  }

  // ---- oracle: any free pair; face down, a pair that was seen, else a tile that was not: it knows no more than who watched

  function next(model) {
    const isThere = (number) => model.tiles[number] !== null;
    const usable = model.tiles.flatMap((tile, number) =>
      tile && (model.isCovered ? model.known.includes(number) : isFree(model.tiles, number)) ? [number] : [],
    );
    const chosen = model.chosen.length === 1 ? model.chosen[0] : -1;
    const partner = (number) => usable.find((other) => other !== number && model.tiles[other].kind === model.tiles[number].kind);
    if (chosen >= 0 && isThere(chosen) && partner(chosen) !== undefined) return partner(chosen);
    const unseen = model.tiles.findIndex((tile, number) => tile && !model.known.includes(number));
    if (chosen >= 0) return model.isCovered ? unseen : chosen;
    return usable.find((number) => partner(number) !== undefined) ?? unseen;
  }

  function hint(model, { view }) {
    const { x, y, width, height } = place(model, model.tiles[next(model)], view);
    return kit.click(x + width / 2, y + height / 2);
  }

  return {
    name: "pairs",
    title: "Pairs",
    tagline: "Two of a kind",
    version: 1,
    keys: "Click two tiles of a kind; blocked ones are dark",
    controls: "Click two tiles of a kind to take them; a tile with others on both sides or on top is blocked, a covered one shows when clicked.",
    theme: { background: "#173f32", panel: "#245c49", muted: "#a5c9b8" },
    levels: [
      { layers: [[4, 3]] },
      { layers: [[6, 4], [4, 2]] },
      { layers: [[7, 6], [5, 4], [2, 2]] },
      { layers: [[4, 3]], isCovered: true },
      { layers: [[6, 4]], isCovered: true },
      { layers: [[4, 2]], isCovered: true },
    ],
    goals: {
      pairs: { text: (target) => `Take ${target} pairs.`, measure: (model) => model.pairs },
    },
    create, pointer, draw, elements, hint,
    describe: (model) => ({
      tiles: model.tiles.map((tile) => tile && { x: tile.x, y: tile.y, z: tile.z, kind: nameOf(tile.kind) }), chosen: model.chosen,
      known: model.known, pairs: model.pairs, turns: model.turns,
    }),
  };
});
