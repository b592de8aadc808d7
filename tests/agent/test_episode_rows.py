"""Episodes as rows that fit the catalogue's schemas, back from rows, and as spool files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from agent.decider import PolicyDecider
from agent.episode import Episode
from agent.episode_loop import run_episode
from agent.episode_rows import actions_from_json, dump_episode, episode_from_rows, load_episode, messages_from_rows, rows, screenshot_row
from agent.policy import Prompt, Response
from agent.pool_collector import crashed_episode
from agent.prompt import PromptBuilder
from sandbox.actions import Click, Wait
from warehouse.catalogue import TABLES
from warehouse.errors import BrowserCrashed, CorruptTable


def solved(form: SimpleNamespace, seed: int = 0, temperature: float = 0.0) -> Episode:
    policy = form.Policy(error_rate=0.5)

    async def act(prompt: Prompt) -> Response:
        return (await policy.act([prompt]))[0]

    request = form.request(seed, temperature=temperature)
    return asyncio.run(run_episode(request, form.Session(), PolicyDecider(act), PromptBuilder("compact")))


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


def test_episodes_come_back_from_rows(form: SimpleNamespace) -> None:
    for episode in (solved(form, 3, temperature=1.0), crashed(form)):
        tables = rows([episode])
        back = episode_from_rows(tables["episodes"][0], reversed(tables["steps"]), form.task)
        assert back.episode_id == episode.episode_id
        assert back.model_dump(exclude={"request"}) == episode.model_dump(exclude={"request"})
    other = form.task.model_copy(update={"name": "another"})
    with pytest.raises(ValueError, match="is of task"):
        episode_from_rows(tables["episodes"][0], [], other)


def test_several_actions_of_one_response_are_one_row(form: SimpleNamespace) -> None:
    episode = solved(form)
    step = episode.steps[0].model_copy(update={"more_actions": (Wait(), Click(x=1, y=2))})
    tables = rows([episode.model_copy(update={"steps": (step,)})])
    assert actions_from_json(tables["steps"][0]["action"]) == (step.action, Wait(), Click(x=1, y=2))
    assert episode_from_rows(tables["episodes"][0], tables["steps"], form.task).steps[0].more_actions == step.more_actions
    assert messages_from_rows(tables["steps"][0]["messages"]) == step.messages


def test_the_spool_gives_back_what_was_put_in(form: SimpleNamespace, tmp_path: Path) -> None:
    for episode in (solved(form, 1), solved(form, 1), crashed(form)):
        path = dump_episode(episode, tmp_path / "spool")
        assert load_episode(path) == episode
        assert load_episode(path).screenshots == episode.screenshots
    files = sorted(p.name for p in (tmp_path / "spool").rglob("*") if p.is_file())
    assert len([name for name in files if name.endswith(".json")]) == 2
    assert not [name for name in files if name.startswith(".")]


@pytest.mark.parametrize("damage", ["cut", "picture", "shape"])
def test_a_damaged_spool_file_is_named(form: SimpleNamespace, tmp_path: Path, damage: str) -> None:
    path = dump_episode(solved(form), tmp_path)
    actions: dict[str, Any] = {
        "cut": lambda: path.write_bytes(path.read_bytes()[:-20]),
        "picture": lambda: next((tmp_path / "screens").iterdir()).unlink(),
        "shape": lambda: path.write_text("[]"),
    }
    actions[damage]()
    with pytest.raises(CorruptTable, match=path.name):
        load_episode(path)
    with pytest.raises(FileNotFoundError):
        load_episode(tmp_path / "nothing.json")


def test_only_png_pictures_are_stored() -> None:
    with pytest.raises(ValueError, match="not a PNG"):
        screenshot_row("screen-1", b"\xff\xd8\xff\xe0 a jpeg")
