// Snake: it never stops; it grows with each apple and dies of walls, rocks and itself. One cell in 9 ticks: a step of page time.
"use strict";

game((kit) => {
  const DIRECTIONS = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] };
  const OPPOSITE = { left: "right", right: "left", up: "down", down: "up" };
  const TICKS_PER_CELL = 9;
  const APPLE_SCORE = 10;
  const START_LENGTH = 3;

  // ---- rules. A cell is y * size + x; the snake is a list of cells, head first.

  const xy = (model, cell) => [cell % model.size, Math.floor(cell / model.size)];

  /** The cell next to another, or -1 outside. */
  function next(model, cell, direction) {
    const [x, y] = xy(model, cell);
    const [toX, toY] = [x + DIRECTIONS[direction][0], y + DIRECTIONS[direction][1]];
    return toX < 0 || toY < 0 || toX >= model.size || toY >= model.size ? -1 : toY * model.size + toX;
  }

  function create({ size, rocks }, random) {
    const middle = Math.floor(size / 2);
    const direction = random.pick(Object.keys(DIRECTIONS));
    const [dx, dy] = DIRECTIONS[direction];
    const snake = Array.from({ length: START_LENGTH }, (_, at) => (middle - dy * at) * size + middle - dx * at);
    const model = { size, random, snake, direction, turns: [], rocks: new Set(), apple: -1, apples: 0, movedAt: null };
    // Rocks keep apart and away from the edge and from where the snake starts: no pocket can be a trap.
    const far = random.shuffle(inside(size).filter((cell) => Math.max(...xy(model, cell).map((at) => Math.abs(at - middle))) > 2));
    for (const cell of far) {
      const [x, y] = xy(model, cell);
      const isAlone = [...model.rocks].every((rock) => Math.max(Math.abs(xy(model, rock)[0] - x), Math.abs(xy(model, rock)[1] - y)) > 2);
      if (model.rocks.size < rocks && isAlone) model.rocks.add(cell);
    }
    // Not in the lane that the snake is in: an apple has to be turned for.
    placeApple(model, (cell) => xy(model, cell)[dx ? 1 : 0] !== middle);
    return model;
  }

  function inside(size) {
    const cells = [];
    for (let y = 1; y < size - 1; y++) for (let x = 1; x < size - 1; x++) cells.push(y * size + x);
    return cells;
  }

  function placeApple(model, allowed = () => true) {
    const taken = new Set([...model.snake, ...model.rocks]);
    const free = Array.from({ length: model.size ** 2 }, (_, cell) => cell).filter((cell) => !taken.has(cell) && allowed(cell));
    model.apple = free.length ? model.random.pick(free) : -1;
  }

  function key(model, name) {
    const last = model.turns.at(-1) ?? model.direction;
    if (!DIRECTIONS[name] || name === last || name === OPPOSITE[last] || model.turns.length >= 2) return false;
    model.turns.push(name);
    return true;
  }

  function tick(model, view) {
    if (view.tick % TICKS_PER_CELL) return false;
    model.direction = model.turns.shift() ?? model.direction;
    const cell = next(model, model.snake[0], model.direction);
    const eats = cell === model.apple;
    const body = eats ? model.snake : model.snake.slice(0, -1);
    if (cell < 0 || model.rocks.has(cell) || body.includes(cell)) {
      model.over = true;
      model.lives = 0;
      model.reason = cell < 0 ? "ran into the wall" : model.rocks.has(cell) ? "ran into a rock" : "bit itself";
      return true;
    }
    model.gone = eats ? null : model.snake.at(-1);
    model.snake = [cell, ...body];
    model.movedAt = view.tick;
    if (!eats) return true;
    model.apples += 1;
    model.score += APPLE_SCORE;
    placeApple(model);
    model.solved = model.apple < 0;
    return true;
  }

  // ---- looks

  const GRASS = ["#26384a", "#2a3d50"];
  const SNAKE = "#5cc98a";

  function draw(ctx, model, view) {
    const side = view.board.size / model.size;
    const middle = (cell) => xy(model, cell).map((at, axis) => (axis ? view.board.y : view.board.x) + (at + 0.5) * side);
    ctx.beginPath();
    ctx.roundRect(view.board.x, view.board.y, view.board.size, view.board.size, 10);
    ctx.clip();
    for (let cell = 0; cell < model.size ** 2; cell++) {
      const [x, y] = xy(model, cell);
      ctx.fillStyle = GRASS[(x + y) % 2];
      ctx.fillRect(view.board.x + x * side, view.board.y + y * side, side, side);
    }
    for (const cell of model.rocks) {
      const [x, y] = middle(cell);
      kit.block(ctx, x - side * 0.44, y - side * 0.44, side * 0.88, side * 0.88, side * 0.3, kit.colours.grey);
    }
    if (model.apple >= 0) drawApple(ctx, ...middle(model.apple), side);
    drawSnake(ctx, model, view, side, middle);
  }

  function drawApple(ctx, x, y, side) {
    kit.disc(ctx, x, y + side * 0.05, side * 0.36, kit.colours.red);
    kit.disc(ctx, x - side * 0.12, y - side * 0.08, side * 0.09, "#ffc9c4");
    ctx.save();
    ctx.translate(x + side * 0.1, y - side * 0.32);
    ctx.rotate(-0.6);
    ctx.beginPath();
    ctx.ellipse(0, 0, side * 0.17, side * 0.08, 0, 0, 2 * Math.PI);
    ctx.fillStyle = kit.colours.green;
    ctx.fill();
    ctx.restore();
  }

  function drawSnake(ctx, model, view, side, middle) {
    const slid = model.over ? 1 : view.since(model.movedAt, 5);
    const points = model.snake.map(middle);
    const toward = (from, to) => [kit.mix(from[0], to[0], slid), kit.mix(from[1], to[1], slid)];
    const head = toward(points[1], points[0]);
    const tail = model.gone === null || model.gone === undefined ? points.at(-1) : toward(middle(model.gone), points.at(-1));
    ctx.lineCap = ctx.lineJoin = "round";
    for (const [width, colour] of [[0.82, kit.shade(SNAKE, -0.35)], [0.66, SNAKE]]) {
      ctx.beginPath();
      [head, ...points.slice(1, -1), tail].forEach(([x, y], at) => (at ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
      ctx.strokeStyle = colour;
      ctx.lineWidth = side * width;
      ctx.stroke();
    }
    kit.disc(ctx, ...head, side * 0.42, model.over ? kit.colours.red : kit.shade(SNAKE, 0.18));
    const [dx, dy] = DIRECTIONS[model.direction];
    for (const sign of [-1, 1]) {
      const eye = [head[0] + dx * side * 0.14 - dy * sign * side * 0.19, head[1] + dy * side * 0.14 + dx * sign * side * 0.19];
      kit.disc(ctx, ...eye, side * 0.12, kit.colours.white);
      kit.disc(ctx, eye[0] + dx * side * 0.04, eye[1] + dy * side * 0.04, side * 0.065, kit.colours.black);
    }
  }

  function elements(model, view) {
    const side = view.board.size / model.size;
    const at = (role, label, cell, states) => {
      const [x, y] = xy(model, cell);
      return kit.element(role, label, view.board.x + (x + 0.5) * side, view.board.y + (y + 0.5) * side, side, side, states);
    };
    return [
      at("head", "snake", model.snake[0], [model.direction]),
      ...(model.apple >= 0 ? [at("item", "apple", model.apple)] : []),
      ...model.snake.slice(1).map((cell) => at("body", "snake", cell)),
      ...[...model.rocks].map((cell) => at("rock", "rock", cell)),
    ];
  }

  // ---- oracle: the shortest way to the apple from which the tail can still be reached, else the longest way round to the tail

  /** Cells from one to another without the first, or null. `blocked` cells are not entered, but for the target. */
  function path(model, from, to, blocked) {
    const cameFrom = new Map([[from, -1]]);
    const queue = [from];
    for (const cell of queue) {
      if (cell === to) break;
      for (const direction of Object.keys(DIRECTIONS)) {
        const other = next(model, cell, direction);
        if (other < 0 || cameFrom.has(other) || model.rocks.has(other) || (blocked.has(other) && other !== to)) continue;
        cameFrom.set(other, cell);
        queue.push(other);
      }
    }
    if (!cameFrom.has(to) || from === to) return null;
    const cells = [];
    for (let cell = to; cell !== from; cell = cameFrom.get(cell)) cells.unshift(cell);
    return cells;
  }

  /** The direction of the next move: the turn that is due at once is already taken. */
  function hint(model) {
    const heading = model.turns[0] ?? model.direction;
    const choices = Object.keys(DIRECTIONS).filter((name) => {
      const cell = next(model, model.snake[0], name);
      return name !== OPPOSITE[model.direction] && cell >= 0 && !model.rocks.has(cell) && !model.snake.slice(0, -1).includes(cell);
    });
    const way = model.apple < 0 ? null : path(model, model.snake[0], model.apple, new Set(model.snake));
    if (way && isSafe(model, way)) return kit.press(choices.find((name) => next(model, model.snake[0], name) === way[0]));
    const after = (name) => {
      const snake = [next(model, model.snake[0], name), ...model.snake.slice(0, -1)];
      return path(model, snake[0], snake.at(-1), new Set(snake))?.length ?? -1;
    };
    const ordered = choices.map((name) => [after(name), name]).sort((one, other) => other[0] - one[0]);
    return kit.press(ordered.length ? ordered[0][1] : heading);
  }

  function isSafe(model, way) {
    const snake = [...[...way].reverse(), ...model.snake].slice(0, model.snake.length + 1);
    return path(model, snake[0], snake.at(-1), new Set(snake)) !== null;
  }

  return {
    name: "snake",
    title: "Snake",
    tagline: "Eat and grow",
    version: 1,
    keys: "Arrow keys turn the snake",
    controls: "The snake moves by itself, a cell at each step; an arrow key turns it. Walls, rocks and its own body are deadly.",
    hasLives: false,
    levels: [{ size: 10, rocks: 0 }, { size: 15, rocks: 0 }, { size: 15, rocks: 8 }],
    goals: {
      apples: { text: (target) => `Eat ${target} apples.`, measure: (model) => model.apples },
    },
    create, key, tick, draw, elements, hint,
    describe: (model) => ({ size: model.size, snake: model.snake, apple: model.apple, rocks: [...model.rocks], direction: model.direction }),
  };
});
