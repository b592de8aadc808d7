"""Episodes as rows of the tables `episodes`, `steps` and `screenshots`, and back.

What the columns mean is warehouse/storage/catalogue.py's; `iteration` and `stage` are filled in by the warehouse when it writes a
partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agent.episode.episode import Episode, EpisodeRequest, Fork, Outcome, Step
from agent.policy.policy import Message
from sandbox.actions import ACTION, Action
from sandbox.tasks.task import Task
from warehouse.storage.screenshots.pictures import Header, header

SEVERAL = "several"
"""`kind` of the stored action where one response held several: {"kind": "several", "actions": […]}, in the order they were done."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

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
    """Sessions take PNG pictures, whose size is in the file's header; clients of the gateway send others too. Raises UnreadablePicture, a
    ValueError."""
    if data[:8] == _PNG_SIGNATURE and data[12:16] == b"IHDR":
        found = Header(format="png", width_px=int.from_bytes(data[16:20], "big"), height_px=int.from_bytes(data[20:24], "big"))
    else:
        found = header(data)
    return {"screenshot_id": screenshot_id, **asdict(found), "data": data}


def message_rows(messages: Iterable[Message]) -> list[Row]:
    """The column type MESSAGES."""
    return [asdict(message) for message in messages]


def action_json(actions: Sequence[Action]) -> str:
    """The column `action`: the one action of a response, or SEVERAL."""
    if len(actions) == 1:
        return ACTION.dump_json(actions[0]).decode()
    return json.dumps({"kind": SEVERAL, "actions": [ACTION.dump_python(action, mode="json") for action in actions]})


def stored_actions(action: str) -> tuple[Action, ...]:
    """The actions of a response, from the column `action`."""
    stored = json.loads(action)
    several = stored["actions"] if stored["kind"] == SEVERAL else [stored]
    return tuple(ACTION.validate_python(each) for each in several)


def stored_episode(row: Row, step_rows: Iterable[Row], task: Task, screenshots: Mapping[str, bytes] | None = None) -> Episode:
    """The episode of a row of `episodes` and its rows of `steps`, in any order. What no table keeps is missing: proposals of an annotated
    step and the prompt behind a cut."""
    request = EpisodeRequest(
        purpose=row["purpose"],
        task=task,
        seed=row["seed"],
        attempt=row["attempt"],
        policy_id=row["policy_id"],
        temperature=row["temperature"],
        screenshots=bool(screenshots),
        fork=None if row["parent_episode_id"] is None else Fork(parent_id=row["parent_episode_id"], step=row["fork_step"]),
    )
    return Episode(
        request=request,
        instruction=row["instruction"],
        content_id=row["content_id"],
        steps=tuple(_stored_step(each) for each in sorted(step_rows, key=lambda each: each["step_index"])),
        outcome=Outcome(row["outcome"]),
        reward=row["reward"],
        points=row["points"],
        num_retries=row["num_retries"],
        error=row["error"],
        duration_ms=row["duration_ms"],
        environment=row["environment"],
        fork_refused=row["fork_refused"],
        screenshots=dict(screenshots or {}),
    )


def _stored_step(row: Row) -> Step:
    action, *more = stored_actions(row["action"])
    return Step(
        step_index=row["step_index"],
        policy_id=row["policy_id"],
        observation=row["observation"],
        screenshot_id=row["screenshot_id"],
        messages=tuple(Message(**message) for message in row["messages"]),
        response=row["response"],
        thought=row["thought"],
        action=action,
        more_actions=tuple(more),
        prompt_token_ids=row["prompt_token_ids"] or (),
        response_token_ids=row["response_token_ids"] or (),
        response_logprobs=row["response_logprobs"] or (),
        response_versions=row["response_versions"] or (),
        reward=row["reward"],
        latency_ms=row["latency_ms"],
    )


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
        "parent_episode_id": None if request.fork is None else request.fork.parent_id,
        "fork_step": None if request.fork is None else request.fork.step,
        "fork_refused": episode.fork_refused,
        "policy_id": request.policy_id,
        "temperature": request.temperature,
        "instruction": episode.instruction,
        "content_id": episode.content_id,
        "outcome": episode.outcome.value,
        "reward": episode.reward,
        "points": episode.points,
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
        "action": action_json((step.action, *step.more_actions)),
        "prompt_token_ids": list(step.prompt_token_ids),
        "response_token_ids": list(step.response_token_ids),
        "response_logprobs": list(step.response_logprobs),
        "response_versions": list(step.response_versions),
        "reward": step.reward,
        "latency_ms": step.latency_ms,
    }
