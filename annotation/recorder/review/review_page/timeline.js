// The timeline: loudness, words, actions, and the span that is chosen. Drawn on a canvas; knows nothing of the server.

export class Timeline {
  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.onChange = onChange;
    this.data = { length_s: 1, actions: [], words: [], pauses: [], deleted: [] };
    this.peaks = [];
    this.at = 0;
    this.span = null;
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    canvas.addEventListener("pointerup", (event) => this.end(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  moveTo(seconds) {
    this.at = Math.min(Math.max(0, seconds), this.data.length_s);
    this.canvas.setAttribute("aria-valuenow", this.at.toFixed(1));
    this.draw();
  }

  choose(span) {
    this.span = span;
    this.onChange();
    this.draw();
  }

  seconds(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.min(Math.max(0, (event.clientX - box.left) / box.width), 1) * this.data.length_s;
  }

  begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.from = this.seconds(event);
    this.moveTo(this.from);
    this.choose(null);
  }

  drag(event) {
    if (this.from === undefined) return;
    const to = this.seconds(event);
    if (Math.abs(to - this.from) > this.data.length_s / 400) this.choose([Math.min(this.from, to), Math.max(this.from, to)]);
  }

  end() {
    this.from = undefined;
    this.onChange();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const to = this.at + step * (event.ctrlKey ? 5 : 0.5);
    if (event.shiftKey) {
      const [start, end] = this.span || [this.at, this.at];
      this.choose(step > 0 ? [start, Math.min(this.data.length_s, end + 0.5)] : [Math.max(0, start - 0.5), end]);
    }
    this.moveTo(to);
    this.onChange();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (!width) return;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const x = (seconds) => seconds / this.data.length_s * width;
    const middle = height * 0.42;
    const fill = (spans, paint) => {
      pen.fillStyle = paint;
      for (const [start, end] of spans) pen.fillRect(x(start), 0, Math.max(1, x(end) - x(start)), height);
    };
    pen.globalAlpha = 0.25;
    fill(this.data.pauses, colour("--soft"));
    fill(this.data.deleted, colour("--danger"));
    pen.globalAlpha = 1;
    pen.fillStyle = colour("--wave");
    for (const part of this.peaks)
      part.values.forEach((value, i) => {
        const tall = Math.max(1, value / 100 * middle * 1.8);
        pen.fillRect(x(part.start_s + i / part.per_s), middle - tall / 2, Math.max(1, x(1 / part.per_s)), tall);
      });
    this.drawWords(pen, x, height, colour("--soft"));
    pen.fillStyle = colour("--accent");
    for (const action of this.data.actions) pen.fillRect(x(action.start_s), 0, 2, height);
    if (this.span) {
      pen.globalAlpha = 0.3;
      fill([this.span], colour("--accent"));
      pen.globalAlpha = 1;
    }
    pen.fillStyle = colour("--ink");
    pen.fillRect(x(this.at), 0, 1, height);
  }

  drawWords(pen, x, height, paint) {
    pen.fillStyle = paint;
    pen.font = "12px system-ui, sans-serif";
    let free = -1;
    for (const [text, start] of this.data.words)
      if (x(start) > free) {
        pen.fillText(text, x(start), height - 6);
        free = x(start) + pen.measureText(text).width + 4;
      }
  }
}
