"""An iteration with people: what they decided live and what they recorded of their own work comes in beside what the scripted annotator
decides, who works through the same service; the next iteration learns from it, and what is taken back leaves its datasets."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from agent.policy.action_source import ORACLE_POLICY_ID
from annotation.recorder.review import edits
from annotation.recorder.review.upload import Uploader
from annotation.recordings.bundle import ANNOUNCE_PATH
from annotation.service.access.accounts import Accounts
from annotation.service.intake import intake
from annotation.storage.database import default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import User
from benchmarks.annotators import Load, play, prepared
from benchmarks.common.annotating import Counts, Server
from tests.annotation.recording import made_recording
from tests.iterations.test_planted import run_assets

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

LOAD = Load(num_annotators=4, num_sessions=4, num_decisions=6, seconds=600, double_share=0.0, kill=False, tasks="miniwob:smoke")
PROFILE = "smoke"
TAKES_IN, LEARNS = "0002", "0003"


@dataclass(frozen=True)
class Given:
    """What people gave."""

    episodes: dict[str, str]
    """Episode of each finished run that counts, by the run's id."""
    users: frozenset[str]
    recording_id: str
    num_actions: int


def test_an_iteration_learns_from_what_people_did(finished_home: Any, copy_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = copy_of(finished_home)
    given = give(workspace)
    with watching(workspace.base / "tmp") as played:
        run_iterations(workspace, 2)
    check_tables(workspace, given)
    ((num_steps,),) = workspace.sql("select count(*) from steps where iteration = ? and stage = 'annotations'", TAKES_IN)
    assert played.users == {ORACLE_POLICY_ID} and num_steps // 2 < played.num_steps <= num_steps, "it works through the same service"

    made = ("withdrawals", "ct_dataset", "sft_dataset")
    went_well, text, _ = run_assets(workspace, (*made, "ct_model", "sft_model"), monkeypatch, LEARNS)
    assert went_well, text
    learned = check_learned(workspace, given)

    taught = Counter(episode_id for episode_id, _ in learned)
    run_id, episode_id = max(given.episodes.items(), key=lambda run: taught[run[1]])
    before = datasets_of(workspace)
    taken_back = workspace.flywheel("annotate", "withdraw", run_id, given.recording_id, "--reason", "a test")
    assert taken_back.returncode == 0 and "withdrawn: 2" in taken_back.stdout, taken_back.stderr
    went_well, text, _ = run_assets(workspace, made, monkeypatch, LEARNS)
    assert went_well, text
    assert before.keys() == datasets_of(workspace).keys() and not set(before.values()) & set(datasets_of(workspace).values()), (
        "new versions"
    )
    assert samples_of(workspace, "ct", "s.stage = 'recordings'") == set()
    left = samples_of(workspace, "sft", "a.origin = 'human'")
    assert left == {one for one in learned if one[0] != episode_id} != learned, "and nothing else went with it"
    assert workspace.left_after(15) == []


def give(workspace: Any) -> Given:
    """People at work on a real server of this home, by its newest release; one of them records something, another approves it."""
    home = workspace.home
    database = open_database(default_url(home))
    tokens = prepared(database, home, LOAD)

    async def reviewer() -> str:
        accounts = Accounts(database)
        token, _ = await accounts.add_program("rex", "reviewer", "a test")
        accounts.passwords.close()
        return token

    store = made_recording.make(workspace.base / "own")
    edits.confirm(store)
    server, taken = Server(home, default_url(home), LOAD.num_sessions, environment=workspace.environment), dict[str, str]()
    all_counts = [Counts(taken) for _ in tokens]
    server.start()
    try:
        asyncio.run(play(LOAD, tokens, all_counts, server))
        upload(server.url, tokens[0], asyncio.run(reviewer()), store)
    finally:
        server.end()
    with database.read() as session:
        users = {user.user_id for user in session.scalars(select(User)) if user.name.startswith("annotator")}
    by_status = intake.runs_by_status(database)
    database.close()
    assert {run.run_id for run in by_status.counting} == {run_id for counts in all_counts for run_id in counts.finished} != set()
    return Given(
        {run.run_id: run.episode_id for run in by_status.counting},
        frozenset(users),
        store.cover.recording_id,
        len(store.manifest().actions),
    )


def upload(url: str, token: str, reviewer: str, store: Any) -> None:
    sender = Uploader(url, token)
    try:
        assert sender.upload(store) > 0
    finally:
        sender.close()
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {reviewer}"}, trust_env=False, timeout=60) as client:
        said = client.post(f"{ANNOUNCE_PATH}/{store.cover.recording_id}/review", json={"approves": True, "verdict": True})
        assert said.status_code == 201, said.text


def run_iterations(workspace: Any, num_iterations: int) -> None:
    ran = workspace.flywheel("run", "--iterations", str(num_iterations), "--profile", PROFILE, timeout_s=1500)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


@dataclass
class Played:
    """What was seen of the scripted annotator's own annotation database, which is gone with its process."""

    num_steps: int = 0
    users: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Played]:
    played, is_over = Played(), threading.Event()

    def look() -> None:
        while not is_over.wait(0.2):
            for path in folder.glob("flywheel-scripted-*/annotation.db"):
                with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
                    (num,) = con.execute("select count(*) from run_steps where decision is not null").fetchone()
                    played.num_steps = max(played.num_steps, num)
                    played.users |= {user_id for (user_id,) in con.execute("select distinct user_id from runs")}

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield played
    finally:
        is_over.set()
        thread.join()


def check_tables(workspace: Any, given: Given) -> None:
    """Both kinds are where they belong, once, under the stages that took them in; scripted annotations are beside them."""
    origins = workspace.sql("select distinct stage, origin from annotations where iteration = ? order by all", TAKES_IN)
    assert origins == [("annotations", "scripted"), ("human_annotations", "human")]
    taken = workspace.sql("select episode_id, policy_id, split from episodes where iteration = ? and stage = 'human_annotations'", TAKES_IN)
    assert sorted(episode for episode, *_ in taken) == sorted(given.episodes.values()) and {split for *_, split in taken} == {"train"}
    assert {who for (who,) in workspace.sql("select distinct annotator from annotations where origin = 'human'")} <= given.users
    for table in ("steps", "verdicts", "routes"):
        without = "select episode_id from episodes where stage = 'human_annotations' except select episode_id from"
        assert workspace.sql(f"{without} {table}") == [], table
    unseen = "steps left join screenshots i using (screenshot_id) where i.data is null"
    assert workspace.sql(f"select count(*) from {unseen} and steps.stage in ('human_annotations', 'recordings')") == [(0,)]
    ((policy_id, purpose, num_steps),) = workspace.sql(
        "select any_value(e.policy_id), any_value(e.purpose), count(*) from episodes e join steps using (episode_id) "
        "where e.stage = 'recordings'"
    )
    assert (policy_id, purpose, num_steps) == ("human", "seed", given.num_actions)
    recorded = workspace.sql("select origin, domain, iteration, count(*) from ct_samples where stage = 'recordings' group by all")
    assert recorded == [("annotation", "recorded-expert", TAKES_IN, given.num_actions)]
    decided = "a.decision in ('accept', 'edit', 'override') and trim(coalesce(a.response, '')) <> '' and r.route <> 'withheld'"
    missing = workspace.sql(
        f"select annotation_id from annotations a join routes r using (episode_id) where a.origin = 'human' and {decided} "
        "except select annotation_id from sft_samples"
    )
    assert missing == [], "each decision that teaches is a sample of D_SFT"


def check_learned(workspace: Any, given: Given) -> set[tuple[str, int]]:
    """Both kinds are in what the next iteration learns from, and its policies are made of it; the steps of people's runs in there."""
    recorded = samples_of(workspace, "ct", "s.stage = 'recordings'")
    assert len(recorded) == given.num_actions
    learned = samples_of(workspace, "sft", "a.origin = 'human'")
    assert learned and {episode for episode, _ in learned} <= set(given.episodes.values())
    assert samples_of(workspace, "sft", "a.origin = 'scripted'")
    for stage, samples in (
        ("ct_model", "ct_samples where stage = 'recordings'"),
        ("sft_model", "sft_samples join annotations a using (annotation_id) where a.origin = 'human'"),
    ):
        ((sample_id,),) = workspace.sql(f"select sample_id from {samples} order by all limit 1")
        ((checkpoint_id,),) = workspace.sql("select checkpoint_id from checkpoints where iteration = ? and stage = ?", LEARNS, stage)
        made = {found for (found,) in workspace.sql("select id from descendants(?) where kind = 'checkpoint'", sample_id)}
        assert checkpoint_id in made, f"lineage leads from {sample_id} to the {stage} that learned from it"
    return learned


def datasets_of(workspace: Any) -> dict[str, str]:
    """By kind."""
    return dict(workspace.sql("select distinct stage, dataset_id from datasets where iteration = ?", LEARNS))


def samples_of(workspace: Any, kind: str, where: str) -> set[tuple[str, int]]:
    """Episode and step of the samples in the dataset of this kind that is learned from."""
    annotated = "left join annotations a using (annotation_id)" if kind == "sft" else ""
    query = (
        f"select distinct s.episode_id, s.step_index from datasets d join {kind}_samples s using (sample_id) {annotated} "
        f"where d.iteration = ? and d.stage = '{kind}_dataset' and d.weight > 0 and {where}"
    )
    return {(episode, step) for episode, step in workspace.sql(query, LEARNS)}
