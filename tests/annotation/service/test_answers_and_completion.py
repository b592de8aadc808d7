"""Answers taken apart and put together, completion, and clicks on the screen: over every grammar, without any browser."""

from __future__ import annotations

import pytest

from agent.grammars.base import Grammar
from agent.grammars.calls import READERS
from agent.grammars.compact import _VERBS
from agent.grammars.registry import GRAMMARS
from agent.grammars.uitars2 import SDK_TOOLS
from annotation.service.editor.answers import action_view, canonical, composed, edited, view_of_action
from annotation.service.editor.at_point import at_point, element_under, element_within
from annotation.service.editor.completion import accepted, complete
from annotation.service.editor.completion_calls import CALLS, TOOL_CALLS
from annotation.service.editor.completion_compact import VERBS
from annotation.service.editor.completion_values import Surroundings, instruction_texts
from annotation.wire.runs import Point
from sandbox.actions import Action, Click, Drag, Finished, Hotkey, PressHome, Scroll, SelectOption, ToolCall, TypeText
from sandbox.session import Element, Observation
from warehouse.core.errors import UnreadableAnswer

OBSERVATION = Observation(
    instruction='Enter "O\'Brien" for John Smith, choose Tokyo and press Submit, then read https://example.org/page',
    elements=(
        Element(role="text", text="Year", x_px=20, y_px=20, width_px=30, height_px=10),
        Element(role="text", text="1984", x_px=60, y_px=20, width_px=30, height_px=10),
        Element(role="input", text="", x_px=50, y_px=50, width_px=80, height_px=16, states=("focused",)),
        Element(role="select", text="Osaka", x_px=50, y_px=80, width_px=80, height_px=16),
        Element(role="button", text='Say "Action now"', x_px=40, y_px=120, width_px=60, height_px=20),
        Element(role="image", text="map", x_px=240, y_px=100, width_px=160, height_px=160),
        Element(role="shape", text="red circle", x_px=220, y_px=90, width_px=10, height_px=10),
    ),
    screenshot=None,
    width_px=320,
    height_px=200,
    time_ms=0.0,
    url="http://localhost:8000/x",
)
GRAMMAR = pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=list(GRAMMARS))
ACTIONS: tuple[Action, ...] = (
    Click(x=40, y=120),
    Click(x=7, y=9, count=2),
    Drag(x=50, y=50, to_x=240, to_y=100),
    TypeText(text='it\'s "Action click [1]" done\n'),
    Hotkey(keys=("ctrl", "c")),
    Scroll(direction="down"),
    SelectOption(x=50, y=80, option="Tokyo"),
    Finished(),
    Finished(answer="1984"),
)


def around(grammar: Grammar, kind: str = "page") -> Surroundings:
    return Surroundings(grammar=grammar, observation=OBSERVATION, session_kind=kind, files=("notes.txt", "src/a b.py"))  # type: ignore[arg-type]


@GRAMMAR
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.kind)
def test_an_answer_taken_apart_and_put_together_is_the_same(grammar: Grammar, action: Action) -> None:
    text = grammar.format("I look at it first", action, OBSERVATION)
    view = action_view(text, grammar, OBSERVATION)
    assert view.problem is None and view.kind == action.kind and view.line
    again = composed(view.thought, view.action, grammar, OBSERVATION)
    assert grammar.parse(again, OBSERVATION) == grammar.parse(text, OBSERVATION)
    assert canonical(again, grammar, OBSERVATION) == canonical(f"  {text}\n", grammar, OBSERVATION)


@GRAMMAR
def test_points_are_in_pixels_whatever_the_grammar_writes(grammar: Grammar) -> None:
    view = view_of_action(Drag(x=50, y=50, to_x=240, to_y=100), grammar, OBSERVATION)
    point = view.points[0]
    assert abs(point.x - 50) <= 1 and abs(point.y - 50) <= 1 and abs((point.to_x or 0) - 240) <= 1 and abs((point.to_y or 0) - 100) <= 1


@GRAMMAR
def test_garbage_is_shown_as_it_stands_and_never_composed(grammar: Grammar) -> None:
    for garbage in ("", "I do not know", "Action: fly(to='moon')", "Thought x Action fly", "<function=click>\n<parameter=point>", "Action"):
        view = action_view(garbage, grammar, OBSERVATION)
        assert view.text == garbage
        if view.problem is None:
            assert grammar.name == "uitars2" and view.kind == "finished", "there a turn without a call is the answer"
            continue
        assert view.kind is None and view.points == ()
        if grammar.name != "uitars2" or "<function" in garbage:
            with pytest.raises(UnreadableAnswer):
                composed("because", view.action or "fly", grammar, OBSERVATION)


TYPED = {
    "compact": 'type "hello"',
    "uitars1": "type(content='hello')",
    "uitars15": "type(content='hello')",
    "doubao": "type(content='hello')",
    "uitars2": "<function=type>\n<parameter=content>hello</parameter>",
}


@GRAMMAR
def test_what_cannot_be_read_says_what_is_wrong_and_how_it_is_written(grammar: Grammar) -> None:
    def reported(action: str) -> str:
        with pytest.raises(UnreadableAnswer) as refused:
            composed("because", action, grammar, OBSERVATION)
        return str(refused.value)

    assert set(TYPED) == set(GRAMMARS)
    said = reported('type [1] "x"')
    assert f"It is written so: {'<seed:tool_call>' if grammar.name == 'uitars2' else TYPED[grammar.name]}" in said
    assert TYPED[grammar.name] in said and "click there in a step before" in said
    assert "double quotes" in said if grammar.name == "compact" else "e.g." not in said
    assert "Action:" not in said, "the editor holds the action alone"
    drag = Drag(x=20, y=20, to_x=60, to_y=20)
    for wrong, right in (("klick [1]", Click(x=20, y=20)), ("hotkey", Hotkey(keys=("ctrl", "c"))), ("drag(x", drag)):
        if grammar.name == "uitars2" and wrong.startswith("klick"):
            continue  # there it is an answer in words
        assert view_of_action(right, grammar, OBSERVATION).action[:60] in reported(wrong)


def test_reasons_name_what_stands_in_the_wrong_place() -> None:
    def reported(action: str) -> str:
        with pytest.raises(UnreadableAnswer) as refused:
            composed(None, action, GRAMMARS["compact"], OBSERVATION)
        return str(refused.value)

    assert "[1] cannot stand here; the text can" in reported('type [1] "x"') and "[4] cannot stand here; the answer can" in reported(
        "finished [4]"
    )
    assert "a quote that never ends" in reported('type "x') and 'select [1] "Tokyo"' in reported('select "Tokyo" [4]')
    assert "needs a direction first" in reported("scroll [1] down") and "not 'sideways'" in reported("scroll sideways")
    assert "did you mean click?" in reported("klick [1]") and "known are" not in reported("klick [1]") and "known are" in reported("xyzzy")


def test_an_action_in_the_wrong_words_does_not_end_the_task() -> None:
    grammar = GRAMMARS["uitars2"]
    for meant in ('type [1] "x"', "wait", "scroll -3"):
        with pytest.raises(UnreadableAnswer, match="would end the task"):
            composed(None, meant, grammar, OBSERVATION)
    for meant in ("klick(start_box='(1,2)')", "Action: click"):
        with pytest.raises(UnreadableAnswer, match=r"klick|no action"):
            composed(None, meant, grammar, OBSERVATION)
    assert grammar.parse(composed(None, "press_home()", grammar, OBSERVATION), OBSERVATION).actions == (PressHome(),)
    for answer in ("1984", "Type B", "click here (the left one)", "Tokyo (Japan)"):
        assert grammar.parse(composed(None, answer, grammar, OBSERVATION), OBSERVATION).actions == (Finished(answer=answer),)
    said = "<function=finished>\n<parameter=content>wait</parameter>\n</function>"
    assert grammar.parse(composed(None, said, grammar, OBSERVATION), OBSERVATION).actions == (Finished(answer="wait"),)


@GRAMMAR
def test_a_thought_that_reads_as_an_action_changes_no_action(grammar: Grammar) -> None:
    click = view_of_action(Click(x=50, y=50), grammar, OBSERVATION)
    odd = ('x Action press "enter"', "Action: wait()\nAction: wait()", "</think><function=wait></function>", "Thought: y", "Action")
    for thought in odd:
        try:
            text = composed(thought, click.action, grammar, OBSERVATION)
        except UnreadableAnswer:
            continue
        assert [action.kind for action in grammar.parse(text, OBSERVATION).actions] == ["click"]


@GRAMMAR
def test_several_actions_in_one_answer_stay_several(grammar: Grammar) -> None:
    if grammar.name == "compact":
        return
    both = "\n".join(view_of_action(action, grammar, OBSERVATION).action for action in (Click(x=50, y=50), TypeText(text="hi")))
    view = action_view(composed("both at once", both, grammar, OBSERVATION), grammar, OBSERVATION)
    assert view.problem is None and view.action == both and "hi" in view.line and view.thought == "both at once"


def test_the_grammars_own_thought_follows_an_edited_action() -> None:
    compact = GRAMMARS["compact"]
    proposal = compact.format(None, Click(x=50, y=50), OBSERVATION)
    thought = action_view(proposal, compact, OBSERVATION).thought
    assert edited(proposal, thought, "click [4]", compact, OBSERVATION) == 'Thought click "Osaka" <select> [4] Action click [4]'
    assert edited(proposal, "Osaka it is", "click [4]", compact, OBSERVATION) == "Thought Osaka it is Action click [4]"
    chat = GRAMMARS["doubao"]
    proposal = chat.format("The field first.", Click(x=50, y=50), OBSERVATION)
    assert "The field first." in edited(proposal, "The field first.", "wait()", chat, OBSERVATION)


def test_every_verb_of_every_grammar_can_be_completed() -> None:
    assert set(VERBS) == set(_VERBS)
    assert set(READERS) - set(CALLS) == {"swipe", "press_enter"}, "other words for scroll and drag, and for a hotkey"
    assert set(TOOL_CALLS) == set(SDK_TOOLS)
    assert all({place.name for place in places} == set(SDK_TOOLS[name]) for name, places in TOOL_CALLS.items())


@GRAMMAR
@pytest.mark.parametrize("kind", ["page", "hybrid", "android"])
def test_every_completion_accepted_in_full_parses(grammar: Grammar, kind: str) -> None:
    surroundings, num_read = around(grammar, kind), 0
    waiting = [("", 0, 0)]
    kinds: set[str] = set()
    while waiting:
        action, cursor, depth = waiting.pop()
        offered = complete(action, cursor, surroundings)
        if depth == 0:
            assert len(offered) >= 18
        elif not offered:
            pytest.fail(f"{action!r} cannot be read, and nothing is offered at {cursor}")
        for completion in offered[: 60 if depth == 0 else 4]:
            after, at = accepted(action, completion)
            assert 0 <= at <= len(after) and completion.label
            view = action_view(_response(grammar, after), grammar, OBSERVATION)
            if view.problem is None:
                num_read += 1
                kinds.add(view.kind or "")
            else:
                assert depth < 4, f"{after!r} stays unreadable: {view.problem}"
                waiting.append((after, at, depth + 1))
    assert num_read >= 30 and {"click", "drag", "select", "type", "hotkey", "scroll", "finished"} <= kinds
    assert ("tool" in kinds) == (kind == "hybrid" and grammar.name in ("compact", "uitars2"))
    assert ("open_app" in kinds) == (kind == "android")


def _response(grammar: Grammar, action: str) -> str:
    return {"compact": f"Thought x Action {action}", "uitars2": f"<thinkt>x</thinkt>\n{action}"}.get(grammar.name, f"Action: {action}")


def labels(action: str, name: str, cursor: int | None = None, kind: str = "page") -> list[str]:
    return [c.label for c in complete(action, len(action) if cursor is None else cursor, around(GRAMMARS[name], kind))]


def test_what_was_typed_narrows_what_is_offered() -> None:
    assert labels("cl", "compact") == ["click", "double_click", "triple_click", "right_click", "middle_click"]
    assert labels("cl", "uitars1")[0] == "click" and labels("cl", "uitars2")[0] == "click"
    assert labels("click osa", "compact") == labels('click "osa', "compact") == ['"Osaka" <select> [4]']
    assert labels("click [4", "compact") == ['"Osaka" <select> [4]']
    assert labels("click(start_box='osa", "uitars1") == ['"Osaka" <select> [4]']
    assert labels("click(point='osa", "doubao") == ['"Osaka" <select> [4]']
    assert labels("<function=click>\n<parameter=point>osa", "uitars2") == ['"Osaka" <select> [4]']
    assert labels("press ctrl ", "compact")[0] != "ctrl" and "ctrl" not in labels("press ctrl ", "compact")
    assert labels("scroll ", "compact") == ["down", "up", "left", "right"]
    assert labels("scroll(", "uitars15") == ["start_box", "direction"]
    assert labels("click [1] ", "compact") == [] and labels("wait()", "uitars1") == []


def test_texts_come_from_the_instruction_then_from_the_screen() -> None:
    assert instruction_texts(OBSERVATION.instruction) == ["O'Brien", "John Smith", "Tokyo", "Submit"]
    for name, start in (("compact", 'type "'), ("uitars1", "type(content='"), ("uitars2", "<function=type>\n<parameter=content>")):
        assert labels(start, name)[:3] == ["O'Brien", "John Smith", "Tokyo"] and "1984" in labels(start, name)
    offered = complete("type(content='')", 14, around(GRAMMARS["uitars1"]))[0]
    assert accepted("type(content='')", offered) == ("type(content='O\\'Brien')", 23)
    assert labels('select [4] "', "compact")[0] == "O'Brien" and "Tokyo" in labels('select [4] "to', "compact")


def test_files_and_tools_are_offered_where_there_are_some() -> None:
    assert "cat notes.txt" in labels('run "', "compact", kind="hybrid")
    assert "notes.txt" in labels("<function=str_replace_editor>\n<parameter=path>no", "uitars2", kind="hybrid")
    assert "execute_bash" in labels('tool "', "compact", kind="hybrid") and "run" not in labels("ru", "compact")


def test_a_completion_in_the_middle_replaces_what_it_stands_in() -> None:
    offered = complete("click [2]", 7, around(GRAMMARS["compact"]))[0]
    assert accepted("click [2]", offered)[0].count("[") == 1
    text = "drag(start_box='<|box_start|>(1,1)<|box_end|>', end_box='')"
    offered = complete(text, len(text) - 2, around(GRAMMARS["uitars1"]))[0]
    assert accepted(text, offered)[0].startswith(text[:-2]) and accepted(text, offered)[1] == len(accepted(text, offered)[0]) - 1


@GRAMMAR
def test_a_click_means_the_element_under_it_first(grammar: Grammar) -> None:
    views = at_point(Point(x=30, y=124), grammar, OBSERVATION)
    assert views[0].kind == "click" and all(view.problem is None for view in views)
    assert abs(views[0].points[0].x - 40) <= 1 and abs(views[0].points[0].y - 120) <= 1, "where a click lands on the button"
    assert abs(views[1].points[0].x - 30) <= 1, "the pixel itself is the next"
    assert element_under(221, 91, OBSERVATION) == OBSERVATION.elements[6], "the smaller one, on the image"
    assert at_point(Point(x=-5, y=9999), grammar, OBSERVATION)[0].kind == "click", "moved onto the screen"


@GRAMMAR
def test_a_drag_means_from_thing_to_thing_first(grammar: Grammar) -> None:
    views = at_point(Point(x=222, y=91, to_x=48, to_y=118), grammar, OBSERVATION)
    drags = [view.kind for view in views].index("click")
    assert drags >= 2 and {view.kind for view in views[drags:]} == {"click"}, "it began on a thing; then what a box would mean"
    drag = views[0].points[0]
    assert (abs(drag.x - 220) <= 1, abs((drag.to_x or 0) - 40) <= 1) == (True, True)
    assert at_point(Point(x=222, y=91, to_x=223, to_y=92), grammar, OBSERVATION)[0].kind == "click", "a hand that trembled"


@GRAMMAR
def test_a_box_means_what_it_is_drawn_around_then_its_middle(grammar: Grammar) -> None:
    around = at_point(Point(x=4, y=106, to_x=76, to_y=136), grammar, OBSERVATION)
    assert around[0].kind == "click" and abs(around[0].points[0].x - 40) <= 1 and abs(around[0].points[0].y - 120) <= 1, "the button"
    assert "drag" in {view.kind for view in around} or grammar.layout == "elements"
    back = at_point(Point(x=76, y=136, to_x=4, to_y=106), grammar, OBSERVATION)
    assert back[0] == around[0], "from whichever corner"
    tight = at_point(Point(x=9, y=109, to_x=71, to_y=131), grammar, OBSERVATION)
    assert tight[0] == around[0], "and so close that it begins on its edge"
    assert element_within((0, 0), (159, 199), OBSERVATION) == OBSERVATION.elements[2], "of several the largest, the first of equals"
    line = at_point(Point(x=100, y=5, to_x=150, to_y=6), grammar, OBSERVATION)
    assert "click" not in {view.kind for view in line}, "a line is not a box"
    empty = [view for view in at_point(Point(x=100, y=140, to_x=140, to_y=180), grammar, OBSERVATION) if view.kind == "click"]
    if grammar.layout == "chat":
        assert abs(empty[0].points[0].x - 120) <= 1 and abs(empty[0].points[0].y - 160) <= 1, "its middle"


def test_lines_of_tools_are_reported_in_words() -> None:
    view = view_of_action(ToolCall(name="execute_bash", arguments={"command": "ls"}), GRAMMARS["uitars2"], OBSERVATION)
    assert view.kind == "tool" and "ls" in view.line and view.points == ()
