"""Fuzzed imports: valid records of every format that is imported, changed at random places (other types, deep nesting, numbers that nothing
holds, half surrogate pairs, NUL, lines cut off, pictures that are none), among records that are left as they were.

Whatever a record says, the import ends, every record is counted, the untouched ones are stored, and what is malformed is named by file and
line. Records are made from their number, so the same numbers are retried by the next run.

    python -m benchmarks.fuzz_imports --records 2000
"""

from __future__ import annotations

import argparse
import base64
import copy
import io
import json
import random
import struct
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from rich.console import Console

from pipelines.importing.demonstrations import import_demonstration_files
from pipelines.importing.general import import_general_data
from pipelines.importing.registry import IMPORTERS
from pipelines.importing.report import Report
from pipelines.importing.rows import DemonstrationSettings, settings_of
from pipelines.importing.tasks import import_task_files
from pipelines.importing.trajectories import Demonstration, Pictures
from sandbox.importing.fields import BadRecord
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

LOGS = ("openai-chat", "anthropic-computer-use", "openai-computer-use", "otel-genai", "browser-use")
FORMATS = ("agentnet", "mind2web", "sharegpt", "general", "tasks", *LOGS)
NUM_PICTURES = 4
RECORDS_PER_FILE = 100
VALID_EVERY = 10
BAD_PICTURES = ("text.png", "cut.png", "huge.png", "empty.png", "folder.png", "link.png")
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1e999,
    -1e999,
    float("nan"),
    2**63,
    -(2**70),
    10**400,
    1e308,
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff x",
    "\u202e",
    "x" * 100_000,
    "../../etc/passwd",
    "/etc/passwd",
    "a/" * 3000 + "b",
    "n" * 300,
    "<image>" * 50,
    "{{7*7}}",
    "[/red]",
    [],
    {},
    [None],
    [[]],
    {"": None},
    {"\0": "\0"},
    {"\ud800": 1},
    [1, "a", None],
    {"role": []},
    "pyautogui.click(" * 200,
    "pyautogui.click(x=1e999, y=nan)",
    "import os; os.system('true')",
    "click(start_box='(1e999,-1)')",
    *BAD_PICTURES,
    "data:image/png;base64,AAAA",
    "data:image/png;base64," + "A" * 5001,
    "('" * 500,
    "9" * 5000,
    "-" * 3000 + "1",
)
KEYS = ("role", "images", "weight", "system", "x", "\0", "loss", "bytes", "[/red]", "")


def write_pictures(folder: Path) -> None:
    """Good ones by number, and files by the names of BAD_PICTURES."""
    for number in range(NUM_PICTURES):
        (folder / f"{number}.png").write_bytes(good_picture(number))
    good = (folder / "0.png").read_bytes()
    (folder / "text.png").write_text("no picture")
    (folder / "cut.png").write_bytes(good[: len(good) // 2])
    (folder / "huge.png").write_bytes(huge_png())
    (folder / "empty.png").write_bytes(b"")
    (folder / "folder.png").mkdir()
    (folder / "link.png").symlink_to("/etc/hostname")


@cache
def good_picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (320, 200), (number * 60, 90, 160)).save(buffer, "PNG")
    return buffer.getvalue()


def huge_png() -> bytes:
    """A few bytes that say they are a picture of 4 gigapixels."""
    header = struct.pack(">IIBBBBB", 65_000, 65_000, 8, 2, 0, 0, 0)
    body = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + body + struct.pack(">I", zlib.crc32(body))


def valid(format: str, number: int) -> Any:
    """A record that is taken, unlike those of other numbers."""
    name = f"record-{number}"
    if format == "agentnet":
        return _agentnet(name)
    if format == "mind2web":
        return _mind2web(name)
    if format == "tasks":
        goals = [{"kind": "file_holds", "path": "b", "text": "x"}]
        return {"name": name, "kind": "terminal", "instruction": f"Copy {name}.", "files": {"a": "1"}, "goals": goals}
    if format == "general":
        return {"messages": [{"role": "user", "content": f"What is {name}?"}, {"role": "assistant", "content": f"It is number {number}."}]}
    if format in LOGS:
        return _log(format, name, number)
    answer = "Thought: It is at the top.\nAction: click(start_box='<|box_start|>(500,900)<|box_end|>')"
    turns = [{"from": "human", "value": f"<image>\nOpen {name}."}, {"from": "gpt", "value": answer}]
    return {"id": number, "conversations": turns, "images": [f"{number % NUM_PICTURES}.png"]}


def _agentnet(name: str) -> dict[str, Any]:
    codes = ("pyautogui.click(x=0.25, y=0.5)", "pyautogui.write('hi')", "computer.terminate(status='success')")
    reported = {"thought": "I see it.", "action": "Do it.", "last_step_correct": True, "last_step_redundant": False}
    steps = [{"index": index, "image": f"{index}.png", "value": reported | {"code": code}} for index, code in enumerate(codes)]
    more = {"task_completed": True, "alignment_score": 8, "efficiency_score": 7, "task_difficulty": 3}
    return {"task_id": name, "instruction": f"Do what {name} says.", "traj": steps, **more}


def _mind2web(name: str) -> dict[str, Any]:
    page = '<html backend_node_id="1"><a backend_node_id="3">Trucks</a><input backend_node_id="5" placeholder="Zip code"/></html>'

    def action(uid: str, op: str, node: str, tag: str, box: str, value: str) -> dict[str, Any]:
        attributes = json.dumps({"backend_node_id": node, "bounding_box_rect": box})
        target = {"tag": tag, "backend_node_id": node, "attributes": attributes, "is_original_target": True, "is_top_level_target": True}
        operation = {"op": op, "original_op": op, "value": value}
        return {"action_uid": uid, "cleaned_html": page, "operation": operation, "pos_candidates": [target], "neg_candidates": []}

    return {
        "annotation_id": name,
        "website": "trucks",
        "domain": "Travel",
        "subdomain": "Vehicles",
        "confirmed_task": f"Find trucks near {name}",
        "action_reprs": ["[link] Trucks -> CLICK", "[searchbox] Zip -> TYPE: 08817"],
        "actions": [action("u1", "CLICK", "3", "a", "10,20,100,20", ""), action("u2", "TYPE", "5", "input", "10,60,200,30", "08817")],
    }


def _log(format: str, name: str, number: int) -> Any:
    """A call of a model, or of browser-use a run: one click on a picture."""
    picture = base64.b64encode(good_picture(number % NUM_PICTURES)).decode()
    address, click = f"data:image/png;base64,{picture}", {"x": 10 + number % 200, "y": 20}
    if format == "openai-chat":
        seen = [{"type": "text", "text": f"Open {name}."}, {"type": "image_url", "image_url": {"url": address}}]
        call = {"id": f"c{number}", "type": "function", "function": {"name": "click", "arguments": json.dumps(click)}}
        answer: Any = {"role": "assistant", "content": "It is there.", "tool_calls": [call]}
        return {"request": {"messages": [{"role": "user", "content": seen}]}, "response": {"id": name, "choices": [{"message": answer}]}}
    if format == "anthropic-computer-use":
        source = {"type": "base64", "media_type": "image/png", "data": picture}
        shown = [{"type": "text", "text": f"Open {name}."}, {"type": "image", "source": source}]
        call = {
            "type": "tool_use",
            "id": f"t{number}",
            "name": "computer",
            "input": {"action": "left_click", "coordinate": [*click.values()]},
        }
        tool = {"type": "computer_20250124", "name": "computer", "display_width_px": 320, "display_height_px": 200}
        request = {"messages": [{"role": "user", "content": shown}], "tools": [tool]}
        return {"request": request, "response": {"id": name, "role": "assistant", "content": [call]}}
    if format == "openai-computer-use":
        seen = [{"type": "input_text", "text": f"Open {name}."}, {"type": "input_image", "image_url": address}]
        call = {"type": "computer_call", "call_id": f"c{number}", "action": {"type": "click", "button": "left", **click}}
        return {"request": {"input": [{"role": "user", "content": seen}]}, "response": {"id": name, "output": [call]}}
    if format == "browser-use":
        action = {
            "model_output": {"next_goal": "Click.", "action": [{"click": {"index": 1}}]},
            "result": [{"extracted_content": "Clicked"}],
        }
        element = {"bounds": {"x": click["x"], "y": 20, "width": 10, "height": 10}}
        state = {"url": "x", "screenshot_path": f"/tmp/run/{number % NUM_PICTURES}.png", "interacted_element": [element]}
        said = f"<user_request>Open {name}.</user_request><page_info>0.0 pages above, 1.0 pages below</page_info>"
        return {"history": [action | {"state": state, "state_message": said}]}
    blob = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": picture}
    asked = [{"role": "user", "parts": [{"type": "text", "content": f"Open {name}."}, blob]}]
    answer = [{"role": "assistant", "parts": [{"type": "tool_call", "id": f"c{number}", "name": "click", "arguments": click}]}]
    texts = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(answer)}
    span = {"spanId": f"{number:016x}", "attributes": [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def fuzzed(format: str, number: int) -> str:
    """One line of a file."""
    dice = random.Random(number)
    record = copy.deepcopy(valid(format, number))
    for _ in range(dice.randint(1, 3)):
        change(dice, record)
    line = json.dumps(record)
    match dice.randrange(12):
        case 0:
            return line[: dice.randrange(1, len(line))]
        case 1:
            at = dice.randrange(len(line))
            return line[:at] + dice.choice(("\0", "\x1b", "[" * 5000, '"', "}", "\\ud800", "NaN")) + line[at + 1 :]
        case 2:
            return dice.choice(("null", "[]", "1", '"x"', "NaN", "[" * 100_000, "{" * 1000, "\0", '{"a": ' * 2000))
    return line


def change(dice: random.Random, record: Any) -> None:
    """At one place of it: another value, one nested deep, one left out, one too many, or two exchanged."""
    holders: list[Any] = []
    waiting = [record]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list) and each:
            holders.append(each)
            waiting += each.values() if isinstance(each, dict) else each
    if not holders:
        return
    holder = dice.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = dice.choice(keys)
    match dice.randrange(8):
        case 0:
            del holder[key]
        case 1:
            value = holder[key]
            for _ in range(dice.choice((3, 90, 150))):
                value = [value] if dice.random() < 0.5 else {"a": value}
            holder[key] = value
        case 2 if isinstance(holder, dict):
            holder[dice.choice(KEYS)] = copy.deepcopy(dice.choice(VALUES))
        case 3:
            other = dice.choice(keys)
            holder[key], holder[other] = holder[other], holder[key]
        case _:
            holder[key] = copy.deepcopy(dice.choice(VALUES))


def import_file(format: str, path: Path, home: Path) -> tuple[int, int, Sequence[tuple[str, str]]]:
    """How many records were read and taken, and what is malformed (file and line, why)."""
    console = Console(file=io.StringIO(), width=120)
    if format == "tasks":
        found = import_task_files(
            Home(home), "plain", [path], console, name=None, assets=[], held_out=False, check=False, dry_run=False, verbose=True
        )
        return len(found.tasks) + found.num_duplicates + len(found.malformed), len(found.tasks), found.malformed
    report: Report
    if format == "general":
        report = import_general_data(Warehouse(Home(home)), path, None, console)
    else:
        settings = settings_of(DemonstrationSettings, track="expert")
        report = import_demonstration_files(Home(home), format, [path], settings, console, name=None, images=(path.parent,), dry_run=False)
    malformed = [(where.partition("/")[0], why) for where, why in report.malformed]
    return report.num_records, report.num_added + report.num_there + len(report.withheld), malformed


def play(format: str, numbers: Sequence[int], folder: Path) -> int:
    """Import one file of fuzzed records, every tenth of them untouched; how many were malformed. Raises AssertionError where a record was
    lost, and whatever the import raises."""
    write_pictures(folder)
    untouched = [number for number in numbers if number % VALID_EVERY == 0]
    lines = [json.dumps(valid(format, number)) if number in untouched else fuzzed(format, number) for number in numbers]
    path = folder / "fuzzed.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    num_read, num_taken, malformed = import_file(format, path, folder / "home")
    if num_read != len(lines):
        raise AssertionError(f"{format}: {num_read} of {len(lines)} records of {numbers} were counted")
    places = {f"{path.name}:{at}" for at in range(1, len(lines) + 1)}
    if odd := [where for where, _ in malformed if where not in places]:
        raise AssertionError(f"{format}: {odd[0]} names no line of the file")
    if lost := {f"{path.name}:{numbers.index(number) + 1}" for number in untouched} & {where for where, _ in malformed}:
        raise AssertionError(f"{format}: the untouched records {sorted(lost)} are malformed: {dict(malformed)[min(lost)]}")
    if num_taken + len(malformed) != num_read and format != "tasks":
        raise AssertionError(f"{format}: {num_read} records, {num_taken} taken and {len(malformed)} malformed")
    return len(malformed)


def play_parquet(numbers: Sequence[int], folder: Path) -> int:
    """Chats in Parquet, where each column has one type, and one good one at their end."""
    write_pictures(folder)
    texts = [value for value in VALUES if isinstance(value, str) and "\ud800" not in value and "\udfff" not in value]
    rows = []
    for number in numbers:
        dice, row = random.Random(number), valid("sharegpt", number)
        turn = dice.choice(row["conversations"])
        turn[dice.choice(("from", "value", "x"))] = dice.choice((*texts, None))
        row["images"] = dice.choice((row["images"], row["images"], [], [dice.choice(texts)]))
        rows.append(row)
    pq.write_table(pa.Table.from_pylist([*rows, valid("sharegpt", 0)]), folder / "fuzzed.parquet")
    num_read, num_taken, malformed = import_file("sharegpt", folder / "fuzzed.parquet", folder / "home")
    if num_read != len(rows) + 1 or not num_taken:
        raise AssertionError(f"parquet: {num_read} of {len(rows) + 1} records were counted, {num_taken} taken: {malformed[-1]}")
    return len(malformed)


def play_trace(numbers: Sequence[int], folder: Path) -> int:
    """Playwright's traces with events that are changed, or bytes of the zip; how many were refused. Raises whatever their reader raises but
    a refusal."""
    point = {"type": "input", "callId": "1", "point": {"x": 9, "y": 9}}
    click = {"type": "before", "callId": "1", "startTime": 2, "class": "Frame", "method": "click", "params": {"button": "left"}}
    frame = {"type": "screencast-frame", "file": "screencast/0.png", "width": 320, "height": 200, "timestamp": 1}
    num_refused = 0
    for number in numbers:
        dice = random.Random(number)
        events = copy.deepcopy([{"type": "context-options", "title": f"Do {number}"}, frame, click, point])
        is_bytes = number % 3 == 0
        for _ in range(0 if is_bytes else dice.randint(1, 3)):
            change(dice, events)
        path = folder / "trace.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trace.trace", "\n".join(map(json.dumps, events)))
            archive.writestr("screencast/0.png", good_picture(0))
        data = bytearray(path.read_bytes())
        for _ in range(dice.randint(1, 8) if is_bytes else 0):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data[: dice.randrange(len(data))] if is_bytes and dice.random() < 0.3 else data)
        num_refused += _is_refused(path)
    return num_refused


def _is_refused(path: Path) -> bool:
    try:
        for entry in IMPORTERS["playwright-trace"].entries(path, Pictures([path.parent]), lambda _: None):
            if entry.why_not:
                return True
            if isinstance(entry.made, Demonstration):
                entry.made.load()
    except (BadRecord, ConfigError):
        return True
    return False


PLAYED: Mapping[str, Callable[[Sequence[int], Path], int]] = {"parquet": play_parquet, "playwright-trace": play_trace}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000, help="of each format")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--formats", default=",".join((*FORMATS, *PLAYED)))
    given = parser.parse_args()
    failed = False
    for format in given.formats.split(","):
        started_s, num_malformed = time.monotonic(), 0
        for first in range(given.first, given.first + given.records, RECORDS_PER_FILE):
            numbers = range(first, min(first + RECORDS_PER_FILE, given.first + given.records))
            with TemporaryDirectory() as folder:
                try:
                    played = PLAYED.get(format, partial(play, format))
                    num_malformed += played(numbers, Path(folder))
                except Exception as error:  # what the importers raise is what is looked for
                    failed = True
                    sys.excepthook(type(error), error, error.__traceback__)
                    print(f"{format}: records from {first}")
        print(f"{format}: {given.records} records, {num_malformed} malformed, {time.monotonic() - started_s:.0f} s", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
