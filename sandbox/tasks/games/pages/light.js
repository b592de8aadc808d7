// Glowing shapes in WebGL: rounded boxes and stars with soft edges and light around them. Adds kit.light; what is drawn is the games' own.
"use strict";

(() => {
  const kit = window.game;
  const [WIDTH, HEIGHT] = [320, 360];
  const CORNERS = [[-1, -1], [1, -1], [1, 1], [-1, -1], [1, 1], [-1, 1]];
  const ATTRIBUTES = [["at", 2], ["local", 2], ["extent", 2], ["form", 4], ["colour", 4]];
  const NUM_FLOATS = ATTRIBUTES.reduce((sum, [, size]) => sum + size, 0);

  const VERTEX = `
    attribute vec2 at, local, extent;
    attribute vec4 form, colour;
    varying vec2 vLocal, vExtent;
    varying vec4 vForm, vColour;
    void main() {
      vLocal = local; vExtent = extent; vForm = form; vColour = colour;
      gl_Position = vec4(at.x / ${WIDTH / 2}.0 - 1.0, 1.0 - at.y / ${HEIGHT / 2}.0, 0.0, 1.0);
    }`;

  // form: number of a star's points (0 for a box), its inner radius as a share or the radius of a box's corners, reach of the glow, shine.
  const FRAGMENT = `
    precision highp float;
    uniform float scale;
    varying vec2 vLocal, vExtent;
    varying vec4 vForm, vColour;
    float box(vec2 p) {
      vec2 q = abs(p) - vExtent + vForm.y;
      return length(max(q, 0.0)) + min(max(q.x, q.y), 0.0) - vForm.y;
    }
    float star(vec2 p) {
      float sector = 6.2831853 / vForm.x;
      float angle = abs(mod(atan(p.x, -p.y) + 0.5 * sector, sector) - 0.5 * sector);
      vec2 q = length(p) * vec2(cos(angle), sin(angle));
      vec2 tip = vec2(vExtent.x, 0.0);
      vec2 inner = vExtent.x * vForm.y * vec2(cos(0.5 * sector), sin(0.5 * sector));
      vec2 along = normalize(inner - tip);
      return max(dot(q - tip, vec2(along.y, -along.x)), length(p) - vExtent.x);
    }
    void main() {
      float far = vForm.x > 0.5 ? star(vLocal) : box(vLocal);
      float inside = clamp(0.5 - far * scale, 0.0, 1.0) * vColour.a;
      float glow = vForm.z > 0.0 ? clamp(1.0 - max(far, 0.0) / vForm.z, 0.0, 1.0) : 0.0;
      vec3 lit = vColour.rgb * (1.0 - vForm.w * vLocal.y / vExtent.y);
      gl_FragColor = vec4(lit * inside + vColour.rgb * glow * glow * 0.6 * (1.0 - inside) * vColour.a, inside);
    }`;

  const COPY_VERTEX = `
    attribute vec2 corner;
    varying vec2 vAt;
    void main() {
      vAt = 0.5 + 0.5 * corner;
      gl_Position = vec4(corner, 0.0, 1.0);
    }`;

  const COPY_FRAGMENT = `
    precision mediump float;
    uniform sampler2D picture;
    varying vec2 vAt;
    void main() { gl_FragColor = texture2D(picture, vAt); }`;

  function compile(gl, vertex, fragment) {
    const program = gl.createProgram();
    for (const [type, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(`The shaders do not link: ${gl.getProgramInfoLog(program)}`);
    return program;
  }

  /** Keeps a picture of the canvas for as long as it has its size: take one of some object, show the one that was taken of it. */
  function keeper(gl) {
    const program = compile(gl, COPY_VERTEX, COPY_FRAGMENT);
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(CORNERS.flat()), gl.STATIC_DRAW);
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const name of ["TEXTURE_MIN_FILTER", "TEXTURE_MAG_FILTER"]) gl.texParameteri(gl.TEXTURE_2D, gl[name], gl.NEAREST);
    for (const name of ["TEXTURE_WRAP_S", "TEXTURE_WRAP_T"]) gl.texParameteri(gl.TEXTURE_2D, gl[name], gl.CLAMP_TO_EDGE);
    let kept = { of: null, width: 0 };

    function show(of) {
      if (kept.of !== of || kept.width !== gl.drawingBufferWidth) return false;
      gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
      gl.useProgram(program);
      gl.disable(gl.BLEND);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      const place = gl.getAttribLocation(program, "corner");
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 2, gl.FLOAT, false, 0, 0);
      gl.drawArrays(gl.TRIANGLES, 0, CORNERS.length);
      return true;
    }

    function take(of) {
      kept = { of, width: gl.drawingBufferWidth };
      gl.copyTexImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight, 0);
    }

    return { show, take };
  }

  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);

  /** A painter on a WebGL context, in the page's 320×360: box, disc, line and star add a shape, paint draws all of them and forgets them;
   * still draws what stays the same from frame to frame, and comes before the others.
   * Options of each: {colour, alpha, glow (reach in px), shine (lighter above, darker below, as a share), angle}. */
  function light(gl) {
    const program = compile(gl, VERTEX, FRAGMENT);
    const buffer = gl.createBuffer();
    const keep = keeper(gl);
    let vertices = [];

    function add(x, y, halfWidth, halfHeight, form, { colour, alpha = 1, glow = 0, shine = 0, angle = 0, toColour = colour }) {
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      const [above, below] = [channels(colour), channels(toColour)];
      for (const [across, down] of CORNERS) {
        const [left, top] = [across * (halfWidth + glow + 1), down * (halfHeight + glow + 1)];
        const shown = down < 0 ? above : below;
        const [pageX, pageY] = [x + left * cos - top * sin, y + left * sin + top * cos];
        vertices.push(pageX, pageY, left, top, halfWidth, halfHeight, ...form, glow, shine, ...shown, alpha);
      }
    }

    const box = (x, y, width, height, radius, how) =>
      add(x + width / 2, y + height / 2, width / 2, height / 2, [0, Math.min(radius, width / 2, height / 2)], how);
    const disc = (x, y, radius, how) => add(x, y, radius, radius, [0, radius], how);
    const star = (x, y, radius, points, inner, how) => add(x, y, radius, radius, [points, inner], how);

    function line(fromX, fromY, toX, toY, width, how) {
      const half = Math.hypot(toX - fromX, toY - fromY) / 2 + width / 2;
      add((fromX + toX) / 2, (fromY + toY) / 2, half, width / 2, [0, width / 2], { ...how, angle: Math.atan2(toY - fromY, toX - fromX) });
    }

    function paint() {
      gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
      gl.useProgram(program);
      gl.enable(gl.BLEND);
      gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
      gl.uniform1f(gl.getUniformLocation(program, "scale"), gl.drawingBufferWidth / WIDTH);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(vertices), gl.DYNAMIC_DRAW);
      let offset = 0;
      for (const [name, size] of ATTRIBUTES) {
        const place = gl.getAttribLocation(program, name);
        gl.enableVertexAttribArray(place);
        gl.vertexAttribPointer(place, size, gl.FLOAT, false, NUM_FLOATS * 4, offset * 4);
        offset += size;
      }
      gl.drawArrays(gl.TRIANGLES, 0, vertices.length / NUM_FLOATS);
      vertices = [];
    }

    /** The whole page: from a colour above to another below, with small stars. */
    function sky(colour, toColour, numStars) {
      box(0, 0, WIDTH, HEIGHT, 0, { colour, toColour });
      const random = kit.seeded("sky");
      for (let num = 0; num < numStars; num++) {
        disc(random() * WIDTH, random() * HEIGHT, 0.4 + random() * 0.8, { colour: "#ffffff", alpha: 0.25 + 0.5 * random() });
      }
    }

    /** What `add` adds is drawn anew only where `of` is another object than before; else it is copied, which is cheaper. */
    function still(of, add) {
      if (keep.show(of)) return;
      add();
      paint();
      keep.take(of);
    }

    return { box, disc, star, line, sky, still, paint };
  }

  window.game = { ...kit, light };
})();
