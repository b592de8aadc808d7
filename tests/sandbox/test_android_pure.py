"""What needs no device: actions as `input` commands, UI Automator's trees as elements, task instances, the emulator console's errors."""

from __future__ import annotations

import asyncio
import shlex
import socket

import pytest

from sandbox import actions
from sandbox.actions import Action
from sandbox.android.emulator import console, console_port
from sandbox.android.gestures import commands, key_code
from sandbox.android.instance import Check, says_the_same
from sandbox.android.ui_tree import parse, rotation
from sandbox.browser.input import Refusal
from sandbox.tasks.android.oracles import ORACLES
from sandbox.tasks.android.source import load_tasks, make_instance, task_file
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, DeviceLost, SandboxError, TaskError

SIZE_PX = (1080, 2400)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (actions.Click(x=5, y=6), ["input tap 5 6"]),
        (actions.Click(x=5, y=6, count=2), ["input tap 5 6", "input tap 5 6"]),
        (actions.LongPress(x=5, y=6), ["input swipe 5 6 5 6 800"]),
        (actions.Drag(x=5, y=6, to_x=50, to_y=60), ["input swipe 5 6 50 60 800"]),
        (actions.Scroll(direction="down"), ["input swipe 540 1800 540 600 300"]),
        (actions.Scroll(direction="up", x=100, y=5), ["input swipe 100 240 100 1440 300"]),
        (actions.Scroll(direction="right"), ["input swipe 810 1200 270 1200 300"]),
        (actions.TypeText(text="a b"), ["input text a%sb"]),
        (actions.TypeText(text="it's $HOME; `id`"), ["input text " + shlex.quote("it's%s$HOME;%s`id`")]),
        (actions.TypeText(text="50%sure"), ["input text 50%", "input text sure"]),
        (actions.TypeText(text="a\tb\n"), ["input text a", "input keyevent KEYCODE_TAB", "input text b", "input keyevent KEYCODE_ENTER"]),
        (actions.TypeText(text=""), []),
        (actions.Hotkey(keys=("enter",)), ["input keyevent KEYCODE_ENTER"]),
        (actions.Hotkey(keys=("ctrl", "a")), ["input keycombination KEYCODE_CTRL_LEFT KEYCODE_A"]),
        (actions.Hotkey(keys=("recents",)), ["input keyevent KEYCODE_APP_SWITCH"]),
        (actions.PressHome(), ["input keyevent KEYCODE_HOME"]),
        (actions.PressBack(), ["input keyevent KEYCODE_BACK"]),
        (actions.NavigateBack(), ["input keyevent KEYCODE_BACK"]),
    ],
)
def test_actions_become_input_commands(action: Action, expected: list[str]) -> None:
    assert commands(action, SIZE_PX) == tuple(expected)


@pytest.mark.parametrize(
    ("action", "part"),
    [
        (actions.Click(x=1080, y=6), "outside the screen of 1080x2400"),
        (actions.Drag(x=5, y=6, to_x=5, to_y=-1), "outside the screen"),
        (actions.Click(x=5, y=6, button="right"), "no right button"),
        (actions.TypeText(text="Zoë"), "ASCII only, not 'ë'"),
        (actions.Hotkey(keys=("ctrl", "hyper")), "unknown key 'hyper'"),
        (actions.MoveTo(x=1, y=1), "move_to is not possible"),
        (actions.KeyDown(key="a"), "key_down is not possible"),
        (actions.Navigate(url="http://localhost"), "navigate is not possible"),
    ],
)
def test_what_a_finger_cannot_do_is_refused_with_the_reason(action: Action, part: str) -> None:
    refusal = commands(action, SIZE_PX)
    assert isinstance(refusal, Refusal) and part in refusal.reason


def test_keys_have_androids_names() -> None:
    assert [key_code(name) for name in ("backspace", "Del", "a", "Z", "7", "F5", "esc", "home", "plus", "volume_up", "nope", "é")] == [
        "DEL",
        "FORWARD_DEL",
        "A",
        "Z",
        "7",
        "F5",
        "ESCAPE",
        "MOVE_HOME",
        "PLUS",
        "VOLUME_UP",
        None,
        None,
    ]


def node(kind: str, bounds: str, inner: str = "", **attributes: str) -> str:
    listed = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<node class="android.widget.{kind}" bounds="{bounds}" package="com.example"{listed}>{inner}</node>'


def dump(*nodes: str) -> str:
    return f"<?xml version='1.0' ?><hierarchy rotation=\"0\">{''.join(nodes)}</hierarchy>\nUI hierchary dumped to: /dev/tty"


def test_a_row_is_one_element_with_its_words_and_its_switch() -> None:
    words = node("TextView", "[0,0][300,50]", text="Wi-Fi") + node("TextView", "[0,50][300,99]", text="On")
    knob = node("Switch", "[900,10][1000,90]", checkable="true", checked="true")
    tree = parse(dump(node("LinearLayout", "[0,0][1080,100]", words + knob, clickable="true")), SIZE_PX)
    (row,) = tree.elements
    assert (row.role, row.text, row.states, row.x_px, row.y_px) == ("checkbox", "Wi-Fi, On", ("checked",), 540, 50)
    assert (row.width_px, row.height_px, tree.package) == (1080, 100, "com.example")
    assert rotation(dump()) == 0 and rotation(dump().replace('"0"', '"1"')) == 1


def test_roles_states_and_names_of_single_widgets() -> None:
    box = "[0,0][10,10]"
    tree = parse(
        dump(
            node("Button", box, text="Save", clickable="true", enabled="false"),
            node("ImageButton", box, content_desc="More options", clickable="true"),
            node("ImageView", box, content_desc="Photo"),
            node("EditText", box, text="Ada", focused="true"),
            node("CheckBox", box, text="All", clickable="true", checkable="true", checked="false"),
            node("Spinner", box, node("TextView", box, text="Home"), clickable="true"),
            node("SeekBar", box, content_desc="Volume", clickable="true"),
            node("TextView", box, text="plain &amp; simple"),
            node("FrameLayout", box),
        ),
        SIZE_PX,
    )
    assert [(element.role, element.text, element.states) for element in tree.elements] == [
        ("button", "Save", ("disabled",)),
        ("button", "More options", ()),
        ("image", "Photo", ()),
        ("input", "Ada", ("focused",)),
        ("checkbox", "All", ()),
        ("select", "Home", ()),
        ("slider", "Volume", ()),
        ("text", "plain & simple", ()),
    ]


def test_what_can_be_touched_inside_of_a_row_is_an_element_of_its_own() -> None:
    inner = node("FrameLayout", "[0,0][99,99]", node("Button", "[80,0][99,99]", text="Call", clickable="true"))
    tree = parse(dump(node("LinearLayout", "[0,0][99,99]", node("TextView", "[0,0][9,9]", text="Ada") + inner, clickable="true")), SIZE_PX)
    assert [(element.role, element.text) for element in tree.elements] == [("item", "Ada"), ("button", "Call")]


def test_what_lies_off_the_screen_is_left_out_and_what_is_cut_is_hit_where_it_shows() -> None:
    tree = parse(
        dump(
            node("Button", "[0,2400][100,2500]", text="below", clickable="true"),
            node("Button", "[0,2300][100,2500]", text="cut", clickable="true"),
            node("Button", "[5,5][5,5]", text="empty", clickable="true"),
        ),
        SIZE_PX,
    )
    assert [(element.text, element.y_px, element.height_px) for element in tree.elements] == [("cut", 2350, 100)]


@pytest.mark.parametrize(
    "text", ["", "ERROR: could not get idle state.", "<hierarchy><node></hierarchy>", "<hierarchy><!ENTITY a 'b'></hierarchy>"]
)
def test_what_is_no_dump_is_an_error_of_the_infrastructure(text: str) -> None:
    with pytest.raises(SandboxError, match="UI Automator"):
        parse(text, SIZE_PX)


def test_the_same_seed_gives_the_same_instance_and_other_seeds_others() -> None:
    task = load_tasks()["delete-contact"]
    first, again = make_instance(task, 3), make_instance(task, 3)
    assert (first.instruction, first.setup, first.checks) == (again.instruction, again.setup, again.checks)
    assert len({make_instance(task, seed).instruction for seed in range(10)}) > 5


def test_every_entry_makes_instances_without_gaps() -> None:
    tasks = load_tasks()
    assert set(tasks) == set(task_file().tasks) and {task.domain for task in tasks.values()} == {"android"}
    assert set(load_tasks("settings")) | set(load_tasks("contacts")) == set(tasks)
    for task in tasks.values():
        instance = make_instance(task, 0)
        written = [instance.instruction, *instance.setup, *(check.expected for check in instance.checks), instance.answer or ""]
        assert not any("{" in text for text in written)
        assert instance.checks or instance.answer
    assert {entry.oracle for entry in task_file().tasks.values()} == set(ORACLES)


def test_unknown_groups_and_tasks_are_named() -> None:
    with pytest.raises(ConfigError, match="no task group 'games'"):
        load_tasks("games")
    with pytest.raises(TaskError, match="android/nope"):
        make_instance(Task(source="android", name="nope", domain="android", max_steps=1), 0)


def test_checks_and_answers() -> None:
    assert Check(command="", expected="1").holds("1\n") and not Check(command="", expected="1").holds("10")
    assert Check(command="", expected="b", is_part=True).holds("abc") and not Check(command="", expected="b", is_part=True).holds("a")
    assert Check(command="", expected="b", is_part=True, is_negated=True).holds("a")
    assert says_the_same("555 0123.", "555-0123") and not says_the_same("555-0124", "555-0123")


def test_only_emulators_have_a_console() -> None:
    assert console_port("emulator-5554") == 5554
    with pytest.raises(SandboxError, match="only emulators"):
        console_port("127.0.0.1:15561")


def test_a_console_that_is_not_there_is_a_lost_device(unused_port: int) -> None:
    with pytest.raises(DeviceLost, match=f"port {unused_port}"):
        asyncio.run(console(unused_port, "help", token=""))


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
