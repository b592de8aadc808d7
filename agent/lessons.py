"""Lessons: the kinds of worked examples that tutorials are made of. Each draws a page, an instruction in words of its own (never those of
a benchmark task), and the moves that do what it says. How a lesson becomes a training text is agent/tutorials.py's business.

A lesson teaches one skill of reading a screen: find what is named, count, fill in, look up, tick several, complete, calculate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.practice_page import Move, PracticePage, Widget
from agent.vocabulary import words

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
SYLLABLES = (
    "an",
    "be",
    "chi",
    "do",
    "en",
    "fa",
    "gri",
    "ha",
    "in",
    "ka",
    "la",
    "ma",
    "ni",
    "or",
    "pa",
    "ri",
    "sa",
    "ta",
    "ur",
    "ver",
    "ya",
    "zo",
)
CLICKABLE = ("button", "link", "checkbox", "radio", "tab", "input", "item", "header", "textarea", "select", "image")
CONFIRM = ("Submit", "Login", "OK", "Ok", "Send", "Save", "Done", "Search", "Next")
ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th")


@dataclass(frozen=True, slots=True)
class Lesson:
    """A page at its beginning, what is asked, and how it is done, move by move."""

    instruction: str
    page: PracticePage
    moves: Sequence[Move]


class Pen:
    """Draws the parts of lessons from one random generator."""

    def __init__(self, rng: random.Random, vocabulary: Sequence[str] | None = None) -> None:
        self.rng = rng
        self._words = words() if vocabulary is None else vocabulary

    def word(self) -> str:
        return self.rng.choice(self._words)

    def string(self, longest: int = 8) -> str:
        return "".join(self.rng.choice(CHARACTERS) for _ in range(self.rng.randint(1, longest)))

    def name(self) -> str:
        """What a thing may be called: a random string, a word, two words, a word with a mark."""
        kind = self.rng.random()
        if kind < 0.5:
            return self.string(self.rng.choice((3, 5, 8)))
        if kind < 0.78:
            return self.word()
        if kind < 0.86:
            return f"{self.word()} {self.word()}"
        if kind < 0.9:
            return f"{self.word()} {self.string(5)}"
        return self.word() + self.rng.choice(
            (",", ".", "!", "?", ":", f" #{self.rng.randint(1, 9)}", f" of {self.word()}", f"-{self.string(3)}")
        )

    def names(self, num: int) -> list[str]:
        """Different names."""
        drawn: dict[str, None] = {}
        while len(drawn) < num:
            drawn[self.name()] = None
        return list(drawn)

    def long_word(self) -> str:
        """A made-up proper name, spelled by the tokenizer: what completion is practised on."""
        return "".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.randint(3, 5))).capitalize()

    def confirm(self) -> Widget:
        return Widget("button", self.rng.choice(CONFIRM) if self.rng.random() < 0.8 else self.name())

    def say(self, *phrasings: str, **parts: str) -> str:
        return self.rng.choice(phrasings).format(**parts)

    def page(self, core: list[Widget], noise: float = 0.3) -> PracticePage:
        """The widgets in their order, sometimes with running text in between."""
        widgets = list(core)
        if self.rng.random() < noise:
            for _ in range(self.rng.randint(1, 3)):
                text = " ".join(self.word() for _ in range(self.rng.choice((1, 2, 3, 6))))
                widgets.insert(self.rng.randint(0, len(widgets)), Widget("text", text))
        return PracticePage(widgets)


def find(pen: Pen) -> Lesson:
    """Click what is named, by name alone or by role and name."""
    names = pen.names(pen.rng.randint(1, 6))
    kinds = pen.rng.sample(CLICKABLE, pen.rng.choice((1, 1, 2, 3)))
    widgets = [Widget(pen.rng.choice(kinds), name) for name in names]
    goal = pen.rng.choice(widgets)
    if len(widgets) > 1 and pen.rng.random() < 0.1:  # the same name twice: the role decides
        twin = next(widget for widget in widgets if widget is not goal)
        twin.text = goal.text
        if twin.role != goal.role:
            instruction = pen.say('Find the {role} "{name}".', 'Press the "{name}" {role}.', role=goal.role, name=goal.text)
            return Lesson(instruction, pen.page(widgets), [Move("click", goal)])
        twin.text = pen.string() + "2"
    instruction = pen.say(
        'How to use the {role} "{name}"?',
        'Find the {role} "{name}".',
        'Look for "{name}".',
        "Choose {name} here.",
        "Go to {name} now.",
        'Press the "{name}" {role}.',
        "Open {name}.",
        "Use {role} {name}.",
        role=goal.role,
        name=goal.text,
    )
    return Lesson(instruction, pen.page(widgets), [Move("click", goal)])


def count(pen: Pen) -> Lesson:
    """Click the n-th thing of a kind, or the only one."""
    role = pen.rng.choice(CLICKABLE)
    num = pen.rng.randint(1, 3)
    widgets = [Widget(role, "" if role in ("input", "textarea") else pen.name()) for _ in range(num)]
    place = pen.rng.randrange(num)
    goal = widgets[place]
    others = [Widget(other, pen.name()) for other in pen.rng.sample(CLICKABLE, pen.rng.choice((0, 0, 1, 2))) if other != role]
    for other in others:
        widgets.insert(pen.rng.randint(0, len(widgets)), other)
    if num == 1:
        return Lesson(f"Use the {role} of the page.", pen.page(widgets), [Move("click", goal)])
    return Lesson(f"Use the {ORDINALS[place]} {role} of the page.", pen.page(widgets), [Move("click", goal)])


def leave(pen: Pen) -> Lesson:
    """Close a window, or answer it: the small x, or the button that is named."""
    widgets = [
        Widget("text", pen.name()),
        Widget("button", "x"),
        Widget("text", " ".join(pen.word() for _ in range(pen.rng.randint(2, 9)))),
    ]
    widgets += [Widget("button", name) for name in pen.rng.sample(("Cancel", "OK", "Yes", "No", "Help"), pen.rng.randint(0, 2))]
    if pen.rng.random() < 0.5:
        widgets = widgets[1:]
    goal = pen.rng.choice([widget for widget in widgets if widget.role == "button"])
    if goal.text == "x" and pen.rng.random() < 0.6:
        return Lesson(
            pen.say("Leave this window.", "Close this message with its x.", "Make the window go away."),
            PracticePage(widgets),
            [Move("click", goal)],
        )
    return Lesson(
        pen.say('Answer the message with "{name}".', 'Leave the window by "{name}".', name=goal.text),
        PracticePage(widgets),
        [Move("click", goal)],
    )


def _fill(field: Widget, text: str) -> list[Move]:
    return [Move("click", field), Move("type", field, text)]


def fill_in(pen: Pen) -> Lesson:
    """Write one to three texts into fields in their order, then confirm. Some fields show stars."""
    num = pen.rng.choice((1, 1, 2, 2, 2, 3))
    values = [pen.name().replace('"', "") for _ in range(num)]
    if num > 1 and pen.rng.random() < 0.15:
        values = [values[0]] * num
    fields = [Widget("input" if pen.rng.random() < 0.9 else "textarea", is_secret=pen.rng.random() < 0.25) for _ in range(num)]
    confirm = pen.confirm()
    widgets: list[Widget] = []
    for field in fields:
        widgets += [Widget("text", pen.word())] * (pen.rng.random() < 0.5) + [field]
    moves = [move for field, value in zip(fields, values, strict=True) for move in _fill(field, value)]
    quoted = [f'"{value}"' for value in values]
    if num == 1:
        instruction = pen.say('Write {it} in the box, then push {ok}.', "Fill in {it} and {ok}.", "Put {it} there; finish with {ok}.",
                              it=quoted[0], ok=confirm.text)  # fmt: skip
    elif len(set(values)) == 1:
        instruction = pen.say(
            "Write {it} in all boxes, then push {ok}.", "Repeat {it} in each box; finish with {ok}.", it=quoted[0], ok=confirm.text
        )
    elif num == 2:
        instruction = pen.say(
            "Fill the form with {a} and {b}, finish with {ok}.",
            "Put the name {a} and the code {b} in the boxes, then push {ok}.",
                              "The boxes are for {a} and {b}. Then {ok}.", a=quoted[0], b=quoted[1], ok=confirm.text)  # fmt: skip
    else:
        instruction = pen.say("Fill the form with {all}, finish with {ok}.", "Put {all} in the boxes, then push {ok}.",
                              all=", ".join(quoted), ok=confirm.text)  # fmt: skip
    return Lesson(instruction, pen.page([*widgets, confirm], 0.2), [*moves, Move("click", confirm)])


def replace_text(pen: Pen) -> Lesson:
    """A field already holds something else: select it all, write over it, confirm."""
    field, confirm, value = Widget("input", pen.name()), pen.confirm(), pen.name()
    field.states |= {"focused"} if pen.rng.random() < 0.5 else set()
    instruction = pen.say('Write "{it}" in the box, then push {ok}.', 'Fill in "{it}" and {ok}.', it=value, ok=confirm.text)
    moves = [Move("triple_click", field), Move("type", field, value), Move("click", confirm)]
    return Lesson(instruction, pen.page([field, confirm], 0.2), moves)


def calculate(pen: Pen) -> Lesson:
    """A sum of two digits on the page, its value into the box."""
    problem, value = fact(pen.rng)
    field, confirm = Widget("input"), pen.confirm()
    instruction = pen.say("Work out the value and write it in the box, then push {ok}.", "What is the result? Finish with {ok}.",
                          "Do the sum, write its result, then push {ok}.", ok=confirm.text)  # fmt: skip
    return Lesson(
        instruction, PracticePage([Widget("text", f"{problem} ="), field, confirm]), [*_fill(field, value), Move("click", confirm)]
    )


def fact(rng: random.Random) -> tuple[str, str]:
    """One single-digit problem and its result."""
    left, right, sign = rng.randint(0, 9), rng.randint(0, 9), rng.choice("+-x")
    return f"{left} {sign} {right}", str({"+": left + right, "-": left - right, "x": left * right}[sign])


def mark_one(pen: Pen) -> Lesson:
    """One of several options, then confirm."""
    options = [Widget("radio", name) for name in pen.names(pen.rng.randint(2, 6))]
    goal, confirm = pen.rng.choice(options), pen.confirm()
    instruction = pen.say("Mark {it}, then push {ok}.", "Tick {it} and finish with {ok}.", it=goal.text, ok=confirm.text)
    return Lesson(instruction, PracticePage([*options, confirm]), [Move("click", goal), Move("click", confirm)])


def mark_several(pen: Pen) -> Lesson:
    """None to six of several boxes, in the order of the instruction, then confirm; sometimes a wrong one has to be cleared first."""
    num = pen.rng.randint(2, 7)
    boxes = [Widget("checkbox", pen.string(7) if pen.rng.random() < 0.7 else name) for name in pen.names(num)]
    boxes = list({box.text: box for box in boxes}.values())
    wanted = [box for box in boxes if pen.rng.random() < 0.5]
    if pen.rng.random() < 0.2:
        pen.rng.shuffle(wanted)
    confirm = pen.confirm()
    moves = [Move("click", box) for box in wanted]
    others = [box for box in boxes if box not in wanted]
    if others and pen.rng.random() < 0.05:
        wrong = pen.rng.choice(others)
        wrong.states.add("checked")
        moves.insert(0, Move("click", wrong))
    listed = ", ".join(box.text for box in wanted) or "nothing"
    instruction = pen.say("Mark {it}, then push {ok}.", "Tick {it} and finish with {ok}.", it=listed, ok=confirm.text)
    return Lesson(instruction, PracticePage([*boxes, confirm]), [*moves, Move("click", confirm)])


def complete(pen: Pen) -> Lesson:
    """Type how a name begins, pick the suggestion that also finishes as asked, confirm."""
    goal = pen.long_word() if pen.rng.random() < 0.8 else f"{pen.long_word()} {pen.long_word()}"
    start, end = goal[: pen.rng.randint(2, 4)], goal[-pen.rng.randint(2, 4) :]
    field, confirm = Widget("input"), pen.confirm()
    texts = {start + "".join(pen.rng.choice(SYLLABLES) for _ in range(pen.rng.randint(1, 3))) for _ in range(pen.rng.randint(0, 6))}
    is_ending_asked = pen.rng.random() < 0.75
    texts = {text for text in texts if not (is_ending_asked and text.endswith(end))} | {goal}
    items = [Widget("item", text, shows_when=lambda: field.text == start, fills=field) for text in sorted(texts)]
    picked = next(item for item in items if item.text.endswith(end)) if is_ending_asked else items[0]
    instruction = (
        pen.say(
            'Complete the name that begins "{a}" and finishes "{b}", then {ok}.',
            'Find what begins "{a}" and has "{b}" last. Push {ok}.',
                a=start, b=end, ok=confirm.text)
        if is_ending_asked
        else pen.say('Complete the name that begins "{a}", then {ok}.', 'Find what begins "{a}". Push {ok}.', a=start, ok=confirm.text)
    )  # fmt: skip
    confirm.shows_when = lambda: field.text != start
    label = [Widget("text", pen.word())] if pen.rng.random() < 0.6 else []
    return Lesson(
        instruction, PracticePage([*label, field, *items, confirm]), [*_fill(field, start), Move("click", picked), Move("click", confirm)]
    )


def in_order(pen: Pen) -> Lesson:
    """Two or three things one after the other."""
    widgets = [Widget(pen.rng.choice(("button", "link", "tab")), name) for name in pen.names(pen.rng.randint(2, 5))]
    goals = pen.rng.sample(widgets, min(len(widgets), pen.rng.choice((2, 2, 3))))
    phrases = (", and then ", ", after that ", ", next ")
    instruction = "First press " + pen.rng.choice(phrases).join(goal.text for goal in goals) + "."
    return Lesson(instruction, PracticePage(widgets), [Move("click", goal) for goal in goals])


def reveal(pen: Pen) -> Lesson:
    """Open a section, then push what it held."""
    header, button = Widget("header", pen.name()), pen.confirm()
    text = Widget("text", " ".join(pen.word() for _ in range(pen.rng.randint(2, 10))), shows_when=lambda: "expanded" in header.states)
    if pen.rng.random() < 0.5:
        button.shows_when = lambda: "expanded" in header.states
    instruction = pen.say(
        "Open the part called {name}, then push {ok}.", "Unfold this part and push {ok}.", name=header.text, ok=button.text
    )
    return Lesson(instruction, PracticePage([header, text, button]), [Move("click", header), Move("click", button)])


def choose(pen: Pen) -> Lesson:
    """An entry of a drop-down menu, by its name, then confirm."""
    first, goal = pen.names(2)
    menu, confirm = Widget("select", first), pen.confirm()
    instruction = pen.say("Set the menu to {it}, then push {ok}.", "Let the menu say {it} and finish with {ok}.", it=goal, ok=confirm.text)
    return Lesson(instruction, pen.page([menu, confirm], 0.2), [Move("select", menu, goal), Move("click", confirm)])


def look_up(pen: Pen) -> Lesson:
    """A table of names and values: write the value that stands beside a name."""
    keys, values = (
        pen.names(pen.rng.randint(2, 5)),
        [pen.name() if pen.rng.random() < 0.8 else str(pen.rng.randint(1900, 2030)) for _ in range(5)],
    )
    place = pen.rng.randrange(len(keys))
    field, confirm = Widget("input"), pen.confirm()
    table = [Widget("text", text) for pair in zip(keys, values, strict=False) for text in pair]
    instruction = pen.say(
        "Look up {key} in the table and write it in the box, then push {ok}.",
        "What stands beside {key}? Write it and {ok}.",
                          key=keys[place], ok=confirm.text)  # fmt: skip
    return Lesson(instruction, PracticePage([*table, field, confirm]), [*_fill(field, values[place]), Move("click", confirm)])


LESSONS: tuple[tuple[Callable[[Pen], Lesson], float], ...] = (
    (find, 0.24), (count, 0.08), (leave, 0.03), (fill_in, 0.19), (replace_text, 0.02), (calculate, 0.06), (mark_one, 0.06),
    (mark_several, 0.15), (complete, 0.06), (in_order, 0.03), (reveal, 0.02), (choose, 0.03), (look_up, 0.03),
)  # fmt: skip
"""Each kind of lesson with its share of the worked examples."""
