"""Recordings become samples in the layout that policies are asked in; they can be carried out again; a model may reword them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from made_recording import BUTTON, STEPS, make
from typer.testing import CliRunner

from agent.grammars.registry import GRAMMARS
from agent.prompts.prompt import PromptBuilder
from annotation.recorder.review import edits
from annotation.recorder.review.rewording import refine_confirmed
from annotation.recorder.review.upload import Bundle
from annotation.recorder.store.store import Store, open_store
from annotation.recordings.bundle import Box, Manifest, RecordedAction, Screen, ScreenElement, Span
from annotation.recordings.enrichment import other_wordings, with_reasons
from annotation.recordings.refinement import Refiner
from annotation.recordings.replaying import mismatch, replay
from annotation.recordings.samples import observation_of, recorded
from pipelines.cli.app import app
from sandbox.actions import Click, Finished, TypeText
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_in
from tests.scripted_model import Model, serving
from warehouse.core.errors import ConfigError, RecordingRefused, WordingFailed


def reader(store: Store) -> Callable[[str], bytes | None]:
    return lambda screen_id: store.screen(screen_id) if screen_id in store.screen_ids() else None


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_each_step_becomes_a_sample_whose_answer_parses_back(name: str, tmp_path: Path):
    store = make(tmp_path)
    last = store.manifest().screens[-1].screen_id
    manifest = store.manifest().model_copy(update={"result": "done", "last_screen_id": last})
    builder = PromptBuilder(name)
    kept: dict[str, bytes] = {}
    made = recorded(manifest, reader(store), builder, keep=kept.__setitem__)
    assert len(made.samples) == len(STEPS) + 1 and made.left_out == {}
    for row, (_, action, said) in zip(made.samples, STEPS, strict=False):
        *prompt, answer = row["messages"]
        assert (row["origin"], row["domain"], row["verdict"], answer["loss"]) == ("annotation", "recorded-expert", None, 1.0)
        assert {message["loss"] for message in prompt} == {1.0}
        assert any("Write to Emma" in message["content"] for message in prompt)
        index = [start for start, _, _ in STEPS].index(next(s for s, a, t in STEPS if t == said))
        seen = observation_of(manifest.screens[index], store.screen(manifest.screens[index].screen_id), "x")
        parsed = builder.grammar.parse(answer["content"], seen)
        assert parsed.invalid is None and type(parsed.actions[0]) is type(action)
        if isinstance(action, Click):
            clicked = parsed.actions[0]
            assert isinstance(clicked, Click) and BUTTON.holds(clicked.x, clicked.y)
    named = {message["screenshot_id"] for row in made.samples for message in row["messages"] if message["screenshot_id"]}
    assert builder.shows_screens is bool(named)
    assert [(row["episode_id"], row["step_index"]) for row in made.samples] == [(made.episode.episode_id, i) for i in range(len(STEPS) + 1)]
    assert (made.episode.outcome, made.episode.reward, made.episode.request.policy_id) == ("success", 1.0, "human")
    finished = builder.grammar.parse(made.samples[-1]["messages"][-1]["content"], seen).actions[0]
    assert isinstance(finished, Finished)
    if builder.shows_screens:
        assert named == {screen.screen_id for screen in manifest.screens} == set(kept)
        assert not made.episode.screenshots, "nobody holds all of them"
        assert "i press new" in made.samples[0]["messages"][-1]["content"], "the thought is what was said"


def test_steps_that_cannot_be_learned_from_are_counted(tmp_path: Path):
    store = make(tmp_path)
    manifest = store.manifest()
    first, second, third, fourth = manifest.actions
    actions = (first.model_copy(update={"screen_id": None}), second.model_copy(update={"hidden": ("password",)}), third, fourth)
    made = recorded(manifest.model_copy(update={"actions": actions, "track": "novice"}), reader(store), PromptBuilder("doubao"))
    assert made.left_out == {"no picture": 1, "private text": 1} and {row["domain"] for row in made.samples} == {"recorded-novice"}
    assert recorded(manifest, lambda _: None, PromptBuilder("doubao")).samples == []


def test_the_same_recording_gives_the_same_samples_and_other_words_give_more(tmp_path: Path):
    store = make(tmp_path)
    manifest, builder = store.manifest(), PromptBuilder("doubao")
    plain = recorded(manifest, reader(store), builder)
    politely = manifest.model_copy(update={"task": manifest.task.model_copy(update={"query": "Please write Emma a note"})})
    first, *rest = manifest.actions
    assert first.thought is not None
    because = first.model_copy(update={"thought": first.thought.model_copy(update={"text": "No note to Emma yet, so: New."})})
    with_reasons = manifest.model_copy(update={"actions": (because, *rest)})
    reads: list[str] = []

    def read(screen_id: str) -> bytes:
        reads.append(screen_id)
        return store.screen(screen_id)

    made = recorded(manifest, read, builder, also=[politely, manifest, with_reasons], wrong=[1])
    assert len(reads) == len(STEPS), "each picture once, however often it is told"
    assert (plain.variations, made.samples) == ([], [row for row in plain.samples if row["step_index"] != 1])
    assert made == recorded(manifest, read, builder, also=[politely, manifest, with_reasons], wrong=[1]), "always the same"
    assert {(row["origin"], row["domain"], row["episode_id"]) for row in made.variations} == {
        ("variation", "recorded-expert", made.episode.episode_id)
    }
    by_wording = [[row for row in made.variations if ("Please write" in str(row["messages"])) is is_polite] for is_polite in (True, False)]
    assert [[row["step_index"] for row in rows] for rows in by_wording] == [[0, 2, 3], [0, 2, 3]], "the same steps, and no unchanged copy"
    answers = [row["messages"][-1]["content"] for row in by_wording[1]]
    assert "so: New" in answers[0] and answers[1:] == [row["messages"][-1]["content"] for row in made.samples[1:]]
    assert all("so: New" in str(row["messages"][:-1]) for row in by_wording[1][1:]), "later steps remember it"


def test_a_model_rewords_thoughts_and_its_nonsense_is_left_out(tmp_path: Path):
    manifest = make(tmp_path).manifest()
    answers = ('{"text": "First I press New."}', "sorry, no", '```json\n{"text": "' + "x" * 900 + '"}\n```', '{"text": "Once more."}')
    model = Model(*answers)
    with serving(model) as url:
        refiner = Refiner(url, "tiny", "key", attempts=2, pause_s=0)
        refined = refiner.refine(manifest.actions)
        with pytest.raises(WordingFailed, match=r"tiny at .* HTTP 500"):
            refiner.refine(manifest.actions)
        assert len(model.asked) == len(answers) + 2, "a server that fails is asked once more"
        refiner.close()
    thoughts = [action.thought for action in refined]
    assert [t.text for t in thoughts if t] == ["First I press New.", "now the greeting", "my aunt lives in Bremen", "Once more."]
    assert [t.origin for t in thoughts if t] == ["refined", "speech", "speech", "refined"]
    assert [t.raw for t in thoughts if t] == [said for _, _, said in STEPS], "what was heard stays"
    assert model.headers[0] == "/v1/chat/completions Bearer key" and model.asked[0]["model"] == "tiny"


def test_an_answer_that_cannot_be_unpacked_is_a_failure_like_any_other():
    model = Model("yes", "yes")
    model.encoding = "gzip"  # which it is not
    with serving(model) as url:
        refiner = Refiner(url, "tiny", attempts=2, pause_s=0)
        with pytest.raises(WordingFailed, match="DecodingError"):
            refiner.ask("x", "y")
        refiner.close()


def test_nothing_is_sent_to_a_model_before_the_review_and_what_it_wrote_is_reviewed_again(tmp_path: Path):
    store, model = make(tmp_path / "recordings", "letter"), Model('{"text": "First I press New."}', *["no"] * 11)
    with serving(model) as url:
        command = ["record", "refine", "letter", "--url", url, "--model", "tiny", "--home", str(tmp_path)]
        refused = CliRunner().invoke(app, command).exception
        assert isinstance(refused, RecordingRefused) and "flywheel record review letter" in str(refused) and model.asked == []
        edits.confirm(store)
        reported = CliRunner().invoke(app, command).output
        assert "1 thoughts are reworded" in reported and "flywheel record review letter" in reported
        manifest = open_store(tmp_path / "recordings", "letter").manifest()
        assert manifest.review is None and manifest.actions[0].thought is not None and manifest.actions[0].thought.origin == "refined"
        assert isinstance(CliRunner().invoke(app, command).exception, RecordingRefused) and len(model.asked) == 4
        with pytest.raises(RecordingRefused, match="not looked through"):
            Bundle(open_store(tmp_path / "recordings", "letter"))
        confirmed = edits.confirm(store)
        assert "0 thoughts" in CliRunner().invoke(app, command).output
        asked = len(model.asked)
        assert "0 thoughts" in CliRunner().invoke(app, [*command, "--why"]).output
        assert "what is\nstill to be done, why this action" in model.asked[asked]["messages"][0]["content"]
        again = open_store(tmp_path / "recordings", "letter")
        assert again.manifest() == confirmed == Bundle(again).manifest, "where nothing changed it stays confirmed"


def test_what_is_changed_while_a_model_words_it_stands(tmp_path: Path):
    store = make(tmp_path)
    edits.confirm(store)

    def slowly(manifest: Manifest) -> list[RecordedAction]:
        edits.delete_span(open_store(tmp_path, "one"), Span(start_s=9.0, end_s=13.0))
        return [action.model_copy(update={"thought": None}) for action in manifest.actions]

    with pytest.raises(RecordingRefused, match="was changed while"):
        refine_confirmed(store, slowly)
    assert len(store.manifest().actions) == 3 and all(action.thought for action in store.manifest().actions)


OTHERS = ("http://models.example/v1", "http://127.0.0.1@models.example/v1", "http://10.0.0.7:8000", "ftp://127.0.0.1", "x", "")


@pytest.mark.parametrize("url", OTHERS)
def test_texts_go_to_other_machines_sealed_or_not_at_all(url: str):
    with pytest.raises(ConfigError, match="https://"):
        Refiner(url, "tiny")


def test_sealed_and_own_addresses_are_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(Model("hello")) as url:
        for own in (url, url.replace("127.0.0.1", "localhost"), "https://models.example/v1"):
            refiner = Refiner(own, "tiny")
            assert own != url or refiner.ask("x", "y") == "hello", "past the proxy"
            refiner.close()


def test_a_model_says_why_and_asks_otherwise(tmp_path: Path):
    manifest = make(tmp_path).manifest()
    manifest = manifest.model_copy(update={"task": manifest.task.model_copy(update={"query": "Send 3 letters"})})
    queries = '{"queries": ["Could you send 3 letters?", "Send 4 letters", "Send 3 letters", "", 7]}'
    with serving(Model(queries, "no", *['{"text": "Emma has no note yet, so I start one."}'] * 4)) as url:
        refiner = Refiner(url, "tiny")
        task = manifest.task.query
        assert other_wordings(task, refiner, 3) == ["Could you send 3 letters?"] and other_wordings(task, refiner, 3) == []
        actions = with_reasons(manifest, refiner)
        refiner.close()
    thought = actions[0].thought
    assert thought is not None and (thought.text, thought.origin) == ("Emma has no note yet, so I start one.", "refined")
    assert thought.raw == "first i press new"


def test_a_recording_is_carried_out_again_on_a_live_session(tmp_path: Path):
    base = make(tmp_path).manifest()

    async def main() -> None:
        task = tasks_in(["miniwob:quickstart"])["click-button"]
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            seen = await session.reset(task, 5)
            action = await session.oracle_action()
            assert isinstance(action, Click) and seen.screenshot is not None
            recorded = recorded_step(base, seen, action)
            report = await replay(recorded, session, task, 5)
            assert report.is_executable and report.verdict is not None and report.verdict.success
            other = await replay(recorded, session, task, 6)
            assert not other.is_executable and "there is no button" in other.steps[-1].problem

    asyncio.run(main())


def recorded_step(base: Manifest, seen: Any, click: Click) -> Manifest:
    element = next(e for e in seen.elements if (e.x_px, e.y_px) == (click.x, click.y) and e.role == "button")
    box = Box(
        x=element.x_px - element.width_px // 2, y=element.y_px - element.height_px // 2, width=element.width_px, height=element.height_px
    )
    target = ScreenElement(role="button", text=element.text, box=box)
    screen = Screen(
        screen_id=seen.screenshot_id, sha256=sha256(seen.screenshot).hexdigest(), width_px=seen.width_px, height_px=seen.height_px
    )
    action = RecordedAction(action=click, start_s=1.0, end_s=1.1, screen_id=screen.screen_id, target=target)
    return base.model_copy(update={"actions": (action,), "screens": (screen,), "last_screen_id": None})


def test_what_was_redacted_counts_as_equal(tmp_path: Path):
    manifest = make(tmp_path).manifest()
    seen = observation_of(manifest.screens[0], None, "x")
    click = manifest.actions[0]
    assert mismatch(click, seen) == ""
    target = ScreenElement(role="button", text="Pay [card]", box=BUTTON)
    assert mismatch(click.model_copy(update={"target": target}), seen) == ""
    elsewhere = click.model_copy(update={"action": Click(x=9000, y=1)})
    assert "outside" in mismatch(elsewhere, seen) and mismatch(click.model_copy(update={"action": TypeText(text="x")}), seen) == ""
