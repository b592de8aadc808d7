"""The contract of every grammar, ours and yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.grammars.base import Grammar, NotRepresentable
from sandbox.actions import Action, Click, Drag, Finished, Hotkey, InvalidAction, Scroll, TypeText, Wait
from sandbox.session import Element, Observation
from warehouse.core.conformance import require

SCREEN = Observation(
    instruction='Press "Ok".',
    elements=(
        Element(role="button", text="Ok", x_px=50, y_px=40, width_px=20, height_px=10),
        Element(role="textbox", text="", x_px=120, y_px=40, width_px=60, height_px=16),
    ),
    screenshot=None,
    width_px=400,
    height_px=300,
    time_ms=0.0,
)
ACTIONS: tuple[Action, ...] = (
    Click(x=50, y=40),
    TypeText(text="naïve “quotes” \\ \n 漢字"),
    Hotkey(keys=("ctrl", "s")),
    Scroll(x=50, y=40, direction="down"),
    Drag(x=50, y=40, to_x=120, to_y=40),
    Wait(),
    Finished(),
)
BAD_TEXTS = (
    "",
    " ",
    "\x00",
    "\ud800",
    "click",
    "{" * 10_000,
    "[" * 10_000,
    "(" * 10_000,
    "<" * 10_000,
    "Action: click(start_box='(1e999,1)')",
    "__import__('os').system('true')",
    "9" * 10_000,
    "<seed:tool_call>" * 1000,
    '{"action": null}',
)
TOLERANCE_PX = 2
"""A grammar may round points to a grid."""


def _has_a_layout(grammar: Grammar) -> None:
    require(grammar.layout in ("elements", "chat"), f"its layout is {grammar.layout!r}: elements or chat")
    require(bool(grammar.name) and ":" not in grammar.name, f"its name is {grammar.name!r}: expected a word without a colon")


def _reads_what_it_writes(grammar: Grammar) -> None:
    num_written = 0
    for action in ACTIONS:
        try:
            text = grammar.format("look at it", action, SCREEN)
        except NotRepresentable:
            continue
        num_written += 1
        parsed = grammar.parse(text, SCREEN)
        require(len(parsed.actions) == 1, f"{text!r} was written for one action and is read as {len(parsed.actions)}")
        require(_alike(parsed.actions[0], action), f"{text!r} was written for {action!r} and is read as {parsed.actions[0]!r}")
    require(num_written > 0, "it can write none of click, type, hotkey, scroll, drag, wait, finished")


def _alike(one: Action, other: Action) -> bool:
    places = ("x", "y", "to_x", "to_y")
    if one.kind != other.kind:
        return False
    first, second = one.model_dump(), other.model_dump()
    near = all(abs(first[name] - second[name]) <= TOLERANCE_PX for name in places if isinstance(first.get(name), int))
    return near and all(first[name] == second[name] for name in first if name not in places)


def _never_raises(grammar: Grammar) -> None:
    for text in BAD_TEXTS:
        parsed = grammar.parse(text, SCREEN)
        require(bool(parsed.actions), f"{text[:40]!r} is read as no action at all: expected an InvalidAction")


def _refuses_an_invalid_action(grammar: Grammar) -> None:
    try:
        text = grammar.format(None, InvalidAction(text="x", reason="y"), SCREEN)
    except NotRepresentable:
        return
    require(False, f"it wrote an InvalidAction as {text!r}: expected NotRepresentable")


def _describes_in_a_line(grammar: Grammar) -> None:
    for action in (*ACTIONS, InvalidAction(text="x", reason="not an action")):
        said = grammar.describe(action, SCREEN)
        require(
            isinstance(said, str) and bool(said.strip()) and "\n" not in said, f"{action!r} is described as {said!r}: expected one line"
        )


PROMISES: Mapping[str, Callable[[Grammar], None]] = {
    "it has a name and a layout": _has_a_layout,
    "it reads what it writes": _reads_what_it_writes,
    "it never raises for what a policy writes": _never_raises,
    "an invalid action cannot be written": _refuses_an_invalid_action,
    "an action is described in a line": _describes_in_a_line,
}
