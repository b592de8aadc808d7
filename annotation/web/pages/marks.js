// Points of actions, drawn over a picture of a screen: numbered circles, arrows for drags, outlines of elements.

import { draw } from "/pages/dom.js";

const SAME_PLACE_PX = 4;

/** Nodes for an overlay whose units are the screen's pixels. `marks`: {points, label, kind}; `unit` is one pixel of the display in them. */
export function mark_nodes(marks, unit, size) {
  return merged(marks, SAME_PLACE_PX * unit).flatMap((mark) => [...(has_end(mark.point) ? [arrow_node(mark.point, mark.kind, unit)] : []), point_node(mark, unit, size)]);
}

export function box_node(box, kind) {
  return draw("rect", { x: box.x, y: box.y, width: box.width, height: box.height, class: kind });
}

export function arrow_node({ x, y, to_x, to_y }, kind, unit) {
  const angle = Math.atan2(to_y - y, to_x - x);
  const tip = (turn) => `${to_x - 11 * unit * Math.cos(angle + turn)} ${to_y - 11 * unit * Math.sin(angle + turn)}`;
  const path = `M${x} ${y}L${to_x} ${to_y}M${tip(0.5)}L${to_x} ${to_y}L${tip(-0.5)}`;
  return draw("g", { class: `mark ${kind}` }, draw("path", { class: "halo", d: path }), draw("path", { class: "stroke", d: path }));
}

function point_node({ point, label, kind }, unit, size) {
  const group = draw("g", { class: `mark ${kind}`, "data-label": label });
  for (const name of ["halo", "stroke"]) group.append(draw("circle", { class: name, cx: point.x, cy: point.y, r: 9 * unit }));
  group.append(draw("circle", { class: "dot", cx: point.x, cy: point.y, r: 2 * unit }));
  if (label) {
    const width = (label.length * 7 + 10) * unit;
    const x = Math.max(0, Math.min(point.x + 8 * unit, size.width_px - width));
    const y = Math.max(0, point.y - 24 * unit);
    group.append(draw("rect", { class: "flag", x, y, width, height: 17 * unit, rx: 5 * unit }));
    group.append(draw("text", { class: "flag-text", transform: `translate(${x + width / 2} ${y + 12.5 * unit}) scale(${unit})` }, label));
  }
  return group;
}

/** One mark for each point; candidates that point at the same place share one, "1·3". */
function merged(marks, distance) {
  const found = [];
  for (const mark of marks) {
    for (const point of mark.points) {
      const same = found.find((other) => other.kind === mark.kind && is_same(other.point, point, distance));
      if (same) same.label = same.label.split("·").includes(mark.label) ? same.label : `${same.label}·${mark.label}`;
      else found.push({ point, label: mark.label, kind: mark.kind });
    }
  }
  return found;
}

function has_end(point) {
  return point.to_x !== null && point.to_x !== undefined;
}

function is_same(one, other, distance) {
  const near = (a, b) => (a ?? null) === (b ?? null) || Math.abs(a - b) <= distance;
  return near(one.x, other.x) && near(one.y, other.y) && near(one.to_x, other.to_x) && near(one.to_y, other.to_y);
}
