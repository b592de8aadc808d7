"""Episodes as rows: they fit the catalogue's schemas and leave nothing out."""

from __future__ import annotations

import asyncio
import io
import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from PIL import Image

from agent.episode.episode import Episode
from agent.episode.loop import run_episode
from agent.episode.rows import SEVERAL, rows, screenshot_row
from agent.episode.runner import crashed_episode
from agent.policy.action_source import PolicyActionSource
from agent.policy.policy import Message, Prompt, Response
from agent.prompts.prompt import PromptBuilder
from sandbox.actions import ACTION, Click, Wait
from warehouse.core.errors import BrowserCrashed
from warehouse.storage.catalogue import TABLES


def solved(form: SimpleNamespace, seed: int = 0, temperature: float = 0.0) -> Episode:
    policy = form.Policy(error_rate=0.5)

    async def act(prompt: Prompt) -> Response:
        return (await policy.act([prompt]))[0]

    request = form.request(seed, temperature=temperature)
    return asyncio.run(run_episode(request, form.Session(), PolicyActionSource(act), PromptBuilder("compact")))


def crashed(form: SimpleNamespace) -> Episode:
    return crashed_episode(form.request(99), BrowserCrashed("gone"), num_retries=2, duration_ms=5.0)


def test_rows_fit_the_catalogue(form: SimpleNamespace) -> None:
    episodes = [*(solved(form, seed, temperature=1.0) for seed in range(6)), crashed(form)]
    tables = rows(episodes)
    assert set(tables) == {"episodes", "steps", "screenshots"}
    for name, table_rows in tables.items():
        filled = ("iteration", "stage") if TABLES[name].partitioned else ()
        schema = pa.schema([field for field in TABLES[name].schema if field.name not in filled])
        assert table_rows and all(set(row) == set(schema.names) for row in table_rows)
        table = pa.Table.from_pylist(table_rows, schema=schema)
        table.validate(full=True)
        for column in TABLES[name].columns:
            if not column.nullable and column.name not in filled:
                assert table[column.name].null_count == 0, f"{name}.{column.name}"
            if column.values and column.name not in filled:
                assert set(table[column.name].to_pylist()) <= set(column.values)
    ids = [row["screenshot_id"] for row in tables["screenshots"]]
    assert len(ids) == len(set(ids)) and {row["screenshot_id"] for row in tables["steps"]} <= set(ids)
    assert {(row["width_px"], row["height_px"]) for row in tables["screenshots"]} == {(160, 210)}


def test_rows_hold_all_that_a_step_was(form: SimpleNamespace) -> None:
    episode = solved(form, 3, temperature=1.0)
    tables = rows([episode])
    for step, row in zip(episode.steps, tables["steps"], strict=True):
        assert (row["episode_id"], row["step_index"]) == (episode.episode_id, step.step_index)
        assert tuple(Message(**message) for message in row["messages"]) == step.messages
        assert ACTION.validate_json(row["action"]) == step.action
        for name in ("prompt_token_ids", "response_token_ids", "response_logprobs", "response_versions"):
            assert tuple(row[name]) == getattr(step, name)
    assert {row["screenshot_id"]: row["data"] for row in tables["screenshots"]} == episode.screenshots


def test_several_actions_of_one_response_are_one_row(form: SimpleNamespace) -> None:
    episode = solved(form)
    step = episode.steps[0].model_copy(update={"more_actions": (Wait(), Click(x=1, y=2))})
    (row,) = rows([episode.model_copy(update={"steps": (step,)})])["steps"]
    stored = json.loads(row["action"])
    assert stored["kind"] == SEVERAL
    assert tuple(ACTION.validate_python(action) for action in stored["actions"]) == (step.action, Wait(), Click(x=1, y=2))


def test_only_pictures_are_stored_as_pictures() -> None:
    assert screenshot_row("screen-1", jpeg := picture("JPEG")) == {
        "screenshot_id": "screen-1",
        "format": "jpeg",
        "width_px": 3,
        "height_px": 2,
        "data": jpeg,
    }
    with pytest.raises(ValueError, match="cannot be read"):
        screenshot_row("screen-1", b"\xff\xd8\xff\xe0 a jpeg")


def picture(format: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, format)
    return file.getvalue()
