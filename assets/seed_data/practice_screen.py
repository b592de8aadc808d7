"""Screens that lessons are about, drawn at random: controls of at least three kinds, labelled fields, menus, pairs of texts and parts that
fold, in any order. And the phrases that refer to one of their widgets and to no other. How a page behaves is practice_page.py's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from assets.seed_data.practice_page import FIELD_ROLES, PracticePage, Widget
from assets.seed_data.text_sampler import TextSampler

PRESSED = ("button", "link", "checkbox", "radio", "tab", "item", "image")
"""Roles of what is pressed and shows its name."""
SWITCHES = ("checkbox", "radio", "tab")
ORDINALS = (("1st", "first"), ("2nd", "second"), ("3rd", "third"), ("4th", "fourth"))
STATES = ("checked", "selected")
NAMED = 8
"""So many times as often as any other phrase, the name is what a thing is called by."""
MIN_KINDS = 3
"""Of controls on one screen."""
BLOCKS = (3, 3, 4)


@dataclass(slots=True)
class PracticeScreen:
    """The widgets from top to bottom, with what belongs together among them."""

    widgets: list[Widget]
    pairs: list[tuple[Widget, Widget]] = field(default_factory=list)
    """Texts of which the second stands right after the first."""
    labels: dict[Widget, Widget] = field(default_factory=dict)
    """The text before a field that says what it is for."""
    parts: list[tuple[Widget, list[Widget]]] = field(default_factory=list)
    """Headers with what shows once they are unfolded."""
    used: set[Widget] = field(default_factory=set)

    def page(self) -> PracticePage:
        return PracticePage(self.widgets)

    def use(self, widgets: Iterable[Widget]) -> None:
        self.used |= set(widgets)

    @property
    def shown(self) -> list[Widget]:
        """What shows at the beginning."""
        return [widget for widget in self.widgets if widget.shows_when is None]

    @property
    def free(self) -> list[Widget]:
        """Controls that show, and that no clause has touched yet."""
        return [widget for widget in self.shown if widget.role != "text" and widget not in self.used]

    @property
    def fields(self) -> list[Widget]:
        return [widget for widget in self.shown if widget.role in FIELD_ROLES]

    def visible(self, role: str) -> list[Widget]:
        return [widget for widget in self.shown if widget.role == role]

    def is_named(self, widget: Widget) -> bool:
        """Whether its name is its own."""
        return bool(widget.text) and not widget.is_secret and sum(other.text == widget.text for other in self.widgets) == 1

    def phrases(self, sampler: TextSampler, widget: Widget) -> list[str]:
        """Ways to refer to a widget, of each sort: name, kind, order, neighbour, state. Nothing that a
        clause may have changed is referred to."""
        found, role, like = [], widget.role, self.visible(widget.role)
        if self.is_named(widget) and role not in FIELD_ROLES:
            name = sampler.quoted(widget.text)
            found += [sampler.rng.choice((name, name, f"the {role} {name}", f"{name}, a {role}", f"the {role} called {name}"))] * NAMED
        if len(like) > 1:
            place = like.index(widget)
            if place < len(ORDINALS):
                found.append(f"the {sampler.rng.choice(ORDINALS[place])} {role}")
            if place == len(like) - 1 and sampler.often(0.3):
                found.append(f"the last {role}")
        found += self._by_neighbour(sampler, widget)
        for state in STATES:
            if state in widget.states and sum(state in other.states for other in like) == 1 and not self.used & set(like):
                found.append(f"the {role} that is {state}")
        if len(like) == 1 and role in (*FIELD_ROLES, "select"):
            found += [f"the {role}"] * 2
        return found

    def _by_neighbour(self, sampler: TextSampler, widget: Widget) -> list[str]:
        shown = self.shown
        place = shown.index(widget)
        before = shown[place - 1] if place > 0 else None
        found = []
        if before is not None and self.is_named(before) and before not in self.used:
            found.append(f"the {widget.role} {sampler.rng.choice(('after', 'below', 'next to'))} {sampler.quoted(before.text)}")
        return found

    def place_of(self, sampler: TextSampler, goal: Widget) -> str:
        """Where to write: by the field's label, or by any phrase that refers to it."""
        label = self.labels.get(goal)
        if label is not None and self.is_named(label) and sampler.often(0.7):
            return sampler.rng.choice(("under {}", "for {}", "beside {}", "at {}")).format(sampler.quoted(label.text))
        return f"in {sampler.rng.choice(self.phrases(sampler, goal) or [f'the {goal.role}'])}"


class _Names:
    """Names of one screen, no two alike."""

    def __init__(self, sampler: TextSampler) -> None:
        self._sampler, self._taken = sampler, set[str]()

    def draw(self, num: int) -> list[str]:
        while True:
            names = self._sampler.names(num)
            if not self._taken & {name.lower() for name in names}:
                self._taken |= {name.lower() for name in names}
                return names


def draw_screen(sampler: TextSampler) -> PracticeScreen:
    """A screen of three or four blocks whose controls are of at least three kinds."""
    while True:
        screen, names = PracticeScreen([]), _Names(sampler)
        for _ in range(sampler.rng.choice(BLOCKS)):
            (block,) = sampler.rng.choices((_controls, _field, _menu, _pairs, _part), (0.42, 0.24, 0.1, 0.14, 0.1))
            screen.widgets += block(sampler, screen, names)
        if len({widget.role for widget in screen.shown} - {"text"}) >= MIN_KINDS:
            return screen


def _controls(sampler: TextSampler, screen: PracticeScreen, names: _Names) -> list[Widget]:
    """One to three of a kind, sometimes with a text before them."""
    role = sampler.rng.choice(PRESSED)
    made = [Widget(role, name) for name in names.draw(sampler.rng.choice((1, 1, 2, 3)))]
    if role == "checkbox":
        for box in made:
            box.states |= {"checked"} if sampler.often(0.2) else set()
    elif role in SWITCHES and sampler.often(0.4) and not any(widget.role == role for widget in screen.widgets):
        sampler.rng.choice(made).states.add("selected" if role == "tab" else "checked")
    return [*_note(sampler), *made]


def _field(sampler: TextSampler, screen: PracticeScreen, names: _Names) -> list[Widget]:
    """A field with a label or without, empty or not."""
    made = Widget(sampler.rng.choice(("input", "input", "input", "textarea")), is_secret=sampler.often(0.12))
    if sampler.often(0.2):
        made.text = names.draw(1)[0]
        made.is_hint = sampler.often(0.4) and not made.is_secret
    if sampler.often(0.35):
        return [made]
    label = Widget("text", names.draw(1)[0])
    screen.labels[made] = label
    return [label, made]


def _menu(sampler: TextSampler, screen: PracticeScreen, names: _Names) -> list[Widget]:
    made = Widget("select", names.draw(1)[0])
    return [Widget("text", names.draw(1)[0]), made] if sampler.often(0.5) else [made]


def _pairs(sampler: TextSampler, screen: PracticeScreen, names: _Names) -> list[Widget]:
    """Texts two by two."""
    num = sampler.rng.choice((1, 1, 2))
    texts = [Widget("text", text) for text in names.draw(2 * num)]
    screen.pairs += [(texts[place], texts[place + 1]) for place in range(0, 2 * num, 2)]
    return texts


def _part(sampler: TextSampler, screen: PracticeScreen, names: _Names) -> list[Widget]:
    """A header, and what it hides: one to three controls and texts."""
    header = Widget("header", names.draw(1)[0])
    inner = [Widget(sampler.rng.choice(PRESSED), name) for name in names.draw(sampler.rng.randint(1, 2))]
    hidden = [*inner, *([Widget("text", sampler.words(2, 4))] if sampler.often(0.3) else [])]
    sampler.rng.shuffle(hidden)
    for widget in hidden:
        widget.shows_when = lambda: "expanded" in header.states
    screen.parts.append((header, inner))
    return [header, *hidden]


def _note(sampler: TextSampler) -> Sequence[Widget]:
    return [Widget("text", sampler.words(1, 2, 3, 6))] if sampler.often(0.2) else []
