"""Stored episodes to judge: an agent that is to click one of four buttons, and clicks the right one or another. Rows of the real tables."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from sandbox.tasks.task import Split, Task
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

NAMES = ("Ok", "Submit", "Cancel", "Yes", "No", "next", "send", "reply")
TASK = Task(source="miniwob", name="click-button", domain="pointing", max_steps=4)


def episode(
    name: str,
    *,
    wanted: str,
    clicked: str,
    buttons: tuple[str, ...] = NAMES[:4],
    seed: int = 1,
    purpose: str = "rl",
    page: str = "",
    thought: str = "",
    **more: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An episode of one step. `page` is one more text that the page shows."""
    is_good = wanted == clicked
    lines = [f'"{button}" <button> [{place}]' for place, button in enumerate(buttons, start=1)]
    lines += [f'"{page}" <text> [{len(buttons) + 1}]'] if page else []
    number = buttons.index(clicked) + 1
    said = thought or f'click "{clicked}" <button> [{number}]'
    row = {
        "episode_id": f"episode-{name}",
        "purpose": purpose,
        "task_id": TASK.task_id,
        "task_name": TASK.name,
        "domain": TASK.domain,
        "seed": seed,
        "split": "train",
        "attempt": 0,
        "policy_id": "policy-a",
        "temperature": 1.0,
        "instruction": f'Click on the "{wanted}" button.',
        "outcome": "success" if is_good else "failure",
        "reward": float(is_good),
        "num_steps": 1,
        "num_retries": 0,
        "error": None,
        "duration_ms": 5.0,
        "environment": "env-1",
    } | more
    step = {
        "episode_id": row["episode_id"],
        "step_index": 0,
        "policy_id": "policy-a",
        "observation": "\n".join(lines),
        "screenshot_id": None,
        "messages": [{"role": "user", "content": row["instruction"], "screenshot_id": None, "loss": 0.0}],
        "response": f"Thought {said} Action click [{number}]",
        "thought": said,
        "action": json.dumps({"kind": "click", "x": 10, "y": 10 * number, "button": "left", "count": 1}),
        "prompt_token_ids": [1],
        "response_token_ids": [2],
        "response_logprobs": [-0.1],
        "response_versions": None,
        "reward": row["reward"],
        "latency_ms": 1.0,
    }
    return row, [step]


def many(num: int, *, seed: int = 0, split: Split = Split.TRAIN, **more: Any) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Episodes of as many instances, about half of them good."""
    dice = random.Random(seed)
    found = []
    for place, instance in enumerate(TASK.seeds(split, num, skip=seed * 1000)):
        buttons = tuple(dice.sample(NAMES, 4))
        wanted = dice.choice(buttons)
        clicked = wanted if dice.random() < 0.5 else dice.choice([button for button in buttons if button != wanted])
        name = f"{split.value}-{seed}-{place}-{more.get('purpose', 'rl')}"
        found.append(episode(name, wanted=wanted, clicked=clicked, buttons=buttons, seed=instance, split=split.value, **more))
    return found


def store(root: Path, *groups: tuple[str, str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]) -> Warehouse:
    """A warehouse with these episodes, each group (iteration, stage, episodes) a partition."""
    warehouse = Warehouse(Home(root))
    for iteration, stage, episodes in groups:
        warehouse.replace_partition("episodes", [row for row, _ in episodes], iteration=iteration, stage=stage)
        warehouse.replace_partition("steps", [step for _, steps in episodes for step in steps], iteration=iteration, stage=stage)
    return warehouse
