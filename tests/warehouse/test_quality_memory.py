"""The filters and routing with less memory than what they know of the steps: rows go to the disk, threads become fewer, results stay."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from warehouse.quality.config import QualityConfig
from warehouse.quality.filters import judge
from warehouse.routing.routes import route
from warehouse.storage.catalogue import TABLES

NUM_EPISODES, NUM_STEPS = 12_000, 10
LITTLE = "48MB"
_ID = "'episode-' || (hash(e) % 1000000007) || '-' || e"
_EPISODES = f"""
select '0001' as iteration, 'rollouts' as stage, {_ID} as episode_id, 'rollout' as purpose, 'task-' || (e // 2 % 50) as task_id,
    'name' as task_name, 'd' as domain, case when e % 40 = 0 then 'eval' else 'train' end as split, 'Do number ' || (e // 2) as instruction,
    'success' as outcome, (e % 3 > 0)::double as reward, null::varchar as error
from range({NUM_EPISODES}) t(e)
"""
_STEPS = f"""
select '0001' as iteration, 'rollouts' as stage, {_ID} as episode_id, s::bigint as step_index, null::varchar as screenshot_id,
    'page ' || case when e % 20 = 1 then s // 2 when e % 50 < 20 then e // 2 + s else e + s end || chr(10) || '"Ok" <button> [1]'
        as observation,
    [{{role: 'user', content: case when e % 500 = 7 then 'WOB_READY' else 'Do it.' end, screenshot_id: null::varchar, loss: 0::float}}]
        as messages,
    case when (e + s) % 300 = 0 then '' else 'Thought click "Ok" <button> [1] Action click [1]' end as response,
    case when (e + s) % 200 = 3 then 'type' else 'click' end || ' "Ok" <button> [1]' as thought,
    case when (e * s) % 250 = 9 then '{{"kind":"invalid","reason":"no verb"}}' else '{{"kind":"click","x":10,"y":20}}' end as action
from range({NUM_EPISODES}) t(e), range({NUM_STEPS}) u(s)
"""
"""Some of everything: idle ones, pairs of the same, hidden data, empty answers, contradictions, invalid actions."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two tables in files that are read a little at a time."""
    folder = tmp_path_factory.mktemp("stored")
    with duckdb.connect() as con:
        for name, query in (("episodes", _EPISODES), ("steps", _STEPS)):
            con.execute(f"copy ({query}) to '{folder}/{name}.parquet' (format parquet, row_group_size 4096)")
    return folder


def judged_and_routed(stored: Path, memory: str, aside: Path | None) -> tuple[pa.Table, pa.Table]:
    with duckdb.connect() as con:
        con.execute(f"set memory_limit = '{memory}'")
        con.execute("set threads = 2")
        con.execute("set preserve_insertion_order = false")
        con.execute("set temp_directory = ?", [str(aside) if aside is not None else ""])
        for name in ("episodes", "steps"):
            con.execute(f"create view {name} as from read_parquet('{stored}/{name}.parquet')")
        for name in ("annotations", "task_instances", "screenshots"):
            con.register(name, TABLES[name].schema.empty_table())
        verdicts = pa.concat_tables(judge(con, QualityConfig(), cache=stored, part_episodes=5_000))
        placed = verdicts.append_column("iteration", pa.repeat("0001", len(verdicts)))
        con.register("verdicts", placed.append_column("stage", pa.repeat("verdicts", len(verdicts))))
        return verdicts, route(con)


@pytest.mark.slow
def test_with_little_memory_rows_go_to_the_disk_and_nothing_changes(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(duckdb.OutOfMemoryException):
        judged_and_routed(stored, LITTLE, None)
    verdicts, routes = judged_and_routed(stored, LITTLE, tmp_path)
    expected_verdicts, expected_routes = judged_and_routed(stored, "2GB", tmp_path)
    assert verdicts.equals(expected_verdicts) and routes.equals(expected_routes)
    assert set(routes["route"].to_pylist()) == {"sft", "ct", "withheld"}
    failed = set(verdicts.filter(pc.invert(verdicts["passed"]))["judge"].to_pylist())
    assert failed >= {"verifier", "format", "loop", "too_short", "contradiction", "leak", "duplicate", "contamination"}
