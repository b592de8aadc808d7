// Small charts as SVG, each beside a table that says the same in numbers, for screen readers.

import { draw, make, percent } from "/pages/dom.js";

const WIDTH = 760;
const HEIGHT = 190;
const LEFT = 52;
const BOTTOM = 26;
const TOP = 8;

function frame(label, highest, text_of) {
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    const y = y_of(share * highest, highest);
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH - 6, y1: y, y2: y }), draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, text_of(share * highest)));
  }
  return svg;
}

function y_of(value, highest) {
  return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / highest);
}

function label_at(svg, x, text) {
  svg.append(draw("text", { x, y: HEIGHT - 8, "text-anchor": "middle" }, text));
}

/** Shares from 0 to 1 over the given names; `series`: [{name, values}], at most three. */
export function line_chart(label, names, series) {
  const svg = frame(label, 1, percent);
  const x_of = (index) => LEFT + 36 + ((WIDTH - LEFT - 84) * (names.length === 1 ? 0.5 : index / (names.length - 1)));
  series.forEach(({ name, values }, number) => {
    const points = values.map((value, index) => [x_of(index), y_of(value, 1)]);
    svg.append(draw("polyline", { class: `line c${number}`, points: points.map((point) => point.join(",")).join(" ") }));
    points.forEach(([x, y], index) => svg.append(draw("circle", { class: `c${number}`, cx: x, cy: y, r: 3 }, draw("title", {}, `${names[index]}: ${name} ${percent(values[index])}`))));
  });
  const every = Math.max(1, Math.ceil(names.length / 8));
  names.forEach((name, index) => index % every === 0 && label_at(svg, x_of(index), name));
  const legend = make("div", { class: "legend", "aria-hidden": "true" }, series.map(({ name }, number) =>
    make("span", {}, draw("svg", { class: "chart", viewBox: "0 0 26 10" }, draw("line", { class: `line c${number}`, x1: 0, x2: 26, y1: 5, y2: 5 })), name)));
  return make("figure", {}, svg, legend);
}

/** One bar for each name. */
export function bar_chart(label, names, values) {
  const highest = Math.max(1, ...values);
  const svg = frame(label, highest, (value) => (Number.isInteger(value) ? String(value) : ""));
  const step = (WIDTH - LEFT - 12) / Math.max(1, names.length);
  const every = Math.max(1, Math.ceil(names.length / 10));
  names.forEach((name, index) => {
    const x = LEFT + 4 + step * index;
    const y = y_of(values[index], highest);
    svg.append(draw("rect", { class: "c1", x, y, width: Math.max(1, Math.min(step - 2, 46)), height: HEIGHT - BOTTOM - y, rx: 2 }, draw("title", {}, `${name}: ${values[index]}`)));
    if (index % every === 0) label_at(svg, x + Math.min(step - 2, 46) / 2, name);
  });
  return make("figure", {}, svg);
}

/** `columns`: [{title, text(row), is_number, is_whole}]; without a title it is of buttons; one that is whole never goes on in a second line. */
export function table(rows, columns, caption = null) {
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption ? `${caption}, a table` : "Table" }, make("table", {},
    caption && make("caption", { class: "sr" }, caption),
    make("thead", {}, make("tr", {}, columns.map(({ title, is_number }) => make("th", { scope: "col", class: is_number ? "number" : "" }, title || make("span", { class: "sr" }, "Actions"))))),
    make("tbody", {}, rows.map((row) => make("tr", {}, columns.map(({ text, is_number, is_whole }) => make("td", { class: is_number ? "number" : is_whole ? "whole" : "" }, text(row))))))));
}
