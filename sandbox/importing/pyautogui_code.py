"""PyAutoGUI code as typed actions. The code is parsed into a syntax tree and read call by call; nothing of it is ever evaluated.

Understood are calls with constant arguments of `pyautogui` and of the few functions that trajectories add to it (`computer.terminate`,
`computer.triple_click`, `computer.wait`, `time.sleep`), and the words WAIT, DONE and FAIL alone. Anything else is a BadCode with its
reason. What each function becomes is pyautogui_calls.py.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sandbox.actions import Action, CallUser, Click, Drag, Finished, MoveTo, Scroll, Wait
from sandbox.importing.pyautogui_calls import READERS, BadCode, Call, Hand

MAX_CODE_CHARS = 100_000
MAX_ACTIONS = 200
_MODULES = ("pyautogui", "computer", "time")
_WORDS: Mapping[str, Action] = {"WAIT": Wait(), "DONE": Finished(), "FAIL": CallUser()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    actions: tuple[Action, ...]
    lost: tuple[str, ...] = ()
    """What calls said that actions do not, one name for each: `scroll amount` (one wheel gesture stands for it), `duration` of a movement,
    `interval` between keys or clicks."""


def parse_code(code: str, size_px: tuple[int, int], hand: Hand | None = None) -> Parsed:
    """Actions of the code on a screen of this size. Coordinates written as fractions from 0 to 1 are of the screen's width and height,
    others are pixels. Raises BadCode."""
    hand = hand or Hand()
    if len(code) > MAX_CODE_CHARS:
        raise BadCode(f"the code has {len(code)} characters, at most {MAX_CODE_CHARS} are read")
    if (word := _WORDS.get(code.strip().strip("`").strip())) is not None:
        return Parsed(actions=(word,))
    try:
        tree = ast.parse(_without_fence(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadCode(f"it is not Python: {error}") from None
    actions: list[Action] = []
    lost: list[str] = []
    for statement in tree.body:
        call = _call_of(statement, size_px, hand)
        if call is None:
            continue
        try:
            actions += READERS[call.name](call)
        except ValidationError as error:
            raise BadCode(f"{call.name}: {error.errors()[0]['msg']}") from None
        call.note("duration")
        call.note("interval")
        lost += call.lost
        if len(actions) > MAX_ACTIONS:
            raise BadCode(f"it has more than {MAX_ACTIONS} actions")
    if not actions:
        raise BadCode("it does nothing")
    return Parsed(actions=_merged(actions), lost=tuple(lost))


def _without_fence(code: str) -> str:
    lines = [line for line in code.strip().splitlines() if not line.strip().startswith("```")]
    return "\n".join(lines)


def _call_of(statement: ast.stmt, size_px: tuple[int, int], hand: Hand) -> Call | None:
    """None for what does nothing: imports, settings of the module, docstrings."""
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass)):
        return None
    if isinstance(statement, ast.Assign):
        targets = [_dotted(target) for target in statement.targets]
        if all(target in ("pyautogui.FAILSAFE", "pyautogui.PAUSE") for target in targets):
            return None
    if not isinstance(statement, ast.Expr):
        raise BadCode(f"line {statement.lineno} is a {type(statement).__name__.lower()} and no call")
    if isinstance(statement.value, ast.Constant):
        return None
    if not isinstance(statement.value, ast.Call):
        raise BadCode(f"line {statement.lineno} is not a call")
    module, _, name = _dotted(statement.value.func).rpartition(".")
    if module not in _MODULES or name not in READERS:
        raise BadCode(f"{f'{module}.' * bool(module)}{name} is not one of the functions that are understood")
    values = [_constant(value) for value in statement.value.args]
    named = {str(keyword.arg): _constant(keyword.value) for keyword in statement.value.keywords if keyword.arg is not None}
    if any(keyword.arg is None for keyword in statement.value.keywords):
        raise BadCode(f"{name} takes its arguments from a dictionary")
    return Call(name=name, values=values, named=named, size_px=size_px, hand=hand)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise BadCode("it calls what is not a name")


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (str, int, float, bool))):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(value := _constant(node.operand), (int, float)):
        return -value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_constant(item) for item in node.elts]
    if isinstance(node, ast.Attribute) and _dotted(node) in ("pyautogui.LEFT", "pyautogui.RIGHT", "pyautogui.MIDDLE"):
        return node.attr.lower()
    raise BadCode(f"an argument is not a constant: {ast.unparse(node)[:60]}")


def _merged(actions: Sequence[Action]) -> tuple[Action, ...]:
    """A move of the pointer to where the next action begins says nothing that the action does not."""
    kept: list[Action] = []
    for index, action in enumerate(actions):
        after = actions[index + 1] if index + 1 < len(actions) else None
        if isinstance(action, MoveTo) and isinstance(after, (Click, Drag, Scroll)) and (after.x, after.y) == (action.x, action.y):
            continue
        kept.append(action)
    return tuple(kept)
