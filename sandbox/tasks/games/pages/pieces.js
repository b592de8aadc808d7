// Placing pieces: what hex blocks and wood blocks share. Three pieces lie in a tray; each goes to a place where all its cells are empty,
// full lines clear, and when the tray is empty three more come. Adds kit.placing {turned, grid, start, game}; what cells, lines and pieces
// are is the games' own.
"use strict";

(() => {
  const kit = window.game;
  const NUM_PIECES = 3;
  const LINE_SCORE = 10;
  const DRAG_PX = 6; // a shorter way of the pointer is a click
  const MAX_DEALS = 15;
  const MAX_TRIED = 1500; // boards looked at to see whether three pieces fit
  const BEAM = 8;
  const MIDDLE = { x: 160, y: 157, trayX: 60, trayStep: 100, trayY: 311 };

  /** The pieces that quarter or sixth turns of a shape lead to: {name, shape, colour}; a shape is a list of [x, y], the first [0, 0]. */
  function turned(name, shape, turn, colour) {
    const found = new Map();
    for (let num = 0, now = shape; num < 6; num++, now = now.map(turn)) {
      const sorted = [...now].sort(([x, y], [otherX, otherY]) => y - otherY || x - otherX);
      const moved = sorted.map(([x, y]) => [x - sorted[0][0], y - sorted[0][1]]);
      if (!found.has(moved.join(" "))) found.set(moved.join(" "), moved);
    }
    return [...found.values()].map((each, at) => ({ name: found.size > 1 ? `${name} turned ${at}` : name, shape: each, colour }));
  }

  /** A grid of cells [[x, y]] with its lines [[cell]]; `steps` lead to a cell's neighbours. */
  function grid(places, lines, steps) {
    const at = new Map(places.map(([x, y], cell) => [`${x},${y}`, cell]));
    const find = (x, y) => at.get(`${x},${y}`) ?? -1;
    const neighbours = places.map(([x, y]) => steps.map(([dx, dy]) => find(x + dx, y + dy)));
    const linesOf = places.map((_, cell) => lines.filter((line) => line.includes(cell)));
    return { places, lines, find, neighbours, linesOf };
  }

  // ---- rules. A board is an array with a colour for each cell, 0 where empty.

  /** The cells that a shape covers whose first cell lies there, or null where it does not fit. */
  function covered(on, board, shape, [x, y]) {
    const cells = [];
    for (const [dx, dy] of shape) {
      const cell = on.find(x + dx, y + dy);
      if (cell < 0 || board[cell]) return null;
      cells.push(cell);
    }
    return cells;
  }

  /** Every way to place a shape, as lists of cells, the shape's first cell first. */
  const ways = (on, board, shape) => on.places.map((place) => covered(on, board, shape, place)).filter(Boolean);

  /** A board after cells are covered: {board, cleared: cells, num: lines cleared}. */
  function cover(on, board, cells, colour) {
    const after = [...board];
    for (const cell of cells) after[cell] = colour;
    const full = [...new Set(cells.flatMap((cell) => on.linesOf[cell]))].filter((line) => line.every((cell) => after[cell]));
    const cleared = [...new Set(full.flat())];
    for (const cell of cleared) after[cell] = 0;
    return { board: after, cleared, num: full.length };
  }

  /** Whether all pieces can be placed in some order; also false where that is not found in time. */
  function canPlaceAll(on, board, pieces, budget = { left: MAX_TRIED }) {
    if (!pieces.length) return true;
    return pieces.some((piece, number) =>
      ways(on, board, piece.shape).some((cells) => {
        budget.left -= 1;
        if (budget.left < 0) return false;
        return canPlaceAll(on, cover(on, board, cells, 1).board, pieces.filter((_, other) => other !== number), budget);
      }),
    );
  }

  /** Three pieces that can all be placed as the board is: nobody loses but by an own choice. */
  function deal(model) {
    for (let num = 0; num < MAX_DEALS; num++) {
      const pieces = Array.from({ length: NUM_PIECES }, () => ({ ...model.random.pick(model.bag) }));
      if (canPlaceAll(model.on, model.board, pieces)) return pieces;
    }
    return Array.from({ length: NUM_PIECES }, () => ({ name: "dot", shape: [[0, 0]], colour: 1 }));
  }

  function start(on, bag, random) {
    const model = { on, bag, random, board: new Array(on.places.length).fill(0), tray: [], chosen: -1, grip: 0, hand: null };
    Object.assign(model, { placed: 0, lines: 0, shown: null });
    model.tray = deal(model);
    return model;
  }

  /** Where the chosen piece would lie if the cell it is held by were put there; null where it does not fit. */
  function target(model, cell) {
    const piece = model.tray[model.chosen];
    if (!piece || cell < 0) return null;
    const [x, y] = model.on.places[cell];
    const [dx, dy] = piece.shape[model.grip];
    return covered(model.on, model.board, piece.shape, [x - dx, y - dy]);
  }

  function put(model, cell, view) {
    const cells = target(model, cell);
    if (!cells) return false;
    const { colour } = model.tray[model.chosen];
    const { board, cleared, num } = cover(model.on, model.board, cells, colour);
    model.shown = { at: view.tick, cells, cleared: cleared.map((each) => [each, model.board[each] || colour]) };
    model.board = board;
    model.score += cells.length + LINE_SCORE * num * num;
    model.lines += num;
    model.placed += 1;
    model.tray = model.tray.with(model.chosen, null);
    model.chosen = -1;
    if (!model.tray.some(Boolean)) model.tray = deal(model);
    model.over = !model.tray.some((piece) => piece && ways(model.on, model.board, piece.shape).length);
    model.reason = model.over ? "no piece fits" : "";
    return true;
  }

  /** A game of placing. `look` says how it is seen: point([x, y], unit) is a place's point from that of [0, 0]; unit(model) and trayUnit
   * are pixels; reach tells how far from a cell's middle it still is the cell, in units; paint(ctx, x, y, unit, colour) draws a cell, an
   * empty one where the colour is 0; background(ctx, view) what lies below; mark is a colour. `isDragging`: the oracle drags, else it
   * clicks a piece and then a cell. */
  function game({ look, isDragging }) {
    /** Point of the middle of a list of places, from that of [0, 0]. */
    function middle(places, unit) {
      const points = places.map((place) => look.point(place, unit));
      return [0, 1].map((axis) => (Math.min(...points.map((each) => each[axis])) + Math.max(...points.map((each) => each[axis]))) / 2);
    }

    function cellPoint(model, cell) {
      const unit = look.unit(model);
      const [[x, y], [left, top]] = [look.point(model.on.places[cell], unit), middle(model.on.places, unit)];
      return [MIDDLE.x + x - left, MIDDLE.y + y - top];
    }

    /** Points of the cells of a piece as it lies in the tray. */
    function trayPoints(model, number) {
      const { shape } = model.tray[number];
      const [left, top] = middle(shape, look.trayUnit);
      return shape.map((place) => {
        const [x, y] = look.point(place, look.trayUnit);
        return [MIDDLE.trayX + MIDDLE.trayStep * number + x - left, MIDDLE.trayY + y - top];
      });
    }

    /** Number of the nearest point within reach, or -1. */
    function nearest(points, { x, y }, reach) {
      const far = points.map(([pointX, pointY]) => Math.hypot(pointX - x, pointY - y));
      const least = Math.min(...far);
      return least <= reach ? far.indexOf(least) : -1;
    }

    const cellAt = (model, event) => nearest(model.board.map((_, cell) => cellPoint(model, cell)), event, look.unit(model) * look.reach);

    function pointer(model, event, view) {
      if (event.type === "down") {
        const slot = event.y > MIDDLE.trayY - 46 ? Math.floor((event.x - MIDDLE.trayX) / MIDDLE.trayStep + 0.5) : -1;
        if (model.tray[slot]) {
          Object.assign(model, { chosen: slot, grip: nearest(trayPoints(model, slot), event, 1000) });
          model.hand = { fromX: event.x, fromY: event.y, x: event.x, y: event.y, isDrag: false };
          return false;
        }
        return put(model, cellAt(model, event), view);
      }
      if (!model.hand) return false;
      Object.assign(model.hand, { x: event.x, y: event.y });
      model.hand.isDrag ||= Math.hypot(event.x - model.hand.fromX, event.y - model.hand.fromY) > DRAG_PX;
      if (event.type === "move") return false;
      const { isDrag } = model.hand;
      model.hand = null;
      if (!isDrag) return false;
      const isPut = put(model, cellAt(model, event), view);
      model.chosen = -1;
      return isPut;
    }

    function draw(ctx, model, view) {
      look.background(ctx, view);
      const unit = look.unit(model);
      const gone = model.shown ? view.since(model.shown.at, 8) : 1;
      const put = new Set(gone < 1 ? model.shown.cells : []);
      model.board.forEach((colour, cell) => {
        const [x, y] = cellPoint(model, cell);
        look.paint(ctx, x, y, unit, 0);
        if (colour) look.paint(ctx, x, y, unit * (put.has(cell) ? 0.8 + 0.2 * gone : 1), colour);
        else if (!model.hand?.isDrag && target(model, cell)) kit.disc(ctx, x, y, unit * 0.13, look.mark);
      });
      if (gone < 1) for (const [cell, colour] of model.shown.cleared) look.paint(ctx, ...cellPoint(model, cell), unit * (1 - gone), colour);
      model.tray.forEach((piece, number) => {
        if (!piece || (number === model.chosen && model.hand?.isDrag)) return;
        const x = MIDDLE.trayX + MIDDLE.trayStep * number;
        if (number === model.chosen) kit.box(ctx, x - 46, MIDDLE.trayY - 29, 92, 64, 10, "#ffffff18", look.mark, 1.5);
        ctx.globalAlpha = ways(model.on, model.board, piece.shape).length ? 1 : 0.4;
        for (const point of trayPoints(model, number)) look.paint(ctx, ...point, look.trayUnit, piece.colour);
        ctx.globalAlpha = 1;
      });
      if (model.hand?.isDrag) drawHand(ctx, model, unit);
    }

    /** The piece in the hand at the board's size, and where it would fall. */
    function drawHand(ctx, model, unit) {
      const { shape, colour } = model.tray[model.chosen];
      ctx.globalAlpha = 0.4;
      for (const cell of target(model, cellAt(model, model.hand)) ?? []) look.paint(ctx, ...cellPoint(model, cell), unit, colour);
      ctx.globalAlpha = 0.92;
      const [gripX, gripY] = look.point(shape[model.grip], unit);
      for (const place of shape) {
        const [x, y] = look.point(place, unit);
        look.paint(ctx, model.hand.x + x - gripX, model.hand.y + y - gripY, unit, colour);
      }
      ctx.globalAlpha = 1;
    }

    /** Pieces at their first cell, which is the one they are held by when clicked there; then cells, which say whether the chosen fits. */
    function elements(model) {
      const side = look.unit(model);
      const pieces = model.tray.flatMap((piece, number) => {
        if (!piece) return [];
        return [kit.element("piece", piece.name, ...trayPoints(model, number)[0], 60, 60, number === model.chosen ? ["selected"] : [])];
      });
      const cells = model.board.map((colour, cell) =>
        kit.element("cell", colour ? "full" : "empty", ...cellPoint(model, cell), side, side, target(model, cell) ? ["fits"] : []),
      );
      return [...pieces, ...cells];
    }

    // ---- oracle: places the tray's pieces in the best of the orders and places that it keeps in view

    function worth(on, board) {
      let value = 0;
      for (let cell = 0; cell < board.length; cell++) {
        if (board[cell]) value -= 3;
        else value -= on.neighbours[cell].reduce((num, other) => num + (other < 0 || board[other] ? 1 : 0), 0) ** 2 * 0.6;
      }
      for (const line of on.lines) value += (line.reduce((num, cell) => num + (board[cell] ? 1 : 0), 0) / line.length) ** 3 * 4;
      return value;
    }

    function plan({ on, board, tray }) {
      let kept = [{ board, left: tray.filter(Boolean), first: null, gain: 0, value: 0 }];
      for (;;) {
        const next = new Map();
        for (const state of kept) {
          for (const piece of state.left) {
            for (const cells of ways(on, state.board, piece.shape)) {
              const after = cover(on, state.board, cells, 1);
              const gain = state.gain + 12 * after.num;
              const left = state.left.filter((other) => other !== piece);
              const first = state.first ?? { piece, cell: cells[0] };
              const found = { board: after.board, left, first, gain, value: gain + worth(on, after.board) };
              const text = after.board.map(Boolean).map(Number).join("") + left.map(({ name }) => name);
              if (!(next.get(text)?.value >= found.value)) next.set(text, found);
            }
          }
        }
        if (!next.size) return kept[0].first;
        kept = [...next.values()].sort((one, other) => other.value - one.value).slice(0, BEAM);
      }
    }

    function hint(model) {
      const first = plan(model);
      if (!first) return null;
      const number = model.tray.indexOf(first.piece);
      const [[x, y], [toX, toY]] = [trayPoints(model, number)[0], cellPoint(model, first.cell)];
      if (isDragging) return kit.drag(x, y, toX, toY);
      return number === model.chosen && model.grip === 0 ? kit.click(toX, toY) : kit.click(x, y);
    }

    const describe = (model) => ({
      board: model.board,
      pieces: model.tray.map((piece) => piece && { name: piece.name, cells: piece.shape }),
      chosen: model.chosen,
      lines: model.lines,
      placed: model.placed,
    });

    const goals = {
      lines: { text: (num) => `Clear ${num} full ${num > 1 ? "lines" : "line"}.`, measure: (model) => model.lines },
      score: { text: (num) => `Score ${num} points.`, measure: (model) => model.score },
    };
    return { pointer, draw, elements, hint, describe, goals };
  }

  window.game = { ...kit, placing: { turned, grid, start, game } };
})();
