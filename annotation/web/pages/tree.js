// A tree by the ARIA pattern: arrows move, right opens, left closes, Enter chooses, E edits.

import { make } from "/pages/dom.js";

export class Tree {
  /** `said(node)`: what stands at the right of a node; nodes: {node_id, parent_id, title}. */
  constructor(host, { on_choose, on_edit, said }) {
    Object.assign(this, { host, on_choose, on_edit, said });
    this.nodes = [];
    this.closed = new Set();
    this.chosen = null;
    host.addEventListener("keydown", (event) => this.pressed(event));
  }

  show(nodes, chosen) {
    this.nodes = nodes;
    this.chosen = chosen;
    this.draw();
  }

  draw() {
    this.host.replaceChildren(...this.children(null));
    if (!this.nodes.length) this.host.replaceChildren(make("li", { class: "empty", role: "none" }, "No function yet."));
    else if (!this.item(this.chosen)) this.host.firstElementChild.tabIndex = 0;
  }

  children(parent_id) {
    return this.nodes.filter((node) => (node.parent_id ?? null) === parent_id).map((node) => {
      const below = this.children(node.node_id);
      const is_open = !this.closed.has(node.node_id);
      return make("li", {
        role: "treeitem", id: `node-${node.node_id}`, tabindex: node.node_id === this.chosen ? "0" : "-1", "aria-selected": String(node.node_id === this.chosen),
        "aria-expanded": below.length ? String(is_open) : null, data: { id: node.node_id },
        on: { click: (event) => (event.stopPropagation(), this.choose(node.node_id)), dblclick: (event) => (event.stopPropagation(), this.on_edit(node)) },
      }, make("div", { class: "node" }, make("span", { class: "quiet", "aria-hidden": "true" }, below.length ? (is_open ? "▾" : "▸") : "·"), make("span", {}, node.title), make("span", { class: "far" }, this.said(node))),
      below.length && is_open ? make("ul", { role: "group" }, below) : null);
    });
  }

  item(node_id) {
    return [...this.host.querySelectorAll("[role=treeitem]")].find((item) => item.dataset.id === node_id) ?? null;
  }

  choose(node_id) {
    this.chosen = node_id;
    this.draw();
    this.item(node_id)?.focus();
    this.on_choose(node_id);
  }

  pressed(event) {
    const items = [...this.host.querySelectorAll("[role=treeitem]")];
    const now = items.indexOf(event.target);
    if (now < 0) return;
    const id = event.target.dataset.id;
    const node = this.nodes.find((one) => one.node_id === id);
    const has_children = this.nodes.some((one) => one.parent_id === id);
    if (event.key === "ArrowDown") items[now + 1]?.focus();
    else if (event.key === "ArrowUp") items[now - 1]?.focus();
    else if (event.key === "Home") items[0].focus();
    else if (event.key === "End") items.at(-1).focus();
    else if (event.key === "ArrowRight" && has_children && this.closed.delete(id)) this.redraw(id);
    else if (event.key === "ArrowRight" && has_children) items[now + 1]?.focus();
    else if (event.key === "ArrowLeft" && has_children && !this.closed.has(id)) this.redraw(id, this.closed.add(id));
    else if (event.key === "ArrowLeft" && node.parent_id) this.item(node.parent_id)?.focus();
    else if (event.key === "Enter" || event.key === " ") this.choose(id);
    else if (event.key.toLowerCase() === "e") this.on_edit(node);
    else return;
    event.preventDefault();
  }

  redraw(node_id) {
    this.draw();
    const item = this.item(node_id);
    item.tabIndex = 0;
    item.focus();
  }
}
