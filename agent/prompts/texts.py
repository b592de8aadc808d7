"""The standing texts of the chat grammars: who the agent is, how it answers, which actions it has. Wording only; layout is prompt.py's."""

from __future__ import annotations

from typing import Literal

from agent.policy.policy import Message

Mode = Literal["computer", "mobile", "game"]

_ROLE: dict[Mode, str] = {
    "computer": "You operate a computer through its screen, mouse and keyboard to carry out a task.",
    "mobile": "You operate a phone through its touch screen to carry out a task.",
    "game": "You play a game through its screen, mouse and keyboard. When the same action leaves the screen as it was, try another.",
}

_POINTS = {
    "uitars1": ("start_box='<|box_start|>(x,y)<|box_end|>'", "end_box='<|box_start|>(x,y)<|box_end|>'"),
    "uitars15": ("start_box='<|box_start|>(x,y)<|box_end|>'", "end_box='<|box_start|>(x,y)<|box_end|>'"),
    "doubao": ("point='<point>x y</point>'", "start_point='<point>x y</point>', end_point='<point>x y</point>'"),
}
_SCALES = {
    "uitars1": "Coordinates run from 0 to 1000 across the width and down the height of the screen.",
    "uitars15": "Coordinates are pixels of the picture that you see.",
    "doubao": "Coordinates run from 0 to 1000 across the width and down the height of the screen.",
}

_CALLS: dict[Mode, tuple[str, ...]] = {
    "computer": (
        "click({point})",
        "left_double({point})",
        "right_single({point})",
        "drag({drag})",
        "hotkey(key='ctrl c')  # lower case, keys separated by spaces, at most three",
        "type(content='text')  # write \\' \\\" \\n for quotes and new lines; end with \\n to submit",
        "scroll({point}, direction='down')  # or up, left, right",
        "wait()  # five seconds, then look again",
        "finished(content='answer')",
        "call_user()",
    ),
    "mobile": (
        "click({point})",
        "long_press({point})",
        "type(content='text')",
        "scroll({point}, direction='down')  # or up, left, right",
        "open_app(app_name='name')",
        "drag({drag})",
        "press_home()",
        "press_back()",
        "wait()",
        "finished(content='answer')",
        "call_user()",
    ),
    "game": (
        "click({point})",
        "left_double({point})",
        "right_single({point})",
        "drag({drag})",
        "hotkey(key='space')",
        "press(key='w')  # hold down",
        "release(key='w')",
        "type(content='text')",
        "scroll({point}, direction='down')",
        "wait()",
        "finished(content='')",
    ),
}

_FUNCTIONS: dict[Mode, tuple[str, ...]] = {
    "computer": (
        "navigate(content: address)",
        "navigate_back()",
        "click(point)",
        "left_double(point)",
        "right_single(point)",
        "drag(start_point, end_point)",
        "mouse_down(point?, button?)",
        "mouse_up(point?, button?)",
        "move_to(point)",
        "scroll(point?, direction: up, down, left or right)",
        "hotkey(key: names separated by spaces)",
        "press(key: hold down)",
        "release(key)",
        "type(content: text, end with \\n to submit)",
        "wait(time?: seconds)",
    ),
    "mobile": (
        "click(point)",
        "long_press(point)",
        "drag(start_point, end_point)",
        "scroll(point?, direction: up, down, left or right)",
        "type(content)",
        "open_app(app_name)",
        "press_home()",
        "press_back()",
        "wait(time?)",
    ),
    "game": (
        "click(point)",
        "left_double(point)",
        "right_single(point)",
        "drag(start_point, end_point)",
        "mouse_down(point?, button?)",
        "mouse_up(point?, button?)",
        "move_to(point)",
        "scroll(point?, direction)",
        "hotkey(key)",
        "press(key)",
        "release(key)",
        "type(content)",
        "wait(time?)",
    ),
}

_TOOLS = (
    "Search(query)",
    "LinkReader(url, description)",
    "execute_bash(command)",
    "str_replace_editor(command: view, create, str_replace, insert or undo_edit, path, …)",
    "JupyterCI(code, timeout?)",
)


def _thought_action_text(name: str, mode: Mode, instruction: str) -> str:
    point, end = _POINTS[name]
    drag = end if name == "doubao" else f"{point}, {end}"
    calls = "\n".join(call.format(point=point, drag=drag) for call in _CALLS[mode])
    return (
        f"{_ROLE[mode]} You get the task, what you did so far and pictures of the screen; give the next action.\n\n"
        f"Answer in this form:\nThought: what you see, what you want next and why\nAction: one action\n\n"
        f"Actions:\n{calls}\n\n{_SCALES[name]}\n\nTask:\n{instruction}"
    )


def _tool_call_text(mode: Mode) -> str:
    functions = "\n".join((*_FUNCTIONS[mode], *(_TOOLS if mode == "computer" else ())))
    return (
        f"{_ROLE[mode]} Think first, then call one function or several:\n\n"
        "<thinkt>what you see and want</thinkt>\n<seed:tool_call>\n<function=click>\n<parameter=point><point>x y</point></parameter>\n"
        "</function>\n</seed:tool_call>\n\nAn answer without a tool call ends the task and is your answer.\n\n"
        f"Functions:\n{functions}\n\n{_SCALES['doubao']}"
    )


def task_alone(grammar_name: str, mode: Mode, instruction: str) -> tuple[Message, ...]:
    """The instruction and nothing else: the texts on actions would be most of what a small policy reads."""
    return (Message(role="user", content=instruction),)


def standing_text(grammar_name: str, mode: Mode, instruction: str) -> tuple[Message, ...]:
    """The messages that open a chat prompt: one for the Thought/Action grammars, system and task for the tool-call grammar."""
    if grammar_name in _POINTS:
        return (Message(role="user", content=_thought_action_text(grammar_name, mode, instruction)),)
    return (Message(role="system", content=_tool_call_text(mode)), Message(role="user", content=f"Task:\n{instruction}"))
