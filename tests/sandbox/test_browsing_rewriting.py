"""Screening and rewording by a model: a real server on loopback that speaks OpenAI's interface, and what is refused of what it says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sandbox.tasks.browsing import curate
from sandbox.tasks.browsing.chat import ANSWER, ChatModel, ChatSettings
from sandbox.tasks.browsing.curated import VARIABLE
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.browsing.rewriting import fault, reworded
from sandbox.tasks.browsing.source import BrowsingSource, family_of, instance_of, load_tasks
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError, ServerUnreachable

TASKS = load_tasks("almanac")
CHAIN = TASKS["chain-2"]
SEEDS = CHAIN.seeds(Split.TRAIN, 3)

Reply = Callable[[str], tuple[int, str]]


@contextmanager
def serving(reply: Reply) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server whose model says what `reply` gives for a prompt; its address, and the requests it had."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append({"path": self.path, "authorization": self.headers["authorization"], **body})
            status, said = reply(body["messages"][0]["content"])
            answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()


def model(url: str, **more: Any) -> ChatModel:
    return ChatModel(ChatSettings(base_url=url, model="small", pause_s=0.0, **more))


def politely(question: str) -> str:
    """Another wording that keeps everything."""
    return f"Look around and find out: {question}"


@pytest.fixture
def instance() -> Instance:
    return instance_of(CHAIN, SEEDS[0])


def test_a_wording_that_leaks_or_loses_something_is_refused(instance: Instance) -> None:
    question = instance.question
    assert fault(instance, politely(question)) is None
    for name in instance.names:
        assert "names" in str(fault(instance, question.replace("What is", f"Think of {name}. What is")))
    assert "empty or too long" in str(fault(instance, ""))
    assert "empty or too long" in str(fault(instance, question * 4))
    assert "asks nothing" in str(fault(instance, question.replace("?", ".")))
    figures = replace(instance, question="Country A has between 1,000 and 2,500 inhabitants and is larger than Chile. What is its name?")
    assert "lost '2,500'" in str(fault(figures, figures.question.replace("2,500", "2,600")))
    assert "lost 'Chile'" in str(fault(figures, figures.question.replace("Chile", "Peru")))
    initial = replace(instance, question="A country has a name that begins with M. What is its name?")
    assert "lost" in str(fault(initial, initial.question.replace("begins with M", "begins with a letter")))
    with pytest.raises(ValueError, match="names"):
        reworded(instance, f"{question} It is {instance.names[-1]}.", "small")
    again = reworded(instance, politely(question), "small")
    assert again.question == politely(question) and again.forms == instance.forms and again.worded_by == "small"


def test_a_wording_that_one_search_answers_is_refused(instance: Instance) -> None:
    """Words of the page itself, which name nothing: the rule's wording is not found so, and the new one may not be."""
    found, results = instance.route[-1], instance.corpus.index.results
    assert found not in results(instance.question)
    title = next(title for title, _, path in instance.corpus.index.pages if path == found)
    unnamed = replace(instance, names=(), forms=())
    again = f"{instance.question} ({' '.join([title] * 9)})"[: 3 * len(instance.question)]
    assert found in results(title) and "one search" in str(fault(unnamed, again))
    listed = replace(unnamed, question=f"{title}?")
    assert fault(listed, f"{title}, what?") is None, "a question that the search was to answer stays one"


def test_tasks_and_their_pages_know_of_the_file_of_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reported() -> tuple[str, str, str]:
        task = load_tasks("almanac")["chain-2"]
        return task.version, task.task_id, BrowsingSource().environment

    plain = reported()
    seen = {plain}
    for number in (1, 2):
        file = tmp_path / f"questions-{number}.jsonl"
        file.write_text(json.dumps({"task": CHAIN.name, "seed": 1, "skip": number, "model": "small"}) + "\n", encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(file))
        seen.add(reported())
    assert [len(set(part)) for part in zip(*seen, strict=True)] == [3, 3, 3]
    monkeypatch.delenv(VARIABLE)
    assert reported() == plain and plain[0] == "1"


def test_a_server_is_asked_again_when_that_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TOKEN", "secret")
    statuses = iter([503, 429, 200])
    with serving(lambda prompt: (next(statuses), "<think>Mali? No.</think>\nI think:\nChad")) as (url, seen):
        assert model(url, token_env="CHAT_TOKEN").answer("Which country?") == "Chad"
    assert len(seen) == 3 and seen[0]["path"] == "/v1/chat/completions" and seen[0]["authorization"] == "Bearer secret"
    assert seen[0]["model"] == "small" and seen[0]["temperature"] == 0 and seen[0]["messages"][0]["content"].startswith(ANSWER)
    with serving(lambda prompt: (400, "")) as (url, seen), pytest.raises(ServerUnreachable, match="HTTP 400"):
        model(url).answer("Which?")
    assert len(seen) == 1
    with pytest.raises(ServerUnreachable, match="did not answer"):
        model("http://127.0.0.1:9/v1", max_attempts=2).answer("Which?")
    with pytest.raises(ConfigError, match="NO_TOKEN"):
        model("http://127.0.0.1:9/v1", token_env="NO_TOKEN")


def test_what_a_model_knows_is_passed_over_and_the_rest_reworded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, leaking = instance_of(CHAIN, SEEDS[0]), instance_of(CHAIN, SEEDS[1])

    def reply(prompt: str) -> tuple[int, str]:
        question = prompt.partition("\n\n")[2]
        if prompt.startswith(ANSWER):
            return 200, f"Let me see.\n{known.answer if question == known.question else 'unknown'}"
        return 200, politely(question) + (f" ({leaking.answer})" if question == leaking.question else "")

    file = tmp_path / "questions.jsonl"
    with serving(reply) as (url, _):
        assert curate.main([str(file), "--url", url, "--model", "small", "--num", "3", "--tasks", "chain-2"]) == 0
    monkeypatch.setenv(VARIABLE, str(file))
    first, second, third = (_uncached(seed) for seed in SEEDS)
    assert first.question.startswith("Look around") and first.content != known.content and first.dropped["refused by a model"] == 1
    assert second.question == leaking.question and second.worded_by == "rule"
    assert third.question == politely(instance_of(CHAIN, SEEDS[2]).question.removeprefix("Look around and find out: "))
    assert (first.worded_by, third.worded_by) == ("small", "small")
    assert curate.main([str(file), "--url", "http://127.0.0.1:9/v1", "--model", "small", "--tasks", "lookup-read"]) == 2


def _uncached(seed: int) -> Instance:
    """Past what this process has kept of the seed."""
    return instance_of.__wrapped__(CHAIN, seed)


def test_a_file_of_questions_that_leaks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = family_of(CHAIN).instance(CHAIN, SEEDS[2])
    file = tmp_path / "questions.jsonl"
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        _uncached(SEEDS[2])
    line = {"task": CHAIN.name, "seed": SEEDS[2], "question": f"{instance.question} It is {instance.answer}.", "model": "small"}
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be used"):
        _uncached(SEEDS[2])
    other = tmp_path / "broken.jsonl"
    other.write_text("{}\n", encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(other))
    with pytest.raises(ConfigError, match="line 1"):
        _uncached(SEEDS[2])
