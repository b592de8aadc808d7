// What games draw and choose with: seeded random numbers, colours, shapes, text, easing, and the actions that a hint is made of.
// Loaded first; engine.js takes it from window.game. Nothing here reads a clock or keeps state.
"use strict";

window.game = (() => {
  const FONT = '"Liberation Sans", Arial, Helvetica, sans-serif';

  /** A generator (sfc32) of numbers in [0, 1) that depends on the text only; with int(n), pick(list) and shuffle(list). */
  function seeded(text) {
    let hash = 1779033703 ^ text.length;
    const word = () => {
      hash = Math.imul(hash ^ (hash >>> 16), 2246822507);
      hash = Math.imul(hash ^ (hash >>> 13), 3266489909);
      return (hash ^= hash >>> 16) >>> 0;
    };
    for (let at = 0; at < text.length; at++) {
      hash = Math.imul(hash ^ text.charCodeAt(at), 3432918353);
      hash = (hash << 13) | (hash >>> 19);
    }
    let [a, b, c, d] = [word(), word(), word(), word()];
    const random = () => {
      const sum = (((a + b) | 0) + d) | 0;
      d = (d + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = (c << 21) | (c >>> 11);
      c = (c + sum) | 0;
      return (sum >>> 0) / 4294967296;
    };
    random.int = (num) => Math.floor(random() * num);
    random.pick = (list) => list[random.int(list.length)];
    random.shuffle = (list) => {
      for (let last = list.length - 1; last > 0; last--) {
        const other = random.int(last + 1);
        [list[last], list[other]] = [list[other], list[last]];
      }
      return list;
    };
    for (let n = 0; n < 12; n++) random();
    return random;
  }

  const colours = {
    red: "#ef5b5b", orange: "#f59e4c", yellow: "#f7d154", green: "#5cc98a", teal: "#3bbfbf", blue: "#4e9af1", indigo: "#6c78e6",
    purple: "#a874e8", pink: "#ef7fb5", brown: "#b5835a", grey: "#8b93a7", white: "#f4f6fb", black: "#12141f",
  };

  /** A "#rrggbb" colour made lighter (amount > 0) or darker (amount < 0), at most 1 either way. */
  function shade(colour, amount) {
    const mixed = [1, 3, 5].map((at) => {
      const part = parseInt(colour.slice(at, at + 2), 16);
      return Math.round(amount > 0 ? part + (255 - part) * amount : part * (1 + amount));
    });
    return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  }

  /** A rounded rectangle, filled and, where given, outlined. */
  function box(ctx, x, y, width, height, radius, fill, line, lineWidth = 1) {
    ctx.beginPath();
    ctx.roundRect(x, y, width, height, radius);
    if (fill) {
      ctx.fillStyle = fill;
      ctx.fill();
    }
    if (line) {
      ctx.strokeStyle = line;
      ctx.lineWidth = lineWidth;
      ctx.stroke();
    }
  }

  /** A raised block: lit from above, with a darker lower edge. */
  function block(ctx, x, y, width, height, radius, colour) {
    const edge = Math.max(2, Math.min(4, height * 0.09));
    box(ctx, x, y, width, height, radius, shade(colour, -0.3));
    const light = ctx.createLinearGradient(0, y, 0, y + height);
    light.addColorStop(0, shade(colour, 0.22));
    light.addColorStop(1, colour);
    box(ctx, x, y, width, height - edge, radius, light);
  }

  function disc(ctx, x, y, radius, fill, line, lineWidth = 1) {
    ctx.beginPath();
    ctx.arc(x, y, Math.max(0, radius), 0, 2 * Math.PI);
    if (fill) {
      ctx.fillStyle = fill;
      ctx.fill();
    }
    if (line) {
      ctx.strokeStyle = line;
      ctx.lineWidth = lineWidth;
      ctx.stroke();
    }
  }

  /** A closed shape through points [[x, y], …]. */
  function polygon(ctx, points, fill, line, lineWidth = 1) {
    ctx.beginPath();
    points.forEach(([x, y], at) => (at ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.closePath();
    if (fill) {
      ctx.fillStyle = fill;
      ctx.fill();
    }
    if (line) {
      ctx.strokeStyle = line;
      ctx.lineWidth = lineWidth;
      ctx.lineJoin = "round";
      ctx.stroke();
    }
  }

  /** Text whose middle line is at y. `align`: left, center or right of x. Shrunk to `width` where it would be wider. */
  function text(ctx, string, x, y, { size = 12, weight = "normal", colour = colours.white, align = "center", width = 0 } = {}) {
    ctx.font = `${weight} ${size}px ${FONT}`;
    const wide = width ? ctx.measureText(string).width : 0;
    if (wide > width) ctx.font = `${weight} ${(size * width) / wide}px ${FONT}`;
    ctx.textAlign = align;
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = colour;
    ctx.fillText(string, x, y + size * 0.36);
  }

  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const mix = (from, to, share) => from + (to - from) * share;
  /** Fast at first, then slower. */
  const ease = (share) => 1 - (1 - share) ** 3;

  // The actions of a hint, as sandbox/actions.py reads them. Points are rounded to whole pixels.
  const press = (key) => ({ kind: "hotkey", keys: [key] });
  const click = (x, y) => ({ kind: "click", x: Math.round(x), y: Math.round(y) });
  const drag = (x, y, toX, toY) => ({ kind: "drag", x: Math.round(x), y: Math.round(y), to_x: Math.round(toX), to_y: Math.round(toY) });
  const wait = (seconds) => ({ kind: "wait", seconds });

  /** An element as a text policy sees it: `x`, `y` is the middle, where a click hits it. */
  const element = (role, label, x, y, width, height, states = []) => ({
    role, text: String(label), states, x: Math.round(x), y: Math.round(y), width: Math.round(width), height: Math.round(height),
  });

  return { seeded, colours, shade, box, block, disc, polygon, text, clamp, mix, ease, press, click, drag, wait, element };
})();
