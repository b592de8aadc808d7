"""Lessons: the kinds of worked examples that tutorials are made of. Each draws a page, an instruction in words of its own (never those of
a benchmark task), and the moves that do what it says. How a lesson becomes a training text is agent/tutorials.py's business.

A lesson teaches one skill of reading a screen: find what is named, count, fill in, look up, tick several, complete, calculate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.pen import Pen
from agent.practice_page import Move, PracticePage, Widget
from sandbox.actions import Action
from sandbox.session import Observation

CLICKABLE = ("button", "link", "checkbox", "radio", "tab", "input", "item", "header", "textarea", "select", "image")
ORDINALS = ("1st", "2nd", "3rd", "4th")


class Practice(Protocol):
    """What a lesson is acted out on: a page or a shell in memory. Its moves are its own."""

    def observe(self, instruction: str) -> Observation: ...

    def action(self, move: Any) -> Action:
        """The action that carries out a move in the state as it is now."""
        ...

    def carry_out(self, move: Any) -> None:
        """Change the state as the real thing would."""
        ...


@dataclass(frozen=True, slots=True)
class Lesson:
    """A page or shell at its beginning, what is asked, and how it is done, move by move. `crux` is the move that teaches most, if any
    does; `also` has, by the number of a move, what else may be asked of the page that it is made on, with the move that answers."""

    instruction: str
    page: Practice
    moves: Sequence[Any]
    crux: int | None = None
    also: Mapping[int, Sequence[tuple[str, Any]]] = field(default_factory=dict)


def find(pen: Pen) -> Lesson:
    """Click what is named, by name alone or by role and name."""
    names = pen.names(pen.rng.randint(1, 6))
    kinds = pen.rng.sample(CLICKABLE, pen.rng.choice((1, 1, 2, 3)))
    widgets = [Widget(pen.rng.choice(kinds), name) for name in names]
    goal = pen.rng.choice(widgets)
    if pen.often(0.3):  # empty fields around it, which nobody asked for
        for _ in range(pen.rng.randint(1, 3)):
            widgets.insert(pen.rng.randint(0, len(widgets)), Widget(pen.rng.choice(("input", "input", "textarea"))))
    by_role = ('Find the {role} "{name}".', 'Press the "{name}" {role}.', 'The {role} "{name}" is what you need.', "Use {role} {name}.")
    by_name = ('Look for "{name}".', "Choose {name} here.", "Go to {name} now.", "Open {name}.", 'Where is "{name}"?', "Show {name}.")
    twin = next((widget for widget in widgets if widget.text and widget.role != goal.role), None)
    if twin is not None and pen.often(0.1):  # the same name twice: the role decides
        twin.text = goal.text
        return Lesson(pen.say(*by_role, role=goal.role, name=goal.text), pen.page(widgets), [Move("click", goal)])
    return Lesson(pen.say(*by_role, *by_name, role=goal.role, name=goal.text), pen.page(widgets), [Move("click", goal)])


def count(pen: Pen) -> Lesson:
    """Click the n-th thing of a kind, or the only one."""
    role = pen.rng.choice((*CLICKABLE, "input", "input", "textarea", "button"))
    num = pen.rng.randint(1, 4)
    widgets = [Widget(role, "" if role in ("input", "textarea") else pen.name()) for _ in range(num)]
    place = pen.rng.randrange(num)
    goal = widgets[place]
    for other in pen.rng.sample(CLICKABLE, pen.rng.choice((0, 0, 0, 1, 2))):
        if other != role:
            widgets.insert(pen.rng.randint(0, len(widgets)), Widget(other, pen.name()))
    if num == 1:
        wordings: tuple[str, ...] = ("Use the {role} of the page.", "Press the {role} you see.", "There is one {role}: use it.")
    else:
        wordings = ("Use the {nth} {role} of the page.", "Press the {nth} {role} you see.", "Go to {role} {nth}.",
                    "Point at the {nth} {role} here.")  # fmt: skip
    return Lesson(pen.say(*wordings, nth=ORDINALS[place], role=role), pen.page(widgets, 0.15), [Move("click", goal)])


def leave(pen: Pen) -> Lesson:
    """Close a window, or answer it: the small x, or the button that is named."""
    widgets = [Widget("text", pen.name()), Widget("button", "x"), Widget("text", pen.words(2, 4, 7))]
    widgets += [Widget("button", name) for name in pen.rng.sample(("Cancel", "OK", "Yes", "No", "Help"), pen.rng.randint(0, 2))]
    if pen.often(0.5):
        widgets = widgets[1:]
    goal = pen.rng.choice([widget for widget in widgets if widget.role == "button"])
    if goal.text == "x" and pen.often(0.6):
        leaving = ("Leave this window.", "Close this message with its x.", "Make the window go away.", 'Push the small "x" on top.')
        return Lesson(pen.say(*leaving), PracticePage(widgets), [Move("click", goal)])
    wordings = ('Answer the message with "{name}".', 'Leave the window by "{name}".', 'Tell the window "{name}".')
    return Lesson(pen.say(*wordings, name=goal.text), PracticePage(widgets), [Move("click", goal)])


def _fill(field: Widget, text: str) -> list[Move]:
    return [Move("click", field), Move("type", field, text)]


_FILL_IN = {
    1: (
        "Write {a} in the box, then push {ok}.",
        "Fill in {a} and {ok}.",
        "Put {a} there; finish with {ok}.",
        "Say {a} in the field. Then {ok}.",
    ),
    2: (
        "Fill the form with {a} and {b}, finish with {ok}.",
        "Put the name {a} and the code {b} in the boxes, then push {ok}.",
        "The boxes are for {a} and {b}. Then {ok}.",
        "First write {a}, after that {b}, and push {ok}.",
        "Sign in as {a} with {b} and push {ok}.",
        "The {v} is {a} and the {w} is {b}; push {ok}.",
        "Give {a} for {v} and {b} for {w}, finish with {ok}.",
    ),
    3: ("Fill the form with {a}, {b} and {c}, finish with {ok}.", "First write {a}, after that {b}, last {c}, and push {ok}."),
}


def fill_in(pen: Pen) -> Lesson:
    """Write one to three texts into fields in their order, then confirm. Some fields show stars."""
    num = pen.rng.choice((1, 1, 2, 2, 2, 2, 3))
    values, labels = [pen.name().replace('"', "") for _ in range(num)], [pen.word() for _ in range(num)]
    wordings = _FILL_IN[num]
    if num == 2 and pen.often(0.12):
        values, wordings = [values[0]] * 2, ("Write {a} in all boxes, then push {ok}.", "Repeat {a} in each box; finish with {ok}.")
    fields = [Widget("input" if pen.often(0.9) else "textarea", is_secret=pen.often(0.25)) for _ in range(num)]
    confirm, has_labels = pen.confirm(), pen.often(0.5)
    widgets = [part for label, field in zip(labels, fields, strict=True) for part in [Widget("text", label)] * has_labels + [field]]
    moves = [move for field, value in zip(fields, values, strict=True) for move in _fill(field, value)]
    parts = dict(zip("abc", [f'"{value}"' for value in values], strict=False)) | dict(zip("vw", labels, strict=False))
    return Lesson(pen.say(*wordings, ok=confirm.text, **parts), pen.page([*widgets, confirm], 0.1), [*moves, Move("click", confirm)])


def replace_text(pen: Pen) -> Lesson:
    """A field already holds something else: select it all, write over it, confirm."""
    field, confirm, value = Widget("input", pen.name()), pen.confirm(), pen.name()
    field.states |= {"focused"} if pen.often(0.5) else set()
    moves = [Move("triple_click", field), Move("type", field, value), Move("click", confirm)]
    return Lesson(pen.say(*_FILL_IN[1], a=f'"{value}"', ok=confirm.text), pen.page([field, confirm], 0.1), moves, crux=0)


def fact(rng: random.Random) -> tuple[str, str]:
    """One single-digit problem and its result."""
    left, right, sign = rng.randint(0, 9), rng.randint(0, 9), rng.choice("+-x")
    return f"{left} {sign} {right}", str({"+": left + right, "-": left - right, "x": left * right}[sign])


def calculate(pen: Pen) -> Lesson:
    """A sum of two digits on the page, its value into the box."""
    problem, value = fact(pen.rng)
    field, confirm = Widget("input"), pen.confirm()
    wordings = ("Work out the value and write it in the box, then push {ok}.", "What is the result? Finish with {ok}.",
                "Do the sum, write its result, then push {ok}.", "Calculate. Then {ok}.")  # fmt: skip
    page = PracticePage([Widget("text", f"{problem} ="), field, confirm])
    return Lesson(pen.say(*wordings, ok=confirm.text), page, [*_fill(field, value), Move("click", confirm)], crux=1)


def mark_one(pen: Pen) -> Lesson:
    """One of several options, then confirm."""
    options = [Widget("radio", name) for name in pen.names(pen.rng.randint(2, 6))]
    goal, confirm = pen.rng.choice(options), pen.confirm()
    wordings = ("Mark {it}, then push {ok}.", "Tick {it} and finish with {ok}.", "Your answer is {it}; push {ok}.")
    moves = [Move("click", goal), Move("click", confirm)]
    return Lesson(pen.say(*wordings, it=goal.text, ok=confirm.text), PracticePage([*options, confirm]), moves)


def mark_several(pen: Pen) -> Lesson:
    """None to six of several boxes, in the order of the instruction, then confirm; sometimes a wrong one has to be cleared first."""
    num = pen.rng.randint(2, 6)
    texts = pen.names(num) if pen.often(0.4) else list(dict.fromkeys(pen.string(7, 2) for _ in range(num)))
    boxes = [Widget("checkbox", text) for text in texts]
    wanted = [box for box in boxes if pen.often(0.55)]
    if pen.often(0.15):
        pen.rng.shuffle(wanted)
    confirm, moves = pen.confirm(), [Move("click", box) for box in wanted]
    others = [box for box in boxes if box not in wanted]
    if others and pen.often(0.05):
        wrong = pen.rng.choice(others)
        wrong.states.add("checked")
        moves.insert(0, Move("click", wrong))
    listed = ", ".join(box.text for box in wanted) or "nothing"
    wordings = ("Mark {it}, then push {ok}.", "Tick {it} and finish with {ok}.", "Switch on {it} and push {ok}.",
                "Only {it} should be on. Then {ok}.")  # fmt: skip
    return Lesson(pen.say(*wordings, it=listed, ok=confirm.text), PracticePage([*boxes, confirm]), [*moves, Move("click", confirm)])


def complete(pen: Pen) -> Lesson:
    """Type how a name begins, pick the suggestion that also finishes as asked, confirm."""
    goal = pen.proper_name()
    start, end = goal[: pen.rng.randint(2, 4)], goal[-pen.rng.randint(2, 4) :].strip()
    is_ending_asked = pen.often(0.75)
    texts = {start + pen.proper_name().lower()[pen.rng.randint(0, 4) :] for _ in range(pen.rng.randint(0, 5))}
    texts = {text for text in texts if text != start and not (is_ending_asked and text.endswith(end))} | {goal}
    field, confirm = Widget("input"), pen.confirm()
    items = [Widget("item", text, shows_when=lambda: field.text == start, fills=field) for text in sorted(texts)]
    picked = next(item for item in items if item.text == goal) if is_ending_asked else items[0]
    if is_ending_asked:
        wordings = ('Complete the name that begins "{a}" and finishes "{b}", then {ok}.', 'The name goes "{a}" to "{b}". Push {ok}.',
                    'Find what begins "{a}" and has "{b}" last. Push {ok}.')  # fmt: skip
    else:
        wordings = ('Complete the name that begins "{a}", then {ok}.', 'The name goes "{a}". Push {ok}.',
                    'Find what begins "{a}". Push {ok}.')  # fmt: skip
    confirm.shows_when = lambda: field.text != start
    label = [Widget("text", pen.word())] if pen.often(0.6) else []
    moves = [*_fill(field, start), Move("click", picked), Move("click", confirm)]
    return Lesson(pen.say(*wordings, a=start, b=end, ok=confirm.text), PracticePage([*label, field, *items, confirm]), moves, crux=2)


def in_order(pen: Pen) -> Lesson:
    """Two or three things one after the other."""
    role = pen.rng.choice(("button", "link", "tab"))
    widgets = [Widget(role, name) for name in pen.names(pen.rng.randint(2, 4))]
    goals = pen.rng.sample(widgets, min(len(widgets), pen.rng.choice((2, 2, 3))))
    joined = pen.rng.choice((", and then ", ", after that ", ", next ", " before ")).join(goal.text for goal in goals)
    return Lesson(pen.say("First press {it}.", "Push {it}.", it=joined), PracticePage(widgets), [Move("click", goal) for goal in goals])


def reveal(pen: Pen) -> Lesson:
    """Open a section, then push what it held."""
    header, button = Widget("header", pen.name()), pen.confirm()
    text = Widget("text", pen.words(2, 4, 8), shows_when=lambda: "expanded" in header.states)
    if pen.often(0.5):
        button.shows_when = lambda: "expanded" in header.states
    wordings = ("Open the part called {name}, then push {ok}.", "Unfold this part and push {ok}.", "See what is inside, then push {ok}.")
    page = PracticePage([header, text, button])
    return Lesson(pen.say(*wordings, name=header.text, ok=button.text), page, [Move("click", header), Move("click", button)])


def choose(pen: Pen) -> Lesson:
    """An entry of a drop-down menu, by its name, then confirm; now and then it is chosen already."""
    first, goal = pen.names(2)
    is_chosen = pen.often(0.15)
    menu, confirm = Widget("select", goal if is_chosen else first), pen.confirm()
    wordings = ("Set the menu to {it}, then push {ok}.", "Let the menu say {it} and finish with {ok}.",
                "Pick {it} among the entries, push {ok}.", "Take {it} from what it offers. Then {ok}.")  # fmt: skip
    moves = [Move("click", confirm)] if is_chosen else [Move("select", menu, goal), Move("click", confirm)]
    return Lesson(pen.say(*wordings, it=goal, ok=confirm.text), pen.page([menu, confirm], 0.15), moves, crux=0)


def look_up(pen: Pen) -> Lesson:
    """A table of names and values: write the value that stands beside a name."""
    keys = pen.names(pen.rng.randint(2, 5))
    values = [pen.name() if pen.often(0.8) else str(pen.rng.randint(1900, 2030)) for _ in keys]
    place = pen.rng.randrange(len(keys))
    field, confirm = Widget("input"), pen.confirm()
    table = [Widget("text", text) for pair in zip(keys, values, strict=True) for text in pair]
    wordings = ("Look up {key} in the table and write it in the box, then push {ok}.", "What stands beside {key}? Write it and {ok}.",
                "Copy what the table says of {key}; finish with {ok}.", "Which {key}? Write it, push {ok}.")  # fmt: skip
    moves = [*_fill(field, values[place]), Move("click", confirm)]
    return Lesson(pen.say(*wordings, key=keys[place], ok=confirm.text), PracticePage([*table, field, confirm]), moves, crux=1)


LESSONS: tuple[tuple[Callable[[Pen], Lesson], float], ...] = (
    (find, 0.20), (count, 0.07), (leave, 0.02), (fill_in, 0.18), (replace_text, 0.01), (calculate, 0.09), (mark_one, 0.05),
    (mark_several, 0.14), (complete, 0.07), (in_order, 0.03), (reveal, 0.02), (choose, 0.05), (look_up, 0.07),
)  # fmt: skip
"""Each kind of lesson with its share of the worked examples."""
