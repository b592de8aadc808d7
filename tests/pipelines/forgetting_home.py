"""A home with people's work in it, taken in by the assets that do so, learned from and released. Beside it two looks at a home that owe
nothing to the code under test: at every byte that it holds, and at what descends from an episode."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from PIL import Image

from agent.episode.log import EpisodeLog
from annotation.service.intake import intake
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database, default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import Proposal, Review, Run, RunStep, User
from tests.annotation.service.review_parts import Did, History
from tests.assets.people_parts import materialize
from tests.warehouse.test_releases import made, run_iteration
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse

ADA, BOB = "ada.lovelace", "bob.babbage"
IDS = {ADA: "user-ada", BOB: "user-bob"}
SAID = {name: f"the aardvark of {name} is mauve" for name in (ADA, BOB)}
"""Words of each that nobody else says."""
TABLES = ("annotations", "ct_samples", "sft_samples", "orm_samples")


def seen_by(name: str) -> bytes:
    """A picture that nobody else has seen."""
    buffer = BytesIO()
    Image.frombytes("RGB", (16, 16), (SAID[name] * 40).encode()[: 16 * 16 * 3]).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def annotated_home(root: Path) -> Home:
    """Ada and Bob have each finished a run, and reviewed each other's; both are in the dataset of a release, and in two exports."""
    home = Home(root)
    database = open_database(default_url(home))
    history = History(database, "ada:reviewer", "bob:reviewer", "root:admin")
    history.ids = IDS
    with database.write() as session:
        session.get_one(User, "user-root").password_hash = "a hash"
        for name, user_id in IDS.items():
            session.get_one(User, user_id).name = name
    for seed, name in enumerate((ADA, BOB)):
        _work(home, database, history, name, seed)
    database.close()
    assert materialize(root, "0001").success
    warehouse = Warehouse(home)
    _learn(warehouse)
    return home


def _work(home: Home, database: Database, history: History, name: str, seed: int) -> None:
    words, picture = SAID[name], Blobs.of_home(home).put(seen_by(name))
    run_id = history.run(name, seed=seed, steps=[Did(number=2), Did(decision="override", number=2)])
    other = BOB if name == ADA else ADA
    with database.write() as session:
        run = session.get_one(Run, run_id)
        run.instruction, run.note, run.reward = f"Click. {words}", f"note: {words}", 1.0
        for step in session.query(RunStep).where(RunStep.run_id == run_id):
            step.messages = (
                [{"role": "user", "content": f"prompt: {words}", "screenshot_id": picture, "loss": 0.0}] if step.messages else []
            )
            step.screenshot_id, step.observation = picture, f'"one" <button> [1] "{words}" <text> [2]'
            if step.decision is not None:
                step.response, step.thought = f"Thought {words} Action click [1]", words
        for proposal in session.query(Proposal).join(RunStep, RunStep.step_id == Proposal.step_id).where(RunStep.run_id == run_id):
            proposal.text = f"Thought {words}? Action wait"
        note = f"I think that {SAID[other]}"
        session.add(
            Review(
                review_id=f"review-{seed}",
                run_id=run_id,
                reviewer_id=IDS[other],
                kind="second",
                approves=True,
                verdict=True,
                steps={"0": {"is_right": True, "note": note}},
                note=note,
                created_at_s=history.now_s + 1,
            )
        )
    taken = intake.take(database, Blobs.of_home(home), run_id)
    EpisodeLog(home.work / "0001" / "rollouts" / "episodes").append(taken.episode)


def _learn(warehouse: Warehouse) -> None:
    """A dataset of all samples, a model of it, a release made from that; before them one that learned from nobody."""
    run_iteration(warehouse, "0001", "clean")
    samples = warehouse.read("sft_samples").to_pylist()
    rows = [
        {"dataset_id": "data-all", "kind": "sft", "sample_id": row["sample_id"], "component": "approved", "weight": 1.0} for row in samples
    ]
    warehouse.replace_partition("datasets", rows, iteration="0002", stage="sft_dataset")
    learned = made(warehouse, "0002", "sft_model", "learned")
    folder = learned.folder
    registry.register(warehouse, iteration="0002", stage="sft_model", checkpoint_id="learned", folder=folder, datasets=["data-all"])
    run_iteration(warehouse, "0002", "merged")
    folder = registry.made_by(warehouse, "0002", "merged_policy").folder
    registry.register(warehouse, iteration="0002", stage="merged_policy", checkpoint_id="merged", folder=folder, parents=["learned"])


def files_with(root: Path, what: Iterable[str | bytes]) -> list[str]:
    """Every file below a folder that holds one of these, as it lies or unpacked (Parquet, DuckDB, what pages embed), texts also as JSON and
    HTML write them; with what it holds."""
    wanted = list(dict.fromkeys(form for one in what for form in _forms(one)))
    found = []
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        held = path.read_bytes()
        if path.suffix == ".parquet" or held[:4] == b"PAR1":
            held += _plain(pq.ParquetFile(path).read().to_pylist())
        elif held[8:12] == b"DUCK":
            with duckdb.connect(str(path), read_only=True) as con:
                tables = [name for (name,) in con.execute("select table_name from duckdb_tables()").fetchall()]
                held += b"".join(_plain(con.sql(f"from {table}").to_arrow_table().to_pylist()) for table in tables)
        held += b"".join(_embedded(held))
        found += [f"{path.relative_to(root)}: {one[:60]!r}" for one in wanted if one in held]
    return found


def _forms(one: str | bytes) -> list[bytes]:
    return [one] if isinstance(one, bytes) else [one.encode(), json.dumps(one, ensure_ascii=False)[1:-1].encode(), escape(one).encode()]


def _embedded(held: bytes) -> Iterator[bytes]:
    """What data: addresses hold, and what the addresses in there hold."""
    for found in re.findall(rb"base64,([A-Za-z0-9+/]{64,}={0,2})", held):
        inside = base64.b64decode(found.rstrip(b"=")[: len(found) // 4 * 4] + b"==")
        yield inside
        yield from _embedded(inside)


def _plain(rows: list[dict[str, Any]]) -> bytes:
    texts: list[bytes] = []
    for row in rows:
        for value in row.values():
            texts.append(value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, default=str).encode())
    return b"\n".join(texts)


def walked(warehouse: Warehouse, episodes: set[str]) -> dict[str, set[str]]:
    """What descends from episodes, by table, row by row until nothing is added: no view of lineage, no SQL."""
    held = {table: warehouse.read(table).to_pylist() for table in (*TABLES, "datasets", "checkpoints")}
    found: dict[str, set[str]] = {table: set() for table in held}
    while True:
        before = {table: set(ids) for table, ids in found.items()}
        for row in held["annotations"]:
            if row["episode_id"] in episodes:
                found["annotations"].add(row["annotation_id"])
        for table in TABLES[1:]:
            for row in held[table]:
                from_episode = {row["episode_id"], *(row["prompt_episode_ids"] or ())} & episodes
                if from_episode or row["annotation_id"] in found["annotations"]:
                    found[table].add(row["sample_id"])
        samples = set().union(*(found[table] for table in TABLES[1:]))
        found["datasets"] |= {row["dataset_id"] for row in held["datasets"] if row["sample_id"] in samples}
        for row in held["checkpoints"]:
            if (
                set(row["datasets"]) & found["datasets"]
                or set(row["parents"]) & found["checkpoints"]
                or set(row["episode_ids"] or ()) & episodes
            ):
                found["checkpoints"].add(row["checkpoint_id"])
        if found == before:
            return found
