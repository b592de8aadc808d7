"""The UI-TARS grammars: round trips of every action, the variants that models write, half-written text, and text that is not an action."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.grammars.base import Grammar, NotRepresentable, smart_resize
from agent.grammars.registry import GRAMMARS, grammar_named
from agent.grammars.uitars2 import UiTars2Grammar
from sandbox.actions import (
    ACTION,
    Action,
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    InvalidAction,
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
from tests.growth import FACTOR, growth
from warehouse.core.errors import ConfigError

CHAT_GRAMMARS = [grammar for grammar in GRAMMARS.values() if grammar.layout == "chat"]
THOUGHT_ACTION = [grammar for grammar in CHAT_GRAMMARS if grammar.name != "uitars2"]
UITARS2 = GRAMMARS["uitars2"]
COORDINATES = ("x", "y", "to_x", "to_y")


def screen(width_px: int = 500, height_px: int = 320) -> Observation:
    return Observation(
        instruction="Do it.", elements=(), screenshot=None, width_px=width_px, height_px=height_px, time_ms=0.0, url="about:blank"
    )


SCREENS = [screen(), screen(160, 210), screen(1920, 1080), screen(1080, 2400)]
NO_TAGS = st.characters(exclude_categories=["Cs"], exclude_characters="<")
text = st.text(NO_TAGS, max_size=30) | st.text(alphabet="ab \\\"'\n\t,)(=:：", max_size=14)
key = st.sampled_from(["enter", "ctrl", "a", "A", "+", "\\", "'", "page_down", "f5", "é"])
seconds = st.floats(0.001, 60)
button = st.sampled_from(["left", "middle", "right"])
clicks = st.sampled_from([("left", 1), ("left", 2), ("left", 3), ("right", 1), ("middle", 1)])
x = st.integers(0, 159)
y = st.integers(0, 209)
maybe_point = st.none() | st.tuples(x, y)

actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(lambda x, y, c: Click(x=x, y=y, button=c[0], count=c[1]), x, y, clicks),
    st.builds(Drag, x=x, y=y, to_x=x, to_y=y),
    st.builds(MoveTo, x=x, y=y),
    st.builds(LongPress, x=x, y=y),
    st.builds(lambda p, b: MouseDown(x=p and p[0], y=p and p[1], button=b), maybe_point, button),
    st.builds(lambda p, b: MouseUp(x=p and p[0], y=p and p[1], button=b), maybe_point, button),
    st.builds(lambda d, p: Scroll(direction=d, x=p and p[0], y=p and p[1]), st.sampled_from(["up", "down", "left", "right"]), maybe_point),
    st.builds(TypeText, text=text),
    st.builds(Hotkey, keys=st.lists(key, min_size=1, max_size=3).map(tuple)),
    st.builds(KeyDown, key=key),
    st.builds(KeyUp, key=key),
    st.builds(SelectOption, x=x, y=y, option=text),
    st.builds(Navigate, url=text),
    st.builds(Wait, seconds=seconds),
    st.builds(OpenApp, name=text),
    st.builds(Finished, answer=text),
    st.builds(CallUser, question=text),
    st.sampled_from([NavigateBack(), PressHome(), PressBack()]),
)
tool_calls = st.one_of(
    st.builds(lambda c: ToolCall(name="execute_bash", arguments={"command": c}), text),
    st.builds(lambda c, t: ToolCall(name="JupyterCI", arguments={"code": c, "timeout": t}), text, st.integers(1, 600) | st.floats(0, 99)),
    st.builds(
        lambda p, line, view: ToolCall(name="str_replace_editor", arguments={"path": p, "insert_line": line, "view_range": view}),
        text,
        st.integers(),
        st.lists(st.integers(), max_size=2),
    ),
)
thoughts = (
    st.none()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.sampled_from(
        ["I see\nAction: click(start_box='(1,2)')", "Thought: x", "wait() then click(1, 2)", "a </thinkt> b <function=click>", "说明：好"]
    )
)


def close(left: Action, right: Action) -> bool:
    """Equal, or equal but for one pixel in the coordinates."""
    a, b = left.model_dump(), right.model_dump()
    if a["kind"] != b["kind"]:
        return False
    for name in COORDINATES:
        p, q = a.pop(name, None), b.pop(name, None)
        if (p is None) != (q is None) or (p is not None and abs(p - q) > 1):
            return False
    return a == b


@pytest.mark.parametrize("grammar", CHAT_GRAMMARS, ids=lambda grammar: grammar.name)
@given(action=actions, thought=thoughts, observation=st.sampled_from(SCREENS))
def test_round_trip_of_every_action(grammar: Grammar, action: Action, thought: str | None, observation: Observation) -> None:
    written = grammar.format(thought, action, observation)
    parsed = grammar.parse(written, observation)
    assert len(parsed.actions) == 1 and close(parsed.actions[0], action), written
    exact = grammar.name != "uitars15" and max(observation.width_px, observation.height_px) <= 1000
    assert not exact or parsed.actions == (action,)
    # What was read is written back the same: no drift.
    assert grammar.parse(grammar.format(None, parsed.actions[0], observation), observation).actions == parsed.actions
    assert grammar.describe(action, observation)


@given(action=tool_calls)
def test_round_trip_of_tools(action: ToolCall) -> None:
    assert UITARS2.parse(UITARS2.format("think", action, screen()), screen()).actions == (action,)


pieces = st.sampled_from(
    [
        "Thought: ",
        "Action: ",
        "Action：",
        "click(",
        "drag(",
        "type(content='",
        "point='<point>",
        "</point>'",
        "start_box='(",
        "1",
        " 2",
        ",",
        ")",
        "\n",
        "'",
        "<thinkt>",
        "</thinkt>",
        "<seed:tool_call>",
        "<function=",
        "click>",
        "<parameter=point>",
        "</parameter>",
        "</function>",
        "=",
        "[",
        "]",
        "9" * 12,
        "\\",
        "wait",
        "finished(",
        "swipe(direction='up')",
        "Reflection: ",
    ]
)


@pytest.mark.parametrize("grammar", CHAT_GRAMMARS, ids=lambda grammar: grammar.name)
@given(written=st.text() | st.lists(pieces, max_size=14).map("".join))
def test_parse_never_raises_and_its_actions_can_be_stored(grammar: Grammar, written: str) -> None:
    parsed = grammar.parse(written, screen())
    assert parsed.actions
    for action in parsed.actions:
        assert ACTION.validate_json(ACTION.dump_json(action)) == action
        grammar.describe(action, screen())


@pytest.mark.parametrize("grammar", THOUGHT_ACTION, ids=lambda grammar: grammar.name)
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Thought: a\nAction: click(start_box='<|box_start|>(100,100)<|box_end|>')", "point"),
        ("Thought: a\nAction: click(point='<point>100 100</point>')", "point"),
        ("Thought：a\nAction：click(point='<point>100 100</point>')", "point"),
        ("Action: click(start_box='[90, 80, 110, 120]')", "point"),
        ("Action: click(start_box='<bbox>90 80 110 120</bbox>')", "point"),
        ("Action: click(start_box='(100.2, 99.9)')", "point"),
        ("Action: click(start_box=(100, 100))", "point"),
        ("Action: click(100, 100)", "point"),
        ("click(point='<point>100 100</point>')", "point"),
        ("I will press it. click(start_box='(100,100)')", "point"),
        ("Thought: a\nAction: left_single(point='<point>100 100</point>'", "point"),
        ("Thought: a\nAction: click(start_box='<|box_start|>(100,100)<|box_end|>", "point"),
        ("Thought: a Action: click(point='<point>100 100</point>')", "point"),
        ("Reflection: it failed\nAction_Summary: again\nAction: click(point='100 100')", "point"),
        ("Thought: a\nAction: click(point='100 100')\n\nThought: b\nAction: click(point='5 5')", "point"),
        ("Thought: a\nAction: type(content='It's ok, isn't it?')", TypeText(text="It's ok, isn't it?")),
        ('Action: type(content="say \\"hi\\"\\n")', TypeText(text='say "hi"\n')),
        ("Action: type('hello')", TypeText(text="hello")),
        ("Action: hotkey(key='ctrl+C')", Hotkey(keys=("ctrl", "C"))),
        ("Action: hotkey(key='Return')", Hotkey(keys=("enter",))),
        ("Action: hotkey(key='ArrowDown')", Hotkey(keys=("down",))),
        ("Action: press_enter()", Hotkey(keys=("enter",))),
        ("Action: scroll(direction='left')", Scroll(direction="left")),
        ("Action: scroll(direction='right')", Scroll(direction="right")),
        ("Action: swipe(direction='up')", Scroll(direction="down")),
        ("Action: wait()", Wait()),
        ("Action: finished(content='done')", Finished(answer="done")),
        ("Action: finished()", Finished()),
        ("Action: call_user()", CallUser()),
        ("Action: open_app(app_name='Clock')", OpenApp(name="Clock")),
        ("Action: press_home()", PressHome()),
        ("Action: press_back()", PressBack()),
        ("<think>not Action: press_home() yet</think>\nThought: a\nAction: press_back()", PressBack()),
        ("<think>never closed\nAction: press_back()", PressBack()),
        ("<computer_env>\nAction: press_back()\n</computer_env>", PressBack()),
    ],
)
def test_variants_that_models_write(grammar: Any, written: str, expected: Any) -> None:
    if expected == "point":
        scale_x, scale_y = grammar.scale(screen())
        expected = Click(x=round(100 / scale_x * 500), y=round(100 / scale_y * 320))
    assert grammar.parse(written, screen()).actions == (expected,)


@pytest.mark.parametrize("grammar", CHAT_GRAMMARS, ids=lambda grammar: grammar.name)
def test_several_actions_in_one_answer(grammar: Grammar) -> None:
    written = "Thought: fill it\nAction: click(point='<point>0 0</point>')\n\ntype(content='a')\nAction: hotkey(key='enter')"
    parsed = grammar.parse(written, screen())
    assert parsed.thought == "fill it"
    assert parsed.actions == (Click(x=0, y=0), TypeText(text="a"), Hotkey(keys=("enter",)))


@pytest.mark.parametrize("grammar", THOUGHT_ACTION, ids=lambda grammar: grammar.name)
@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "no action"),
        ("Thought: nothing to do", "no action"),
        ("Action: jump(high=1)", "unknown action 'jump'"),
        ("Action: click()", "needs a point"),
        ("Action: click(point='here')", "not a point"),
        ("Action: click(point='1 2 3')", "not a point"),
        ("Action: click(point='<point>5000 1</point>')", "outside the screen"),
        ("Action: click(point='-5 1')", "outside the screen"),
        ("Action: click(start_box='<|box_start|>(10,2", "half-written"),
        ("Action: type(content='hel", "half-written"),
        ("Action: type(", "half-written"),
        ("Action: type()", "needs the parameter"),
        ("Action: scroll(direction='sideways')", "direction"),
        ("Action: hotkey(key='a b c d')", "one to three keys"),
        ("Action: press(key='a b')", "one key"),
        ("Action: wait(time='long')", "seconds"),
        ("Action: wait(time='1000')", "seconds"),
        ("Action: mouse_down(button='fourth')", "button"),
        ("Action: click(point='__import__(\"os\").getcwd()')", "not a point"),
    ],
)
def test_bad_answers_carry_their_reason(grammar: Grammar, written: str, reason: str) -> None:
    (action,) = grammar.parse(written, screen()).actions
    assert isinstance(action, InvalidAction)
    assert reason in action.reason
    assert grammar.describe(action, screen()).startswith("invalid: ")


def test_canonical_text_of_each_generation() -> None:
    click, drag = Click(x=250, y=160), Drag(x=0, y=0, to_x=250, to_y=160)
    assert GRAMMARS["uitars1"].format("t", click, screen()) == "Thought: t\nAction: click(start_box='<|box_start|>(500,500)<|box_end|>')"
    assert GRAMMARS["doubao"].format(None, click, screen()) == "Action: click(point='<point>500 500</point>')"
    assert GRAMMARS["doubao"].format(None, drag, screen()) == (
        "Action: drag(start_point='<point>0 0</point>', end_point='<point>500 500</point>')"
    )
    assert GRAMMARS["uitars1"].format(None, drag, screen()) == (
        "Action: drag(start_box='<|box_start|>(0,0)<|box_end|>', end_box='<|box_start|>(500,500)<|box_end|>')"
    )
    assert GRAMMARS["uitars15"].format(None, click, screen()) == "Action: click(start_box='<|box_start|>(252,154)<|box_end|>')"
    assert UITARS2.format("t", click, screen()) == (
        "<thinkt>t</thinkt>\n<seed:tool_call>\n<function=click>\n<parameter=point><point>500 500</point></parameter>\n"
        "</function>\n</seed:tool_call>"
    )
    assert UITARS2.format("t", Finished(answer="42"), screen()) == "<thinkt>t</thinkt>\n42"


def test_smart_resize_gives_what_the_image_processor_gives() -> None:
    assert smart_resize(500, 320) == (504, 308)
    assert smart_resize(1920, 1080) == (1932, 1092)
    assert smart_resize(160, 210) == (252, 336)
    assert smart_resize(28_000, 14_000) == (5068, 2520)
    with pytest.raises(ValueError, match="ratio"):
        smart_resize(20_000, 50)
    assert GRAMMARS["uitars15"].parse("Action: click(point='1 1')", screen(20_000, 50)).invalid is not None


def test_tool_calls_of_uitars2() -> None:
    written = (
        "<think_more>look\nfirst</think_more><seed:tool_call>\n<function=execute_bash>\n<parameter=command>ls -l 'a b'\n</parameter>"
        "</function><function=click><parameter=point><point>0 0</point></parameter></function></seed:tool_call>"
    )
    parsed = UITARS2.parse(written, screen())
    assert parsed.thought == "look\nfirst"
    assert parsed.actions == (ToolCall(name="execute_bash", arguments={"command": "ls -l 'a b'\n"}), Click(x=0, y=0))


LONG_TOKEN = "think_never_used_51bce0c785ca2f68081bfa7d91973934"


@pytest.mark.parametrize(
    ("written", "thought", "expected"),
    [
        (f"<{LONG_TOKEN}>look</{LONG_TOKEN}>\n<seed:tool_call><function=press_home></function></seed:tool_call>", "look", PressHome()),
        (f"look</{LONG_TOKEN}>\n<seed:tool_call><function=press_home></function></seed:tool_call>", "look", PressHome()),
        (f"<{LONG_TOKEN}>look</{LONG_TOKEN}>42", "look", Finished(answer="42")),
        ("Thought: look Action: press_home()", "look", PressHome()),
        ("press_home()", None, PressHome()),
        ("I go home.\npress_home()", "I go home.", PressHome()),
        ("click(point='<point>0 0</point>')", None, Click(x=0, y=0)),
        ("<Thought>look</Thought>\n<computer_env>press_home()</computer_env>", "look", PressHome()),
        ("<think>look</think><answer>42</answer>", "look", Finished(answer="42")),
        ("<think>Thought: look</think>\n<seed:tool_call><function=press_home></function></seed:tool_call>", "look", PressHome()),
        ("```\npress_home()\n```", None, PressHome()),
        ("I go home.\n```python\npress_home()\n```", "I go home.", PressHome()),
        ("```\nThought: look\nAction: press_home()\n```", "look", PressHome()),
        ("`press_home()`", None, PressHome()),
        ("press_home().", None, PressHome()),
        ("press_home();", None, PressHome()),
        ("click(0, 0) # the button", None, Click(x=0, y=0)),
        ("**Thought:** look\n**Action:** click(0, 0)", "look", Click(x=0, y=0)),
        ("Thought: look\n**Action**: press_home()", "look", PressHome()),
        ("Thought: look\nAction:\n```\npress_home()\n```", "look", PressHome()),
        ("Thought: look\nAction: `press_home()`", "look", PressHome()),
        ("<seed:think>look</seed:think>press_home()", "look", PressHome()),
        ("<think >look</think >42", "look", Finished(answer="42")),
        ("look</seed:think >42", "look", Finished(answer="42")),
        ("Action: finished(content='<answer>42</answer>')", None, Finished(answer="42")),
        ("<function=finished><parameter=content><answer>42</answer></parameter></function>", None, Finished(answer="42")),
        ("f(x) = 2(x + 1)", None, Finished(answer="f(x) = 2(x + 1)")),
        ("Paris (France)", None, Finished(answer="Paris (France)")),
        ("It takes action: see page 2.", None, Finished(answer="It takes action: see page 2.")),
        ("The function print() writes text.", None, Finished(answer="The function print() writes text.")),
        ("Call wait() and then\nclick(1, 2) to go on.", None, Finished(answer="Call wait() and then\nclick(1, 2) to go on.")),
    ],
)
def test_what_models_write_for_uitars2(written: str, thought: str | None, expected: Action) -> None:
    parsed = UITARS2.parse(written, screen())
    assert (parsed.thought, parsed.actions) == (thought, (expected,))


@pytest.mark.parametrize("grammar", CHAT_GRAMMARS, ids=lambda grammar: grammar.name)
@pytest.mark.parametrize("tag", ["think", "Thought", "seed:think", "think ", "thinkt", "computer_env", "answer", LONG_TOKEN])
def test_no_tag_stays_in_stored_text(grammar: Grammar, tag: str) -> None:
    parsed = grammar.parse(f"<{tag}>look there</{tag}>\nAction: press_home()", screen())
    assert (parsed.thought, parsed.actions) == ("look there", (PressHome(),))
    own = "thinkt" if grammar.name == "uitars2" else None
    assert f"<{tag}>" not in grammar.format(f"<{tag}>look there</{tag}>", PressHome(), screen()) or tag == own


def test_a_comment_between_calls_loses_no_call() -> None:
    assert UITARS2.parse("click(0, 0) # the box\npress_home() # done", screen()).actions == (Click(x=0, y=0), PressHome())


def test_the_models_own_think_token_can_be_set() -> None:
    grammar = grammar_named(f"uitars2:{LONG_TOKEN}")
    assert grammar.name == f"uitars2:{LONG_TOKEN}" and grammar_named("uitars2") is UITARS2
    with pytest.raises(ConfigError, match="think token"):
        grammar_named("uitars2:<x>")
    written = grammar.format("look", PressHome(), screen())
    assert written.startswith(f"<{LONG_TOKEN}>look</{LONG_TOKEN}>\n")
    assert grammar.parse(written, screen()).thought == "look"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "neither"),
        ("<thinkt>hm</thinkt>", "neither"),
        ("Thought: hm\nAction:", "no action"),
        ("Thought: hm\nAction: ", "no action"),
        ("<think>hm</think>\nAction:", "no action"),
        ("Thought: nothing to do", "no action"),
        ("Action: press the blue button", "no action"),
        ("Thought: hm\nAction: click", "no action"),
        ("Action: none", "no action"),
        ("I looked.\n**Action:** none", "no action"),
        ("jump(point='1 2')", "unknown function 'jump'"),
        ("```\njump(point='1 2')\n```", "unknown function 'jump'"),
        ("click(point='1", "half-written"),
        ("click(1, 2) to go on", "text after click"),
        ('<tool_call>{"name": "click", "arguments": {"point": [1, 2]}}</tool_call>', "half-written"),
        ("<seed:tool_call>", "half-written"),
        ("<seed:tool_call><function=click><parameter=point><point>1", "half-written"),
        ("<function=fly></function>", "unknown function 'fly'"),
        ("<function=JupyterCI><parameter=timeout>soon</parameter></function>", "timeout must be"),
        ("<function=str_replace_editor><parameter=insert_line>true</parameter></function>", "must be integer"),
    ],
)
def test_bad_tool_calls(written: str, reason: str) -> None:
    parsed = UITARS2.parse(written, screen())
    assert parsed.invalid is not None and reason in parsed.invalid.reason


def test_own_tools_and_think_tokens() -> None:
    grammar = UiTars2Grammar(think_token="reason", tools={"mcp.add": {"a": "number", "deep": "boolean"}})
    call = ToolCall(name="mcp.add", arguments={"a": 2.5, "deep": True, "note": "12"})
    written = grammar.format("sum", call, screen())
    assert written.startswith("<reason>sum</reason>")
    parsed = grammar.parse(written, screen())
    assert parsed.thought == "sum" and parsed.actions == (call,)
    with pytest.raises(ValueError, match="think token"):
        UiTars2Grammar(think_token="<x>")


@pytest.mark.parametrize("grammar", CHAT_GRAMMARS, ids=lambda grammar: grammar.name)
def test_what_cannot_be_written_is_refused(grammar: Grammar) -> None:
    for action in (
        InvalidAction(text="x", reason="y"),
        Click(x=600, y=1),
        Click(x=-1, y=1),
        Click(x=1, y=1, button="middle", count=2),
        KeyDown(key="two words"),
        ToolCall(name="unheard_of"),
        ToolCall(name="JupyterCI", arguments={"timeout": "soon"}),
    ):
        with pytest.raises(NotRepresentable):
            grammar.format(None, action, screen())
    with pytest.raises(NotRepresentable):
        UITARS2.format(None, TypeText(text="a </parameter> b"), screen())


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=lambda grammar: grammar.name)
@pytest.mark.parametrize(
    "piece", [" ", "a", "\t\n", "Action", "Action ", "Action: a(", "click(a='", "(", "'    ", '" "', "<thinkt>", "<function=a>"]
)
def test_the_work_on_long_nonsense_does_not_grow_with_the_square(grammar: Grammar, piece: str) -> None:
    def read(length: int) -> None:
        grammar.parse("Action: click(" + piece * (length // len(piece)), screen())
        grammar.parse(piece * (length // len(piece)), screen())

    assert growth(read, 10_000) < 3 * FACTOR
