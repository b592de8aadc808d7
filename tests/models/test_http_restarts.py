"""Servers behind one HTTP engine that are busy, paused, restarted or handed weights late: none answers with other weights than are
named, and none is done without for longer than it must be. vLLM and SGLang are played."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from models.checkpoints.checkpoint import read_card
from models.families.registry import load_codec, load_policy
from models.http import replicas
from models.http.engine import HttpEngine
from models.http.routes import UNKNOWN, UNNAMED
from models.server.settings import ServerSettings
from tests.models.policy_servers import OK, PlayedServer, Reply, act, chat_answer, config, flaky, our_server, played_server, prompt
from warehouse.core.errors import ConfigError, EngineUnreachable

pytestmark = pytest.mark.usefixtures("engine_token")
BROKEN: Reply = (200, {"content-length": "9999", "connection": "close"}, {})
BUSY: Reply = (503, OK, {"error": {"message": "busy"}})


@dataclass
class Vllm:
    """vLLM in its development mode, as far as loading goes. `before` sees each request first, and may answer it."""

    name: str = UNNAMED
    is_paused: bool = False
    is_processed: bool = True
    folders: list[str] = field(default_factory=list)
    before: Callable[[str, Any], Reply | None] = lambda path, body: None
    played: PlayedServer = field(init=False)

    def start_again(self) -> None:
        self.name, self.is_paused = UNNAMED, False

    def reply(self, method: str, path: str, body: Any) -> Reply:
        if (first := self.before(path, body)) is not None:
            return first
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]}
        if path == "/weight_info":
            return 200, OK, {"weight_version": self.name}
        if path == "/update_weight_version":
            self.name = body["new_version"]
        elif path == "/collective_rpc":
            self.folders.append(Path(body["kwargs"]["weights_path"]).name)
        elif path.startswith(("/pause", "/resume")):
            self.is_paused = path.startswith("/pause")
        elif path in ("/v1/chat/completions", "/inference/v1/generate"):
            return 200, OK, self._answer(body.get("sampling_params", body), with_versions=path.startswith("/inference"))
        elif not path.startswith("/reset"):
            return 404, OK, {"error": {"message": "Not Found"}}
        return 200, OK, {}

    def _answer(self, sampling: dict[str, Any], *, with_versions: bool) -> dict[str, Any]:
        logprob = math.log(0.3)
        if self.is_processed:
            logprob = logprob / (sampling["temperature"] or 1.0) if sampling["top_p"] > 0.3 else 0.0
        content = [{"token": "hi", "logprob": logprob, "top_logprobs": [{"logprob": logprob}]}]
        spans = {"text": "hi", "weight_versions": [{"version": self.name, "start": 0, "end": 1}]} if with_versions else {}
        return chat_answer(logprobs={"content": content}, token_ids=[7], **spans) | {"prompt_token_ids": [1]}


@contextmanager
def vllms(number: int) -> Iterator[list[Vllm]]:
    with ExitStack() as stack:
        servers = [Vllm() for _ in range(number)]
        for server in servers:
            server.played = stack.enter_context(played_server(server.reply))
        yield servers


def engine_of(*servers: Vllm, folder: Path | None = None, **fields: Any) -> HttpEngine:
    urls = [server.played.url for server in servers]
    settings = config(urls[0], replicas=urls[1:], **fields)
    return HttpEngine(settings) if folder is None else HttpEngine.of_checkpoint(settings, folder)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def asked_until(engine: HttpEngine, condition: Callable[[], bool]) -> None:
    def is_met() -> bool:
        act(engine, prompt())
        return condition()

    until(is_met)


def replies(path: str, *first: Reply) -> Callable[[str, Any], Reply | None]:
    left = list(first)
    return lambda asked, body: left.pop(0) if asked.startswith(path) and left else None


@dataclass
class Receiving:
    """The part of a vLLM that is sent weights: a worker in a group of gloo, as models/http/vllm_gloo.py has it."""

    group: Any = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def reply(self, path: str, body: Any) -> Reply | None:
        if path == "/get_world_size":
            return 200, OK, {"world_size": 1}
        if path == "/init_weight_transfer_engine":
            self._join(body["init_info"])
        elif path == "/update_weights":
            if self.group is None:
                return 400, OK, {"error": {"message": "no learner has opened a group"}}
            info = body["update_info"]
            self.weights = {name: self._received(shape) for name, shape in zip(info["names"], info["shapes"], strict=True)}
        elif path not in ("/start_weight_update", "/finish_weight_update"):
            return None
        return 200, OK, {}

    def _join(self, info: dict[str, Any]) -> None:
        distributed: Any = torch.distributed
        store = distributed.TCPStore(info["master_address"], info["master_port"], info["world_size"], is_master=False)
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        prefixed = distributed.PrefixStore("weights", store)
        self.group = distributed.ProcessGroupGloo(prefixed, info["rank_offset"], info["world_size"], options)

    def _received(self, shape: list[int]) -> torch.Tensor:
        found = torch.empty(shape)
        self.group.broadcast(found, root=0).wait()
        return found


def test_a_server_that_was_started_again_is_sent_the_next_weights(roots: Path) -> None:
    """It is in no group any more: it was done without from then on."""
    states = {name: load_policy(roots / name).state_dict() for name in "ab"}
    with vllms(2) as servers:
        receiving = [Receiving(), Receiving()]
        for server, each in zip(servers, receiving, strict=True):
            server.before = each.reply
        engine = engine_of(*servers, folder=roots / "a", weights="transfer")
        engine.load_weights(states["a"], "first", 1)
        receiving[1].group = None
        servers[1].start_again()
        breaks = replies("/v1/chat", BROKEN)
        servers[1].before = lambda path, body: breaks(path, body) or receiving[1].reply(path, body)
        act(engine, prompt(), prompt())
        assert engine._replicas._every[1].down_s is not None
        engine.load_weights(states["b"], "second", 2)
        assert [server.name.split("@")[0] for server in servers] == ["second", "second"]
        for each in receiving:
            assert all(torch.equal(tensor, states["b"][name]) for name, tensor in each.weights.items()) and each.weights
        engine.close()


def test_a_server_that_was_paused_for_loading_goes_on(roots: Path) -> None:
    """Whatever becomes of the requests; where it did not confirm that it goes on, the weights do not count as loaded."""
    with vllms(1) as (server,):
        engine = engine_of(server)
        server.before = replies("/resume", BUSY, BUSY)
        engine.load_checkpoint(roots / "a", "checkpoint-a")
        assert not server.is_paused and server.name.startswith("checkpoint-a@")
        server.before = replies("/resume", *[BUSY] * 3)
        with pytest.raises(EngineUnreachable, match="/resume failed 3 times"):
            engine.load_checkpoint(roots / "b", "checkpoint-b")
        assert engine.policy_id == "checkpoint-a"

        def paused_without_answer(path: str, body: Any) -> Reply | None:
            server.is_paused = server.is_paused or path.startswith("/pause")
            return BROKEN if path.startswith("/pause") else None

        server.before = paused_without_answer
        with pytest.raises(EngineUnreachable, match="/pause"):
            engine.load_checkpoint(roots / "b", "checkpoint-b")
        assert not server.is_paused and server.name != UNKNOWN and len(server.folders) == 2
        engine.close()


def test_one_of_several_that_stays_paused_is_done_without_until_it_goes_on(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "LOST_S", 0.05)
    with vllms(2) as (one, two):
        engine = engine_of(one, two)
        two.before = lambda path, body: BUSY if path.startswith("/resume") else None
        engine.load_checkpoint(roots / "a", "checkpoint-a")
        num_asked = len(two.played.bodies("/v1/chat/completions"))
        assert two.is_paused and act(engine, *[prompt()] * 4)[0].policy_id == "checkpoint-a"
        assert len(two.played.bodies("/v1/chat/completions")) == num_asked, "not even to find out what it gives"
        two.before = lambda path, body: None
        asked_until(engine, lambda: engine._replicas._every[1].down_s is None)
        assert not two.is_paused and two.folders == ["a"]
        engine.close()


@pytest.mark.parametrize("send", ["token_ids", "messages"])
def test_a_server_that_was_started_again_does_not_answer_for_the_weights_that_it_had(roots: Path, send: Any) -> None:
    with vllms(1) as (server,):
        start, opened = HttpEngine(config(server.played.url, send=send), codec=load_codec(roots / "a")), []
        answers = "/inference" if send == "token_ids" else "/v1/chat"
        server.before = replies(answers, BROKEN)
        assert act(start, prompt())[0].policy_id == "m", "what it was started with is what is asked for"
        opened.append(HttpEngine.of_checkpoint(config(server.played.url, send=send), roots / "a"))
        opened.append(HttpEngine.of_checkpoint(config(server.played.url, send=send), roots / "a"))
        assert server.folders == ["a"], "the second engine found it loaded"
        for engine in opened:
            server.before = replies(answers, BROKEN)
            assert act(engine, prompt())[0].policy_id == read_card(roots / "a").checkpoint_id
        server.start_again()
        for engine in opened:
            server.before = replies(answers, BROKEN)
            for _ in range(2):
                with pytest.raises(EngineUnreachable, match="restarted"):
                    act(engine, prompt())
        opened[0].load_checkpoint(roots / "b", "checkpoint-b")
        assert act(opened[0], prompt())[0].policy_id == "checkpoint-b"
        for engine in (start, *opened):
            engine.close()


def test_one_of_several_that_was_started_again_loads_before_it_answers(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "LOST_S", 0.05)
    with vllms(2) as servers:
        engine = engine_of(*servers, folder=roots / "a", send="token_ids")
        servers[0].start_again()
        asked_until(engine, lambda: servers[0].folders == ["a", "a"] and engine._replicas._every[0].down_s is None)
        for server in servers:
            server.start_again()
        with pytest.raises(EngineUnreachable, match="restarted"):
            act(engine, prompt())  # none is left that has them
        assert {answer.policy_id for answer in act(engine, *[prompt()] * 4)} == {read_card(roots / "a").checkpoint_id}
        engine.close()


def test_servers_whose_log_probabilities_differ_are_refused_and_do_not_come_back(
    roots: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas, "LOST_S", 0.05)
    with vllms(2) as (one, two):
        two.is_processed = False
        with pytest.raises(ConfigError, match="logprobs_follow_temperature: True and False, logprobs_follow_top_p: True and False"):
            engine_of(one, two)
        two.is_processed = True
        engine = engine_of(one, two)
        one.before, one.is_processed = replies("/v1/chat", BROKEN), False  # restarted, otherwise than before
        asked_until(engine, lambda: "do not give the same" in caplog.text)
        assert engine.capabilities().logprobs_follow_top_p, "as when it was opened"
        engine.load_checkpoint(roots / "b", "checkpoint-b")
        assert one.folders == ["b"] and engine._replicas._every[0].down_s is not None, "weights alone do not bring it back"
        one.is_processed = True
        asked_until(engine, lambda: engine._replicas._every[0].down_s is None)
        assert one.folders == ["b"], "it has them"
        engine.close()


def test_a_server_that_comes_back_while_weights_are_handed_over_has_the_new_ones(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "LOST_S", 0.05)
    is_loading, goes_on = threading.Event(), threading.Event()

    def slowly(path: str, body: Any) -> None:
        if path == "/collective_rpc" and not is_loading.is_set():
            is_loading.set()
            goes_on.wait(60.0)

    with vllms(2) as (two, one):
        engine = engine_of(two, one, folder=roots / "a")
        two.start_again()
        two.before = replies("/v1/chat", BROKEN)
        asked_until(engine, lambda: engine._replicas._every[0].down_s is not None)
        two.before = slowly
        asked_until(engine, is_loading.is_set)
        loading = threading.Thread(target=engine.load_checkpoint, args=(roots / "b", "checkpoint-b", 1))
        loading.start()
        until(lambda: one.folders == ["a", "b"])
        assert two.folders == ["a"], "one after the other"
        goes_on.set()
        loading.join(60.0)
        asked_until(engine, lambda: engine._replicas._every[0].down_s is None)
        assert (two.folders, two.name) == (["a", "a", "b"], "checkpoint-b@1")
        engine.close()


def test_a_busy_server_is_asked_again_and_a_lost_one_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(replicas, "LOST_S", 0.05)
    caplog.set_level(logging.WARNING)
    busy = [(429, {"retry-after": "0.01"}, "slow down"), BUSY]
    with played_server(flaky(*busy, *[BROKEN])) as one, played_server(flaky(*busy)) as two:
        engine = HttpEngine(config(one.url, replicas=(two.url,)))
        first, second = engine._replicas._every
        for _ in range(2):
            act(engine, prompt(), prompt())
        assert engine.num_retries >= 2 and second.down_s is None
        asked_until(engine, lambda: "answers again" in caplog.text)
        assert first.down_s is None and f"{one.url} is done without: {one.url}/v1/chat/completions failed" in caplog.text
        assert "IncompleteRead" in caplog.text or "RemoteProtocolError" in caplog.text
        assert two.url not in caplog.text
        engine.close()


def test_a_server_that_is_known_to_be_dead_delays_no_weights(roots: Path) -> None:
    """Neither one that refuses connections nor one that takes them and says nothing."""
    with our_server(roots / "a", ServerSettings(weight_roots=(roots,))) as one, ExitStack() as stack:
        two = stack.enter_context(our_server(roots / "a", ServerSettings(weight_roots=(roots,))))
        three = stack.enter_context(our_server(roots / "a", ServerSettings(weight_roots=(roots,))))
        patient = config(one.url, replicas=(two.url, three.url), retries=6, backoff_s=4.0, connect_timeout_s=0.5)
        engine = HttpEngine.of_checkpoint(patient, roots / "a")
        stack.close()
        act(engine, *[prompt()] * 6)
        down = [replica.config.base_url for replica in engine._replicas._every if replica.down_s is not None]
        assert set(down) == {two.url, three.url}
        with socket.create_server(("127.0.0.1", int(three.url.rsplit(":", 1)[1]))):
            started_s = time.monotonic()
            engine.load_checkpoint(roots / "b", read_card(roots / "b").checkpoint_id)
            assert time.monotonic() - started_s < 20.0, "six attempts would take a minute"
        assert act(engine, prompt())[0].policy_id == read_card(roots / "b").checkpoint_id
        engine.close()


def test_sglang_names_the_weights_that_it_has_when_it_is_opened(roots: Path) -> None:
    has = {"weight_version": read_card(roots / "b").checkpoint_id}

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 64}]}
        assert path == "/generate", "nothing is loaded"
        return 200, OK, {"text": "hi", "output_ids": [5], "meta_info": {"finish_reason": {"type": "stop"}} | has}

    with played_server(reply) as played:
        engine = HttpEngine.of_checkpoint(config(played.url, send="token_ids"), roots / "b")
        assert act(engine, prompt())[0].policy_id == read_card(roots / "b").checkpoint_id
        has["weight_version"] = UNNAMED
        with pytest.raises(EngineUnreachable, match="restarted"):
            act(engine, prompt())
        engine.close()
