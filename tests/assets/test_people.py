"""People's annotations on their way into D_SFT: from decisions on real pages to samples, once, and out again when they are taken back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.prompts.prompt import PromptBuilder
from annotation.recordings.samples import recorded
from annotation.service.intake import intake
from annotation.storage import run_endings
from annotation.storage.parts import PartStore
from annotation.storage.schema import Review, Run
from annotation.wire.review import StepOpinion, SubmitReview
from annotation.wire.runs import Decide, Finish
from assets import recordings
from assets.people import RECORDED_STAGE, STAGE
from pipelines.cli.app import app
from sandbox.pool.pool import SessionPool
from tests.annotation.recording import made_recording
from tests.annotation.service.live_parts import ANN, BOB, Reader, Work, accept, service, task_named, until
from tests.assets.people_parts import ITERATION, NEXT, approve, materialize, principal, take_recordings, upload, work_in
from warehouse.core.errors import UnknownSubject
from warehouse.core.home import Home
from warehouse.routing.samples import sample_parts
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return work_in(tmp_path)


PICTURE_BYTES = 100_000


async def annotate(work: Work) -> tuple[str, str]:
    """Two runs in mode intervene: of a policy whose proposals are right, accepted; and of one that errs, overridden at its last step."""
    campaign = work.campaign()
    async with SessionPool(size=2, num_browsers=1) as pool:
        async with service(work, pool, Reader()) as live:
            good = await live.start(work.lease(campaign, task_named("enter-text")), 1, ANN)
            state = await until(live, good, "deciding")
            while state.phase == "deciding":
                state = await accept(live, state)
            await live.finish(good, ANN, Finish(version=state.version, is_success=True))
        async with service(work, pool, Reader("policy-erring", errs=True)) as live:
            alone = work.campaign(num_candidates=1)
            corrected = await live.start(work.lease(alone, task_named("click-button"), user_id=BOB), 1, BOB)
            state = await until(live, corrected, "deciding")
            assert state.screen is not None and state.instruction is not None
            wanted = next(box for box in state.screen.elements if box.name == state.instruction.split('"')[1] and box.role == "button")
            override = Decide(version=state.version, decision="override", thought="That one.", action=f"click [{wanted.index}]")
            await live.decide(corrected, BOB, override)
            state = await until(live, corrected, "ended")
            await live.finish(corrected, BOB, Finish(version=state.version, is_success=True, note="plain enough"))
    return good, corrected


@pytest.mark.slow
def test_what_people_finish_is_learned_once_and_no_more_when_it_is_withdrawn(tmp_path: Path, work: Work) -> None:
    good, corrected = asyncio.run(annotate(work))
    warehouse = Warehouse(Home(tmp_path))
    assert materialize(tmp_path, ITERATION).success

    episodes = warehouse.read("episodes", stage=STAGE).to_pylist()
    assert {row["task_name"]: row["outcome"] for row in episodes} == {"enter-text": "success", "click-button": "success"}
    named = {row["episode_id"]: row["task_name"] for row in episodes}
    assert {named[id_]: name for id_, name in intake.campaigns(work.database).items()} == {
        "enter-text": "campaign-1",
        "click-button": "campaign-3",
    }
    notes = warehouse.read("annotations", stage=STAGE).to_pylist()
    assert {(row["annotator"], row["decision"], row["origin"]) for row in notes} == {(ANN, "accept", "human"), (BOB, "override", "human")}
    samples = {row["annotation_id"]: row for row in warehouse.read("sft_samples").to_pylist()}
    assert set(samples) == {row["annotation_id"] for row in notes}, "each decision is learned as it was taken, and nothing twice"
    overridden = next(row for row in notes if row["decision"] == "override")
    assert overridden["proposal"] != overridden["response"] and "That one." in overridden["response"]
    assert samples[overridden["annotation_id"]]["messages"][-1]["content"] == overridden["response"]
    said = [row for row in warehouse.read("verdicts").to_pylist() if row["judge"] == "human"]
    assert len(said) == 2 and all(row["passed"] for row in said) and any("plain enough" in row["reasons"] for row in said)
    shown = {row["screenshot_id"] for row in warehouse.read("steps").to_pylist()}
    assert None not in shown and shown <= set(warehouse.read("screenshots", columns=["screenshot_id"]).column(0).to_pylist())

    version = warehouse.version("sft_samples")
    assert materialize(tmp_path, ITERATION).success
    assert warehouse.read("annotations", stage=STAGE).num_rows == len(notes) and warehouse.version("sft_samples") == version, "idempotent"

    with work.database.write() as session:
        run_endings.withdraw(session, session.get_one(Run, corrected), now_s=1.0)
        session.add(spot_check(good, {"0": {"is_right": False}}))
    result = materialize(tmp_path, NEXT)
    (reported,) = result.asset_materializations_for_node("withdrawals")
    assert (reported.metadata["taken back"].value, reported.metadata["rows"].value) == (1, 2), "one annotation, one sample"
    assert (reported.metadata["rows of wrong steps"].value, reported.metadata["verdicts"].value) == (2, 0)
    wrong = next(row for row in notes if row["annotator"] == ANN and row["step_index"] == 0)
    (reported,) = result.asset_materializations_for_node("human_annotations")
    assert reported.metadata["runs"].value == 0, "nothing new"
    standing = warehouse.read("sft_samples").to_pylist()
    gone = {row["sample_id"] for row in standing if row["withdrawn"]}
    taken_back = {overridden["annotation_id"], wrong["annotation_id"]}
    assert gone == {samples[annotation_id]["sample_id"] for annotation_id in taken_back}
    assert {row["annotation_id"] for row in standing if row["sample_id"] not in gone} == set(samples) - taken_back
    with connect(warehouse, sealed=False) as con:
        learned = [id_ for part in sample_parts(con, "sft_samples", ITERATION) for id_ in part["annotation_id"].to_pylist()]
    assert set(learned) == set(samples) - taken_back, "nor do they come back when it is routed again"

    with work.database.write() as session:
        said_again = session.get_one(Review, "review-1")
        said_again.kind, said_again.verdict, said_again.created_at_s = "adjudication", False, time.time()
    (reported,) = take_recordings(tmp_path, NEXT).asset_materializations_for_node("withdrawals")
    assert reported.metadata["verdicts"].value == 1
    note = str(reported.metadata["note"].value)
    assert "routes of 0001 stand until they are routed again: flywheel reroute --iteration 0001" in note
    (reported,) = take_recordings(tmp_path, NEXT).asset_materializations_for_node("withdrawals")
    assert reported.metadata["verdicts"].value == 0 and "note" not in reported.metadata, "said once"
    work.close()


def test_where_nobody_annotates_there_is_nothing_to_take_in(tmp_path: Path) -> None:
    result = materialize(tmp_path, ITERATION)
    (reported,) = result.asset_materializations_for_node("human_annotations")
    assert result.success and reported.metadata["note"].value == "nobody annotates here"
    assert not (tmp_path / "annotation").exists()


@pytest.mark.slow
def test_an_approved_recording_joins_ct_with_its_track_and_leaves_it_when_withdrawn(tmp_path: Path, work: Work) -> None:
    there, bundle = upload(work, Home(tmp_path), made_recording.make(tmp_path / "own"))
    warehouse = Warehouse(Home(tmp_path))
    assert materialize(tmp_path, ITERATION).success
    assert warehouse.read("ct_samples").num_rows == 0, "nobody has approved it yet"
    approve(there, bundle.manifest.recording_id)
    manifest = PartStore.of_home(Home(tmp_path)).of(ANN).path(bundle.manifest_sha256)
    manifest.rename(manifest.with_suffix(".away"))
    (reported,) = materialize(tmp_path, ITERATION).asset_materializations_for_node("recordings")
    assert (reported.metadata["recordings"].value, reported.metadata["unreadable"].value) == (0, 1), "the rest is read"
    manifest.with_suffix(".away").rename(manifest)
    assert materialize(tmp_path, ITERATION).success
    samples = warehouse.read("ct_samples", stage=RECORDED_STAGE).to_pylist()
    assert len(samples) == len(bundle.manifest.actions) and {row["domain"] for row in samples} == {"recorded-expert"}
    (episode,) = warehouse.read("episodes", stage=RECORDED_STAGE).to_pylist()
    assert episode["instruction"] == "Write to Emma" and episode["policy_id"] == "human"
    assert {(row["episode_id"], row["step_index"]) for row in samples} == {
        (step["episode_id"], step["step_index"]) for step in warehouse.read("steps", stage=RECORDED_STAGE).to_pylist()
    }, "lineage leads from a sample to the click"
    assert any("i press new" in row["messages"][-1]["content"] for row in samples)

    asyncio.run(there.withdraw(bundle.manifest.recording_id, "I would rather not", by=principal(ANN, "annotator")))
    result = materialize(tmp_path, NEXT)
    (reported,) = result.asset_materializations_for_node("withdrawals")
    assert reported.metadata["rows"].value == len(samples)
    gone = {row["sample_id"] for row in warehouse.read("ct_samples").to_pylist() if row["withdrawn"]}
    assert gone == {row["sample_id"] for row in samples}
    work.close()


@pytest.mark.slow
def test_a_purge_leaves_nothing_of_a_withdrawn_recording_that_taught_nothing(tmp_path: Path, work: Work) -> None:
    home, warehouse = Home(tmp_path), Warehouse(Home(tmp_path))
    there, bundle = upload(work, home, made_recording.make(tmp_path / "own"))
    recording_id, steps = bundle.manifest.recording_id, range(len(bundle.manifest.actions))
    said = SubmitReview(approves=True, verdict=True, steps={index: StepOpinion(is_right=False) for index in steps})
    asyncio.run(there.review(recording_id, said, by=principal(BOB, "reviewer")))
    assert take_recordings(tmp_path, ITERATION).success
    (episode,) = warehouse.read("episodes", stage=RECORDED_STAGE).to_pylist()
    assert warehouse.read("ct_samples").num_rows == 0 and episode["instruction"] == "Write to Emma", "it is there, and teaches nothing"
    files = [path for path in (tmp_path / "annotation" / "parts").rglob("*") if path.is_file()]
    assert len(files) > 1 and warehouse.read("screenshots").num_rows > 0

    def purge(*more: str, exit_code: int = 0) -> str:
        ran = CliRunner().invoke(app, ["withdraw", "--purge", "--home", str(tmp_path), *more], input="n\n" if exit_code else None)
        assert ran.exit_code == exit_code, ran.output
        return ran.output

    assert "nothing to erase" in purge("--yes"), "nobody has taken it back yet"
    asyncio.run(there.withdraw(recording_id, "I would rather not", by=principal(ANN, "annotator")))
    assert "withdrawn recordings on the annotation server: 1" in purge(exit_code=1) and all(path.exists() for path in files)
    reported = purge("--yes")
    assert f"1 recording on the annotation server erased, {len(files)} files removed" in reported and "of screenshots erased" in reported
    assert not any(path.exists() for path in files) and warehouse.read("screenshots").num_rows == 0
    (episode,) = warehouse.read("episodes", stage=RECORDED_STAGE).to_pylist()
    texts = {(row["observation"], row["response"], row["thought"]) for row in warehouse.read("steps", stage=RECORDED_STAGE).to_pylist()}
    assert episode["instruction"] is None and texts == {("", "", None)} and "nothing to erase" in purge("--yes")
    with pytest.raises(UnknownSubject, match="nothing of it is left"):
        asyncio.run(there.look(recording_id, principal(ANN, "annotator")))
    work.close()


def test_pictures_of_a_recording_pass_through_memory_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "PICTURE_BYTES", 3 * PICTURE_BYTES)
    warehouse = Warehouse(Home(tmp_path))
    manifest = made_recording.make(tmp_path / "own").manifest()
    click, screen = manifest.actions[0], manifest.screens[0]
    screens = [screen.model_copy(update={"screen_id": f"screen-{number:016x}"}) for number in range(40)]
    actions = [click.model_copy(update={"screen_id": each.screen_id, "thought": None}) for each in screens]
    long = manifest.model_copy(update={"screens": tuple(screens), "actions": tuple(actions)})
    num, most = 0, 0

    class Picture(bytes):
        def __del__(self) -> None:
            nonlocal num
            num -= 1

    def read(screen_id: str) -> bytes:
        nonlocal num, most
        num += 1
        most = max(most, num)
        return Picture(made_recording.drawn(screen_id).ljust(PICTURE_BYTES, b"."))

    with recordings._Pictures(warehouse, ITERATION, RECORDED_STAGE) as pictures:
        made = recorded(long, read, PromptBuilder("doubao"), keep=pictures.keep, also=[long])
        assert warehouse.read("screenshots").num_rows == 0, "who knows whether it can be read to its end"
        pictures.take()
    assert len(made.samples) == 40 and most <= 4
    assert sum(commit.operation == "WRITE" for commit in warehouse.history("screenshots")) == 14, "three at a time"
    stored = warehouse.read("screenshots", columns=["screenshot_id"]).column(0).to_pylist()
    assert sorted(stored) == sorted(screen.screen_id for screen in screens)


def spot_check(run_id: str, steps: dict[str, dict[str, bool]]) -> Review:
    return Review(
        review_id="review-1",
        run_id=run_id,
        recording_id=None,
        reviewer_id=BOB,
        kind="second",
        approves=True,
        verdict=True,
        steps=steps,
        note=None,
        created_at_s=2.0,
    )
