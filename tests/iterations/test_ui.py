"""Dagster's page, used as a person would: a real browser on what `flywheel ui` serves. GraphQL is asked how
runs ended, and for one re-execution."""

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
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from assets.gates.checks import GATES
from pipelines.orchestration.alerts.channels import WEBHOOK_VARIABLE
from pipelines.orchestration.runs.iteration_lock import lock_path
from tests.pipelines.test_alerts import webhook
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
    "gateway_episodes",
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


def test_a_person_launches_an_iteration_and_sees_what_it_made(page: Page, new_workspace, serve):
    workspace, errors = new_workspace(), []
    page.on("pageerror", lambda error: errors.append(error))
    with serve(workspace) as served:
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
    assert workspace.left_after(10) == []
    assert workspace.sql("select count(*) > 0 from routes where iteration = '0001'") == [(True,)]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=lambda sent: sent.name)
def test_an_interrupt_ends_the_page_and_the_run_it_holds(page: Page, new_workspace, serve, sent: signal.Signals):
    workspace = new_workspace()
    with serve(workspace) as served:
        launch_next_iteration(page, served.url)
        expect(page.get_by_text("Started", exact=True).first).to_be_visible()
        assert any("multiprocess" in part or "execute_run" in part for part in command_lines(workspace)), "the run has processes"
        page.goto("about:blank")
        served.process.send_signal(sent)
        assert served.process.wait(30) == 0, served.said()
    assert workspace.left_after(5) == []
    assert "Traceback" not in served.said()


def command_lines(workspace) -> list[str]:
    found = []
    for process in workspace.processes():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


REEXECUTE = """mutation ($run: String!, $strategy: ReexecutionStrategy!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $run, strategy: $strategy}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}"""
TERMINATE = "mutation ($run: String!) { terminateRun(runId: $run, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename } }"
RUNS = "{ runsOrError { ... on Runs { results { runId jobName status startTime endTime runConfigYaml tags { key value } } } } }"
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
LIVE = "select distinct number, live_id from releases order by number desc limit"
"""The policy that was live from each change on, the last change first."""


def test_a_run_of_the_command_line_can_be_re_executed(finished_home: Any, copy_of: Callable[..., Any], serve: Callable[..., Any]) -> None:
    workspace = copy_of(finished_home)
    with serve(workspace) as served:
        (first,) = [run["runId"] for run in runs_of(served.url) if run["jobName"] == "iteration"]
        launched = graphql(served.url, REEXECUTE, run=first, strategy="ALL_STEPS")["launchRunReexecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        graphql(served.url, TERMINATE, run=launched["run"]["runId"])


def test_a_team_works_by_the_page(page: Page, finished_home: Any, copy_of: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """Settings changed in the Launchpad, one asset materialized, two iterations backfilled, a run that no profile allows and the alert of
    it, lineage followed to a table's columns, a schedule switched on, a release rolled back. One run works in the home at a time."""
    with webhook() as (webhook_url, sent):
        workspace = copy_of(finished_home, **{WEBHOOK_VARIABLE: webhook_url})
        (live,) = workspace.sql(f"{LIVE} 1")
        with serve(workspace) as served:
            url, num_before = served.url, len(runs_of(served.url))
            merge = launch_with(page, url, "merge", "{merge: {weights: [0.25, 0.75]}}", mistaken="{merge: {weigts: [0.25, 0.75]}}")
            impossible = launch_with(page, url, "rl", "{rl: {rounds: 0}}")
            alone = materialize(page, "verdicts", "0001")
            backfill(page, "withdrawals")
            follow_lineage_to_columns(page)
            switch_on_the_schedule(page)
            promoted = launch_op(page, url, "release_promote", "{policy: 0000/seed_policy, by: Ada, reason: to look at}")
            rolled_back = launch_op(page, url, "release_rollback", "{by: Ada, reason: it was worse}")
            known = {run["runId"]: run for run in wait_until_finished(url, num_before + 7)}
            filled = [run for run in known.values() if any(tag["key"] == "dagster/backfill" for tag in run["tags"])]
            wait_for_alert(sent, impossible)
            page.goto(f"{url}/runs/{impossible}")
            expect(page.get_by_text("rl.rounds (got 0): Input should be greater than or equal to 1").first).to_be_visible()
    good = [merge, alone, promoted, rolled_back, *(run["runId"] for run in filled)]
    assert len(filled) == 2 and {known[run]["status"] for run in good} == {"SUCCESS"} and known[impossible]["status"] == "FAILURE"
    assert "weights" in known[merge]["runConfigYaml"] and "0.75" in known[merge]["runConfigYaml"], "what it was started with"
    in_home = [run for run in known.values() if run["jobName"] in ("merge", "rl", "__ASSET_JOB") and run["startTime"]]
    spans = sorted((run["startTime"], run["endTime"]) for run in in_home)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), spans
    weights = workspace.sql("select config from checkpoints where stage = 'merged_policy' and iteration = '0001' order by all")
    assert any("0.75" in config for (config,) in weights), weights
    after_rollback, after_promotion = workspace.sql(f"{LIVE} 2")
    assert after_rollback[1] == live[1] != after_promotion[1], "the promoted seed was live between"


def open_job(page: Page, url: str, job: str) -> None:
    page.goto(url)
    page.get_by_text("Jobs", exact=True).first.click()
    page.locator(f'a[href$="/jobs/{job}"]').click()


def type_config(place: Page | Locator, page: Page, config: str) -> None:
    """Into the Launchpad's editor, in place of what is there."""
    place.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(config)


def launch_with(page: Page, url: str, job: str, profile: str, mistaken: str | None = None) -> str:
    """A stage's job of iteration 0001 under changed settings; the run. What is `mistaken` is named, and cannot be launched."""
    open_job(page, url, job)
    expect(page.get_by_text(re.compile("^Materialize")).first).to_be_visible()
    page.locator("button:right-of(:text('Materialize'))").first.click()
    page.get_by_text("Open launchpad").click()
    pad = page.get_by_role("dialog")
    choose_partition(page, pad, "0001")
    launch = pad.get_by_role("button", name="Materialize").last
    if mistaken is not None:
        type_config(pad, page, f"resources: {{profile: {{config: {mistaken}}}}}")
        expect(pad.get_by_text('Received unexpected config entry "weigts"')).to_be_visible()
        expect(launch).to_be_disabled()
    type_config(pad, page, f"resources: {{profile: {{config: {profile}}}}}")
    launch.click()
    return run_shown(page)


def choose_partition(page: Page, pad: Locator, partition: str) -> None:
    """The launchpad is drawn again when its partitions have come, which closes a list that was opened before."""
    choice = page.locator("li:visible", has_text=partition).first
    opener = pad.get_by_placeholder("Partition")
    deadline = time.monotonic() + 90
    while not choice.is_visible():
        assert time.monotonic() < deadline, f"no partition {partition} is offered"
        opener.blur()
        opener.click()
        with contextlib.suppress(PlaywrightTimeout):
            choice.wait_for(timeout=5_000)
    choice.click()


def run_shown(page: Page) -> str:
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    return page.url.rpartition("/")[2].partition("?")[0]


def ask_to_materialize(page: Page, asset: str) -> Locator:
    """The dialog of an asset, which asks for partitions."""
    open_asset(page, asset)
    page.get_by_text("Materialize…", exact=True).click()
    return page.get_by_role("dialog").filter(has_text="Launch runs to materialize")


def materialize(page: Page, asset: str, partition: str) -> str:
    dialog = ask_to_materialize(page, asset)
    dialog.get_by_text("Select a partition or create one").click()
    page.get_by_role("menuitem").filter(has_text=partition).first.click()
    page.keyboard.press("Escape")
    dialog.get_by_role("button", name="Launch 1 run").click()
    page.get_by_role("link", name="View", exact=True).click()
    return run_shown(page)


def backfill(page: Page, asset: str) -> None:
    dialog = ask_to_materialize(page, asset)
    dialog.get_by_role("button", name="All", exact=True).click()
    dialog.get_by_role("button", name="Launch backfill").click()
    expect(page.get_by_text("Created backfill")).to_be_visible()


def follow_lineage_to_columns(page: Page) -> None:
    """From the released policy, node by node, to the routes that its episodes got, and what their columns were made from."""
    open_asset(page, "released_policy")
    expect(page.get_by_text("Freshness policy").first).to_be_visible()
    page.get_by_role("tab", name="Lineage").click()
    for node in ("rollouts", "routes"):
        page.get_by_text(node, exact=True).first.click()
        page.wait_for_url(re.compile(f"/assets/{node}"))
    page.get_by_role("tab", name="Overview").click()
    column = page.get_by_role("row").filter(has=page.get_by_role("cell", name="decided_by", exact=True))
    expect(column).to_contain_text("Made from verdicts.judge, judgements.judge")


def switch_on_the_schedule(page: Page) -> None:
    """It stays on when the page is loaded again."""
    page.get_by_text("Automation", exact=True).first.click()
    switch = automation_switch(page, "recurring_retraining")
    expect(switch).not_to_be_checked()
    switch.locator("xpath=..").click()
    expect(switch).to_be_checked()
    page.reload()
    expect(automation_switch(page, "recurring_retraining")).to_be_checked()


def automation_switch(page: Page, name: str) -> Locator:
    """The last check box of its row; the first one selects the row."""
    link = page.get_by_role("link", name=name)
    return link.locator("xpath=ancestor::*[count(.//input[@type='checkbox'])=2][1]").locator("input[type=checkbox]").last


def launch_op(page: Page, url: str, job: str, config: str) -> str:
    """A job of one op, with the op's configuration; the run, once it has ended well."""
    open_job(page, url, job)
    page.get_by_role("tab", name="Launchpad").click()
    type_config(page, page, f"ops: {{{job.removeprefix('release_')}_release: {{config: {config}}}}}")
    page.get_by_role("button", name="Launch Run").click()
    run = run_shown(page)
    expect_success(page, PAGE_TIMEOUT_MS)
    return run


def wait_for_alert(sent: list[dict[str, Any]], run: str) -> None:
    deadline = time.monotonic() + PAGE_TIMEOUT_MS / 1000
    while not any(one["kind"] == "run_failed" and one["about"] == run for one in sent):
        assert time.monotonic() < deadline, sent
        time.sleep(0.5)


def test_a_killed_run_is_found_dead_and_re_executed_from_its_failure(
    page: Page, finished_home: Any, copy_of: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    workspace = copy_of(finished_home)
    with serve(workspace) as served:
        run = launch_with(page, served.url, "collect", "{}")
        deadline = time.monotonic() + 180
        while not any("pipelines.stages" in line and "rollouts" in line for line in command_lines(workspace)):
            assert time.monotonic() < deadline, "the stage has a worker"
            time.sleep(0.2)
        holder = holder_of(lock_path(workspace.home))
        assert holder is not None
        os.kill(holder, signal.SIGKILL)
        expect(page.get_by_text("Failure", exact=True).first).to_be_visible()
        page.locator("button:right-of(:text('Re-execute'))").first.click()
        page.get_by_role("menuitem", name="From failure").click()
        page.wait_for_url(lambda shown: "/runs/" in shown and run not in shown)
        expect_success(page, RUN_TIMEOUT_MS)
        again = run_shown(page)
        assert {each["runId"]: each["status"] for each in runs_of(served.url)}[again] == "SUCCESS"
    assert workspace.left_after(10) == []


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
