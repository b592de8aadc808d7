// Merge and double: drop numbers into columns; one that comes to lie beside its equals takes them in and doubles for each.
"use strict";

game((kit) => {
  const COLOURS = ["#5aa9e6", "#4ec3a5", "#f2c14e", "#f78154", "#e4577f", "#a874e8", "#6c78e6", "#3bbfbf", "#ef5b5b", "#5cc98a", "#f7d154"];
  const colourOf = (value) => COLOURS[(Math.log2(value) - 1) % COLOURS.length];
  const TOP = 52; // of the columns, below the number in hand

  // ---- rules. Columns are lists of tiles {value}, the lowest first.

  function find(columns, tile) {
    const column = columns.findIndex((each) => each.includes(tile));
    return [column, column < 0 ? -1 : columns[column].indexOf(tile)];
  }

  /** Tiles of the same value beside, below and above. */
  function equals(columns, tile) {
    const [column, at] = find(columns, tile);
    const beside = [columns[column][at - 1], columns[column - 1]?.[at], columns[column + 1]?.[at], columns[column][at + 1]];
    return beside.filter((other) => other?.value === tile.value);
  }

  const canDrop = (columns, rows, column, value) => columns[column].length < rows || columns[column].at(-1).value === value;

  /** What a drop leads to: {columns, gain, merged: tiles}. What falls because a tile went may merge in turn. */
  function drop(columns, column, value) {
    const after = columns.map((tiles) => tiles.map((tile) => ({ ...tile })));
    const active = [{ value }];
    after[column].push(active[0]);
    const merged = new Set();
    let gain = 0;
    while (active.length) {
      const tile = active.shift();
      if (find(after, tile)[0] < 0) continue;
      const others = equals(after, tile);
      if (!others.length) continue;
      tile.value *= 2 ** others.length;
      gain += tile.value;
      merged.add(tile);
      for (const other of others) {
        const [from, at] = find(after, other);
        after[from].splice(at, 1);
        active.push(...after[from].slice(at).filter((each) => each !== tile));
      }
      active.unshift(tile);
    }
    return { columns: after, gain, merged };
  }

  const highest = (columns) => Math.max(0, ...columns.flat().map(({ value }) => value));

  function create({ columns, rows, values }, random) {
    const queue = [random.pick(values), random.pick(values)];
    const empty = Array.from({ length: columns }, () => []);
    return { rows, values, random, columns: empty, queue, aim: Math.floor(columns / 2), drops: 0, shown: null };
  }

  function put(model, column, view) {
    model.aim = column;
    if (!canDrop(model.columns, model.rows, column, model.queue[0])) return false;
    const { columns, gain, merged } = drop(model.columns, column, model.queue[0]);
    model.shown = { at: view.tick, column, merged };
    model.columns = columns;
    model.score += gain;
    model.drops += 1;
    model.queue = [model.queue[1], model.random.pick(model.values)];
    model.over = !columns.some((_, each) => canDrop(columns, model.rows, each, model.queue[0]));
    model.reason = model.over ? "all columns are full" : "";
    return true;
  }

  function key(model, name, view) {
    if (["down", "space", "enter"].includes(name)) return put(model, model.aim, view);
    const aim = kit.clamp(model.aim + ({ left: -1, right: 1 }[name] ?? 0), 0, model.columns.length - 1);
    if (aim === model.aim) return false;
    model.aim = aim;
    return true;
  }

  function pointer(model, event, view) {
    const { x, wide } = layout(model, view);
    const column = Math.floor((event.x - x) / wide);
    if (column < 0 || column >= model.columns.length || event.y < view.board.y || event.y > view.board.y + view.board.size) return false;
    if (event.type === "down") return put(model, column, view);
    model.aim = column;
    return false;
  }

  // ---- looks

  function layout(model, view) {
    const wide = Math.min(68, Math.floor(view.board.size / model.columns.length));
    const tall = (view.board.size - TOP - 6) / model.rows;
    const x = view.board.x + (view.board.size - wide * model.columns.length) / 2;
    return { x, wide, tall, bottom: view.board.y + view.board.size - 4 };
  }

  function drawTile(ctx, value, x, y, wide, tall, grown = 1) {
    const [width, height] = [(wide - 5) * grown, (tall - 4) * grown];
    kit.block(ctx, x - width / 2, y - height / 2, width, height, 9, colourOf(value));
    kit.text(ctx, String(value), x, y - 1, { size: Math.min(22, tall * 0.5), weight: "bold", colour: "#ffffff", width: width - 8 });
  }

  function draw(ctx, model, view) {
    const { x, wide, tall, bottom } = layout(model, view);
    kit.box(ctx, view.board.x, view.board.y, view.board.size, view.board.size, 12, "#22304a");
    const fallen = model.shown ? view.since(model.shown.at, 4) : 1;
    const popped = model.shown ? view.since(model.shown.at + 3, 5) : 1;
    model.columns.forEach((tiles, column) => {
      const middle = x + (column + 0.5) * wide;
      const colour = column === model.aim ? "#34476b" : "#2a3a58";
      kit.box(ctx, middle - wide / 2 + 1.5, view.board.y + TOP, wide - 3, bottom - view.board.y - TOP, 9, colour);
      tiles.forEach((tile, at) => {
        const isNew = column === model.shown?.column && at === tiles.length - 1;
        const rest = bottom - (at + 0.5) * tall;
        const y = isNew ? kit.mix(view.board.y + 26, rest, fallen) : rest;
        drawTile(ctx, tile.value, middle, y, wide, tall, model.shown?.merged.has(tile) ? 1.15 - 0.15 * popped : 1);
      });
    });
    if (!model.over) drawTile(ctx, model.queue[0], x + (model.aim + 0.5) * wide, view.board.y + 26, wide, 42);
    const isLeft = model.aim > (model.columns.length - 1) / 2;
    const place = isLeft ? view.board.x + 30 : view.board.x + view.board.size - 30;
    kit.text(ctx, "NEXT", place, view.board.y + 10, { size: 8, weight: "bold", colour: "#8fa3c8" });
    drawTile(ctx, model.queue[1], place, view.board.y + 31, 44, 32);
  }

  function elements(model, view) {
    const { x, wide, bottom } = layout(model, view);
    const tall = bottom - view.board.y - TOP;
    return [
      kit.element("number", model.queue[0], x + (model.aim + 0.5) * wide, view.board.y + 20, wide, 40),
      ...model.columns.map((tiles, column) => {
        const text = tiles.length ? tiles.map(({ value }) => value).reverse().join(" ") : "empty";
        const states = tiles.length >= model.rows ? ["full"] : [];
        return kit.element("column", text, x + (column + 0.5) * wide, bottom - tall / 2, wide, tall, states);
      }),
      kit.element("next", model.queue[1], view.board.x + view.board.size / 2, view.board.y + 46, 44, 32),
    ];
  }

  // ---- oracle: looks at the two numbers that are known and at each third, for room and for stacks that grow less by one upwards

  function worth(columns, rows) {
    let value = 0;
    for (const [column, tiles] of columns.entries()) {
      value -= tiles.length ** 2 * 1.4 + (tiles.length >= rows ? 30 : 0);
      tiles.forEach((tile, at) => {
        const own = Math.log2(tile.value);
        const below = at ? Math.log2(tiles[at - 1].value) : own + 1;
        value -= below === own + 1 ? 0 : below > own ? 0.8 * (below - own - 1) : 3 * (own - below);
        const beside = columns[column + 1]?.[at];
        if (beside) value -= 0.6 * Math.abs(Math.log2(beside.value) - own);
      });
    }
    return value;
  }

  function best(columns, rows, queue) {
    if (!queue.length) return { value: worth(columns, rows), column: -1 };
    let found = { value: -1000, column: -1 };
    for (let column = 0; column < columns.length; column++) {
      if (!canDrop(columns, rows, column, queue[0])) continue;
      const after = drop(columns, column, queue[0]);
      const value = 0.02 * after.gain + best(after.columns, rows, queue.slice(1)).value;
      if (value > found.value) found = { value, column };
    }
    return found;
  }

  function hint(model, { view }) {
    const { x, wide, bottom } = layout(model, view);
    let found = { value: -1e9, column: -1 };
    for (let column = 0; column < model.columns.length; column++) {
      if (!canDrop(model.columns, model.rows, column, model.queue[0])) continue;
      const after = drop(model.columns, column, model.queue[0]);
      const kinds = [...new Set(model.values)];
      const values = kinds.map((third) => best(after.columns, model.rows, [model.queue[1], third]).value);
      const value = 0.02 * after.gain + values.reduce((sum, each) => sum + each, 0) / kinds.length;
      if (value > found.value) found = { value, column };
    }
    return found.column < 0 ? null : kit.click(x + (found.column + 0.5) * wide, bottom - (bottom - view.board.y - TOP) / 2);
  }

  return {
    name: "merge",
    title: "Merge and double",
    tagline: "Drop equals beside equals",
    version: 1,
    keys: "Click a column, or arrow keys and space",
    controls: "Click a column to drop the number on top into it; where it comes to lie beside equal numbers they become one and double.",
    theme: { background: "#172238", panel: "#2a3a58", muted: "#8fa3c8" },
    levels: [
      { columns: 4, rows: 6, values: [2, 2, 4] },
      { columns: 5, rows: 6, values: [2, 2, 4, 4, 8] },
      { columns: 5, rows: 6, values: [2, 4, 8, 16, 32] },
    ],
    goals: {
      tile: { text: (target) => `Make the number ${target}.`, measure: (model) => highest(model.columns) },
      score: { text: (target) => `Score ${target} points.`, measure: (model) => model.score },
    },
    create, key, pointer, draw, elements, hint,
    describe: ({ columns, queue, drops }) => ({ columns: columns.map((tiles) => tiles.map(({ value }) => value)), queue, drops }),
  };
});
