"""Why an action that a person wrote cannot be read, and how it is written: the grammar's reason, and the right form in that grammar. Words
of other grammars are known too, since people move between policies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from agent.grammars.base import NotRepresentable
from agent.grammars.calls import SYNONYMS
from sandbox.actions import (
    Action,
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    LongPress,
    MouseDown,
    MouseUp,
    MoveTo,
    Navigate,
    NavigateBack,
    OpenApp,
    PressBack,
    PressHome,
    Scroll,
    SelectOption,
    ToolCall,
    TypeText,
    Wait,
)
from sandbox.session import Observation

Write = Callable[[Action], str]
"""An action as the grammar at hand writes it, without any thought. Raises NotRepresentable."""
LONGEST_FORM = 240
_HEAD = re.compile(r"\s*(?:<seed:tool_call>\s*)?(?:<function=)?\s*([A-Za-z_]\w*)")
_PARAMETERS = re.compile(r"\s*[A-Za-z_]\w*\(\s*\w+\s*=")
_CALLED = re.compile(r"\s*[A-Za-z_]\w*\s*(?:$|[(\[<\"'\d-])")


def why_unreadable(action: str, reason: str, observation: Observation, write: Write) -> str:
    """`reason` is the grammar's reason."""
    found = _HEAD.match(action)
    verb = found.group(1).lower() if found else ""
    forms = _forms(observation)
    if verb not in forms:
        near = get_close_matches(verb, forms, n=1)
        if not near:
            return reason
        verb, reason = near[0], f"{reason.partition('; known are')[0]}; did you mean {near[0]}?"
    try:
        form = write(forms[verb])
    except NotRepresentable:
        return reason
    hint = ""
    if isinstance(forms[verb], TypeText) and re.search(r"\[|start_box|point", action):
        hint = ". What is typed goes to whatever has the keyboard: click there in a step before"
    said = reason.partition("; write: ")[0]  # the form of a whole answer, which the editor has no place for
    return f"{said}{'' if said.endswith('?') else '.'} It is written so: {form[:LONGEST_FORM]}{hint}"


def looks_like_an_action(text: str, observation: Observation) -> bool:
    """Whether plain words, which a grammar takes for the final answer, were probably meant as an action of one grammar or another."""
    found = _HEAD.match(text)
    if found is None:
        return False
    return _PARAMETERS.match(text) is not None or (found.group(1) in _forms(observation) and _CALLED.match(text) is not None)


def _forms(observation: Observation) -> dict[str, Action]:
    """An example by each word that any grammar has for an action, on the screen at hand."""
    seen = observation.elements[:2]
    points = [(element.x_px, element.y_px) for element in seen] + [(observation.width_px // 2, observation.height_px // 2)] * 2
    (x, y), (to_x, to_y) = points[0], points[1]
    forms: dict[str, Action] = {
        "click": Click(x=x, y=y),
        "double_click": Click(x=x, y=y, count=2),
        "left_double": Click(x=x, y=y, count=2),
        "triple_click": Click(x=x, y=y, count=3),
        "left_triple": Click(x=x, y=y, count=3),
        "right_click": Click(x=x, y=y, button="right"),
        "right_single": Click(x=x, y=y, button="right"),
        "middle_click": Click(x=x, y=y, button="middle"),
        "drag": Drag(x=x, y=y, to_x=to_x, to_y=to_y),
        "swipe": Scroll(direction="down"),
        "move_to": MoveTo(x=x, y=y),
        "mouse_down": MouseDown(x=x, y=y),
        "mouse_up": MouseUp(x=x, y=y),
        "scroll": Scroll(direction="down"),
        "type": TypeText(text="hello"),
        "hotkey": Hotkey(keys=("ctrl", "c")),
        "press": Hotkey(keys=("enter",)),
        "press_enter": Hotkey(keys=("enter",)),
        "key_down": KeyDown(key="shift"),
        "key_up": KeyUp(key="shift"),
        "release": KeyUp(key="shift"),
        "select": SelectOption(x=x, y=y, option="Tokyo"),
        "navigate": Navigate(url="https://example.org/"),
        "navigate_back": NavigateBack(),
        "wait": Wait(seconds=2),
        "long_press": LongPress(x=x, y=y),
        "open_app": OpenApp(name="Clock"),
        "press_home": PressHome(),
        "press_back": PressBack(),
        "run": ToolCall(name="execute_bash", arguments={"command": "ls"}),
        "execute_bash": ToolCall(name="execute_bash", arguments={"command": "ls"}),
        "finished": Finished(answer="42"),
        "call_user": CallUser(question="Which one?"),
    }
    return forms | {word: forms[known] for word, known in SYNONYMS.items() if known in forms and word not in forms}
