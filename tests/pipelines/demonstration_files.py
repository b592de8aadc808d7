"""Demonstrations in the shapes of AgentNet, Mind2Web and ShareGPT, made up here: no data of those collections."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

WIDTH, HEIGHT = 320, 200


def picture(number: int, format: str = "PNG") -> bytes:
    image = Image.new("RGB", (WIDTH, HEIGHT), (number * 7 % 256, 90, 160))
    ImageDraw.Draw(image).rectangle((number % 200, 20, number % 200 + 40, 60), fill=(250, 250, 250))
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return path


def agentnet_step(index: int, image: str, code: str, **value: Any) -> dict[str, Any]:
    reported = {
        "observation": "A window.",
        "thought": f"Thought {index}.",
        "action": f"Do {index}",
        "code": code,
        "last_step_correct": True,
        "last_step_redundant": False,
        "reflection": "It worked.",
    }
    return {"index": index, "image": image, "value": reported | value}


def agentnet(task_id: str, codes: list[str], *, first: int = 0, completed: bool | None = True, **more: Any) -> dict[str, Any]:
    """Step n shows the picture `<first + n>.png`."""
    record = {
        "task_id": task_id,
        "instruction": f"Do what {task_id} says.",
        "task_completed": completed,
        "alignment_score": 8,
        "efficiency_score": 7,
        "task_difficulty": 3,
        "natural_language_task": "Please.",
        "actual_task": "It.",
        "reason": "Good.",
        "traj": [agentnet_step(index, f"{first + index}.png", code) for index, code in enumerate(codes)],
    }
    return {name: value for name, value in (record | more).items() if value is not None}


def images(folder: Path, num: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(num):
        (folder / f"{number}.png").write_bytes(picture(number))


def many(folder: Path, num: int, name: str = "many.jsonl") -> Path:
    """A file of so many short trajectories over a few pictures."""
    images(folder, 8)
    codes = ["pyautogui.click(x=0.5, y=0.5)", "pyautogui.write('abc')", "computer.terminate(status='success')"]
    return write_lines(folder / name, [agentnet(f"task-{n}", codes, first=n % 5, completed=n % 4 != 0) for n in range(num)])


def candidate(node: str, tag: str, box: str, *, is_target: bool = False) -> dict[str, Any]:
    attributes = json.dumps({"backend_node_id": node, "bounding_box_rect": box})
    return {
        "tag": tag,
        "backend_node_id": node,
        "attributes": attributes,
        "is_original_target": is_target,
        "is_top_level_target": is_target,
        "score": 0.5,
        "rank": 1,
    }


HTML = (
    '<html backend_node_id="1"><div backend_node_id="2"><a backend_node_id="3"><text backend_node_id="4">Trucks</text></a>'
    '<input backend_node_id="5" placeholder="Zip code"/><button backend_node_id="6"><text backend_node_id="7">Search</text></button>'
    "</div></html>"
)


def mind2web() -> dict[str, Any]:
    def action(uid: str, op: str, target: dict[str, Any] | None, value: str = "") -> dict[str, Any]:
        others = [candidate("3", "a", "10,20,100,20"), candidate("5", "input", "10,60,200,30"), candidate("6", "button", "220,60,60,30")]
        return {
            "action_uid": uid,
            "raw_html": "<html>",
            "cleaned_html": HTML,
            "operation": {"op": op, "original_op": op, "value": value},
            "pos_candidates": [target] if target else [],
            "neg_candidates": [one for one in others if target is None or one["backend_node_id"] != target["backend_node_id"]],
        }

    return {
        "annotation_id": "trace-1",
        "website": "trucks",
        "domain": "Travel",
        "subdomain": "Vehicles",
        "confirmed_task": "Find trucks near 08817",
        "action_reprs": ["[link] Trucks -> CLICK", "[searchbox] Zip -> TYPE: 08817", "[button] ? -> CLICK"],
        "actions": [
            action("u1", "CLICK", candidate("3", "a", "10,20,100,20", is_target=True)),
            action("u2", "TYPE", candidate("5", "input", "10,60,200,30", is_target=True), "08817"),
            action("u3", "CLICK", None),
        ],
    }
