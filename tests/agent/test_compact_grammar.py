"""The compact grammar: element lines, canonical answers, tolerance of a decoder's spaces, round trips, and text that is not an action."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.grammars.base import NotRepresentable
from agent.grammars.compact import CompactGrammar
from agent.grammars.elements import MAX_ELEMENTS, render_elements
from agent.grammars.quoting import escape, unescape
from sandbox.actions import (
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
from sandbox.session import Element, Observation

GRAMMAR = CompactGrammar()
WIDTH, HEIGHT = 160, 210


def element(role: str, text: str, x_px: int, y_px: int, *states: str) -> Element:
    return Element(role=role, text=text, states=states, x_px=x_px, y_px=y_px, width_px=20, height_px=10)


def screen(*elements: Element) -> Observation:
    return Observation(
        instruction="Press Ok.", elements=elements, screenshot=None, width_px=WIDTH, height_px=HEIGHT, time_ms=0.0, url="about:blank"
    )


SCREEN = screen(
    element("text", "Press the button", 40, 10),
    element("button", "Ok", 30, 60, "focused"),
    element("input", "", 30, 80),
    element("checkbox", 'say "hi"', 30, 100, "checked"),
    element("text", "w" * 100, 90, 150),
)


def as_decoded(text: str) -> str:
    """What a tokenizer that splits on white space and pads double quotes gives back."""
    return " ".join(text.replace('"', ' " ').split())


x = st.integers(0, WIDTH - 1)
y = st.integers(0, HEIGHT - 1)
text = st.text(max_size=30) | st.text(alphabet='ab \\"\n\tqsnu<>é[]', max_size=12)
key = st.sampled_from(["enter", "ctrl", "a", "A", "[", '"', "\\", " ", "page down", "f5", "é"])
seconds = st.integers(1, 6000).map(lambda hundredths: hundredths / 100)
button = st.sampled_from(["left", "middle", "right"])
clicks = st.sampled_from([("left", 1), ("left", 2), ("left", 3), ("right", 1), ("middle", 1)])
json_value = st.recursive(st.none() | st.booleans() | st.integers() | text, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
points = st.tuples(x, y) | st.sampled_from([(e.x_px, e.y_px) for e in SCREEN.elements])

actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(lambda p, c: Click(x=p[0], y=p[1], button=c[0], count=c[1]), points, clicks),
    st.builds(lambda p, q: Drag(x=p[0], y=p[1], to_x=q[0], to_y=q[1]), points, points),
    st.builds(MoveTo, x=x, y=y),
    st.builds(LongPress, x=x, y=y),
    st.builds(lambda p, b: MouseDown(x=p and p[0], y=p and p[1], button=b), st.none() | points, button),
    st.builds(lambda p, b: MouseUp(x=p and p[0], y=p and p[1], button=b), st.none() | points, button),
    st.builds(
        lambda d, p: Scroll(direction=d, x=p and p[0], y=p and p[1]), st.sampled_from(["up", "down", "left", "right"]), st.none() | points
    ),
    st.builds(TypeText, text=text),
    st.builds(Hotkey, keys=st.lists(key, min_size=1, max_size=3).map(tuple)),
    st.builds(KeyDown, key=key),
    st.builds(KeyUp, key=key),
    st.builds(lambda p, option: SelectOption(x=p[0], y=p[1], option=option), points, text),
    st.builds(Navigate, url=text),
    st.builds(Wait, seconds=seconds),
    st.builds(OpenApp, name=text),
    st.builds(lambda command: ToolCall(name="execute_bash", arguments={"command": command}), text),
    st.builds(ToolCall, name=text, arguments=st.dictionaries(text, json_value, max_size=3)),
    st.builds(Finished, answer=text),
    st.builds(CallUser, question=text),
    st.sampled_from([NavigateBack(), PressHome(), PressBack()]),
)


def test_element_lines() -> None:
    assert render_elements(SCREEN).split("\n") == [
        '"Press the button" <text> [1]',
        'focused "Ok" <button> [2]',
        '"" <input> [3]',
        'checked "say \\qhi\\q" <checkbox> [4]',
        f'"{"w" * 60}" <text> [5]',
    ]


def test_names_are_cut_and_tidied_but_typed_text_is_shown_as_it_is() -> None:
    page = screen(
        element("link", "  a\n b  ", 1, 1),
        element("input", "a  b ", 2, 2),
        element("textarea", "x\ny", 3, 3),
        element("tab", "n" * 47 + " n", 4, 4),
    )
    assert render_elements(page).split("\n") == [
        '"a b" <link> [1]',
        '"a \\sb\\s" <input> [2]',
        '"x\\ny" <textarea> [3]',
        f'"{"n" * 47}" <tab> [4]',
    ]


def test_a_long_value_is_shown_by_its_beginning_and_its_end() -> None:
    page = screen(element("textarea", "b" * 72, 1, 1), element("textarea", "b" * 500 + " the end", 2, 2))
    assert render_elements(page).split("\n") == [f'"{"b" * 72}" <textarea> [1]', f'"{"b" * 37} ... {"b" * 22} the end" <textarea> [2]']


def test_shapes_of_different_heights_are_large_or_small() -> None:
    def shape(text: str, height_px: int) -> Element:
        return Element(role="shape", text=text, x_px=1, y_px=height_px, width_px=10, height_px=height_px)

    page = screen(shape("red circle", 10), shape("U", 11), shape("red square", 20), element("button", "2", 1, 1))
    assert render_elements(page).split("\n") == [
        'small "red circle" <shape> [1]',
        'small "U" <shape> [2]',
        'large "red square" <shape> [3]',
        '"2" <button> [4]',
    ]
    assert render_elements(screen(shape("U", 10), shape("I", 12))).split("\n") == ['"U" <shape> [1]', '"I" <shape> [2]']


def test_more_elements_than_numbers_are_counted() -> None:
    many = screen(*(element("link", str(i), i, i) for i in range(MAX_ELEMENTS + 7)))
    lines = render_elements(many).split("\n")
    assert len(lines) == MAX_ELEMENTS + 1
    assert lines[-1] == "7 more elements"


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (Click(x=30, y=60), 'Thought click "Ok" <button> [2] Action click [2]'),
        (Click(x=31, y=60), "Thought click Action click 31 60"),
        (TypeText(text="hello"), 'Thought type Action type "hello"'),
        (ToolCall(name="execute_bash", arguments={"command": 'echo "hi"'}), 'Thought run Action run "echo \\qhi\\q"'),
        (Click(x=90, y=150), f'Thought click "{"w" * 60}" <text> [5] Action click [5]'),
        (Scroll(direction="down", x=30, y=80), 'Thought scroll "" <input> [3] Action scroll down [3]'),
        (Drag(x=40, y=10, to_x=30, to_y=80), 'Thought drag "Press the button" <text> [1] "" <input> [3] Action drag [1] [3]'),
        (Drag(x=30, y=100, to_x=45, to_y=56), 'Thought drag "say \\qhi\\q" <checkbox> [4] "Ok" <button> [2] Action drag [4] [2] +15 -4'),
        (Drag(x=30, y=60, to_x=150, to_y=20), 'Thought drag "Ok" <button> [2] Action drag [2] 150 20'),
        (Hotkey(keys=("ctrl", "a")), "Thought press Action press ctrl a"),
        (Finished(answer="42"), 'Thought finished Action finished "42"'),
        (Wait(), "Thought wait Action wait"),
    ],
)
def test_canonical_answers(action: Action, answer: str) -> None:
    assert GRAMMAR.format(None, action, SCREEN) == answer
    assert GRAMMAR.parse(answer, SCREEN).actions == (action,)
    assert GRAMMAR.parse(as_decoded(answer), SCREEN).actions == (action,)


@given(action=actions)
def test_round_trip_of_every_action(action: Action) -> None:
    answer = GRAMMAR.format(None, action, SCREEN)
    assert GRAMMAR.parse(answer, SCREEN).actions == (action,)
    assert GRAMMAR.parse(as_decoded(answer), SCREEN).actions == (action,)
    assert GRAMMAR.describe(action, SCREEN)


@given(action=actions, thought=st.text(max_size=40) | st.sampled_from(["press Action wait", 'the "Ok Action', "Thought"]))
def test_any_thought_leaves_the_action_alone(action: Action, thought: str) -> None:
    parsed = GRAMMAR.parse(GRAMMAR.format(thought, action, SCREEN), SCREEN)
    assert parsed.actions == (action,)


pieces = st.sampled_from(["Thought", "Action", "click", "type", '"', "[2]", "[99]", "\\", "drag", "5", "wait"])


@given(st.text() | st.lists(pieces, max_size=9).map(" ".join))
def test_parse_never_raises(answer: str) -> None:
    parsed = GRAMMAR.parse(answer, SCREEN)
    assert len(parsed.actions) == 1
    if parsed.invalid is not None:
        assert parsed.invalid.reason


@given(text)
def test_quoting_survives_the_tokenizer(written: str) -> None:
    escaped = escape(written)
    assert unescape(escaped) == written
    assert unescape(f" {' '.join(escaped.split())} ") == written
    assert re.fullmatch(r"[ -~]*", escaped) and '"' not in escaped


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no `Action`"),
        ("Thought click", "no `Action`"),
        ("Thought click Action", "no action"),
        ("Action click [6]", "no element [6]; there are 5"),
        ("Action click [0]", "no element [0]"),
        ("Action drag [2] [2] -31 +0", "outside the screen"),
        ("Action drag [2] [2] -3", "nothing may follow"),
        ("Action click", "missing"),
        ("Action click 200 10", "outside the screen"),
        ("Action jump [2]", "unknown action 'jump'"),
        ("Action type hello", "double quotes"),
        ('Action type "hello', "cannot read"),
        ("Action scroll sideways", "direction"),
        ("Action wait 100", "seconds"),
        ("Action press a b c d", "keys"),
        ("Action click [2] [3]", "nothing may follow"),
        ('Action tool "x" "{"', "must be JSON"),
        ('Action tool "x" "[1]"', "dict"),
        ('Action tool "x" "{\\qa\\q: 1e999}"', "must be JSON"),
        ('Action type "\\ud800"', "not a character"),
    ],
)
def test_bad_answers_carry_their_reason(answer: str, reason: str) -> None:
    (action,) = GRAMMAR.parse(answer, SCREEN).actions
    assert isinstance(action, InvalidAction)
    assert reason in action.reason


def test_thought_is_read_as_it_was_written() -> None:
    parsed = GRAMMAR.parse('Thought click < " Ok " [2] Action click [2]', SCREEN)
    assert parsed.thought == 'click < "Ok" [2]'
    assert GRAMMAR.parse("click [2]", SCREEN).actions == (Click(x=30, y=60),)
    assert GRAMMAR.parse("Action: click [ 2 ]", SCREEN).thought is None


def test_what_cannot_be_written_is_refused() -> None:
    for action in (InvalidAction(text="x", reason="y"), Click(x=1, y=1, button="right", count=2), Click(x=500, y=1), KeyDown(key="")):
        with pytest.raises(NotRepresentable):
            GRAMMAR.format(None, action, SCREEN)


def test_a_text_that_stands_on_the_page_is_read_there_before_it_is_typed() -> None:
    shown = (("text", "Year"), ("text", "1984"), ("button", "Ok"), ("text", "1984"))
    table = screen(*(element(role, text, 40, 10 + 20 * place) for place, (role, text) in enumerate(shown)))
    read = 'Thought type "Year" <text> [1] "1984" <text> [2] Action type "1984"'
    assert GRAMMAR.format(None, TypeText(text="1984"), table) == read
    assert GRAMMAR.parse(read, table).actions == (TypeText(text="1984"),)
    assert GRAMMAR.format(None, TypeText(text="Year"), table) == 'Thought type "Year" <text> [1] Action type "Year"'
    assert GRAMMAR.format(None, TypeText(text="Ok"), table) == 'Thought type Action type "Ok"'
    assert GRAMMAR.describe(TypeText(text="1984"), table) == 'type "1984"'


def test_an_answer_that_stands_on_the_page_is_read_there_before_it_is_given() -> None:
    shown = (("text", "Year"), ("text", "1984"), ("text", "Country"), ("link", "Italy"), ("button", "Ok"))
    table = screen(*(element(role, text, 40, 10 + 20 * place) for place, (role, text) in enumerate(shown)))
    read = 'Thought finished "Country" <text> [3] "Italy" <link> [4] Action finished "Italy"'
    assert GRAMMAR.format(None, Finished(answer="Italy"), table) == read
    assert GRAMMAR.parse(read, table).actions == (Finished(answer="Italy"),)
    year = 'Thought finished "Year" <text> [1] "1984" <text> [2] Action finished "1984"'
    assert GRAMMAR.format(None, Finished(answer="1984"), table) == year
    assert GRAMMAR.format(None, Finished(answer="Ok"), table) == 'Thought finished Action finished "Ok"', "a button says nothing"
    assert GRAMMAR.format(None, Finished(), table) == "Thought finished Action finished"
    assert GRAMMAR.describe(Finished(answer="1984"), table) == 'finished "1984"'


def test_history_lines() -> None:
    assert GRAMMAR.describe(Click(x=30, y=60), SCREEN) == 'click "Ok" <button> [2]'
    assert GRAMMAR.describe(TypeText(text="a" * 80), SCREEN) == f'type "{"a" * 48}"'
    assert GRAMMAR.describe(InvalidAction(text="?", reason="no element [9]; there are 5"), SCREEN) == "invalid: no element [9]; there are 5"
