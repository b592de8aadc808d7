"""Dagster's page, used as a person would: a real browser on what `flywheel ui` serves. Every click is a click; nothing asks GraphQL."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from assets.checks import GATES
from pipelines.orchestration.iteration_lock import lock_path
from warehouse.core.locks import holder_of

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(3600)]

PAGE_TIMEOUT_MS = 90_000
RUN_TIMEOUT_MS = 1_500_000
ENDED = re.compile("^(Success|Failure|Canceled)$")

SEED = ("tasks", "seed_tutorials", "seed_demonstrations", "seed_policy", "seed")
ITERATION = (
    "iteration_input",
    "ct_dataset",
    "sft_dataset",
    "ct_model",
    "sft_model",
    "rl_model / pointing",
    "rl_model / forms",
    "merged_policy",
    "evaluations",
    "released_policy",
    "task_pool",
    "rollouts",
    "annotations",
    "human_annotations",
    "recordings",
    "verdicts",
    "routes",
    "ct_samples",
    "sft_samples",
    "iteration_output",
)
PICTURES = {
    "ct_model": "curves",
    "sft_model": "curves",
    "rl_model / pointing": "curves",
    "rl_model / forms": "curves",
    "evaluations": "success",
    "rollouts": "screens",
    "annotations": "screens",
    "routes": "flow",
}
MIN_COLOURS = 20
"""A blank or broken picture has a handful."""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell has what it runs in the background ignore SIGINT, these tests and whatever they start included."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def launch_next_iteration(page: Page, url: str) -> None:
    """Jobs → next_iteration → Launchpad → Launch Run; leaves the page at the run that this submitted."""
    page.goto(url)
    page.get_by_text("Jobs", exact=True).first.click()
    page.get_by_role("link", name="next_iteration").click()
    page.get_by_role("tab", name="Launchpad").click()
    page.get_by_role("button", name="Launch Run").click()
    expect_success(page, PAGE_TIMEOUT_MS)
    link = page.locator(f'a[href^="{url}/runs/"]').first
    with page.context.expect_page() as opened:
        link.click()
    submitted = opened.value.url
    opened.value.close()
    page.goto(submitted)


def expect_success(page: Page, timeout_ms: float) -> None:
    """The page of a run says, by itself, that the run has ended well."""
    status = page.get_by_text(ENDED).first
    expect(status).to_be_visible(timeout=timeout_ms)
    assert status.inner_text() == "Success", page.locator("body").inner_text()


def open_asset(page: Page, name: str) -> None:
    page.get_by_text("Catalog", exact=True).click()
    page.get_by_title(name, exact=True).click()
    expect(page.get_by_text("Latest materialization")).to_be_visible()


def metadata_row(page: Page, key: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("cell", name=key, exact=True))


def expect_picture(page: Page, key: str) -> None:
    """The picture under a key of the metadata is drawn, not only linked."""
    metadata_row(page, key).get_by_text("[Show Markdown]").click()
    picture = page.get_by_role("dialog").locator("img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.complete && image.naturalWidth") > 300
    with Image.open(io.BytesIO(picture.screenshot())) as drawn:
        assert len(drawn.convert("RGB").getcolors(maxcolors=2**24)) > MIN_COLOURS, key
    page.get_by_role("button", name="Close").click()
    expect(picture).to_be_hidden()


def expect_checks_passed(page: Page, names: list[str]) -> None:
    page.get_by_role("tab", name="Checks").click()
    expect(page.get_by_text("Succeeded", exact=True)).to_have_count(len(names))
    for name in names:
        page.get_by_title(name, exact=True).first.click()
        expect(page).to_have_url(re.compile(f"checkDetail={name}$"))
        expect(page.get_by_text("Passed", exact=True)).to_be_visible()


def test_a_person_launches_an_iteration_and_sees_what_it_made(page: Page, new_wheel, serve):
    wheel, errors = new_wheel(), []
    page.on("pageerror", lambda error: errors.append(error))
    with serve(wheel) as served:
        for _ in ("seed", "iteration 0001"):
            launch_next_iteration(page, served.url)
            expect_success(page, RUN_TIMEOUT_MS)

        for name in (*SEED, *ITERATION):
            open_asset(page, name)
            expect(metadata_row(page, "lineage").get_by_role("link", name="iteration_output")).to_be_visible()
            if name in ITERATION and name != "iteration_input":
                expect(page.get_by_text("0001", exact=True).first).to_be_visible()
            if name in PICTURES:
                expect_picture(page, PICTURES[name])

        metadata_row(page, "lineage").get_by_role("link", name="iteration_output").click()
        expect_picture(page, "across iterations")

        checks: dict[str, list[str]] = {}
        for spec in (spec for gate in GATES for spec in gate.specs()):
            checks.setdefault(spec.asset_key.to_user_string(), []).append(spec.name)
        for name, names in checks.items():
            open_asset(page, name)
            expect_checks_passed(page, names)

        page.get_by_text("Lineage", exact=True).first.click()
        for group in ("seed", "datasets", "training", "release", "collection", "routing"):
            expect(page.get_by_title(group, exact=True).first).to_be_visible()
    assert errors == []
    assert wheel.left_after(10) == []
    assert wheel.sql("select count(*) > 0 from routes where iteration = '0001'") == [(True,)]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=lambda sent: sent.name)
def test_an_interrupt_ends_the_page_and_the_run_it_holds(page: Page, new_wheel, serve, sent: signal.Signals):
    wheel = new_wheel()
    with serve(wheel) as served:
        launch_next_iteration(page, served.url)
        expect(page.get_by_text("Started", exact=True).first).to_be_visible()
        assert any("multiprocess" in part or "execute_run" in part for part in command_lines(wheel)), "the run has processes"
        page.goto("about:blank")
        served.process.send_signal(sent)
        assert served.process.wait(30) == 0, served.said()
    assert wheel.left_after(5) == []
    assert "Traceback" not in served.said()


def command_lines(wheel) -> list[str]:
    found = []
    for process in wheel.processes():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


LAUNCH = """mutation ($run: ExecutionParams!) {
  launchRun(executionParams: $run) {
    __typename ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } } ... on PythonError { message }
  }
}"""
REEXECUTE = """mutation ($run: String!, $strategy: ReexecutionStrategy!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $run, strategy: $strategy}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}"""
TERMINATE = "mutation ($run: String!) { terminateRun(runId: $run, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename } }"
BACKFILL = """mutation ($backfill: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $backfill) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}"""
RUNS = "{ runsOrError { ... on Runs { results { runId jobName status startTime endTime runConfigYaml tags { key value } } } } }"
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


def test_a_run_of_the_command_line_can_be_re_executed(turned_home: Any, copy_of: Callable[..., Any], serve: Callable[..., Any]) -> None:
    wheel = copy_of(turned_home)
    with serve(wheel) as served:
        (first,) = [run["runId"] for run in runs_of(served.url) if run["jobName"] == "iteration"]
        launched = graphql(served.url, REEXECUTE, run=first, strategy="ALL_STEPS")["launchRunReexecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        graphql(served.url, TERMINATE, run=launched["run"]["runId"])


def test_runs_take_their_settings_and_their_turn(turned_home: Any, copy_of: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """A stage's job, an asset by itself, a backfill and a run that no profile allows, launched at once: one works in the home at a time."""
    wheel = copy_of(turned_home)
    with serve(wheel) as served:
        num_before = len(runs_of(served.url))
        refused = launch(served.url, "merge", {"merge": {"weigts": [1.0, 0.0]}})
        assert refused["__typename"] == "RunConfigValidationInvalid" and "weigts" in refused["errors"][0]["message"]
        merge = launch(served.url, "merge", {"merge": {"weights": [0.25, 0.75]}})["run"]["runId"]
        alone = launch(served.url, "__ASSET_JOB", {}, asset="ct_dataset")["run"]["runId"]
        out_of_range = launch(served.url, "rl", {"rl": {"rounds": 0}})["run"]["runId"]
        wanted = {"assetSelection": [{"path": ["verdicts"]}], "partitionNames": ["0001"]}
        backfill = graphql(served.url, BACKFILL, backfill=wanted)["launchPartitionBackfill"]["backfillId"]
        known = {run["runId"]: run for run in wait_until_finished(served.url, num_before + 4)}
        (filled,) = [run for run in known.values() if {"key": "dagster/backfill", "value": backfill} in run["tags"]]
        assert [known[run]["status"] for run in (merge, alone, out_of_range)] == ["SUCCESS", "SUCCESS", "FAILURE"]
        assert filled["status"] == "SUCCESS"
        assert "weights" in known[merge]["runConfigYaml"] and "0.75" in known[merge]["runConfigYaml"], "what it was started with"
        spans = sorted((known[run]["startTime"], known[run]["endTime"]) for run in (merge, alone, out_of_range, filled["runId"]))
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), spans
    weights = wheel.sql("select config from checkpoints where stage = 'merged_policy' and iteration = '0001' order by all")
    assert any("0.75" in config for (config,) in weights), weights


def test_a_killed_run_is_found_dead_and_re_executed_from_its_failure(
    turned_home: Any, copy_of: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    wheel = copy_of(turned_home)
    with serve(wheel) as served:
        run = launch(served.url, "collect", {})["run"]["runId"]
        deadline = time.monotonic() + 180
        while not any("pipelines.stages" in line and "rollouts" in line for line in command_lines(wheel)):
            assert time.monotonic() < deadline, "the stage has a worker"
            time.sleep(0.2)
        holder = holder_of(lock_path(wheel.home))
        assert holder is not None
        os.kill(holder, signal.SIGKILL)
        assert [each["status"] for each in wait_until_finished(served.url) if each["runId"] == run] == ["FAILURE"]
        again = graphql(served.url, REEXECUTE, run=run, strategy="FROM_FAILURE")["launchRunReexecution"]["run"]["runId"]
        assert [each["status"] for each in wait_until_finished(served.url) if each["runId"] == again] == ["SUCCESS"]
    assert wheel.left_after(10) == []


def launch(url: str, job: str, profile: dict[str, Any], asset: str | None = None) -> dict[str, Any]:
    """Of iteration 0001, as the Launchpad does it."""
    selected = {"assetSelection": [{"path": [asset]}], "assetCheckSelection": []} if asset else {}
    run = {
        "selector": {"repositoryName": "__repository__", "repositoryLocationName": "pipelines.definitions", "jobName": job, **selected},
        "runConfigData": {"resources": {"profile": {"config": profile}}},
        "mode": "default",
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "0001"}]},
    }
    return dict(graphql(url, LAUNCH, run=run)["launchRun"])


def runs_of(url: str) -> list[dict[str, Any]]:
    return list(graphql(url, RUNS)["runsOrError"]["results"])


def wait_until_finished(url: str, num_runs: int = 0) -> list[dict[str, Any]]:
    """All runs, once there are so many and none goes on."""
    deadline = time.monotonic() + RUN_TIMEOUT_MS / 1000
    while time.monotonic() < deadline:
        found = runs_of(url)
        if len(found) >= num_runs and all(run["status"] in FINISHED for run in found):
            return found
        time.sleep(1)
    raise AssertionError(f"runs go on: {[(run['jobName'], run['status']) for run in runs_of(url)]}")


def graphql(url: str, query: str, **variables: Any) -> dict[str, Any]:
    answer = httpx.post(f"{url}/graphql", json={"query": query, "variables": variables}, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text[-2000:]
    return dict(answer.json()["data"])
