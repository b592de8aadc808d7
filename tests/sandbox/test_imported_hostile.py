"""Task files and comparisons that were written to do harm: a bad record is named by file and line, and the import goes on."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.importing.reading import raw_records
from sandbox.importing.reading import MAX_DEPTH, NotPlain, parse_json
from sandbox.tasks.imported import comparing
from sandbox.tasks.imported.collecting import TASK_FORMATS, collect
from sandbox.tasks.imported.comparing import compared
from sandbox.tasks.imported.machine import DESKTOP_HOME
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.spec import Compare, Getter
from sandbox.tasks.imported.store import write_set
from warehouse.core.home import Home

GOOD = {"name": "copy", "kind": "terminal", "instruction": "Copy a to b.", "goals": [{"kind": "file_holds", "path": "b", "text": "x"}]}
DEEP = "[" * 100_000
BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
MERGED = "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
BAD_LINES = {
    "deep": (DEEP, "nested deeper"),
    "closed and deep": ('{"name": ' + DEEP + "]" * 100_000 + "}", "nested deeper"),
    "not a number": ('{"name": "x", "difficulty": NaN}', "nan"),
    "infinite": ('{"name": "x", "difficulty": 1e999}', "inf"),
    "long number": ('{"name": "x", "max_steps": ' + "9" * 4000 + "}", "64 bits"),
    "longer number": ('{"name": "x", "max_steps": ' + "9" * 40_000 + "}", "not JSON"),
    "half a character": (r'{"name": "\ud800"}', "surrogate"),
    "not UTF-8": (b'{"name": "\xff"}', "UTF-8"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_and_the_import_goes_on(tmp_path: Path, case: str) -> None:
    line, why = BAD_LINES[case]
    good = [json.dumps(GOOD | {"name": name, "instruction": name}).encode() for name in ("first", "last")]
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\n".join([good[0], line if isinstance(line, bytes) else line.encode(), good[1]]))
    found = collect("plain", [path])
    assert [task.spec.name for task in found.tasks] == ["first", "last"]
    ((where, reported),) = found.malformed
    assert where == "tasks.jsonl:2" and why in reported and len(reported) < 300
    write_set(Home(root=tmp_path / "home"), "mine", found.tasks, found.records, found.assets, {})


@pytest.mark.parametrize("bomb", [f"a0: &a0 [x, x]\n{BOMB}", f"a0: &a0 {{x: 1}}\n{MERGED}"], ids=["aliases", "merges"])
def test_a_yaml_record_whose_aliases_multiply_is_refused_by_its_line(tmp_path: Path, bomb: str) -> None:
    record = "\n".join(f"    {line}" for line in bomb.rstrip().split("\n"))
    text = f"tasks:\n  - &good\n    {json.dumps(GOOD)}\n  -\n{record}\n  - {{<<: *good, name: last, instruction: Another.}}\n"
    (tmp_path / "tasks.yaml").write_text(text)
    found = collect("plain", [tmp_path / "tasks.yaml"])
    assert [task.spec.name for task in found.tasks] == ["copy", "last"], "an alias that does no harm is understood"
    ((where, reported),) = found.malformed
    assert where == "tasks.yaml:5" and "aliases counted" in reported


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("&a [*a]", "nested deeper"),
        (DEEP, "nested deeper"),
        ("difficulty: .nan", "nan"),
        ("name: 2001-01-01", "type date"),
        ("{1: x}", "key 1"),
        ("? [a, b]\n: x", "unhashable"),
        ("name: !!binary eA==", "type bytes"),
        ("a: [", "neither JSON nor YAML"),
        ("a: \x00", "neither JSON nor YAML"),
        ("name: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_a_bad_yaml_file_is_named_and_the_others_are_read(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.json").write_text(json.dumps(GOOD))
    found = collect("plain", [tmp_path])
    assert [task.where for task in found.tasks] == ["b.json"]
    ((where, reported),) = found.malformed
    assert where.startswith("a.yaml") and why in reported


def test_a_json_document_that_is_too_deep_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(DEEP)
    (tmp_path / "b.json").write_text(json.dumps([GOOD, {"name": "x", "difficulty": float("nan")}]))
    found = collect("plain", [tmp_path])
    assert [task.where for task in found.tasks] == ["b.json#1"]
    assert [where for where, _ in found.malformed] == ["a.json", "b.json#2"]


def test_demonstrations_are_read_within_the_same_limits(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text('{"a": 1}\n' + DEEP + '\n{"weight": NaN}\n{"b": 2}\n')
    records = list(raw_records(path, lambda num_bytes: None))
    assert [record.value for record in records] == [{"a": 1}, None, None, {"b": 2}]
    assert "nested" in records[1].error and "nan" in records[2].error


def test_depth_is_counted_not_guessed() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(NotPlain, match="deeper"):
        parse_json("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))


def said(function: str, value: Any, expected: Any, options: Any) -> str | None:
    return asyncio.run(compared(function, value, expected, options))


def test_a_pattern_that_backtracks_for_ever_does_not_pass_and_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "LIMITS", replace(comparing.LIMITS, cpu_s=1))
    reason = said("check_list", "a" * 60 + "!", {"expect": ["^(a+)+$"]}, {})
    assert reason is not None and "processor time" in reason


@pytest.mark.parametrize("content", [DEEP.encode(), b'{"a": ' + b"9" * 100_000 + b"}", b"\xff\xfe", b""])
def test_hostile_files_do_not_pass(content: bytes) -> None:
    assert said("check_json", content, {"expect": [{"key": ["a"], "method": "ge", "ref": 0}]}, {}) is not None


def pdf(*pages: str) -> bytes:
    """A file of pages with a line of text each; readers make up for the table of offsets that it lacks."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>"]
    objects.append("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>")
    for n, text in enumerate(pages):
        shown = f"BT /F 12 Tf 72 720 Td ({text}) Tj ET"
        where = f"/Contents {5 + 2 * n} 0 R/Resources<</Font<</F 3 0 R>>>>"
        objects.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]{where}>>")
        objects.append(f"<</Length {len(shown)}>>stream\n{shown}\nendstream")
    body = "".join(f"{n} 0 obj\n{each}\nendobj\n" for n, each in enumerate(objects, start=1))
    return f"%PDF-1.4\n{body}trailer<</Root 1 0 R/Size {len(objects) + 1}>>\n%%EOF\n".encode()


@pytest.mark.parametrize(
    ("function", "value", "expected", "reason"),
    [
        ("compare_pdfs", pdf("one", "two"), pdf("one", "two"), None),
        ("compare_pdfs", pdf("one", "two"), pdf("one", "three"), "says 'one"),
        ("compare_pdfs", pdf("one"), pdf("one", "two"), "says 'one'"),
        ("compare_pdfs", b"one", pdf("one"), "not a PDF file"),
        ("compare_pdfs", b"", pdf("one"), "not a PDF file"),
        ("check_pdf_pages", pdf("one"), {"relation": "eq", "ref_value": 1}, None),
        ("check_pdf_pages", pdf("one", "two"), {"relation": "eq", "ref_value": 1}, "has 2 pages, which is not eq 1"),
        ("check_pdf_pages", pdf("one", "two"), {"relation": "le", "ref_value": 2}, None),
        ("check_pdf_pages", pdf("one")[:60], {"relation": "le", "ref_value": 2}, "not a PDF file"),
    ],
)
def test_pdf_files_are_read_by_poppler_in_the_jail(function: str, value: bytes, expected: Any, reason: str | None) -> None:
    found = said(function, value, expected, {})
    if shutil.which("pdftotext") is None:
        assert found is not None and "poppler-utils" in found
    elif reason is None:
        assert found is None
    else:
        assert found is not None and reason in found


def test_a_jailed_comparison_says_what_it_says_outside() -> None:
    assert said("check_json", b'{"a": 2}', {"expect": [{"key": ["a"], "method": "ge", "ref": 2}]}, {}) is None
    assert said("check_csv", b"n\nx\n", {"expect": [{"n": "y"}]}, {}) == 'no row has \'{"n": "y"}\''


@pytest.mark.parametrize("pattern", ["(" * 5_000, "(" * 1_500, "a{99999999999}", "["])
def test_a_pattern_that_cannot_be_compiled_is_a_fault(pattern: str) -> None:
    goal = Compare(function="check_list", result=Getter(file="x"), expected=Getter(value={"expect": [pattern]}))
    assert any("regular expression" in fault for fault in faults(goal))


def test_records_whose_fields_hold_anything_never_stop_an_import(tmp_path: Path) -> None:
    """500 records of each format, changed at random places at a fixed seed."""
    draw = random.Random(0)
    osworld = {
        "id": "a",
        "instruction": "Do.",
        "config": [
            {"type": "execute", "parameters": {"command": "echo hi", "shell": True}},
            {"type": "download", "parameters": {"files": [{"url": "https://x.org/a", "path": f"{DESKTOP_HOME}/a"}]}},
            {"type": "launch", "parameters": {"command": ["gedit", f"{DESKTOP_HOME}/a"]}},
            {"type": "sleep", "parameters": {"seconds": 1}},
            {"type": "activate_window", "parameters": {"window_name": "a"}},
            {"type": "open", "parameters": {"path": f"{DESKTOP_HOME}/a.txt"}},
        ],
        "evaluator": {
            "func": ["check_list", "exact_match"],
            "conj": "or",
            "postconfig": [{"type": "execute", "parameters": {"command": ["ls"]}}],
            "result": [{"type": "vm_file", "path": f"{DESKTOP_HOME}/a", "dest": "a"}, {"type": "vm_command_line", "command": ["ls"]}],
            "expected": [{"type": "rule", "rules": {"expect": ["a"]}}, {"type": "rule", "rules": {"expected": "a"}}],
            "options": [{}, {}],
        },
    }
    android = {
        "task_name": "x",
        "task_template": "Do {a}.",
        "params": {"a": ["1", "2"]},
        "app_names": ["settings"],
        "setup": ["svc wifi enable"],
        "complexity": 1,
        "optimal_steps": "3",
        "criteria": [{"command": "settings get", "expected": "1"}, {"answer": "x"}],
    }
    web = {"task_id": "a", "confirmed_task": "Do.", "website": "https://x.org", "level": "easy", "action_reprs": ["x"]}
    plain = GOOD | {"files": {"a": "b"}, "params": [{"a": "b"}], "setup": [{"command": "ls"}], "oracle": [{"command": "ls"}]}
    page = {"env": "click-button", "seed": 1}
    bases: dict[str, Any] = {"osworld": osworld, "android-world": android, "mind2web": web, "plain": plain, "miniwob": page}
    assert bases.keys() == TASK_FORMATS.keys()
    for format, base in bases.items():
        path = tmp_path / f"{format}.jsonl"
        path.write_text("".join(json.dumps(_changed(base, draw)) + "\n" for _ in range(500)))
        found = collect(format, [path])
        assert len(found.tasks) + len(found.malformed) + found.num_duplicates == 500
        write_set(Home(root=tmp_path / "home"), format, found.tasks, found.records, found.assets, {})


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    2**62,
    "",
    " ",
    "\x00",
    "a" * 5_000,
    "http://[",
    "../..",
    "~",
    "{x}",
    "\u202e",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {"": ""},
    [{}],
    {"type": []},
    ["a", 1],
    "'",
    '"',
    "$(",
    "`",
    "C:\\",
    "/etc/passwd",
    "https://x.org/\x00",
    "-",
    "0" * 50,
    "1e400",
    "NaN",
]


def _changed(value: Any, draw: random.Random) -> Any:
    """The value with about one of its parts replaced."""
    if draw.random() < 0.06:
        return draw.choice(ODD)
    if isinstance(value, dict):
        return {key: _changed(each, draw) for key, each in value.items()}
    return [_changed(each, draw) for each in value] if isinstance(value, list) else value
