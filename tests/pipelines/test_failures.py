"""Who retries, and how often: the table of docs/failures.md, held to what real processes do. Starts are counted where they happen: by
the process ids of workers, the browsers' own words, Dagster's records of runs."""

import asyncio
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from rich.console import Console
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.episode.runner import crashed_episode
from agent.policy.action_source import OracleActionSource
from agent.policy.policy import Prompt, Response
from agent.prompts.prompt import PromptBuilder
from annotation.config import WordingConfig
from annotation.platform.live import MAX_IN_A_ROW
from annotation.recorder.review import upload
from annotation.recordings.refinement import Refiner
from annotation.storage.database import Database
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, SeedSettings, TaskSettings
from assets.stages.failures import RETRY, retried
from assets.stages.requests import DemonstrateRequest
from assets.stages.resources import StageRunner
from models.http import replica
from models.http.config import HttpEngineConfig
from models.rl.rollouts import pool as rollouts
from pipelines.cli.runs import run as run_command
from pipelines.cluster.sessions import collecting
from pipelines.orchestration.runs.executor import LAUNCH_TAG
from pipelines.orchestration.runs.failures import MAX_RELAUNCHES
from pipelines.orchestration.sensors import RELAUNCH_TAG, relaunch_failed_iteration
from pipelines.orchestration.services import prefect_server
from pipelines.orchestration.work.folder import work_folder
from pipelines.orchestration.work.progress import Progress
from pipelines.orchestration.work.stage_runner import PipesStageRunner
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import PolicyService
from sandbox.adopting import proof
from sandbox.adopting.records import AdoptedTask, AnswerCheck, Folder, Proof, Site
from sandbox.android.device import DUMP_ATTEMPTS
from sandbox.browser.chromium import EXECUTABLE_VARIABLE
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.pool import SessionPool
from sandbox.tasks import prove, supply_report
from sandbox.tasks.browsing.chat import ChatModel, ChatSettings
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Split
from warehouse.core import store
from warehouse.core.errors import (
    BrowserCrashed,
    BrowserMissing,
    ConfigError,
    EngineUnreachable,
    SandboxError,
    ServerUnreachable,
    StageFailed,
    UploadFailed,
    WordingFailed,
)
from warehouse.core.home import Home
from warehouse.storage.log.commits import MAX_ATTEMPTS

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
BUILDER = PromptBuilder("compact")
TABLE = {
    what.strip(): int(starts)
    for what, starts in re.findall(r"^\| ([^|]+) \|[^|]*\| (\d+) \|", (ROOT / "docs" / "failures.md").read_text(), re.M)
}
EPISODE = TABLE["an episode, whichever stage plays it"]
STAGE = TABLE["a stage: its step and its process"]
BY_COMMAND = TABLE["a run that was cut off, launched by `flywheel run`"]
BY_SENSOR = TABLE["a run that was cut off, launched otherwise"]
BY_PERSON = TABLE["anything that a person must fix"]


def test_the_settings_are_those_of_the_table() -> None:
    """What is counted elsewhere: requests in tests/models/test_http_failures.py, commits in tests/warehouse/test_tables.py."""
    assert len(TABLE) == 23 and BY_PERSON == 1
    assert TABLE["the start of a browser"] == TABLE["the start of a worker process of a fleet, where no other lives"] == 1
    assert SandboxSettings().max_retries + 1 == CollectorSettings().max_retries + 1 == EPISODE
    assert TABLE["an episode that a person annotates, without a decision in between"] == MAX_IN_A_ROW
    assert TABLE["one request to a policy server"] == HttpEngineConfig.model_fields["retries"].default + 1
    assert TABLE["one commit that another writer beat"] == MAX_ATTEMPTS
    assert TABLE["an episode whose Ray node was lost or has a full disk"] == SandboxSettings().max_retries + 1
    assert TABLE["an episode of an oracle in `flywheel tasks prove`"] == prove.MAX_TRIES
    assert TABLE["an episode of an oracle in `flywheel tasks supply`"] == prove.MAX_TRIES
    assert TABLE["the play of an adopted task in `flywheel adopt`"] == proof.MAX_TRIES
    assert TABLE["the request that lets a policy server go on after weights could not be loaded"] == replica.RELEASE_RETRIES + 1
    assert TABLE["one request of a recording's upload"] == upload.ATTEMPTS
    assert TABLE["one request to a model that words thoughts and tasks"] == WordingConfig().attempts
    assert TABLE["one request to a model that screens questions of `browsing`"] == ChatSettings.model_fields["max_attempts"].default
    assert TABLE["one tree of an Android screen by UI Automator, within a try of its episode"] == DUMP_ATTEMPTS
    assert TABLE["one request to the object store"] == store.MAX_RETRIES + 1
    assert TABLE["one read of the object store whose answer was cut off"] == store._RESUMPTIONS + 1


def test_every_stage_that_collects_honours_the_time_of_a_whole_episode() -> None:
    assert collecting(SandboxSettings(episode_timeout_s=7.0)).episode_timeout_s == 14.0


@pytest.fixture
def dying_browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A browser that ends as soon as it is started; how often that was. In a folder that the browser's own user may enter."""
    with tempfile.TemporaryDirectory(prefix="flywheel-dying-") as name:
        folder = Path(name)
        program, starts = folder / "headless-shell", folder / "starts"
        program.write_text(f"#!/bin/sh\necho started >> {starts}\nexit 3\n")
        starts.touch()
        starts.chmod(0o666)
        for each in (program, folder):
            each.chmod(0o755)
        monkeypatch.setenv(EXECUTABLE_VARIABLE, str(program))
        yield lambda: len(starts.read_text().splitlines())


def one_request() -> EpisodeRequest:
    task = load_tasks()["click-button"]
    return EpisodeRequest(purpose="seed", task=task, seed=task.seeds(Split.TRAIN, 1)[0], policy_id="oracle")


async def play_one(pool: Any) -> Episode:
    (episode,) = [each async for each in PoolCollector(pool, BUILDER).play(OracleActionSource(BUILDER.grammar), [one_request()])]
    return episode


def test_a_browser_that_does_not_start_is_started_once_a_try(dying_browser: Callable[[], int]) -> None:
    async def main() -> Episode:
        async with SessionPool(size=1, kind="plain") as pool:
            return await play_one(pool)

    episode = asyncio.run(main())
    assert episode.outcome is Outcome.CRASHED and str(episode.error).startswith("BrowserCrashed"), episode.error
    assert dying_browser() == EPISODE == episode.num_retries + 1, episode.error


def test_a_browser_that_is_missing_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def main() -> None:
        async with SessionPool(size=1, kind="plain") as pool:
            monkeypatch.setenv(EXECUTABLE_VARIABLE, str(tmp_path / "nowhere"))
            with pytest.raises(BrowserMissing):
                await play_one(pool)
            assert pool.stats().num_leases == BY_PERSON

    asyncio.run(main())


def test_a_worker_that_does_not_start_is_started_once_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        async with Fleet(FleetSettings(min_workers=0, max_workers=1, sessions_per_worker=1, kind="plain")) as fleet:
            episode = await play_one(fleet)
            await asyncio.sleep(1.0)
            assert episode.outcome is Outcome.CRASHED and "No sandbox process could be started" in str(episode.error)
            assert fleet.stats().num_workers_started == EPISODE, "and none for nobody"

    asyncio.run(main())


def test_the_proof_of_an_oracle_leases_as_often_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        async with Fleet(FleetSettings(min_workers=0, max_workers=1, sessions_per_worker=1, kind="plain")) as fleet:
            with pytest.raises(SandboxError, match="No sandbox process could be started"):
                await prove._with_retries(fleet, one_request().task, one_request().seed, 0.0)
            await asyncio.sleep(1.0)
            assert fleet.stats().num_workers_started == TABLE["an episode of an oracle in `flywheel tasks prove`"]

    asyncio.run(main())


def supplied() -> supply_report.Supplied:
    request = one_request()
    facts = Facts(instruction="Press the button.", content={}, difficulty=0.0, provenance={})
    return supply_report.Supplied(task=request.task, seed=request.seed, split=Split.TRAIN, facts=facts, made_ms=0.0)


def test_an_instance_of_a_supply_is_played_as_often_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        async with Fleet(FleetSettings(min_workers=0, max_workers=1, sessions_per_worker=1, kind="plain")) as fleet:
            played = await supply_report._play(fleet, supplied())
            await asyncio.sleep(1.0)
            assert "No sandbox process could be started" in played.error and played.proof is None
            assert fleet.stats().num_workers_started == TABLE["an episode of an oracle in `flywheel tasks supply`"]

    asyncio.run(main())


def test_a_supply_without_a_browser_is_not_played_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def main() -> None:
        async with SessionPool(size=1, kind="plain") as pool:
            monkeypatch.setenv(EXECUTABLE_VARIABLE, str(tmp_path / "nowhere"))
            with pytest.raises(BrowserMissing):
                await supply_report._play(pool, supplied())
            assert pool.stats().num_leases == BY_PERSON

    asyncio.run(main())


@pytest.mark.parametrize("error", [BrowserCrashed("gone"), BrowserMissing("nowhere")])
def test_an_adopted_task_is_played_as_often_as_the_table_says(error: SandboxError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plays: list[int] = []

    async def fail(prover: proof.Prover, session: Any, task: AdoptedTask, number: int, other: int | None) -> Proof:
        plays.append(number)
        raise error

    monkeypatch.setattr(proof.Prover, "_play", fail)
    task = AdoptedTask(family="read-value", instruction="What?", start="/", checks=(AnswerCheck(text="1"),), steps=(), answer="1")
    site = Site(name="shop", origin="http://127.0.0.1:9")
    prover = proof.Prover(folder=Folder(tmp_path), site=site, candidates=[task], on_proof=lambda done, num, sound: None)
    if error.is_retryable:
        (found,) = asyncio.run(prover.run(1))
        assert found.why_not == "could not be played: BrowserCrashed"
        assert len(plays) == TABLE["the play of an adopted task in `flywheel adopt`"]
    else:
        with pytest.raises(BrowserMissing):
            asyncio.run(prover.run(1))
        assert len(plays) == BY_PERSON


def test_an_episode_of_rl_is_asked_for_as_often_as_the_table_says() -> None:
    request: EpisodeRequest | None = one_request()
    starts = 0
    while request is not None:
        starts += 1
        request = rollouts.retry_of(crashed_episode(request, SandboxError("gone"), duration_ms=1.0))
    assert starts == TABLE["an episode of RL that was recorded as `crashed`"]


@contextmanager
def failing_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the paths that were asked for: each gets a 503."""
    asked: list[str] = []

    class Failing(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(503)

        do_POST = do_PUT

        def log_message(self, format: str, *args: Any) -> None:
            """Said by the assertion."""

    with HTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_an_upload_is_sent_as_often_as_the_table_says() -> None:
    with failing_server() as (url, asked):
        sender = upload.Uploader(url, "a token of thirty-two characters", wait_s=0.01)
        with pytest.raises(UploadFailed, match="could not be reached"):
            sender._call("PUT", "/parts/one", b"bytes", "application/octet-stream")
        sender.close()
    assert len(asked) == TABLE["one request of a recording's upload"]


def test_a_model_that_words_texts_is_asked_as_often_as_the_table_says() -> None:
    with failing_server() as (url, asked):
        refiner = Refiner(url, "small", pause_s=0.0)
        with pytest.raises(WordingFailed, match="HTTP 503"):
            refiner.ask("Reword.", "text")
        refiner.close()
    assert len(asked) == TABLE["one request to a model that words thoughts and tasks"]
    with failing_server() as (url, asked):
        model = ChatModel(ChatSettings(base_url=url, model="small", pause_s=0.0))
        with pytest.raises(ServerUnreachable, match="HTTP 503"):
            model.answer("Which?")
        model.close()
    assert len(asked) == TABLE["one request to a model that screens questions of `browsing`"]


class Deadlock(Exception):
    """As a driver of Postgres reports it."""

    sqlstate = "40P01"


def test_a_transaction_runs_as_often_as_the_table_says(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'annotation.db'}")
    starts: list[int] = []

    def work(session: Session) -> None:
        starts.append(1)
        raise DBAPIError("update", {}, Deadlock())

    with pytest.raises(DBAPIError):
        database.transact(work)
    database.close()
    assert len(starts) == TABLE["one transaction of the annotation database that Postgres broke off (deadlock, serialization failure)"]


class Refusing:
    """A policy that its profile asks too much of. Counts how often it is asked."""

    policy_id = "policy-refusing"
    num_asked = 0

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        self.num_asked += 1
        raise ConfigError("not with this profile")


def collect(root: Path, is_refusing: bool) -> None:
    """One episode through Prefect, in a process of its own."""
    home, tasks = Home(root), TaskSettings(lists=("miniwob:smoke",), domains=("forms",))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=1, session="plain"))
    requests = requests_for(tasks, purpose="rollout", policy_id=Refusing.policy_id, split=Split.TRAIN, num=1, temperature=1.0)[:1]
    with prefect_server.prefect_server(home) as url:
        os.environ.update(prefect_server.client_environment(home, url))
        from pipelines.orchestration.work.collection import run_collection

        policy, progress = Refusing(), Progress(home.work, iteration="0001", stage="rollouts", log=print)
        log = EpisodeLog(root / "episodes")
        with PolicyService(acting, policy, log) as service:
            if is_refusing:
                with pytest.raises(ConfigError):
                    run_collection(service, requests, num_at_once=2, progress=progress)
                assert policy.num_asked == BY_PERSON
            else:
                run_collection(service, requests, num_at_once=2, progress=progress)
                (episode,) = log.episodes()
                assert episode.outcome is Outcome.CRASHED and str(episode.error).startswith("BrowserCrashed"), episode.error


def collect_in_a_process(root: Path, *, is_refusing: bool) -> None:
    program = f"import sys, test_failures; test_failures.collect(test_failures.Path(sys.argv[1]), {is_refusing})"
    paths = f"{ROOT}:{Path(__file__).parent}"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(root)], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.slow
def test_the_runner_is_the_only_one_who_retries_an_episode_of_a_collection(tmp_path: Path, dying_browser: Callable[[], int]) -> None:
    collect_in_a_process(tmp_path / "home", is_refusing=False)
    assert dying_browser() == EPISODE


@pytest.mark.slow
def test_an_episode_of_a_collection_is_not_retried_where_a_person_must_fix_something(tmp_path: Path) -> None:
    collect_in_a_process(tmp_path / "home", is_refusing=True)


@contextmanager
def watching(mark: str, *, kills: bool = False) -> Iterator[set[int]]:
    """The ids of our processes with an argument `mark`, killed as they come where asked for."""
    seen: set[int] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if mark in process.cmdline() and process.pid not in seen:
                        seen.add(process.pid)
                        if kills:
                            process.kill()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def demonstrate(task_list: str) -> DemonstrateRequest:
    return DemonstrateRequest(
        iteration="0000",
        stage="seed_demonstrations",
        seed=0,
        seed_data=SeedSettings(tutorials=1, demonstrations_per_task=1),
        acting=ActingSettings(tasks=TaskSettings(lists=(task_list,), domains=("pointing",)), sandbox=SandboxSettings(num_sessions=1)),
    )


def run_stage(place: Any, request: DemonstrateRequest) -> dg.ExecuteInProcessResult:
    @dg.asset(retry_policy=RETRY)
    @retried
    def stage(context: dg.AssetExecutionContext, runner: StageRunner) -> None:
        runner.run(context, request)

    resources = {"runner": PipesStageRunner(root=str(place.home.root))}
    return dg.materialize([stage], instance=place.instance, resources=resources, raise_on_error=False)


@pytest.mark.parametrize(("error", "starts"), [("ConfigError", BY_PERSON), pytest.param("WorkerKilled", STAGE, marks=pytest.mark.slow)])
def test_a_stage_is_started_as_often_as_its_error_says(place: Any, error: str, starts: int) -> None:
    is_killed = error == "WorkerKilled"
    with watching(str(work_folder(place.home, "0000", "seed_demonstrations")), kills=is_killed) as workers:
        run = run_stage(place, demonstrate("miniwob:smoke" if is_killed else "miniwob:nothing"))
    (failed,) = [event for event in run.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
    reported = failed.step_failure_data.user_failure_data
    assert reported is not None and error in str(reported.description) and reported.metadata["is_retryable"].value is is_killed
    assert len(workers) == starts


def fail(place: Any, error: Exception, **tags: str) -> tuple[dg.DagsterRun, int]:
    """A real run whose one asset fails; its record, and how often the asset was started."""
    starts: list[int] = []

    @dg.asset(retry_policy=RETRY)
    @retried
    def failing() -> None:
        starts.append(1)
        raise error

    run = dg.materialize([failing], instance=place.instance, raise_on_error=False, tags={"dagster/partition": "0002", **tags})
    return place.instance.get_run_by_id(run.run_id), len(starts)


def asked_again(place: Any, run: dg.DagsterRun) -> Any:
    """What the sensor makes of a failed run."""
    (record,) = place.instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
    context = dg.build_run_status_sensor_context(
        sensor_name="relaunch_failed_iteration",
        dagster_event=record.event_log_entry.dagster_event,
        dagster_instance=place.instance,
        dagster_run=run,
    ).for_run_failure()
    return relaunch_failed_iteration(context)


def test_the_sensor_leaves_to_a_person_what_a_person_must_fix(place: Any) -> None:
    run, starts = fail(place, ConfigError("no such curriculum"))
    assert starts == BY_PERSON
    skipped = asked_again(place, run)
    assert isinstance(skipped, dg.SkipReason) and "a person has to fix that first: failing: ConfigError" in str(skipped.skip_message)


def test_the_sensor_does_not_launch_again_what_dagster_has_retried(place: Any) -> None:
    run, starts = fail(place, EngineUnreachable("no answer"))
    assert starts == STAGE
    skipped = asked_again(place, run)
    assert isinstance(skipped, dg.SkipReason) and "Dagster has retried the stage" in str(skipped.skip_message)


def cut_off(place: Any, **tags: str) -> dg.DagsterRun:
    """A run whose process is gone, as living_runs reports it."""
    run = place.add_run(dg.DagsterRunStatus.STARTED, **{"dagster/partition": "0002"}, **tags)
    place.instance.report_run_failed(run, "the process of this run is gone")
    return place.instance.get_run_by_id(run.run_id)


def test_the_sensor_launches_a_run_again_that_was_cut_off(place: Any) -> None:
    run, starts = cut_off(place), 1
    while isinstance(request := asked_again(place, run), dg.RunRequest):
        assert request.partition_key == "0002"
        run, starts = cut_off(place, **{RELAUNCH_TAG: request.tags[RELAUNCH_TAG]}), starts + 1
    assert starts == BY_SENSOR == MAX_RELAUNCHES + 1
    skipped = asked_again(place, cut_off(place, **{LAUNCH_TAG: "launch"}))
    assert isinstance(skipped, dg.SkipReason) and "flywheel run" in str(skipped.skip_message)


def launch(place: Any) -> str:
    said = io.StringIO()
    with pytest.raises(StageFailed) as failed:
        run_command._launch_until_done("seed_iteration", None, "seed", place.home, place.instance, Console(file=said, width=400))
    return f"{said.getvalue()}\n{failed.value}"


def test_the_command_launches_a_run_again_that_was_cut_off(place: Any) -> None:
    with watching("pipelines.orchestration.runs.process", kills=True) as runs:
        said = launch(place)
    assert len(runs) == BY_COMMAND, said


@pytest.mark.slow
def test_the_command_leaves_to_a_person_what_a_person_must_fix(place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(EXECUTABLE_VARIABLE, str(tmp_path / "nowhere"))
    folder = str(work_folder(place.home, "0000", "seed_demonstrations"))
    began = time.monotonic()
    with watching(folder) as workers, watching("pipelines.orchestration.runs.process") as runs:
        said = launch(place)
    assert "BrowserMissing" in said and len(runs) == len(workers) == BY_PERSON, f"{said} after {time.monotonic() - began:.0f} s"
