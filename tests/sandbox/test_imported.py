"""Foreign task records onto our schema: what maps, the messages about what does not, and the sets that they are kept in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sandbox.actions import Click
from sandbox.desktop.apps import APPS
from sandbox.tasks.imported import metrics
from sandbox.tasks.imported.android_world import HOLDS_AT_THE_START
from sandbox.tasks.imported.collecting import Collected, collect
from sandbox.tasks.imported.machine import DESKTOP_HOME
from sandbox.tasks.imported.mapping import Files
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.source import filled, find, instance_spec, load_tasks
from sandbox.tasks.imported.spec import Compare, DeviceSays, Getter, SetupStep, TaskSpec
from sandbox.tasks.imported.store import read_records, read_set, set_names, write_set
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import kind_of, tasks_in, tasks_of
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.home import Home


def osworld(task_id: str = "11-ab", **more: Any) -> dict[str, Any]:
    record = {
        "id": task_id,
        "snapshot": "os",
        "instruction": "Copy a.txt to b.txt on the desktop.",
        "source": "ours",
        "trajectory": "trajectories/",
        "related_apps": ["os"],
        "proxy": False,
        "config": [{"type": "execute", "parameters": {"command": f"echo hi > {DESKTOP_HOME}/a.txt", "shell": True}}],
        "evaluator": {
            "func": "check_include_exclude",
            "result": {"type": "vm_command_line", "command": ["cat", f"{DESKTOP_HOME}/b.txt"]},
            "expected": {"type": "rule", "rules": {"include": ["hi"], "exclude": []}},
        },
    }
    return record | more


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def collected(tmp_path: Path, format: str, *records: Any, **more: Any) -> Collected:
    return collect(format, [write(tmp_path / "tasks.jsonl", *records)], **more)


def test_an_osworld_example_becomes_a_desktop_task(tmp_path: Path) -> None:
    config = [
        {"type": "execute", "parameters": {"command": ["python", "-c", "print(1)"]}},
        {"type": "launch", "parameters": {"command": ["gedit", "--new-window", f"{DESKTOP_HOME}/a.txt"]}},
        {
            "type": "execute",
            "parameters": {"command": ["python", "-c", "import pyautogui; import time; pyautogui.hotkey('ctrl', 's'); time.sleep(0.5);"]},
        },
        {"type": "sleep", "parameters": {"seconds": 1}},
        {"type": "activate_window", "parameters": {"window_name": "a.txt", "strict": True}},
    ]
    found = collected(tmp_path, "osworld", osworld(config=config, mood="fine"))
    (task,) = found.tasks
    assert task.is_runnable and task.spec.kind == "desktop" and task.unknown_fields == ("mood",)
    assert found.unknown_fields == {"mood": 1} and any("--new-window" in note for note in task.notes)
    run, launch, save, pause, sleep, window = task.spec.setup
    assert run.command == ("python3", "-c", "print(1)") and launch.launch == "editor" and launch.files == ("a.txt",)
    assert [action.kind for action in save.act] == ["hotkey"] and pause.wait == 0.5 and sleep.wait == 1 and window.window == "a.txt"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {
                "config": [
                    {"type": "download", "parameters": {"files": [{"url": "https://x.org/a.xlsx", "path": f"{DESKTOP_HOME}/a.xlsx"}]}}
                ]
            },
            "needs a file from the network",
        ),
        ({"config": [{"type": "launch", "parameters": {"command": ["google-chrome", "--x"]}}]}, "starts google-chrome"),
        ({"config": [{"type": "launch", "parameters": {"command": ["libreoffice", "--impress"]}}]}, "starts LibreOffice Impress"),
        ({"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": []}}]}, "no such setup step here: chrome_open_tabs"),
        ({"config": [{"type": "execute", "parameters": {"command": "sudo apt install x", "shell": True}}]}, "rights of root"),
        ({"config": [{"type": "execute", "parameters": {"command": "cd /tmp && no-such-program -v", "shell": True}}]}, "needs the program"),
        (
            {"config": [{"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.click(960, 300)"]}}]},
            "clicks at points of OSWorld's screen",
        ),
        ({"config": [{"type": "execute", "parameters": {"command": "echo {CLIENT_PASSWORD} | cat", "shell": True}}]}, "rights of root"),
        ({"config": [{"type": "execute", "parameters": {"command": "timedatectl status", "shell": True}}]}, "needs systemd"),
        (
            {"config": [{"type": "execute", "parameters": {"command": ["gsettings", "set", "org.nobody.x", "y", "1"]}}]},
            "settings org.nobody.x",
        ),
        (
            {"evaluator": {"func": ["infeasible", "exact_match"], "result": [{}, {"type": "vm_command_line", "command": "ls"}]}},
            "meant to be impossible, and its evaluator looks at something beside",
        ),
        ({"instruction": "Fetch https://x.org/a and keep it."}, "asks for something of the network"),
        (
            {"evaluator": {"func": "exact_match", "result": {"type": "vm_command_line", "command": "which no-such-program"}}},
            "needs the program no-such-program",
        ),
        (
            {"evaluator": {"func": "compare_docx_files", "result": {"type": "vm_file", "path": "/x"}}},
            "no such evaluator here: compare_docx_files",
        ),
        ({"evaluator": {"func": "compare_table", "result": {"type": "vm_file", "path": "/x"}}}, "it would always hold"),
        (
            {"evaluator": {"func": "exact_match", "result": {"type": "enable_do_not_track"}, "expected": {"type": "rule", "rules": {}}}},
            "no way here to get a value of type enable_do_not_track",
        ),
        ({"evaluator": {}}, "no evaluator that is understood"),
    ],
)
def test_what_an_osworld_example_wants_in_vain_is_its_reason(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    (task,) = collected(tmp_path, "osworld", osworld(**change)).tasks
    assert any(reason in said for said in task.not_runnable), task.not_runnable


def test_an_infeasible_osworld_example_is_solved_by_giving_up(tmp_path: Path) -> None:
    (task,) = collected(tmp_path, "osworld", osworld(evaluator={"func": "infeasible"})).tasks
    assert task.is_runnable and [goal.kind for goal in task.spec.goals] == ["gives_up"]


def test_a_click_in_the_middle_of_the_screen_is_one_in_the_middle_of_ours(tmp_path: Path) -> None:
    script = "import pyautogui; pyautogui.click({SCREEN_WIDTH_HALF}, {SCREEN_HEIGHT_HALF})"
    config = [{"type": "execute", "parameters": {"command": ["python", "-c", script]}}]
    (task,) = collected(tmp_path, "osworld", osworld(config=config)).tasks
    assert task.is_runnable, task.not_runnable
    assert task.spec.setup[0].act == (Click(x=512, y=384),), "of a screen of 1024 x 768"


def test_words_of_a_shell_are_not_taken_for_programs(tmp_path: Path) -> None:
    script = 'VALUE=$(ps aux | grep "x"); A=1 B=2; history -c; id=$(git log | head -n 1); cat ~/a'
    config = [{"type": "execute", "parameters": {"command": script, "shell": True}}]
    (task,) = collected(tmp_path, "osworld", osworld(config=config)).tasks
    assert task.is_runnable, task.not_runnable


def test_the_bus_of_another_machine_is_left_out_of_a_command(tmp_path: Path) -> None:
    script = "export DBUS_SESSION_BUS_ADDRESS='unix:path=/run/user/1000/bus'\necho hi"
    config = [{"type": "execute", "parameters": {"command": script, "shell": True}}]
    (task,) = collected(tmp_path, "osworld", osworld(config=config)).tasks
    assert task.is_runnable and task.spec.setup[0].command == "\necho hi" and any("session bus" in note for note in task.notes)


def test_what_would_run_with_files_or_packages_is_counted_apart(tmp_path: Path) -> None:
    download = {"type": "download", "parameters": {"files": [{"url": "https://x.org/a", "path": f"{DESKTOP_HOME}/a"}]}}
    chrome = {"type": "launch", "parameters": {"command": ["google-chrome"]}}
    records = [
        osworld(name, instruction=name, config=config)
        for name, config in (("runs", []), ("files", [download]), ("never", [chrome]), ("neither", [download, chrome]))
    ]
    wanted = {"type": "cloud_file", "path": "https://x.org/a.xlsx", "dest": "a.xlsx"}
    evaluator = {"func": "compare_table", "result": {"type": "vm_file", "path": f"{DESKTOP_HOME}/a.xlsx"}, "expected": wanted}
    records.append(osworld("no rule", instruction="no rule", evaluator=evaluator | {"options": {"rules": [{"type": "pivot_table"}]}}))
    found = collected(tmp_path, "osworld", *records)
    assert (found.num_runnable, found.num_lacking("files"), found.num_lacking("files", "packages")) == (1, 1, 0)


def test_of_several_files_the_one_that_is_given_is_compared(tmp_path: Path) -> None:
    result: dict[str, Any] = {"type": "vm_file", "path": [f"{DESKTOP_HOME}/a", f"{DESKTOP_HOME}/b"], "dest": ["a", "b"], "multi": True}
    wanted = {"type": "rule", "rules": {"expect": ["x"]}}
    for gives, file in (
        ({}, f"{DESKTOP_HOME}/a"),
        ({"gives": [1]}, f"{DESKTOP_HOME}/b"),
        ({"gives": [0, 1]}, None),
        ({"gives": [2]}, None),
    ):
        evaluator = {"func": "check_list", "result": result | gives, "expected": wanted}
        (task,) = collected(tmp_path, "osworld", osworld(evaluator=evaluator)).tasks
        assert [goal.result.file for goal in task.spec.goals if isinstance(goal, Compare)] == ([file] if file else [])
        assert ("compares several files at once" in task.not_runnable) == (file is None)


def test_a_sheet_as_it_is_printed_is_its_csv_file(tmp_path: Path) -> None:
    (tmp_path / "gold.csv").write_bytes(b"gold")
    result = {
        "type": "vm_file",
        "path": [f"{DESKTOP_HOME}/x.xlsx", f"{DESKTOP_HOME}/x-One.csv"],
        "dest": ["x.xlsx", "x-One.csv"],
        "multi": True,
    }
    wanted = {"type": "cloud_file", "path": ["https://x.org/gold.xlsx", "https://x.org/gold.csv"], "dest": ["y.xlsx", "y-One.csv"]}
    rule = {"type": "sheet_print", "sheet_idx0": "RNOne", "sheet_idx1": "ENOne"}
    evaluator = {"func": "compare_table", "result": result, "expected": wanted | {"multi": True}, "options": {"rules": [rule]}}
    found = collected(tmp_path, "osworld", osworld(evaluator=evaluator))
    (task,) = found.tasks
    (goal,) = task.spec.goals
    assert task.is_runnable and isinstance(goal, Compare) and goal.expected is not None and goal.expected.asset is not None
    assert (goal.function, goal.result.file, found.assets[goal.expected.asset]) == ("sheet_print", f"{DESKTOP_HOME}/x-One.csv", b"gold")
    other = osworld(evaluator=evaluator | {"options": {"rules": [rule | {"sheet_idx0": "RNTwo"}]}})
    assert "compares several files at once" in collected(tmp_path, "osworld", other).tasks[0].not_runnable


def test_the_first_sheet_as_it_is_printed_is_the_only_csv_file_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "gold.csv").write_bytes(b"gold")
    result = {"type": "vm_file", "path": [f"{DESKTOP_HOME}/x.xlsx", f"{DESKTOP_HOME}/x-One.csv"], "dest": ["x.xlsx", "x-One.csv"]}
    wanted = {"type": "cloud_file", "path": ["https://x.org/gold.xlsx", "https://x.org/gold.csv"], "dest": ["y.xlsx", "y-One.csv"]}
    evaluator = {"func": "compare_table", "result": result | {"multi": True}, "expected": wanted | {"multi": True}}
    for first, is_understood in ((0, True), ("RI0", True), ("RI1", False), (1, False)):
        options = {"rules": [{"type": "sheet_print", "sheet_idx0": first, "sheet_idx1": "EI0"}]}
        (task,) = collected(tmp_path, "osworld", osworld(evaluator=evaluator | {"options": options})).tasks
        assert task.is_runnable == is_understood, task.not_runnable
        (goal,) = task.spec.goals
        assert isinstance(goal, Compare) and goal.result.file == f"{DESKTOP_HOME}/x{'-One.csv' if is_understood else '.xlsx'}"


def test_a_file_that_an_evaluator_brings_is_not_there_before_the_end(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"one")
    (tmp_path / "gold.txt").write_bytes(b"gold")

    def download(name: str) -> dict[str, Any]:
        return {"type": "download", "parameters": {"files": [{"url": f"https://x.org/{name}", "path": f"{DESKTOP_HOME}/{name}"}]}}

    evaluator = compared("exact_match", {"expected": "x"}) | {"postconfig": [download("one.txt"), download("gold.txt")]}
    (task,) = collected(tmp_path, "osworld", osworld(config=[download("one.txt")], evaluator=evaluator)).tasks
    assert task.is_runnable and set(task.spec.assets) == {"one.txt"}
    assert [set(step.put) for step in task.spec.before_checks] == [{"gold.txt"}]


def test_the_keys_that_start_a_terminal_start_ours(tmp_path: Path) -> None:
    script = "import pyautogui; import time; pyautogui.hotkey('ctrl', 'alt', 't'); time.sleep(0.5); pyautogui.hotkey('ctrl', 't')"
    config = [{"type": "execute", "parameters": {"command": ["python", "-c", script]}}]
    (task,) = collected(tmp_path, "osworld", osworld(config=config)).tasks
    started, pause, keys = task.spec.setup
    assert started.launch == "terminal" and pause.wait == 0.5 and [action.kind for action in keys.act] == ["hotkey"]


def test_calc_has_to_save_a_workbook_without_asking(tmp_path: Path) -> None:
    opened = {"type": "open", "parameters": {"path": f"{DESKTOP_HOME}/a.xlsx"}}
    calc, none = collected(
        tmp_path, "osworld", osworld("calc", instruction="calc", config=[opened]), osworld("none", instruction="none")
    ).tasks
    ((path, settings),) = calc.spec.files.items()
    assert path.endswith("registrymodifications.xcu") and "WarnAlienFormat" in settings and none.spec.files == {}
    assert [step.launch for step in calc.spec.setup] == ["calc"] and none.spec.setup[-1].launch == "terminal"


def test_a_workbook_is_not_opened_as_a_csv_file() -> None:
    calc = APPS["calc"]
    assert calc.command_for([PurePosixPath("a.CSV")])[:-1] == calc.command and "csv" in calc.command_for([PurePosixPath("a.CSV")])[-1]
    for files in ([], ["a.xlsx"], ["a.csv", "b.xlsx"]):
        assert calc.command_for([PurePosixPath(file) for file in files]) == calc.command


def test_fields_that_came_later_change_no_split() -> None:
    """Tasks are split by the hash of what they ask and check."""
    assert set(Getter(file="a").model_dump()) == {"command", "errors_of", "file", "asset", "value"}
    assert set(SetupStep(command="ls").model_dump()) == {"command", "must_succeed", "launch", "files", "wait", "act", "window", "change"}
    for part in (Getter(shown_by="terminal"), SetupStep(put={"a": "b"})):
        assert type(part).model_validate_json(part.model_dump_json()) == part


def compared(function: str, rules: Any, **more: Any) -> dict[str, Any]:
    result = {"type": "vm_command_line", "command": ["cat", f"{DESKTOP_HOME}/b.txt"]}
    return {"func": function, "result": result, "expected": {"type": "rule", "rules": rules}} | more


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        (compared("check_include_exclude", {"includes": ["hi"]}), "has no rule `includes`; there are include, exclude"),
        (compared("check_include_exclude", {"include": [], "exclude": []}), "it would always hold"),
        (compared("check_include_exclude", {"include": [""]}), "`include` has an empty text"),
        (compared("check_include_exclude", {"include": "hi"}), "`include` is str, expected a list"),
        (compared("file_contains", {"contains": ["hi"]}), "has no rule `contains`"),
        (compared("check_list", {"expect": ["("]}), "which is not a regular expression"),
        (compared("check_list", {"expects": ["a"]}), "has no rule `expects`"),
        (compared("check_csv", {"expect": [{}]}), "names no column"),
        (compared("check_csv", {"row": [{"a": "1"}]}), "has no rule `row`"),
        (compared("check_json", {"expect": [{"path": ["a"], "ref": 1}]}), "without `key` (a list) or `ref`"),
        (compared("check_json", {"expect": [{"key": ["a"], "method": "is", "ref": 1}]}), "has the method 'is'"),
        (compared("check_json", {"unexpect": [{"key": ["a"], "method": "re", "ref": "["}]}), "not a regular expression"),
        (compared("check_json_settings", {"settings": {"a": 1}}), "has no rule `settings`"),
        (compared("check_json_settings", {"expected": {}}), "it would always hold"),
        (compared("match_in_list", {"expected": []}), "it would always hold"),
        (compared("compare_text_file", {"expected": "x"}), "compares with a text or a file"),
        (compared("compare_csv", "a,b", options={"fuzzy": True}), "has no option `fuzzy`; there are strict, ignore_case"),
        (compared("exact_match", None), "says nothing in a rule"),
        (compared("check_direct_json_object", {"expected": {"a": ""}}), "wants nothing of 'a'"),
        (compared("check_direct_json_object", {"expected": {}, "expect_in_result": True}), "it would always hold"),
        (compared("compare_conference_city_in_order", {"expected": ["Rome", []]}), "not text"),
        (compared("compare_conference_city_in_order", {"expected": []}), "it would always hold"),
        (compared("compare_image_list", {"expected": ["x"]}), "compares with a text or a file"),
        (compared("check_pdf_pages", {"relation": "is", "ref_value": 1}), "`relation` is 'is'; there are eq"),
        (compared("exact_match", {}) | {"expected": None}, "has nothing to compare with"),
        (compared("exact_match", {"expected": "x"}) | {"result": {"type": "constant", "value": "x"}}, "nothing of the machine"),
        (compared("check_file_exists", None) | {"expected": None}, "not at what a command prints"),
        (compared("check_list", None) | {"expected": {"type": "vm_file", "path": "/x"}}, "not with a file or a command"),
    ],
)
def test_an_evaluator_that_could_not_fail_is_a_reason(tmp_path: Path, evaluator: dict[str, Any], reason: str) -> None:
    (task,) = collected(tmp_path, "osworld", osworld(evaluator=evaluator)).tasks
    assert any(reason in said for said in task.not_runnable), task.not_runnable


def test_files_that_lie_ready_are_taken_for_those_of_the_network(tmp_path: Path) -> None:
    url = "https://example.org/data/report.txt?download=true"
    config = [{"type": "download", "parameters": {"files": [{"url": url, "path": f"{DESKTOP_HOME}/Desktop/in.txt"}]}}]
    expected = {"type": "cloud_file", "path": "https://example.org/gold.txt", "dest": "gold.txt"}
    result = {"type": "vm_file", "path": f"{DESKTOP_HOME}/out.txt", "dest": "out.txt"}
    record = osworld(config=config, evaluator={"func": "compare_text_file", "result": result, "expected": expected})
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "report.txt").write_bytes(b"in")
    (tmp_path / "assets" / "gold.txt").write_bytes(b"gold")
    found = collected(tmp_path, "osworld", record, assets=[tmp_path / "assets"])
    (task,) = found.tasks
    assert task.is_runnable and set(task.spec.assets) == {"Desktop/in.txt"}
    assert found.assets[task.spec.assets["Desktop/in.txt"]] == b"in" and sorted(found.assets.values()) == [b"gold", b"in"]


def test_a_path_never_leads_out_of_the_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "assets").mkdir()
    for name in ("../secret", "https://x.org/..%2Fsecret", str(tmp_path / "secret")):
        assert Files(tmp_path / "assets").find(name) is None


def test_templates_of_android_world_have_parameters_checks_and_known_ones(tmp_path: Path) -> None:
    found = collected(
        tmp_path,
        "android-world",
        {
            "task_name": "SystemWifiTurnOff",
            "task_template": "Turn wifi {on_or_off}.",
            "difficulty": "easy",
            "tags": [],
            "optimal_steps": "3",
        },
        {"task_name": "CameraTakePhoto", "task_template": "Take one photo.", "difficulty": "easy", "tags": [""], "optimal_steps": "2"},
        {
            "name": "Timeout",
            "template": "Set the timeout to {label}.",
            "params": {"label": ["a", "b"], "value": ["1", "2"]},
            "app": "settings",
            "criteria": [{"command": "adb shell settings get system x", "equals": "{value}"}],
            "weather": "grey",
        },
    )
    wifi, photo, timeout = found.tasks
    assert wifi.is_runnable and filled(wifi.spec, 0, "x").instruction == "Turn wifi off." and wifi.spec.device_setup == ("svc wifi enable",)
    assert photo.not_runnable == ("its record says no check: AndroidWorld's are Python",)
    assert len(timeout.spec.params) == 4 and timeout.spec.packages == ("com.android.settings",) and timeout.unknown_fields == ("weather",)
    seen = {filled(timeout.spec, seed, "x").instruction for seed in range(20)}
    assert seen == {"Set the timeout to a.", "Set the timeout to b."}
    assert filled(timeout.spec, 3, "x") == filled(timeout.spec, 3, "x")


def test_parameters_that_a_check_of_android_world_needs_are_there(tmp_path: Path) -> None:
    names = ["OpenAppTaskEval", "ContactsAddContact", "FilesMoveFile", "SystemWifiTurnOnVerify"]
    found = collected(tmp_path, "android-world", *({"task_name": name, "task_template": f"{name} {{name}}"} for name in names))
    assert not any(task.not_runnable for task in found.tasks) and found.tasks[3].notes == (HOLDS_AT_THE_START,)
    for task in found.tasks:
        for seed in range(20):
            spec = filled(task.spec, seed, "x")
            assert "{" not in "".join((*spec.device_setup, *(f"{goal.command}{goal.expected}" for goal in spec.goals))).replace("${", "")
    row = {"name": "Ann-Marie Lee", "number": "+1 (555) 010"}
    (task,) = collected(tmp_path, "android-world", {"name": "ContactsAddContact", "template": "{name}", "params": [row]}).tasks
    assert filled(task.spec, 0, "x").goals[0].expected == "display_name=AnnMarieLee,data1=1555010."
    for bad in (
        {"name": "OpenAppTaskEval", "template": "x", "params": [{"app_name": "mail"}]},
        {"name": "ContactsAddContact", "template": "x", "params": [{"name": "Ann"}]},
    ):
        assert len(collected(tmp_path, "android-world", bad).malformed) == 1


@pytest.mark.parametrize(
    ("check", "expected", "is_part"),
    [
        ({"contains": "Bob"}, ["Bob"], True),
        ({"contains": ["Bob", "Ann"]}, ["Bob", "Ann"], True),
        ({"contains": True, "expected": "Bob"}, ["Bob"], True),
        ({"expected": 0}, ["0"], False),
        ({"equals": ""}, [""], False),
    ],
)
def test_what_a_device_is_to_say(tmp_path: Path, check: dict[str, Any], expected: list[str], is_part: bool) -> None:
    record = {"name": "x", "template": "Do it.", "checks": [{"command": "adb shell contacts", **check}]}
    (task,) = collected(tmp_path, "android-world", record).tasks
    assert task.is_runnable, task.not_runnable
    assert task.spec.goals == tuple(DeviceSays(kind="device", command="contacts", expected=each, is_part=is_part) for each in expected)


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ({}, "does not say what its command is to print"),
        ({"contains": []}, "does not say what its command is to print"),
        ({"contains": ""}, "looks for an empty text"),
        ({"contains": True}, "does not say what its command is to print"),
        ({"contains": "a", "expected": "b"}, "says both"),
        ({"expected": ["a"]}, "more than a text"),
    ],
)
def test_a_check_of_a_device_that_could_not_fail_is_a_reason(tmp_path: Path, check: dict[str, Any], reason: str) -> None:
    record = {"name": "x", "template": "Do it.", "checks": [{"command": "contacts", **check}]}
    (task,) = collected(tmp_path, "android-world", record).tasks
    assert any(reason in said for said in task.not_runnable), task.not_runnable


def test_tasks_on_live_sites_are_kept_for_judges_and_do_not_run(tmp_path: Path) -> None:
    found = collected(
        tmp_path,
        "mind2web",
        {
            "task_id": "a1",
            "confirmed_task": "Find a red bike.",
            "website": "https://bikes.example/",
            "reference_length": 4,
            "level": "hard",
        },
        {
            "annotation_id": "b2",
            "confirmed_task": "Rent a van.",
            "website": "vans",
            "domain": "Travel",
            "actions": [],
            "action_reprs": ["x", "y"],
        },
        {"confirmed_task": ""},
    )
    bike, van = found.tasks
    assert bike.spec.website == "https://bikes.example/" and bike.spec.max_steps == 12 and bike.spec.difficulty == 0.8
    assert van.spec.reference_length == 2 and not bike.is_runnable and "judge" in " ".join(van.not_runnable)
    assert [where for where, _ in found.malformed] == ["tasks.jsonl:3"]


def test_a_miniwob_list_gives_tasks_of_the_installed_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    (tmp_path / "list.txt").write_text("# ours\nclick-button\nminiwob/click-link-v1\nno-such-page\n")
    found = collect("miniwob", [tmp_path / "list.txt"])
    assert [task.is_runnable for task in found.tasks] == [True, True, False]
    write_set(Home.from_env(), "pages", found.tasks, found.records, found.assets, {})
    tasks = tasks_of("imported:pages")
    assert [(task.source, task.name) for task in tasks] == [("miniwob", "click-button"), ("miniwob", "click-link")]
    assert tasks[0] == SOURCES["miniwob"].load_tasks()["click-button"]


PLAIN = {"name": "copy", "kind": "terminal", "instruction": "Copy a to b.", "goals": [{"kind": "file_holds", "path": "b", "text": "x"}]}


def test_a_task_file_with_a_mistake_names_line_and_field(tmp_path: Path) -> None:
    found = collected(tmp_path, "plain", PLAIN, PLAIN | {"name": "two", "instrution": "x", "goals": [{"kind": "file_is", "path": "b"}]})
    ((where, why),) = found.malformed
    assert where == "tasks.jsonl:2" and "`instrution` is not a field of a task; did you mean `instruction`?" in why and "goals.0" in why
    assert len(found.tasks) == 1 and len(found.records) == 2, "the record is kept all the same"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"goals": []}, "no goals"),
        ({"setup": [{"launch": "editor"}]}, "by commands alone"),
        ({"goals": [{"kind": "device", "command": "x", "expected": "y"}]}, "no device"),
        ({"files": {"/etc/passwd": "x"}}, "outside of the home folder"),
        ({"files": {"../x": "x"}}, "outside of the home folder"),
        ({"kind": "desktop", "goals": [{"kind": "answers", "text": "x"}]}, "no answer that is checked"),
        (
            {"goals": [{"kind": "compare", "function": "magic", "result": {"file": "x"}}]},
            "magic is not a comparison; there are exact_match",
        ),
        ({"goals": [{"kind": "not", "goal": {"kind": "file_contains", "path": "b", "texts": ["a", ""]}}]}, "an empty text"),
        ({"goals": [{"kind": "answers", "text": " . "}]}, "an answer without a letter or a digit"),
        (
            {"goals": [{"kind": "file_contains", "path": "b", "texts": ["{word}"]}], "params": [{"word": "x"}, {"word": ""}]},
            "an empty text, which every file has",
        ),
        (
            {"goals": [{"kind": "compare", "function": "exact_match", "result": {"shown_by": "terminal"}, "expected": {"value": "x"}}]},
            "no window of a terminal",
        ),
        ({"kind": "desktop", "setup": [{"put": {"/etc/x": "y"}}]}, "outside of the home folder"),
        ({"kind": "page", "page": "miniwob/nonesuch"}, "not a task of an installed source"),
        ({"kind": "web", "website": "x.org"}, "live site"),
    ],
)
def test_a_well_formed_task_that_cannot_run_says_why(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    (task,) = collected(tmp_path, "plain", PLAIN | change).tasks
    assert any(reason in said for said in task.not_runnable), task.not_runnable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    return Home.from_env()


def store(home: Home, found: Collected, name: str = "mine") -> str:
    return write_set(home, name, found.tasks, found.records, found.assets, {"format": "plain"}).set_id


def test_a_set_is_the_same_however_often_it_is_imported(home: Home, tmp_path: Path) -> None:
    found = collected(tmp_path, "plain", PLAIN, PLAIN | {"name": "again"}, PLAIN | {"name": "other", "instruction": "Another."})
    assert found.num_duplicates == 1, "one asks and checks what the first does"
    first = store(home, found)
    before = {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}
    assert store(home, collect("plain", [tmp_path / "tasks.jsonl"])) == first
    assert {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()} == before
    task_set = read_set("mine")
    assert set_names() == ["mine"] and set(task_set.tasks) == {"copy", "other"}
    records = read_records(task_set)
    assert [record.data["name"] for record in records.values()] == ["copy", "again", "other"]
    assert records[task_set.tasks["copy"].record].data == PLAIN


def test_a_changed_task_is_another_one_and_the_old_one_says_so(home: Home, tmp_path: Path) -> None:
    store(home, collected(tmp_path, "plain", PLAIN))
    (old,) = tasks_of("imported:mine")
    assert kind_of(old) == "terminal" and old.name == "mine:copy" and instance_spec(old, 0)[1].instruction == "Copy a to b."
    store(home, collected(tmp_path, "plain", PLAIN | {"instruction": "Copy it."}))
    (new,) = tasks_of("imported:mine")
    assert new.task_id != old.task_id
    with pytest.raises(TaskError, match="another task now"):
        find(old)
    shutil.rmtree(home.root)
    with pytest.raises(TaskError, match="no task set 'mine'"):
        kind_of(new)
    with pytest.raises(ConfigError, match="there are: none"):
        tasks_in(["imported:mine"])
    assert load_tasks() == {}


def test_a_set_of_which_nothing_runs_says_why(home: Home, tmp_path: Path) -> None:
    store(home, collected(tmp_path, "mind2web", {"confirmed_task": "Rent a van.", "website": "vans"}))
    with pytest.raises(ConfigError, match=r"none of the 1 tasks .* wants a live site"):
        tasks_of("imported:mine")


def test_a_whole_task_falls_into_one_split(home: Home, tmp_path: Path) -> None:
    tasks = [PLAIN | {"name": f"t{number}", "instruction": f"Do {number}."} for number in range(200)]
    store(home, collected(tmp_path, "plain", *tasks))
    splits = {task: {task.split(seed) for seed in range(5)} for task in tasks_of("imported:mine")}
    assert all(len(each) == 1 for each in splits.values())
    counts = {split: sum(each == {split} for each in splits.values()) for split in Split}
    assert 140 <= counts[Split.TRAIN] <= 180 and counts[Split.EVAL] >= 8 and counts[Split.HOLDOUT] >= 8
    for task, (split,) in splits.items():
        assert [len(task.seeds(each, 3)) for each in Split] == [3 * (each is split) for each in Split]
        assert task.held_out == (split is not Split.TRAIN)
    store(home, collected(tmp_path, "plain", *tasks, held_out=True), "bench")
    assert all(task.split(0) is not Split.TRAIN for task in tasks_of("imported:bench"))


def held_out(selection: str) -> dict[str, bool]:
    return {task.name.partition(":")[2]: task.held_out and task.seeds(Split.TRAIN, 1) == [] for task in tasks_of(selection)}


@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_benchmark_holds_out_no_other_set_trains_on(home: Home, tmp_path: Path, is_first: bool) -> None:
    """Whichever is imported first; told by its words, whatever files, checks and format either has; rows of parameters one by one."""
    trained = [PLAIN | {"name": f"t{number}", "instruction": f"Sort list {number}."} for number in range(40)]
    trained += [PLAIN | {"name": "word", "instruction": "Say {word}.", "params": [{"word": "yes"}, {"word": "No"}]}]
    bench = [PLAIN | {"name": "a", "instruction": " sort list 3. ", "files": {"x": "y"}, "goals": [{"kind": "file", "path": "x"}]}]
    bench += [{"name": "b", "kind": "desktop", "instruction": "Say no.", "goals": [{"kind": "file", "path": "x"}]}]

    def write_bench() -> None:
        write_set(home, "bench", collected(tmp_path, "plain", *bench, held_out=True).tasks, [], {}, {"held_out": True})

    def write_ours() -> None:
        store(home, collected(tmp_path, "plain", *trained), "ours")

    write_bench() if is_first else write_ours()
    before = None if is_first else held_out("imported:ours")
    write_ours() if is_first else write_bench()
    reported = held_out("imported:ours")
    shutil.rmtree(home.root / "task_sets" / "bench")
    alone = held_out("imported:ours")
    assert before in (None, alone) and not alone["t3"] and 0 < sum(alone.values()) < 20
    assert reported == alone | {"t3": True, "word": True}, "what asks something else is as it was"


def test_a_set_that_holds_out_a_part_tells_tasks_by_their_files_too(home: Home, tmp_path: Path) -> None:
    """Its instructions may all be the same; a copy with a solution, which has another content, is not trained on either."""
    tasks = [PLAIN | {"name": f"t{number}", "files": {"list": str(number)}} for number in range(60)]
    oracle = [{"command": "cp a b"}]
    store(home, collected(tmp_path, "plain", *tasks), "first")
    first = held_out("imported:first")
    assert 0 < sum(first.values()) < 30
    store(home, collected(tmp_path, "plain", *(task | {"oracle": oracle} for task in tasks)), "second")
    second = held_out("imported:second")
    assert all(second[name] for name in first if first[name])


def test_a_task_of_another_source_is_refused(home: Home) -> None:
    with pytest.raises(TaskError, match="not of the source"):
        find(Task(source="games", name="x:y", domain="d", max_steps=1))


def test_only_named_parameters_are_filled_in() -> None:
    spec = TaskSpec.model_validate(PLAIN | {"instruction": "Say {word} in {} {other}.", "params": [{"word": "yes"}]})
    assert filled(spec, 0, "x").instruction == "Say yes in {} {other}."


def test_a_goal_that_was_imported_before_it_was_looked_at_is_no_verdict(home: Home, tmp_path: Path) -> None:
    found = collected(tmp_path, "plain", PLAIN)
    goal = Compare(function="check_list", result=Getter(file="b"), expected=Getter(value={"expect": ["("]}))
    (old,) = found.tasks
    found.tasks = [old.model_copy(update={"spec": old.spec.model_copy(update={"goals": (goal,)})})]
    store(home, found)
    (task,) = tasks_of("imported:mine")
    with pytest.raises(TaskError, match=r"cannot be checked: check_list .* not a regular expression .* import it again"):
        instance_spec(task, 0)


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize(
    ("name", "value", "expected", "options", "passes"),
    [
        ("exact_match", "true\n", {"expected": "true\n"}, {}, True),
        ("exact_match", "true", {"expected": "true\n"}, {}, False),
        ("match_in_list", "b", {"expected": ["a", "b"]}, {}, True),
        ("literal_match", "YES", "yes", {"ignore_case": True}, True),
        ("literal_match", "YES", "yes", {}, False),
        ("check_include_exclude", "all ok", {"include": ["ok"], "exclude": ["error"]}, {}, True),
        ("check_include_exclude", "ok error", {"include": ["ok"], "exclude": ["error"]}, {}, False),
        ("file_contains", b"a b", {"expected": ["a", "b"]}, {}, True),
        ("compare_text_file", b"A\n b", b"a b", {"ignore_blanks": True, "ignore_case": True}, True),
        ("compare_text_file", b"A", b"a", {}, False),
        ("check_direct_json_object", "{'a': 1, 'b': [2]}\n", {"expected": {"a": 1, "b": [2]}}, {}, True),
        ("check_direct_json_object", '{"a": 1}', {"expected": {"a": 2}}, {}, False),
        ("check_direct_json_object", "[1]", {"expected": {"a": 2}}, {}, False),
        ("check_direct_json_object", '{"a": "Kili"}', {"expected": {"a": ["kili", "Kili"]}, "expect_in_result": True}, {}, True),
        ("check_direct_json_object", '{"a": "Kilo"}', {"expected": {"a": ["kili", "Kili"]}, "expect_in_result": True}, {}, False),
        ("check_direct_json_object", '{"a": ["x", "y"]}', {"expected": {"a": ["y"]}, "expect_in_result": True}, {}, True),
        ("check_direct_json_object", '{"a": "my word"}', {"expected": {"a": "word"}, "expect_in_result": True}, {}, True),
        ("check_direct_json_object", '{"b": "word"}', {"expected": {"a": "word"}, "expect_in_result": True}, {}, False),
        ("compare_result_files", b"The median is 12.5.\n", b"12.5\n", {}, True),
        ("compare_result_files", b"12.50001", b"12.5", {}, True),
        ("compare_result_files", b"12.6", b"12.5", {}, False),
        ("compare_result_files", b"the median", b"12.5", {}, False),
        ("compare_result_files", b" word\n", b"word", {}, True),
        ("compare_result_files", b"a word", b"word", {}, False),
        ("compare_image_list", b"JFIF", b"JFIF", {}, True),
        ("compare_image_list", b"JFIF", b"JFIf", {}, False),
        ("diff_text_file", b"a\nb\n", b"a\nb", {}, True),
        ("compare_csv", b"a,b\n1, 2\n", b"a,b\n1,2\n", {"strict": False}, True),
        ("compare_csv", b"a,b\n1, 2\n", b"a,b\n1,2\n", {}, False),
        ("check_csv", b"n,m\nx,1\ny,2\n", {"expect": [{"n": "x", "m": "1"}], "unexpect": [{"n": "z"}]}, {}, True),
        ("check_csv", b"n,m\nx,1\n", {"expect": [{"n": "x", "m": "2"}]}, {}, False),
        ("check_list", b"one\ntwo\n", {"expect": ["^o"], "unexpect": ["three"]}, {}, True),
        ("check_json", b'{"a": {"b": [1, 2]}}', {"expect": [{"key": ["a", "b", 1], "method": "ge", "ref": 2}]}, {}, True),
        ("check_json", b'{"a": 1}', {"unexpect": [{"key": ["a"], "method": "eq", "ref": 1}]}, {}, False),
        ("check_json", b"[", {"unexpect": [{"key": ["a"], "method": "eq", "ref": 1}]}, {}, False),
        ("check_json", b"[", {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]}, {}, False),
        ("check_json_settings", b'{"a": 1, "b": 2}', {"expected": {"a": 1}}, {}, True),
        ("sheet_print", b" 1.50,Ann\r\n2.00,Bo\n\n", b"1.50,Ann\n2.00,Bo", {}, True),
        ("sheet_print", b"1.50,Ann\n", b"1.5,Ann\n", {}, False),
        ("sheet_print", b"1.50,Ann\n", b"1.50,ann\n", {}, False),
        ("sheet_print", b"1.50,Ann\n", b"1.50,ann\n", {"ignore_case": True}, True),
        ("sheet_print", b"a\n\nb\n", b"a\nb\n", {}, False),
        ("check_image_file_size", b"x" * 99, {"max_size": 100}, {}, True),
        ("check_image_file_size", b"x" * 100, {"max_size": 100}, {}, False),
        ("check_moved_jpgs", "b.jpg\na.jpg\n", {"expected": ["a.jpg", "b.jpg"]}, {}, True),
        ("check_moved_jpgs", "a.jpg\n", {"expected": ["a.jpg", "b.jpg"]}, {}, False),
        ("check_line_number", b"12:00:01 x\n no\n13:59:59\n", {"expected": "2"}, {}, True),
    ],
)
def test_comparisons(name: str, value: Any, expected: Any, options: dict[str, Any], passes: bool) -> None:
    goal = Compare(function=name, result=Getter(file="x"), expected=Getter(value=text(expected)), options=options)
    assert list(faults(goal)) == []
    assert (metrics.METRICS[name](value, expected, options) is None) == passes
