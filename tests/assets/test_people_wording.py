"""Recordings in a model's words beside the person's own: asked of our own policy server, once, and never at the cost of the recording."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from annotation.config import WordingConfig
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Manifest
from annotation.recordings.enrichment import other_wordings, with_reasons
from annotation.storage.parts import PartStore
from assets.people import RECORDED_STAGE
from sandbox.actions import TypeText
from tests.annotation.recording import made_recording
from tests.annotation.service.live_parts import ANN
from tests.assets.people_parts import ITERATION, NEXT, approve, principal, take_recordings, upload, work_in
from tests.models.models_that_answer import learn_by_heart
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, our_server
from warehouse.core.home import Home
from warehouse.core.identity import content_id
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

REASON, QUERY = "No note yet, so I go on.", "Please write to Emma"
KEY = "Qx3vBnRtWz9KpLsDfGhJm"
GONE = "http://127.0.0.1:9/v1"


class Listed:
    """Says nothing, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def ask(self, instructions: str, text: str) -> str:
        self.asked.append((instructions, text))
        return ""


def asked_of(manifest: Manifest) -> list[tuple[str, str]]:
    model = Listed()
    other_wordings(manifest.task.query, model, 1)
    with_reasons(manifest, model)
    return model.asked


def rows(warehouse: Warehouse) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = warehouse.read("ct_samples", stage=RECORDED_STAGE).to_pylist()
    return found


def metadata_of(result: Any) -> dict[str, Any]:
    (made,) = result.asset_materializations_for_node("recordings")
    return {name: value.value for name, value in made.metadata.items()}


def with_consent(store: Store, text_version: str) -> Store:
    manifest = store.manifest()
    consent = manifest.consent.model_copy(update={"text_version": text_version})
    store.put_manifest(manifest.model_copy(update={"consent": consent}), "recorded")
    return store


@pytest.mark.slow
def test_a_recording_is_learned_in_other_words_too_and_a_model_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    home, warehouse, work = Home(tmp_path), Warehouse(Home(tmp_path)), work_in(tmp_path)
    store = made_recording.make(tmp_path / "own")
    there, bundle = upload(work, home, store)
    recording_id = bundle.manifest.recording_id
    approve(there, recording_id)
    answers = PartStore.of_home(home).of(ANN).answers(recording_id)
    settings = WordingConfig(base_url=GONE, model="policy", token_env=TOKEN_VARIABLE, queries=1, reasons=True, attempts=1)

    found = metadata_of(take_recordings(tmp_path, ITERATION, settings))
    own = rows(warehouse)
    assert (found["recordings"], found["samples"], found["samples in other words"]) == (1, 4, 0), "it goes on without"
    assert "policy at http://127.0.0.1:9/v1 did not answer: ConnectError" in found["note"] and "materialize `recordings`" in found["note"]
    assert found["left out/other words: the model was away"] == 1 and {row["origin"] for row in own} == {"annotation"}

    checkpoint = learn_by_heart(tmp_path / "model", asked_of(bundle.manifest), json.dumps({"queries": [QUERY], "text": REASON}))
    with our_server(checkpoint) as server:
        settings = settings.model_copy(update={"base_url": f"{server.url}/v1"})
        found = metadata_of(take_recordings(tmp_path, ITERATION, settings))
    assert (found["samples"], found["samples in other words"], found["asked of the model"]) == (12, 8, 5) and "note" not in found
    made = {row["sample_id"]: row for row in rows(warehouse)}
    assert [made.get(row["sample_id"]) for row in own] == own, "what the person said stays as it was"
    other = [row for row in made.values() if row["origin"] == "variation"]
    assert all(REASON in row["messages"][-1]["content"] for row in other), "each says why"
    assert sorted(QUERY in str(row["messages"]) for row in other) == [False] * 4 + [True] * 4, "under both wordings of the task"
    assert {(row["episode_id"], row["step_index"], row["domain"]) for row in other} == {
        (row["episode_id"], row["step_index"], row["domain"]) for row in own
    }, "lineage leads from each to the click"
    with connect(warehouse) as con:
        members = mixed(con, "ct", NEXT, MixtureConfig(in_situ=SamplePool())).rows.to_pylist()
    assert {row["component"] for row in members} == {"in_situ", "variation"}, "they share the pool of people's own work"

    for address in (GONE, f"{server.url}/v1"):  # neither is there any more
        again = metadata_of(take_recordings(tmp_path, ITERATION, settings.model_copy(update={"base_url": address})))
        assert (again["asked of the model"], again["samples"]) == (0, 12) and {row["sample_id"]: row for row in rows(warehouse)} == made
    assert metadata_of(take_recordings(tmp_path, ITERATION))["samples"] == 4, "switched off, there are its own words alone"

    ann = principal(ANN, "annotator")
    take_recordings(tmp_path, ITERATION, settings)
    asyncio.run(there.withdraw(recording_id, "I would rather not", by=ann))
    (back,) = take_recordings(tmp_path, NEXT, settings).asset_materializations_for_node("withdrawals")
    assert back.metadata["rows"].value == 12
    assert {row["sample_id"] for row in warehouse.read("ct_samples").to_pylist() if row["withdrawn"]} == set(made)
    assert answers.path.is_file()
    asyncio.run(there.erase(recording_id))
    assert not answers.path.exists(), "what a model wrote of it goes with it"
    work.close()


def test_nothing_is_sent_that_was_not_agreed_to_or_looks_private(tmp_path: Path) -> None:
    home, warehouse, work = Home(tmp_path), Warehouse(Home(tmp_path)), work_in(tmp_path)
    before = with_consent(made_recording.make(tmp_path / "own", "before"), "2")
    private = made_recording.make(tmp_path / "own", "private", text="other")
    manifest = private.manifest()
    task = manifest.task.model_copy(update={"query": "Write to lena.fischer@posteo.de"})
    first, second, *others = manifest.actions
    second = second.model_copy(update={"action": TypeText(text="Dear udo@mailbox.org\n")})
    private.put_manifest(manifest.model_copy(update={"task": task, "actions": (first, second, *others)}), "recorded")
    for store in (before, private):
        there, bundle = upload(work, home, store)
        approve(there, bundle.manifest.recording_id)
    found = metadata_of(take_recordings(tmp_path, ITERATION, WordingConfig(base_url=GONE, model="policy", queries=2, attempts=1)))
    assert found["asked of the model"] == 0 and "note" not in found
    assert found["left out/other words: signed before models were spoken of"] == 1 and found["left out/looks private"] == 1
    assert len(rows(warehouse)) == 4 + 3
    stored = str([warehouse.read(table).to_pylist() for table in ("tasks", "episodes", "steps", "ct_samples")])
    assert "Write to [e-mail]" in stored and "posteo" not in stored and "mailbox" not in stored, "nor is it an episode's"
    work.close()


def test_a_key_is_neither_sent_nor_learned(tmp_path: Path) -> None:
    """One that the person named, and one that a model made up when it was asked."""
    home, warehouse, work = Home(tmp_path), Warehouse(Home(tmp_path)), work_in(tmp_path)
    settings = WordingConfig(base_url=GONE, model="policy", queries=1, reasons=True, attempts=1)
    for name, query in (("named", f"Sign in with {KEY}"), ("made-up", "Sign in 3 times by 9")):
        store = made_recording.make(tmp_path / "own", name, text=name)
        manifest = store.manifest()
        store.put_manifest(manifest.model_copy(update={"task": manifest.task.model_copy(update={"query": query})}), "recorded")
        there, bundle = upload(work, home, store)
        approve(there, bundle.manifest.recording_id)
    answers = PartStore.of_home(home).of(ANN).answers(bundle.manifest.recording_id)
    for instructions, text in asked_of(bundle.manifest):
        answers.put(content_id("asked", [settings.model, instructions, text]), json.dumps({"queries": [f"Sign in with {KEY}"]}))
    found = metadata_of(take_recordings(tmp_path, ITERATION, settings))
    assert (found["asked of the model"], found["samples"], found["samples in other words"]) == (0, 12, 4) and "note" not in found
    stored = str([warehouse.read(table).to_pylist() for table in ("tasks", "episodes", "steps", "ct_samples")])
    assert KEY not in stored and "Sign in with [token]" in stored and "Sign in 3 times by 9" in stored
    work.close()


def test_settings_that_ask_for_nothing_or_send_in_the_clear_are_refused() -> None:
    for settings, said in (
        ({"base_url": GONE}, "wording.model is empty"),
        ({"base_url": GONE, "model": "m", "queries": 0}, "requests nothing from the model"),
        ({"base_url": "http://models.example/v1", "model": "m"}, "https:// alone"),
    ):
        with pytest.raises(ValueError, match=said):
            WordingConfig.model_validate(settings)
