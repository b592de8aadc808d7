// The shortcuts of the annotator's page, in the order in which the help lists them.

import { at } from "/pages/dom.js";
import { MAX_BY_KEY } from "/pages/work_cards.js";

export function shortcuts(work) {
  const has_run = () => Boolean(work.state) && !at("bench").hidden;
  const digits = Array.from({ length: MAX_BY_KEY }, (_, index) => index);
  const list = [
    ...digits.map((index) => ({
      keys: [`Digit${index + 1}`, `Numpad${index + 1}`, String(index + 1)], shown: "1 … 9", what: index === 0 && "Accept candidate 1 … 9", group: "Decide",
      run: () => work.accept_by_key(work.cards.proposals[index]),
    })),
    { keys: ["Enter"], what: "Accept the selected candidate", group: "Decide", run: () => work.accept_by_key(work.cards.current) },
    { keys: ["ArrowDown", "j"], shown: "↓ ↑", what: "Select another candidate", group: "Decide", repeats: true, run: () => work.cards.select(work.cards.selected + 1) },
    { keys: ["ArrowUp", "k"], group: "Decide", repeats: true, run: () => work.cards.select(work.cards.selected - 1) },
    { keys: ["e"], shown: "E", what: "Edit the selected candidate", group: "Decide", run: () => work.edit(work.cards.current) },
    ...digits.map((index) => ({
      keys: [`Shift+Digit${index + 1}`], shown: "Shift 1 … 9", what: index === 0 && "Edit candidate 1 … 9", group: "Decide", run: () => work.edit(work.cards.proposals[index]),
    })),
    { keys: ["o"], shown: "O", what: "Override: write thought and action", group: "Decide", run: () => work.override() },
    { keys: ["r"], shown: "R", what: "Ask the policy for more candidates", group: "Decide", run: () => work.propose() },
    { keys: ["[", "BracketLeft"], shown: "[", what: "Step back", group: "Decide", run: () => work.step_back() },
    { keys: ["f"], shown: "F", what: "Finish: then Y or N", group: "Decide", run: () => work.finish() },
    { keys: ["b"], shown: "B", what: "Beyond repair", group: "Decide", run: () => work.beyond_repair() },
    { keys: ["s"], shown: "S", what: "Skip, with a reason", group: "Decide", run: () => work.pass_on("skip") },
    { keys: ["x"], shown: "X", what: "Flag, with a reason", group: "Decide", run: () => work.pass_on("flag") },
    { keys: [], shown: "Ctrl Enter", what: "Carry out what is written", group: "Write" },
    { keys: [], shown: "Tab", what: "Take the completion", group: "Write" },
    { keys: [], shown: "↓ ↑", what: "Choose a completion; ↓ at the end asks for one", group: "Write" },
    { keys: [], shown: "Ctrl Space", what: "Ask for completions", group: "Write" },
    { keys: [], shown: "Esc", what: "Close completions, then the editor; the draft stays", group: "Write" },
    ...digits.map((index) => ({
      keys: [`Alt+Digit${index + 1}`], shown: "Alt 1 … 9", what: index === 0 && "Fill the editor from candidate 1 … 9", group: "Write", anywhere: true, run: () => work.edit(work.cards.proposals[index]),
    })),
    { keys: ["/"], what: "Find an element by name, to act on it", group: "Screen", run: () => work.find() },
    { keys: ["h"], shown: "H", what: "Outline every element", group: "Screen", run: () => work.toggle_boxes() },
    { keys: ["p"], shown: "P", what: "Hide or show the candidates' points", group: "Screen", run: () => work.toggle_marks() },
    { keys: ["+", "="], shown: "+ − 0", what: "Zoom in, out, fit; also Ctrl and the wheel", group: "Screen", run: () => work.screen.zoom_by(1) },
    { keys: ["-"], group: "Screen", run: () => work.screen.zoom_by(-1) },
    { keys: ["0", "Digit0"], group: "Screen", run: () => work.screen.zoom_to(null) },
    { keys: [], shown: "click drag", what: "On the screen: offers what it means", group: "Screen" },
    { keys: ["t"], shown: "T", what: "Terminal and files; T again in them by Alt T hides", group: "Page", run: () => work.panes.toggle(work.state) },
    { keys: ["Alt+t"], group: "Page", anywhere: true, run: () => work.panes.toggle(work.state) },
    { keys: ["g"], shown: "G", what: "Guidelines", group: "Page", run: () => work.guidelines() },
    { keys: ["Escape"], shown: "Esc", what: "Close a menu, stop a drag", group: "Page", run: () => (work.meanings.close(), work.screen.cancel_drag(), work.editor.close()) },
  ];
  return [
    ...list.map((shortcut) => ({ ...shortcut, when: has_run })),
    { keys: ["?"], what: "These shortcuts", group: "Page", run: () => work.keys.help() },
    { keys: ["Enter"], shown: "Enter", what: "Between tasks: the next one", group: "Page", when: () => !at("between").hidden, run: () => at("next")?.click() },
  ];
}
