"""Logs of real agents become demonstrations: what the libraries themselves wrote (logs/make_logs.py), and what nobody's library writes."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent.grammars.registry import grammar_named
from benchmarks.common.venv import python_of
from pipelines.importing import playwright_trace
from pipelines.importing.registry import importer_named
from pipelines.importing.rows import DemonstrationSettings, RowFactory, settings_of
from pipelines.importing.trajectories import Demonstration, Entry, Pictures
from sandbox.actions import (
    Action,
    Click,
    Drag,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    NavigateBack,
    Scroll,
    SelectOption,
    ToolCall,
    TypeText,
    Wait,
)
from sandbox.browser.chromium import find_chromium
from sandbox.importing.fields import BadRecord
from tests.pipelines.logs.scripted import address_of, chat_answer, screen
from tests.pipelines.test_import_demonstrations import content, run
from warehouse.core.errors import ConfigError

LOGS = Path(__file__).parent / "logs"
FILES = {
    "openai-chat": "openai_chat.jsonl",
    "anthropic-computer-use": "anthropic_computer_use.jsonl",
    "openai-computer-use": "openai_computer_use.jsonl",
    "otel-genai": "otel_genai.jsonl",
    "browser-use": "browser_use.json",
    "playwright-trace": "playwright_trace.zip",
}
LIBRARIES: Mapping[str, Sequence[str]] = {
    "openai-chat": ("openai==3.57.0",),
    "anthropic-computer-use": ("anthropic==1.17.0",),
    "openai-computer-use": ("openai==3.57.0",),
    "otel-genai": (
        "openai==3.57.0",
        "opentelemetry-instrumentation-openai-v2==2.4b0",
        "opentelemetry-util-genai==0.4b0",
        "opentelemetry-exporter-otlp-json-http==0.66b1",
    ),
    "browser-use": ("browser-use==0.13.14",),
    "playwright-trace": ("playwright==1.65.2",),
}
"""What wrote the files, as pip names it."""
FILL = (Click(x=98, y=78), Hotkey(keys=("ctrl", "a")), TypeText(text="lamp"))
EXPECTED: Mapping[str, Mapping[str, Sequence[tuple[Action, ...]]]] = {
    "openai-chat": {
        "When does line 4 leave?": [
            (Click(x=160, y=20),),
            (TypeText(text="tram\n"), Wait(seconds=1)),
            (Finished(answer="Line 4 leaves at 8:05."),),
        ],
        "How many lines has notes.txt?": [
            (ToolCall(name="execute_bash", arguments={"command": "wc -l notes.txt"}),),
            (Finished(answer="notes.txt has 12 lines."),),
        ],
    },
    "anthropic-computer-use": {
        "Save the file.": [
            (Click(x=50, y=25),),
            (Hotkey(keys=("ctrl", "s")),),
            (Scroll(direction="down", x=160, y=100),),
            (ToolCall(name="execute_bash", arguments={"command": "ls"}),),
            (Finished(answer="The file is saved."),),
        ]
    },
    "openai-computer-use": {
        "Sort the mails by date.": [
            (Click(x=300, y=40, button="right"),),
            (Click(x=10, y=10, count=2), Hotkey(keys=("ctrl", "a"))),
            (Drag(x=1, y=2, to_x=100, to_y=120),),
            (Scroll(direction="up", x=100, y=100),),
            (Finished(answer="It is sorted by date."),),
        ]
    },
    "otel-genai": {
        "How many lines has notes.txt?": [
            (ToolCall(name="execute_bash", arguments={"command": "wc -l notes.txt"}),),
            (Finished(answer="notes.txt has 12 lines."),),
        ],
        "Put the lamp in the basket.": [(Click(x=30, y=90),), (Finished(answer="It is in the basket."),)],
    },
    "browser-use": {
        "Buy a large lamp.": [
            (*FILL, Hotkey(keys=("tab",))),
            (SelectOption(x=216, y=78, option="Large"),),
            (Click(x=266, y=78),),
            (Scroll(direction="down"), Wait(seconds=1)),
            (Finished(answer="The lamp is bought."),),
        ]
    },
    "playwright-trace": {
        "Buy a large lamp": [
            (Wait(seconds=0.3),),
            FILL,
            (Hotkey(keys=("enter",)),),
            (SelectOption(x=216, y=78, option="Large"),),
            (KeyDown(key="shift"), Click(x=266, y=78), KeyUp(key="shift")),
            (Scroll(direction="down", x=266, y=78),),
            (Hotkey(keys=("ctrl", "a")),),
            (NavigateBack(),),
        ]
    },
}
SCREENS = LOGS / "browser_use_screens"
WITHOUT_TEXT = ["otel-genai"]
"""OpenAI's instrumentation keeps nothing of a message that is a list of texts and pictures: the task of such a log cannot be known."""
CHROMIUM = {"CHROMIUM": str(find_chromium(headless_shell=False).path)}


def steps(format: str, path: Path, *images: Path) -> dict[str, list[tuple[Action, ...]]]:
    """Actions by the instruction, of every record that could be read."""
    entries = list(importer_named(format).entries(path, Pictures([path.parent, *images]), lambda _: None))
    made = [entry.made for entry in entries if isinstance(entry.made, Demonstration)]
    return {one.instruction: [step.actions for step in one.load()] for one in made}


@pytest.mark.parametrize("format", FILES)
def test_what_the_library_wrote_is_read_with_nothing_unknown(format: str) -> None:
    assert steps(format, LOGS / FILES[format], SCREENS) == EXPECTED[format]
    found = list(importer_named(format).entries(LOGS / FILES[format], Pictures([LOGS, SCREENS]), lambda _: None))
    assert len([entry for entry in found if entry.why_not]) == (format in WITHOUT_TEXT)
    assert not any(entry.unknown for entry in found)


@pytest.mark.slow
def test_logs_become_episodes_and_samples_once(tmp_path: Path) -> None:
    expected = [done for of_format in EXPECTED.values() for done in of_format.values()]
    num_added = 0
    for format, file in FILES.items():
        report, said = run(tmp_path, format, LOGS / file, images=[SCREENS], track="unreviewed", name=format.replace("-", "_"))
        assert "not kept" in said and len(report.malformed) == (format in WITHOUT_TEXT)
        num_added += report.num_added
    assert num_added == len(expected)
    again, _ = run(tmp_path, "openai-chat", LOGS / FILES["openai-chat"], track="unreviewed", name="openai_chat")
    assert again.num_added == 0 and again.num_there == len(EXPECTED["openai-chat"])
    stored = content(tmp_path)
    assert len(stored["steps"]) == len(stored["ct_samples"]) == sum(map(len, expected)) and not stored["sft_samples"]
    assert {row["outcome"] for row in stored["episodes"]} == {"truncated"}


@pytest.mark.parametrize("grammar", ["uitars2", "compact"])
def test_what_a_tool_returned_is_in_the_prompt_of_the_next_step(grammar: str) -> None:
    importer = importer_named("openai-chat")
    (entry,) = [entry for entry in importer.entries(LOGS / FILES["openai-chat"], Pictures([LOGS]), lambda _: None) if has_bash(entry)]
    assert isinstance(entry.made, Demonstration)
    rows = RowFactory(importer, settings_of(DemonstrationSettings, track="expert", grammar=grammar)).of_demonstration(entry.made, entry)
    prompts = ["\n".join(message["content"] for message in row["messages"]) for row in rows.of["steps"]]
    assert ['output "12 notes.txt"' in prompt for prompt in prompts] == [False, True]


def has_bash(entry: Entry) -> bool:
    return isinstance(entry.made, Demonstration) and any(isinstance(step.actions[0], ToolCall) for step in entry.made.load())


@pytest.mark.long
@pytest.mark.parametrize("format", FILES)
def test_the_library_writes_the_same_today(format: str, tmp_path: Path) -> None:
    """Run for real, in a venv of its own. Playwright's frames come when the browser draws, so that an action more may have one."""
    python = python_of(Path(".bench") / f"logs-{format}", LIBRARIES[format])
    made = tmp_path / FILES[format]
    subprocess.run([str(python), str(LOGS / "make_logs.py"), format, str(made)], check=True, env=CHROMIUM, timeout=300)
    found = steps(format, made, tmp_path / "browser_use_screens")
    if format == "playwright-trace":
        found = {instruction: done[-len(EXPECTED[format][instruction]) :] for instruction, done in found.items()}
    assert found == EXPECTED[format]


def test_each_step_has_the_screen_that_its_call_was_shown_though_later_calls_leave_it_out() -> None:
    path = LOGS / FILES["anthropic-computer-use"]
    (entry,) = importer_named("anthropic-computer-use").entries(path, Pictures([LOGS]), lambda _: None)
    assert isinstance(entry.made, Demonstration)
    shown = [step.picture.screenshot_id if step.picture else None for step in entry.made.load()]
    assert None not in shown and len(set(shown)) == 4


def chat(*messages: Any, answer: Any = None) -> dict[str, Any]:
    asked = [
        {"role": "user", "content": [{"type": "text", "text": "Open it."}, {"type": "image_url", "image_url": {"url": address_of(1)}}]}
    ]
    return {"request": {"messages": [*asked, *messages]}} | ({"response": answer} if answer else {})


def answered(record: Mapping[str, Any]) -> Any:
    return record["choices"][0]["message"]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def entries(path: Path, format: str = "openai-chat") -> list[tuple[str, str, list[tuple[Action, ...]]]]:
    """(place, why not, actions) of each record."""
    found = []
    for entry in importer_named(format).entries(path, Pictures([path.parent]), lambda _: None):
        why, done = entry.why_not, []
        try:
            done = [step.actions for step in entry.made.load()] if isinstance(entry.made, Demonstration) else []
        except BadRecord as error:
            why = str(error)
        found.append((entry.where, why, done))
    return found


def test_two_answers_to_the_same_call_are_two_conversations(tmp_path: Path) -> None:
    first, left, right = chat_answer(1, None, ("wait", {})), chat_answer(2, "Left."), chat_answer(3, "Right.")
    earlier = [answered(first), {"role": "tool", "tool_call_id": "call_1_0", "content": "ok"}]
    path = lines(tmp_path / "a.jsonl", chat(answer=first), chat(*earlier, answer=left), chat(*earlier, answer=right))
    found = entries(path)
    assert [where for where, _, _ in found] == ["a.jsonl:2", "a.jsonl:3"]
    assert [done[-1] for _, _, done in found] == [(Finished(answer="Left."),), (Finished(answer="Right."),)]
    assert all(len(done) == 2 for _, _, done in found)


def run_of(screen: int, answer: str, *, repeats_screen: bool, output: str = "ok") -> tuple[dict[str, Any], dict[str, Any]]:
    """The two calls of a run whose first answer has no id, as all runs of the task give it."""
    look = {"role": "assistant", "content": "I look."}
    shown = [{"type": "image_url", "image_url": {"url": address_of(screen)}}]
    asked = [{"role": "user", "content": [{"type": "text", "text": "Open it."}, *shown]}]
    again = asked if repeats_screen else [{"role": "user", "content": "Open it."}]
    first = {"request": {"messages": asked}, "response": {"choices": [{"message": look}]}}
    result = {"role": "user", "content": [{"type": "text", "text": output}]}
    return first, {"request": {"messages": [*again, look, result]}, "response": chat_answer(screen, answer)}


@pytest.mark.parametrize(("order", "repeats_screen"), [("abAB", True), ("abBA", True), ("abAB", False)])
def test_runs_at_the_same_time_that_begin_alike_stay_apart(order: str, repeats_screen: bool, tmp_path: Path) -> None:
    (a, later_a), (b, later_b) = (run_of(n, f"Done {n}.", repeats_screen=repeats_screen) for n in (1, 2))
    by_name = {"a": a, "b": b, "A": later_a, "B": later_b}
    made = read(lines(tmp_path / "a.jsonl", *(by_name[name] for name in order)))
    runs = [one.load() for one in made]
    shown = {str(run[1].actions): run[0].picture.data if run[0].picture else None for run in runs}
    assert shown == {str((Finished(answer=f"Done {n}."),)): screen(n) for n in (1, 2)}
    assert sum("could continue any of several" in name for one in made for name in one.lost) == (not repeats_screen)


def test_a_run_that_another_like_it_outlives_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    (a, _), (b, later) = (run_of(n, "Done.", repeats_screen=True) for n in (1, 2))
    found = entries(lines(tmp_path / "a.jsonl", a, b, later))
    assert [(where, len(done)) for where, _, done in found] == [("a.jsonl:1", 1), ("a.jsonl:3", 2)]


def test_calls_without_their_first_ones_are_read_from_what_they_repeat(tmp_path: Path) -> None:
    earlier = [answered(chat_answer(1, "Wait.", ("wait", {"seconds": 2}))), {"role": "tool", "tool_call_id": "call_1_0", "content": "ok"}]
    ((_, why, done),) = entries(lines(tmp_path / "a.jsonl", chat(*earlier, answer=chat_answer(2, "Done."))))
    assert not why and done == [(Wait(seconds=2),), (Finished(answer="Done."),)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("fly", {}), "the tool 'fly' has no action here; known are computer"),
        (("computer", {"action": "sing"}), "the action 'sing' of the tool computer has no action here"),
        (("click", {"x": 9000, "y": 1}), "the point (9000, 1) is outside of the screen of 320x200"),
        (("click", {"x": 1, "y": 1, "button": "forward"}), "has the button 'forward'"),
        (("click", "[]"), "expected a JSON object"),
        (("keypress", {"keys": ["a", "b", "c", "d"]}), "4 keys are pressed together"),
    ],
)
def test_what_has_no_action_is_named(call: tuple[str, Any], said: str, tmp_path: Path) -> None:
    ((_, why, _),) = entries(lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, None, call))))
    assert said in why


@pytest.mark.parametrize(
    ("call", "done", "lost"),
    [
        (("key", {"text": "ctrl++"}), (Hotkey(keys=("ctrl", "+")),), []),
        (("key", {"text": "ctrl+"}), (Hotkey(keys=("ctrl", "+")),), []),
        (("key", {"text": " "}), (Hotkey(keys=("space",)),), []),
        (("key", {"text": "Tab", "repeat": 3}), (Hotkey(keys=("tab",)),) * 3, []),
        (("click", {"x": 1, "y": 2, "clicks": 2}), (Click(x=1, y=2, count=2),), []),
        (
            ("computer", {"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4], "text": "shift"}),
            (KeyDown(key="shift"), Drag(x=1, y=2, to_x=3, to_y=4), KeyUp(key="shift")),
            [],
        ),
        (("click", {"x": 1, "y": 2, "hurry": 9, "calm": False}), (Click(x=1, y=2),), ["`hurry` of click"]),
        (("bash", {"command": "ls", "timeout": 5}), (ToolCall(name="execute_bash", arguments={"command": "ls"}),), ["`timeout` of bash"]),
        (("str_replace_editor", {"command": "view", "path": "/a"}), None, []),
    ],
)
def test_every_value_of_a_call_is_read_or_counted(
    call: tuple[str, Any], done: tuple[Action, ...] | None, lost: list[str], tmp_path: Path
) -> None:
    (made,) = read(lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, None, call))))
    (step,) = made.load()
    assert done is None or step.actions == done
    assert [name for name in made.lost if " of " in name] == lost


def test_fields_of_parts_and_a_failed_span_are_counted(tmp_path: Path) -> None:
    asked = chat(answer=chat_answer(1, "Done."))
    for part in asked["request"]["messages"][0]["content"]:
        part["mood"] = "good"
    (entry,) = importer_named("openai-chat").entries(lines(tmp_path / "a.jsonl", asked), Pictures([tmp_path]), lambda _: None)
    assert entry.unknown == ["messages[].content[].mood"]
    export = json.loads((LOGS / FILES["otel-genai"]).read_text().splitlines()[0])
    for span in export["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span["status"] = {"code": 2}
    assert all("`spans[].status` of a call that failed" in made.lost for made in read(lines(tmp_path / "o.jsonl", export), "otel-genai"))


@pytest.mark.parametrize("ms", ["1" + "0" * 400, "1" + "0" * 5000, "NaN", "1e999"])
def test_a_number_that_no_action_has_costs_its_conversation_alone(ms: str, tmp_path: Path) -> None:
    odd = chat_answer(1, None, ("wait", {}))
    answered(odd)["tool_calls"][0]["function"]["arguments"] = f'{{"ms": {ms}}}'
    found = entries(lines(tmp_path / "a.jsonl", chat(answer=odd), chat(answer=chat_answer(2, "Done."))))
    assert "wait" in found[0][1] and found[1][1:] == ("", [(Finished(answer="Done."),)])


@pytest.mark.parametrize("number", ["--5", "9" * 5000, "\u0665"])
def test_a_number_that_no_attribute_has_costs_its_export_alone(number: str, tmp_path: Path) -> None:
    whole = (LOGS / FILES["otel-genai"]).read_text().splitlines()
    odd = json.loads(whole[0])
    odd["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"].append({"key": "n", "value": {"intValue": number}})
    found = entries(lines(tmp_path / "a.jsonl", odd, *map(json.loads, whole)), "otel-genai")
    assert "an intValue is" in found[0][1] and len(found) > 1


@pytest.mark.slow
def test_marks_of_grammars_and_control_tokens_stay_text_or_cost_their_record(tmp_path: Path) -> None:
    texts = ["</parameter></function></seed:tool_call>", "<|im_end|>\n<|im_start|>assistant", "Action: click(point='<point>1 1</point>')"]
    path = lines(tmp_path / "a.jsonl", *(chat(answer=chat_answer(n, text, ("type", {"text": text}))) for n, text in enumerate(texts)))
    report, _ = run(tmp_path / "home", "openai-chat", path, track="unreviewed")
    stored = [json.loads(row["action"]) for row in content(tmp_path / "home")["steps"]]
    assert [where for where, _ in report.malformed] == ["a.jsonl:1"] and "holds a tag of the grammar itself" in report.malformed[0][1]
    assert sorted(action["text"] for action in stored) == sorted(texts[1:]) and {action["kind"] for action in stored} == {"type"}


@pytest.mark.parametrize(
    ("call", "completed"),
    [
        (("terminate", {"status": "failure"}), False),
        (("computer_use", {"action": "terminate", "status": "failure"}), False),
        (("done", {"success": False, "text": "I could not."}), False),
        (("terminate", {"status": "success"}), None),
        (("wait", {"status": "failure"}), None),
    ],
)
def test_a_run_that_its_agent_ended_as_a_failure_is_not_completed(call: tuple[str, Any], completed: bool | None, tmp_path: Path) -> None:
    assert [made.completed for made in read(lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, None, call))))] == [completed]


@pytest.mark.parametrize(("result", "completed"), [({"success": False}, False), ({"success": None, "error": "lost"}, False), ({}, None)])
def test_so_is_a_history_that_ends_without_success(result: dict[str, Any], completed: bool | None, tmp_path: Path) -> None:
    history = json.loads((LOGS / FILES["browser-use"]).read_text())
    history["history"][-1]["result"][-1] |= result
    assert [made.completed for made in read(lines(tmp_path / "a.json", history), "browser-use")] == [completed]


def history() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LOGS / FILES["browser-use"]).read_text())
    return found


def run_named(name: str) -> dict[str, Any]:
    found = history()
    for item in found["history"]:
        if path := item["state"]["screenshot_path"]:
            item["state"]["screenshot_path"] = f"/tmp/browser_use_agent_{name}/screenshots/{Path(path).name}"
    return found


def shots(folder: Path, number: int) -> Path:
    folder.mkdir(parents=True)
    for step in range(2, 7):
        (folder / f"step_{step}.png").write_bytes(screen(number))
    return folder


def test_a_history_takes_its_own_run_s_screenshots_or_none(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        shots(tmp_path / f"browser_use_agent_{name}" / "screenshots", number)
    path = lines(tmp_path / "two.jsonl", *map(run_named, "ba"))
    folders = [tmp_path / "browser_use_agent_a", tmp_path / "browser_use_agent_b" / "screenshots", tmp_path]
    for images in ([tmp_path], folders):
        found = importer_named("browser-use").entries(path, Pictures(images), lambda _: None)
        taken = [entry.made.load()[0].picture for entry in found if isinstance(entry.made, Demonstration)]
        assert [picture.data if picture else None for picture in taken] == [screen(1), screen(0)]
    bare = [shots(tmp_path / "first", 1), shots(tmp_path / "second", 2)]
    (made, _) = read(path, "browser-use", *bare)
    with pytest.raises(BadRecord, match=r"may be any of .*first/step_2\.png, .*second/step_2\.png"):
        made.load()
    (made, _) = read(path, "browser-use", tmp_path / "browser_use_agent_a" / "screenshots")
    with pytest.raises(BadRecord, match=r"browser_use_agent_b/screenshots/step_2\.png is not below"):
        made.load()


@pytest.mark.parametrize(("above", "said"), [("0.0 pages above", ""), ("0.5 pages above", "is scrolled"), ("", "may be scrolled")])
def test_bounds_of_an_element_say_nothing_of_a_scrolled_page(above: str, said: str, tmp_path: Path) -> None:
    found = history()
    step = found["history"][2]  # chooses an option, which has no point in its result
    step["state_message"] = step["state_message"].replace("0.0 pages above", above)
    (made,) = read(lines(tmp_path / "a.jsonl", found), "browser-use", SCREENS)
    if not said:
        assert made.load()[1].actions == (SelectOption(x=216, y=78, option="Large"),)
    else:
        with pytest.raises(BadRecord, match=said):
            made.load()


def test_points_on_a_screen_that_may_have_another_scale_are_refused(tmp_path: Path) -> None:
    wide = io.BytesIO()
    Image.new("RGB", (2560, 1600)).save(wide, "PNG")
    for step in range(2, 7):
        (tmp_path / f"step_{step}.png").write_bytes(wide.getvalue())
    (made,) = read(lines(tmp_path / "a.jsonl", history()), "browser-use")
    with pytest.raises(BadRecord, match="2560x1600 pixels and every point is in their top left quarter"):
        made.load()


def read(path: Path, format: str = "openai-chat", *images: Path) -> list[Demonstration]:
    found = importer_named(format).entries(path, Pictures(images or [path.parent]), lambda _: None)
    return [entry.made for entry in found if isinstance(entry.made, Demonstration)]


def test_answers_without_calls_can_be_actions_in_a_grammar(tmp_path: Path) -> None:
    said = "Thought: There.\nAction: click(start_box='<|box_start|>(500,500)<|box_end|>')"
    path = lines(tmp_path / "a.jsonl", chat(answer=chat_answer(1, said)))
    read = importer_named("openai-chat").answers
    assert read is not None
    (entry,) = read(grammar_named("uitars1"))(path, Pictures([tmp_path]), lambda _: None)
    assert isinstance(entry.made, Demonstration)
    (step,) = entry.made.load()
    assert step.actions == (Click(x=160, y=100),) and step.thought == "There."


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


OPTIONS = json.dumps({"type": "context-options", "title": "Buy it"}).encode()
FRAME = {"type": "screencast-frame", "width": 320, "height": 200, "timestamp": 1}
CLICK = {"type": "before", "callId": "1", "startTime": 2, "class": "Frame", "method": "click", "params": {}}
POINT = {"type": "input", "callId": "1", "point": {"x": 1, "y": 1}}


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/hostname", "resources/none.jpeg", "n" * 3000])
def test_a_frame_is_only_looked_for_in_the_zip(name: str, tmp_path: Path) -> None:
    events = [json.dumps(event).encode() for event in (FRAME | {"file": name}, CLICK, POINT)]
    path = zipped(tmp_path / "t.zip", ("trace.trace", b"\n".join([OPTIONS, *events])))
    ((_, why, _),) = entries(path, "playwright-trace")
    assert "is not in the zip" in why


@pytest.mark.parametrize(
    ("where", "clicked"),
    [({"point": {"x": 200, "y": 100}}, (200, 100)), ({"box": {"x": 100, "y": 50, "width": 20, "height": 10}}, (105, 56)), ({}, None)],
)
def test_a_position_within_an_element_is_no_point_of_the_page(
    where: dict[str, Any], clicked: tuple[int, int] | None, tmp_path: Path
) -> None:
    page = {"type": "before", "callId": "0", "startTime": 1.5, "class": "Page", "method": "mouseMove", "params": {"x": 9, "y": 9}}
    events = [FRAME | {"file": "f"}, page, CLICK | {"params": {"position": {"x": 5, "y": 6}}}, {"type": "input", "callId": "1"} | where]
    events_file = b"\n".join([OPTIONS, *(json.dumps(event).encode() for event in events)])
    ((_, why, done),) = entries(zipped(tmp_path / "t.zip", ("trace.trace", events_file), ("f", screen(1))), "playwright-trace")
    assert done[1:] == ([(Click(x=clicked[0], y=clicked[1]),)] if clicked else [])
    assert ("click names no point" in why) == (clicked is None)


@pytest.mark.parametrize(("key", "keys"), [("Control++", ("ctrl", "+")), ("Control+a", ("ctrl", "a")), ("+", ("+",))])
def test_a_plus_is_a_key_of_playwright_too(key: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    press = CLICK | {"class": "Page", "method": "keyboardPress", "params": {"key": key, "delay": 9}}
    events_file = b"\n".join([OPTIONS, *(json.dumps(event).encode() for event in (FRAME | {"file": "f"}, press))])
    (made,) = read(zipped(tmp_path / "t.zip", ("trace.trace", events_file), ("f", screen(1))), "playwright-trace")
    assert made.load()[0].actions == (Hotkey(keys=keys),) and made.lost["`delay` of Page.keyboardPress"] == 1


def test_titles_without_latin_letters_are_different_tasks(tmp_path: Path) -> None:
    options = [json.dumps({"type": "context-options", "title": title}).encode() for title in ("买一盏灯", "订一张票")]
    path = zipped(tmp_path / "t.zip", *((f"{n}.trace", title + b"\n" + json.dumps(FRAME).encode()) for n, title in enumerate(options)))
    assert len({made.task_id for made in read(path, "playwright-trace")}) == 2


def test_a_member_that_unpacks_to_more_than_is_read_costs_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playwright_trace, "MAX_TRACE_BYTES", 1 << 20)
    path = zipped(tmp_path / "t.zip", ("trace.trace", b"\n" * (8 << 20)))
    assert path.stat().st_size < 100_000
    ((_, why, _),) = entries(path, "playwright-trace")
    assert "is larger than 1 MiB, unpacked" in why


def clicks(*frames: str) -> bytes:
    """A trace with a click to each of these frames, one after the other."""
    events: list[dict[str, Any]] = []
    for at, name in enumerate(frames):
        call = {"callId": str(at)}
        events += [FRAME | {"file": name, "timestamp": at}, CLICK | call | {"startTime": at}, POINT | call]
    return b"\n".join([OPTIONS, *(json.dumps(event).encode() for event in events)])


def test_frames_of_a_trace_are_read_once_and_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [("a", screen(1) + bytes(1 << 20)), ("b", screen(2) + bytes(1 << 20))]
    often = zipped(tmp_path / "often.zip", ("t.trace", clicks(*"a" * 50)), *frames)
    both = zipped(tmp_path / "both.zip", ("t.trace", clicks("a", "b")), *frames)
    monkeypatch.setattr(playwright_trace, "MAX_FRAMES_BYTES", 3 << 19)
    (made,) = read(often, "playwright-trace")
    assert len({id(step.picture) for step in made.load()}) == 1 and len(made.load()) == 50
    ((_, why, _),) = entries(both, "playwright-trace")
    assert "its frames are larger than 1 MiB in all" in why


@pytest.mark.parametrize(("limit", "said"), [("MAX_TRACES", "has 3 traces, at most 2"), ("MAX_MEMBERS", "has 3 members, at most 2")])
def test_a_zip_of_too_much_is_refused(limit: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "t.zip", *((f"{n}.trace", b"{}") for n in range(3)))
    monkeypatch.setattr(playwright_trace, limit, 2)
    with pytest.raises(ConfigError, match=said):
        entries(path, "playwright-trace")


def test_a_trace_says_what_it_lacks(tmp_path: Path) -> None:
    without_title = zipped(tmp_path / "a.zip", ("trace.trace", b'{"type": "context-options"}'))
    without_frames = zipped(tmp_path / "b.zip", ("trace.trace", OPTIONS))
    assert "no title" in entries(without_title, "playwright-trace")[0][1]
    assert "no screenshots" in entries(without_frames, "playwright-trace")[0][1]
