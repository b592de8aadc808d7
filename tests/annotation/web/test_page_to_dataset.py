"""The whole way of a person's decision: from the click in the browser, over two reviewers, into the dataset that a policy is fine-tuned on;
and back, by lineage, from a row of the dataset to the click in the annotation database."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from playwright.async_api import Browser, Page, expect
from sqlalchemy import select

from annotation.service.intake import intake
from annotation.service.runs.screens import observation_of
from annotation.storage.blobs import Blobs
from annotation.storage.database import default_url
from annotation.storage.migrating import open_database
from annotation.storage.schema import Assignment, Review, Run, RunStep, User
from assets.datasets import dataset_snapshots
from tests.annotation.web.page_parts import Site, chromium, deciding, log_in, new_page, site
from tests.annotation.web.test_page_review import review
from tests.annotation.web.test_page_work import (
    accept_edit_and_step_back,
    finish_hybrid,
    lose_the_line,
    open_work,
    read_the_file,
    type_the_word,
    write,
)
from tests.assets.people_parts import ITERATION, NEXT, materialize
from warehouse.core.home import Home
from warehouse.lineage.relations import STEP_SEPARATOR
from warehouse.lineage.walk import trace
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Decision:
    """One that stands."""

    step: RunStep
    user_id: str
    annotator: str
    task: str


def test_a_click_is_learned_from_and_found_again_from_the_dataset(tmp_path: Path) -> None:
    home = Home(tmp_path)
    asyncio.run(annotate(Path(default_url(home).removeprefix("sqlite:///")).parent))
    assert materialize(tmp_path, ITERATION).success and materialize(tmp_path, NEXT, dataset_snapshots).success

    with connect(Warehouse(home), lineage=True) as con:
        rows = con.execute("select sample_id, component, weight from datasets where iteration = ? and kind = 'sft'", [NEXT]).fetchall()
        decisions = kept_decisions(home)
        found = {followed_back(con, sample_id): (sample_id, component) for sample_id, component, _ in rows}
        assert set(found) == set(decisions) and len(found) == len(rows), "what stands is in the dataset, each decision once, and only that"
        assert all(weight > 0 for *_, weight in rows)
        for place, (sample_id, component) in found.items():
            check(con, home, sample_id, component, decisions[place])

    in_order = sorted(decisions.values(), key=lambda one: one.step.step_index)
    forms, hybrid = ([one.step for one in in_order if one.task == name] for name in ("enter-text", "type-word"))
    assert [step.decision for step in forms] == ["accept", "edit", "edit"]
    assert [step.thought for step in forms[1:]] == ["typed without a line", "that was all, so send it"]
    assert [step.decision for step in hybrid] == ["accept", "override", "edit", "override", "accept"]
    click = hybrid[-1]  # with the pointer, on what a candidate meant too
    assert click.action is not None and click.action["kind"] == "click"
    send = next(element for element in observation_of(click, None).elements if element.text == "Send")
    x, y = click.action["x"], click.action["y"]
    assert 2 * abs(x - send.x_px) <= send.width_px and 2 * abs(y - send.y_px) <= send.height_px, "the click on the button"


# In the browser


async def annotate(folder: Path) -> None:
    """Ann's two tasks; what rob and eve say of the first."""
    async with site(folder) as here, chromium() as browser:
        await here.add_person("ann")
        await here.add_campaign("miniwob/enter-text", target_count=1)
        ann = await open_work(browser, here)
        await accept_edit_and_step_back(ann, here)
        await lose_the_line(ann, here)
        await edit_the_last_step_and_deny(ann)
        await here.add_person("rob", "reviewer")
        await settle(browser, here)
        await here.add_campaign("hybrid/type-word", target_count=1)
        await ann.goto("/")
        await ann.get_by_role("link", name="Annotate the next task").click()
        await deciding(ann, 1)
        word = await read_the_file(ann)
        await type_the_word(ann, word)
        await finish_hybrid(ann, here, word)
        assert here.said == []


async def edit_the_last_step_and_deny(page: Page) -> None:
    """The policy's click with another thought; then a verdict that is not the verifier's."""
    await page.keyboard.press("e")
    await expect(page.locator("#editor-title")).to_have_text("Edit candidate 1")
    await write(page, "that was all, so send it", None)
    await page.keyboard.press("Control+Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The verifier says: the task was done")
    await dialog.get_by_label("Note").fill("I saw no answer")
    await dialog.get_by_role("button", name="No, not done").click()
    await expect(page.locator("#between")).to_contain_text("You see it otherwise: a reviewer looks at the run.")


async def settle(browser: Browser, here: Site) -> None:
    """Rob does not share Ann's verdict, so Eve's word is the last."""
    rob = await new_page(browser, here)
    await log_in(rob, "rob")
    await review(rob, here)
    await here.add_person("eve", "reviewer")
    eve = await new_page(browser, here)
    await log_in(eve, "eve")
    await eve.goto("/review")
    await expect(eve.locator("#queue")).to_contain_text("reviewers disagree")
    await eve.locator("#queue .opens").click()
    await expect(eve.locator("#case")).to_contain_text("Approved by rob")
    await expect(eve.locator("#case")).to_contain_text("The task was done. it was done")
    await eve.keyboard.press("a")
    await eve.get_by_role("dialog").get_by_role("button", name="Done", exact=False).last.click()
    await expect(eve.locator("#queue")).to_contain_text("Nothing waits for a review.")
    with here.database.read() as session:
        kinds = {one.kind: one.verdict for one in session.scalars(select(Review))}
        (run,) = session.scalars(select(Run))
    assert kinds == {"second": True, "adjudication": True} and run.review_state == "approved" and run.person_verdict is False


# In the database and the warehouse

Place = tuple[str, int]
"""Episode and step, as the warehouse names them."""


def kept_decisions(home: Home) -> dict[Place, Decision]:
    """What people decided and did not take back, as the annotation database has it."""
    database = open_database(default_url(home))
    try:
        by_status = intake.runs_by_status(database)
        assert by_status.refused == () and by_status.unreadable == ()
        episodes = {run.run_id: run.episode_id for run in by_status.counting}
        with database.read() as session:
            steps = session.scalars(select(RunStep).where(RunStep.decision.is_not(None), RunStep.superseded_at_s.is_(None))).all()
            of_run = (
                select(Run.run_id, User.user_id, User.name, Assignment.task_name)
                .select_from(Run)
                .join(User, User.user_id == Run.user_id)
                .join(Assignment, Assignment.assignment_id == Run.assignment_id)
            )
            facts = {run_id: rest for run_id, *rest in session.execute(of_run)}
    finally:
        database.close()
    assert set(episodes) == set(facts) and len(facts) == 2
    return {(episodes[step.run_id], step.step_index): Decision(step, *facts[step.run_id]) for step in steps}


def followed_back(con: duckdb.DuckDBPyConnection, sample_id: str) -> Place:
    """From a sample of the dataset, by the edges of lineage alone, to the step of the episode that somebody decided on."""
    graph = trace(con, sample_id, direction="up", limit_per_relation=None)
    (annotation,) = (node for node in graph.nodes.values() if node.kind == "annotation")
    (step,) = {edge.parent.id for edge in graph.edges if edge.child == annotation.key and edge.parent.kind == "step"}
    (episode,) = {edge.parent.id for edge in graph.edges if edge.child == annotation.key and edge.parent.kind == "episode"}
    assert {"episode", "step", "screenshot", "task"} <= {node.kind for node in graph.nodes.values()}
    return episode, int(step.removeprefix(episode + STEP_SEPARATOR))


def check(con: duckdb.DuckDBPyConnection, home: Home, sample_id: str, component: str, decision: Decision) -> None:
    """The sample is the decision: its words, whose it is, what was seen."""
    step = decision.step
    ((messages, annotator, origin, mode, said, proposal, seen),) = con.execute(
        "select s.messages, a.annotator, a.origin, a.mode, a.decision, a.proposal, t.screenshot_id from sft_samples s "
        "join annotations a using (annotation_id) join steps t on t.episode_id = a.episode_id and t.step_index = a.step_index "
        "where s.sample_id = ?",
        [sample_id],
    ).fetchall()
    reported: list[dict[str, Any]] = messages
    assert reported[-1]["content"] == step.response and [one["content"] for one in reported[:-1]] == [
        one["content"] for one in step.messages
    ]
    assert (annotator, origin, mode, said) == (decision.user_id, "human", "intervene", step.decision) and decision.annotator == "ann"
    assert component == ("approved" if said == "accept" else "correction") and (proposal == step.response) == (said == "accept")
    assert seen == step.screenshot_id
    ((data,),) = con.execute("select data from screenshots where screenshot_id = ?", [seen]).fetchall()
    assert bytes(data) == Blobs.of_home(home).get(seen)
