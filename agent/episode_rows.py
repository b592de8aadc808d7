"""Episodes as rows of the tables `episodes`, `steps` and `screenshots`, and back; and as files of a spool between two processes.

What the columns mean is warehouse/catalogue.py's; `iteration` and `stage` are filled in by the warehouse when it writes a partition.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent.episode import Episode, EpisodeRequest, Outcome, Step
from agent.policy import Message
from sandbox.actions import ACTION, Action
from sandbox.task import Task
from warehouse.errors import CorruptTable

SEVERAL = "several"
"""`kind` of the stored action where one response held several: {"kind": "several", "actions": […]}, in the order they were done."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SCREENS = "screens"

Row = dict[str, Any]


def rows(episodes: Iterable[Episode]) -> dict[str, list[Row]]:
    """Rows by table name. A screenshot that several episodes saw is one row."""
    episode_rows: list[Row] = []
    step_rows: list[Row] = []
    screenshots: dict[str, Row] = {}
    for episode in episodes:
        episode_rows.append(_episode_row(episode))
        step_rows += [_step_row(episode, step) for step in episode.steps]
        for screenshot_id, data in episode.screenshots.items():
            screenshots.setdefault(screenshot_id, screenshot_row(screenshot_id, data))
    return {"episodes": episode_rows, "steps": step_rows, "screenshots": list(screenshots.values())}


def screenshot_row(screenshot_id: str, data: bytes) -> Row:
    """Sessions take PNG pictures; the size is in the file's header. Raises ValueError for anything else."""
    if data[:8] != _PNG_SIGNATURE or data[12:16] != b"IHDR":
        raise ValueError(f"screenshot {screenshot_id} is not a PNG file (it starts with {data[:8]!r}); sessions must give PNG bytes")
    width_px, height_px = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return {"screenshot_id": screenshot_id, "format": "png", "width_px": width_px, "height_px": height_px, "data": data}


def message_rows(messages: Iterable[Message]) -> list[Row]:
    """The column type MESSAGES."""
    return [asdict(message) for message in messages]


def messages_from_rows(stored: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
    return tuple(Message(**row) for row in stored)


def _episode_row(episode: Episode) -> Row:
    request = episode.request
    return {
        "episode_id": episode.episode_id,
        "purpose": request.purpose,
        "task_id": request.task.task_id,
        "task_name": request.task.name,
        "domain": request.task.domain,
        "seed": request.seed,
        "split": request.split.value,
        "attempt": request.attempt,
        "policy_id": request.policy_id,
        "temperature": request.temperature,
        "instruction": episode.instruction,
        "outcome": episode.outcome.value,
        "reward": episode.reward,
        "num_steps": len(episode.steps),
        "num_retries": episode.num_retries,
        "error": episode.error,
        "duration_ms": episode.duration_ms,
        "environment": episode.environment,
    }


def _step_row(episode: Episode, step: Step) -> Row:
    return {
        "episode_id": episode.episode_id,
        "step_index": step.step_index,
        "policy_id": step.policy_id,
        "observation": step.observation,
        "screenshot_id": step.screenshot_id,
        "messages": message_rows(step.messages),
        "response": step.response,
        "thought": step.thought,
        "action": _action_json((step.action, *step.more_actions)),
        "prompt_token_ids": list(step.prompt_token_ids),
        "response_token_ids": list(step.response_token_ids),
        "response_logprobs": list(step.response_logprobs),
        "reward": step.reward,
        "latency_ms": step.latency_ms,
    }


def _action_json(actions: Sequence[Action]) -> str:
    if len(actions) == 1:
        return ACTION.dump_json(actions[0]).decode()
    return json.dumps({"kind": SEVERAL, "actions": [ACTION.dump_python(action, mode="json") for action in actions]})


def actions_from_json(stored: str) -> tuple[Action, ...]:
    """The column `action` of the table `steps`: one action, or several of one response."""
    value = json.loads(stored)
    items = value["actions"] if value.get("kind") == SEVERAL else [value]
    return tuple(ACTION.validate_python(item) for item in items)


def episode_from_rows(episode_row: Mapping[str, Any], step_rows: Iterable[Mapping[str, Any]], task: Task) -> Episode:
    """The inverse of `rows` for one episode, without pictures and annotators' proposals, which other tables hold. `task` is the task
    that `task_id` names. Raises ValueError where it is another one."""
    if task.task_id != episode_row["task_id"]:
        raise ValueError(f"episode {episode_row['episode_id']} is of task {episode_row['task_id']}, not {task.task_id} ({task.name})")
    steps = sorted(step_rows, key=lambda row: int(row["step_index"]))
    request = EpisodeRequest(
        task=task,
        screenshots=any(row["screenshot_id"] is not None for row in steps),
        **{name: episode_row[name] for name in ("purpose", "seed", "attempt", "policy_id", "temperature")},
    )
    return Episode(
        request=request,
        steps=tuple(_step_from_row(row) for row in steps),
        outcome=Outcome(episode_row["outcome"]),
        **{name: episode_row[name] for name in ("instruction", "reward", "num_retries", "error", "duration_ms", "environment")},
    )


def _step_from_row(row: Mapping[str, Any]) -> Step:
    action, *more = actions_from_json(row["action"])
    as_they_are = ("step_index", "policy_id", "observation", "screenshot_id", "response", "thought", "reward", "latency_ms")
    return Step(
        messages=messages_from_rows(row["messages"]),
        action=action,
        more_actions=tuple(more),
        **{name: tuple(row[name]) for name in ("prompt_token_ids", "response_token_ids", "response_logprobs")},
        **{name: row[name] for name in as_they_are},
    )


def dump_episode(episode: Episode, folder: Path) -> Path:
    """Write an episode to a spool folder: `<episode id>.json`, and its pictures under `screens/`, each stored once. The JSON appears
    whole or not at all, after its pictures. Writing the same episode again replaces it."""
    for screenshot_id, data in episode.screenshots.items():
        picture = folder / _SCREENS / f"{screenshot_id}.png"
        if not picture.exists():
            _write_aside(picture, data)
    path = folder / f"{episode.episode_id}.json"
    stored = {"episode": episode.model_dump(mode="json"), "screenshots": sorted(episode.screenshots)}
    _write_aside(path, json.dumps(stored, ensure_ascii=False).encode())
    return path


def load_episode(path: Path) -> Episode:
    """Read what `dump_episode` wrote. Raises FileNotFoundError for a path that is not there, CorruptTable for a file that is not whole."""
    text = path.read_bytes()
    try:
        stored = json.loads(text)
        episode = Episode.model_validate(stored["episode"])
        pictures = {name: (path.parent / _SCREENS / f"{name}.png").read_bytes() for name in stored["screenshots"]}
    except (ValueError, KeyError, TypeError, ValidationError, OSError) as error:
        raise CorruptTable(f"spooled episode {path.name} cannot be read ({error}); delete it, and the episode is run again") from error
    return episode.model_copy(update={"screenshots": pictures})


def _write_aside(path: Path, data: bytes) -> None:
    """Write and rename, so that no reader sees half a file, whoever else writes the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{id(data):x}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
