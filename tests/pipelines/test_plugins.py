"""A user's own grammar, judge and importer, as docs/plugins.md shows them: found from a profile, a variable or an entry point, used by the
stages, and refused with the reason where they cannot be used."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.grammars.registry import GRAMMARS, grammar_named
from agent.judging.prompt import Record, Turn
from assets.judging import judging
from models.judges.judge import MAX_SCORE, Case, Judgement
from models.judges.own import TOKEN_VARIABLE, OwnJudge
from models.judges.registry import JUDGES
from pipelines import profiles
from pipelines.importing.registry import IMPORTERS, importer_named
from sandbox.actions import Click, InvalidAction
from sandbox.server.identity import plugin_ids
from sandbox.session import Observation, Verdict
from sandbox.tasks.registry import SOURCES
from tests.agent.judged_episodes import many, store
from tests.assets.test_judging import metadata_of, run_assets
from tests.pipelines.demonstration_files import images, write_lines
from tests.pipelines.test_import_demonstrations import run as run_import
from tests.sandbox.own_source import ROOT, write_files_of
from warehouse.core.errors import ConfigError, EngineUnreachable, ModelError
from warehouse.core.home import Home
from warehouse.core.identity import file_digest
from warehouse.core.plugins import VARIABLES, environment
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SCREEN = Observation(instruction="Click.", screenshot=None, width_px=100, height_px=80, elements=(), time_ms=0.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return write_files_of("plugins.md", tmp_path, ["grammar.py", "importer.py", "judge.py", "mine.yaml"])


def turn(*, is_invalid: bool = False, changed: bool = True) -> Turn:
    return Turn(thought="t", action="click", screen="", screenshot_id=None, is_invalid=is_invalid, changed=changed)


def case(name: str, *turns: Turn, is_cut_off: bool = False) -> Case:
    return Case(record=Record(episode_id=name, instruction="Click.", turns=turns, is_cut_off=is_cut_off), images={"screen-1": b"png"})


def judged(judge: OwnJudge, *cases: Case) -> list[Judgement]:
    return asyncio.run(judge.judge(cases))


def test_a_profile_brings_its_grammar_and_its_judge(folder: Path) -> None:
    profile = profiles.load(str(folder / "mine.yaml"))
    assert profile.agent.grammar == "json" and profile.agent.builder().grammar is GRAMMARS["json"]
    assert list(JUDGES) == ["brief"] == list(profile.verdicts.judges)
    assert environment() == {
        "FLYWHEEL_GRAMMARS": f"{{json: '{folder}/grammar.py:GRAMMAR'}}",
        "FLYWHEEL_JUDGES": f"{{brief: '{folder}/judge.py:judge'}}",
    }
    program = "from agent.grammars.registry import grammar_named; print(grammar_named('json').layout)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["chat"], "what this process starts has it too: " + ran.stderr


def test_the_grammar_reads_what_it_writes_and_never_raises(folder: Path) -> None:
    GRAMMARS.use("grammar.py:GRAMMAR", folder)
    grammar = grammar_named("json")
    text = grammar.format("look", Click(x=3, y=4), SCREEN)
    assert grammar.parse(text, SCREEN).actions == (Click(x=3, y=4),) and grammar.parse(text, SCREEN).thought == "look"
    for bad in ("", "[]", "{}", '{"action": 3}', "[" * 100_000, '{"action": {"kind": "moon"}}', text[:-4]):
        assert isinstance(grammar.parse(bad, SCREEN).actions[0], InvalidAction)


def test_a_function_judges(folder: Path) -> None:
    JUDGES.use({"brief": "judge.py:judge"}, folder)
    judge = OwnJudge("brief", JUDGES["brief"])
    good, half, cut = judged(judge, case("a", turn()), case("b", turn(), turn(changed=False)), case("c", turn(), is_cut_off=True))
    assert (good.score, half.score, cut.score) == (MAX_SCORE, 0.5, 0.0) and half.reasons == ("1 wasted steps",)
    before = judge.version
    (folder / "judge.py").write_text((folder / "judge.py").read_text() + "\n# changed\n")
    assert OwnJudge("brief", JUDGES["brief"]).version != before, "another file is another version"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda case: 2, r"judge 'mine', episode a: ValueError: it returned 2: a score is from 0 to 1"),
        (lambda case: float("nan"), r"ValueError: it returned nan"),
        (lambda case: "yes", r"TypeError: it returned 'yes': expected True or False"),
        (lambda case: None, r"TypeError: it returned None"),
        (lambda case: Verdict(origin="judge", score=8.0, threshold=5.0), r"ValueError: it returned Verdict.*a score is from 0 to 1"),
        (lambda case: case.nonesuch, r"AttributeError"),
    ],
)
def test_what_is_no_score_names_the_judge_and_the_episode(function: Callable[[Case], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        judged(OwnJudge("mine", function), case("a"))


def test_truth_values_scores_and_coroutines_are_taken() -> None:
    async def later(case: Case) -> bool:
        await asyncio.sleep(0.01)
        return case.record.episode_id == "a"

    assert [each.score for each in judged(OwnJudge("mine", later), case("a"), case("b"))] == [MAX_SCORE, 0.0]
    assert judged(OwnJudge("mine", lambda case: 0.25), case("a"))[0].score == 0.25


@contextmanager
def answering(answer: Callable[[dict[str, Any], str], tuple[int, Any]]) -> Iterator[str]:
    """A server that judges; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, said = answer(body, self.headers.get("authorization", ""))
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/judge"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_address_judges(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret-word")
    asked: list[tuple[dict[str, Any], str]] = []

    def answer(body: dict[str, Any], token: str) -> tuple[int, Any]:
        asked.append((body, token))
        return 200, {"score": 0.75, "reasons": [f"{len(body['episode']['turns'])} steps"]}

    with answering(answer) as url:
        JUDGES.use({"remote": url}, folder)
        judge = OwnJudge("remote", JUDGES["remote"])
        (said,) = judged(judge, case("a", turn(), turn()))
    assert (said.score, said.reasons, judge.version) == (0.75, ("2 steps",), url)
    ((body, token),) = asked
    assert token == "Bearer secret-word" and body["episode"]["instruction"] == "Click." and body["screenshots"] == {"screen-1": "cG5n"}


@pytest.mark.parametrize("said", [{}, {"score": "good"}, {"score": True}, {"score": 1.5}, {"score": 0.5, "reasons": "so"}])
def test_an_address_that_answers_otherwise_is_named(folder: Path, said: dict[str, Any]) -> None:
    with answering(lambda body, token: (200, said)) as url:
        JUDGES.use({"remote": url}, folder)
        with pytest.raises(ModelError, match=r"judge 'remote', episode a: ValueError: http://127.* answered with the"):
            judged(OwnJudge("remote", JUDGES["remote"]), case("a"))


@pytest.mark.slow
def test_an_address_that_does_not_answer_is_retried_by_the_stage(folder: Path) -> None:
    with answering(lambda body, token: (200, {})) as url:
        pass
    JUDGES.use({"remote": url}, folder)
    with pytest.raises(EngineUnreachable, match="failed 7 times"):
        judged(OwnJudge("remote", JUDGES["remote"]), case("a"))


@pytest.mark.parametrize("url", ["http://", "http://me:word@127.0.0.1/judge", "https://127.0.0.1/judge?token=1"])
def test_an_address_holds_no_secret(folder: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="is not a plain address") as refused:
        JUDGES.use({"remote": url}, folder)
    assert "word" not in str(refused.value).replace("password", "")


def test_it_judges_an_iteration_and_is_measured(folder: Path) -> None:
    """Verifiers have the last word; the judge's is stored beside it, with a report."""
    purpose = {"purpose": "rollout"}
    warehouse = store(folder / "home", ("0001", "rl_pointing", many(40)), ("0001", "rollouts", many(20, seed=1, **purpose)))
    profiles.load(str(folder / "mine.yaml"))
    result = run_assets(warehouse, judging, verdicts__judges=["brief"])
    assert result.success and metadata_of(result, "judgements")["judged/brief"] >= 20
    with connect(warehouse) as con:
        rows = con.execute("select distinct judge, judge_version, origin, reasons[1] from verdicts where judge = 'brief'").fetchall()
        (reports,) = con.execute("select count(*) from judge_reports where judge = 'brief'").fetchall()
    assert rows == [("brief", OwnJudge("brief", JUDGES["brief"]).version, "judge", rows[0][3])] and "wasted steps" in rows[0][3]
    assert reports[0] > 0


def test_demonstrations_come_in_by_an_importer_of_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    images(folder, 2)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))[:2]
    good = {"id": "one", "goal": "Press both.", "clicks": [[names[0], 5, 6], [names[1], 7, 8]], "ok": True}
    write_lines(folder / "clicks.jsonl", [good, {"id": "two"}])
    report, said = run_import(folder / "home", "importer.py:IMPORTER", folder / "clicks.jsonl")
    assert report.num_added == 1 and "not a record of clicks: KeyError('clicks')" in said
    warehouse = Warehouse(Home(folder / "home"))
    assert warehouse.read("episodes").select(["policy_id", "num_steps"]).to_pylist() == [{"policy_id": "human", "num_steps": 2}]
    assert set(warehouse.read("verdicts").column("judge").to_pylist()) == {"clicks"}


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("plugins: {judges: {mine: 'gone.py:judge'}}", r"plugins\.judges of the profile .*gone\.py:judge cannot be imported"),
        ("plugins: {judges: {orm: 'judge.py:judge'}}\nverdicts: {judges: [orm]}", r"names orm, which are Flywheel's own"),
        ("plugins: {grammars: ['judge.py:judge']}", r"plugins\.grammars of the profile .* is a function: expected a Grammar"),
        ("plugins: {grammars: {other: 'grammar.py:GRAMMAR'}}\nagent: {grammar: other}", r"'other' .* calls itself 'json'"),
        ("plugins: {grammars: {compact: 'grammar.py:GRAMMAR'}}", r"'compact' .* has the name of another one"),
        ("verdicts: {judges: [brief]}", r"verdicts\.judges of the profile .* names brief; known are none\. Name yours"),
        ("plugins: {judges: {'a b': 'judge.py:judge'}}", r"has no name, or a bad one \('a b'\)"),
        ("plugins: {moons: {a: 'judge.py:judge'}}", r"plugins\.moons .*unknown key"),
        ("plugins: {judges: 3}", r"plugins\.judges"),
    ],
)
def test_what_cannot_be_used_is_refused(folder: Path, profile: str, message: str) -> None:
    (folder / "wrong.yaml").write_text(f"extends: smoke\n{profile}\n")
    with pytest.raises(ConfigError, match=message):
        profiles.load(str(folder / "wrong.yaml"))


@pytest.mark.parametrize("format", ["moons", "judge.py:judge", "gone.py:IMPORTER"])
def test_a_format_that_there_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"the formats are agentnet, .*mind2web|is a function: expected an Importer|there is no file"):
        importer_named(format)


def test_what_ships_is_registered_as_anybodys() -> None:
    assert set(GRAMMARS.installed()) == {"compact", "uitars1", "uitars15", "doubao", "uitars2"}
    logs = {"anthropic-computer-use", "browser-use", "openai-chat", "openai-computer-use", "otel-genai", "playwright-trace"}
    assert set(IMPORTERS.installed()) == {"agentnet", "mind2web", "sharegpt"} | logs and JUDGES.installed() == {}
    assert all(GRAMMARS[name].name == name for name in GRAMMARS.installed()) and "miniwob" in SOURCES
    assert all(reference.startswith("flywheel.") for reference in [*GRAMMARS.installed().values(), *IMPORTERS.installed().values()])
    assert not any(os.environ.get(variable) for variable in VARIABLES.values())


def test_machines_compare_the_files_of_all_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shop, terse = tmp_path / "shop.py", tmp_path / "terse.py"
    terse.write_text("GRAMMAR = None\n")
    monkeypatch.setenv("FLYWHEEL_TASK_SOURCES", f"{{shop: '{shop}:SOURCE'}}")
    monkeypatch.setenv("FLYWHEEL_GRAMMARS", f"['{terse}:GRAMMAR', my_package.words:TERSE]")
    found = plugin_ids()
    assert found["shop"] == "not there" and found["grammars my_package.words:TERSE"] == "not there", "my_package is not installed"
    assert found[f"grammars {terse}:GRAMMAR"] == f"{file_digest(terse)}:GRAMMAR"
    monkeypatch.setenv("FLYWHEEL_GRAMMARS", "{")
    with pytest.raises(ConfigError, match="FLYWHEEL_GRAMMARS is not YAML"):
        plugin_ids()
