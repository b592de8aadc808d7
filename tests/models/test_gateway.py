"""The gateway in front of a real policy server: what clients get in each interface, and what is recorded of it, to the byte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.gateway.records import Said
from models.gateway.serve import Address
from models.gateway.settings import GatewaySettings
from models.server.settings import ServerSettings
from tests.models.chat_models import png
from tests.models.gateways import PROJECTS, Gateway, asked, gateway, user
from tests.models.policy_servers import TOKEN, OurServer, our_server, played_server
from tests.models.served_models import save_chat_model, save_vision_model
from warehouse.core.identity import bytes_id

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CLICK = {"type": "object", "properties": {"x": {"enum": [3, 14]}}, "required": ["x"], "additionalProperties": False}
CHAT_TOOL = {"type": "function", "function": {"name": "click", "parameters": CLICK}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    folder = tmp_path_factory.mktemp("served") / "chat"
    save_chat_model(folder)
    with our_server(folder, ServerSettings(max_tokens=400)) as running:
        yield running


@pytest.fixture
def running(server: OurServer, tmp_path: Path) -> Iterator[Gateway]:
    with gateway(tmp_path, Address(url=server.url, token=TOKEN)) as opened:
        yield opened


def direct(server: OurServer, body: dict[str, Any]) -> dict[str, Any]:
    with server.client() as client:
        answer: dict[str, Any] = client.post(CHAT, json=body | {"return_token_ids": True, "logprobs": True}).json()
        return answer


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_the_servers_answer_and_its_record(server: OurServer, running: Gateway, stream: bool) -> None:
    body = asked(user("see the screen"))
    expected = direct(server, body)
    with running.client() as client:
        response = client.post(CHAT, json=body | {"stream": stream})
    (call,) = running.calls()
    choice = expected["choices"][0]
    if stream:
        assert response.text.endswith("data: [DONE]\n\n")
        text = "".join(one["choices"][0]["delta"].get("content") or "" for one in events(response))
        assert not any("token_ids" in one["choices"][0] or "logprobs" in one["choices"][0] for one in events(response))
    else:
        text = response.json()["choices"][0]["message"]["content"]
        assert "token_ids" not in response.json()["choices"][0] and "prompt_token_ids" not in response.json()
    assert text == choice["message"]["content"]
    assert call.prompt_token_ids == tuple(expected["prompt_token_ids"])
    assert call.response_token_ids == tuple(choice["token_ids"])
    assert call.response_logprobs == pytest.approx([entry["logprob"] for entry in choice["logprobs"]["content"]], abs=1e-5)
    assert call.response_versions == (0,) * len(call.response_token_ids) and call.policy_id == server.engine.policy_id
    assert call.messages == (Said(role="user", pieces=("see the screen",)),) and call.answer.text == text
    assert response.headers["x-flywheel-episode"] == call.place.episode and call.project == "alpha"


def test_the_clients_of_openai_work_unchanged(server: OurServer, running: Gateway) -> None:
    from openai import OpenAI  # the slowest import of all, of one test

    client = OpenAI(base_url=f"{running.url}/v1", api_key=f"{PROJECTS['alpha']}/run-1", max_retries=0)
    answer = client.chat.completions.create(model="gpt-9", messages=[user("Open the page")], max_tokens=6, seed=1)
    chunks = client.chat.completions.create(model="gpt-9", messages=[user("Open the page")], max_tokens=6, seed=1, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer.choices[0].message.content
    plain = client.responses.create(model="gpt-9", input="Open the page", max_output_tokens=6, temperature=0)
    with client.responses.stream(model="gpt-9", input="Open the page", max_output_tokens=6, temperature=0) as stream:
        done = list(stream)
    assert done[0].type == "response.created" and done[-1].type in ("response.completed", "response.incomplete")
    assert done[-1].response.output_text == plain.output_text
    assert {call.name for call in running.calls()} == {"run-1"} and len(running.calls()) == 4


def tool_bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "chat": (CHAT, asked(user("click 12"), max_tokens=60, tools=[CHAT_TOOL], tool_choice="required")),
        "responses": (
            RESPONSES,
            {
                "input": "click 12",
                "max_output_tokens": 60,
                "tools": [{"type": "function", "name": "click", "parameters": CLICK}],
                "tool_choice": "required",
            },
        ),
        "messages": (
            MESSAGES,
            {
                "messages": [user("click 12")],
                "max_tokens": 60,
                "tools": [{"name": "click", "input_schema": CLICK}],
                "tool_choice": {"type": "any"},
            },
        ),
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
def test_tools_are_called_and_the_conversation_goes_on(running: Gateway, route: str, stream: bool) -> None:
    path, body = tool_bodies()[route]
    with running.client() as client:
        response = client.post(path, json=body | {"stream": stream})
        assert response.status_code == 200, response.text
        (first,) = running.calls()
        (called,) = first.answer.calls
        assert called.name == "click" and json.loads(called.arguments)["x"] in (3, 14) and called.id in response.text
        assert first.finish == "tool_calls" and first.route == route
        arguments = json.loads(called.arguments)
        if route == "chat":
            call = {"id": called.id, "type": "function", "function": {"name": "click", "arguments": json.dumps(arguments, indent=1)}}
            result = {"role": "tool", "tool_call_id": called.id, "content": "It is open"}
            more = {"messages": [*body["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}, result]}
        elif route == "responses":
            items = [
                {"role": "user", "content": "click 12"},
                {"type": "function_call", "call_id": called.id, "name": "click", "arguments": json.dumps(arguments)},
                {"type": "function_call_output", "call_id": called.id, "output": "It is open"},
            ]
            more = {"input": items}
        else:
            use = {"type": "tool_use", "id": called.id, "name": "click", "input": arguments}
            result = {"type": "tool_result", "tool_use_id": called.id, "content": [{"type": "text", "text": "It is open"}]}
            more = {"messages": [user("click 12"), {"role": "assistant", "content": [use]}, user([result])]}
        assert client.post(path, json=body | more).status_code == 200
    _, second = running.calls()
    assert second.place.parent == first.call_id and second.place.started == "continued" and second.place.episode == first.place.episode
    assert [said.role for said in second.messages] == ["tool"] and second.num_before == 2


def test_anthropics_stream_has_its_events(running: Gateway) -> None:
    with running.client(**{"x-api-key": PROJECTS["beta"], "authorization": ""}) as client:
        body = {"model": "claude", "messages": [user("see the screen")], "system": "You are helpful.", "max_tokens": 6, "temperature": 0}
        whole = client.post(MESSAGES, json=body).json()
        stream = client.post(MESSAGES, json=body | {"stream": True})
    kinds = [line[7:] for line in stream.text.splitlines() if line.startswith("event: ")]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(one["delta"]["text"] for one in events(stream) if one["type"] == "content_block_delta")
    assert whole["content"] == [{"type": "text", "text": text}] and whole["stop_reason"] in ("max_tokens", "end_turn")
    assert whole["usage"]["output_tokens"] == events(stream)[-2]["usage"]["output_tokens"] > 0
    assert {call.project for call in running.calls()} == {"beta"}


def test_an_answer_follows_its_schema(running: Gateway) -> None:
    format = {"type": "json_schema", "name": "where", "schema": CLICK}
    with running.client() as client:
        answer = client.post(RESPONSES, json={"input": "see", "max_output_tokens": 40, "text": {"format": format}}).json()
    assert json.loads(answer["output"][0]["content"][0]["text"])["x"] in (3, 14)


def test_anthropics_answer_follows_its_schema(running: Gateway) -> None:
    body = {"max_tokens": 40, "messages": [user("see")]}
    format = {"type": "json_schema", "schema": CLICK}
    with running.client() as client:
        for given in ({"output_format": format}, {"output_config": {"format": format}}):
            answer = client.post(MESSAGES, json=body | given).json()
            assert json.loads(answer["content"][0]["text"])["x"] in (3, 14)
        both = client.post(MESSAGES, json=body | {"output_format": format, "output_config": {"format": format}})
    assert both.status_code == 400 and "leave out one" in both.json()["error"]["message"]
    assert {call.sampling["response_format"]["type"] for call in running.calls()} == {"json_schema"}


def test_pictures_are_kept_byte_by_byte(tmp_path: Path) -> None:
    save_vision_model(tmp_path / "vision")
    shots = [png(64, 48, "red"), png(32, 32, "blue")]
    urls = [f"data:image/png;base64,{base64.b64encode(shot).decode()}" for shot in shots]
    parts = [
        {"type": "image_url", "image_url": {"url": urls[0]}},
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": urls[1]}},
    ]
    blocks = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.split(",")[1]}} for url in urls]
    with (
        our_server(tmp_path / "vision") as server,
        gateway(tmp_path / "home", Address(url=server.url, token=TOKEN)) as running,
        running.client() as client,
    ):
        expected = direct(server, asked(user(parts)))
        assert client.post(CHAT, json=asked(user(parts))).status_code == 200
        mixed = [blocks[0], {"type": "text", "text": "see"}, blocks[1]]
        assert client.post(MESSAGES, json={"messages": [user(mixed)], "max_tokens": 8}).status_code == 200
        for call in running.calls():
            assert call.prompt_token_ids == tuple(expected["prompt_token_ids"])
            assert call.messages[0].pictures == tuple(bytes_id("screenshot", shot) for shot in shots)
        kept = {path.name: path.read_bytes() for path in (tmp_path / "home" / "gateway" / "screenshots").iterdir()}
        assert sorted(kept.values()) == sorted(shots)


def test_branches_sub_agents_and_parallel_calls_are_distinguished(running: Gateway) -> None:
    def say(client: httpx.Client, *messages: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = client.post(CHAT, json=asked(*messages)).json()["choices"][0]["message"]
        return message

    lead, helper = {"role": "system", "content": "You are helpful."}, {"role": "system", "content": "You look."}
    with running.client(name="run 7") as client:
        first = say(client, lead, user("Open the page"))
        say(client, lead, user("Open the page"), first, user("It is open"))
        say(client, lead, user("Open the page"), first, user("hello"))  # tries the second step again
        say(client, helper, user("see the screen"))  # a sub-agent
        say(client, lead, user("Open the page"), user("It is open: click 12"))  # compacted
    places = [(call.place.line, call.place.branch, call.place.started) for call in running.calls()]
    assert places == [(0, 0, "first"), (0, 0, "continued"), (1, 0, "beside"), (2, 0, "separate"), (1, 1, "rewritten")]
    assert len({call.place.episode for call in running.calls()}) == 1
    with running.client() as client:
        for _ in range(2):  # without a name a conversation is an episode
            say(client, lead, user("click 12"))
    assert len({call.place.episode for call in running.calls()}) == 3


def test_an_outcome_ends_an_episode(running: Gateway) -> None:
    given = {"value": 1, "by": "checker 2", "reasons": ["the page says so"]}
    with running.client(name="run 1") as client, running.client("beta") as other:
        assert client.post("/episodes/run 1/outcome", json=given).status_code == 404
        client.post(CHAT, json=asked(user("hello")))
        episode = client.get("/episodes/run 1").json()["episode"]
        assert other.post(f"/episodes/{episode}/outcome", json=given).status_code == 404, "of another project"
        assert client.post("/episodes/run 1/outcome", json=given | {"value": 2}).status_code == 400
        assert client.post("/episodes/run 1/outcome", json=given).json()["value"] == 1
        assert client.post(f"/episodes/{episode}/outcome", json=given).status_code == 200, "said again"
        assert client.post("/episodes/run 1/outcome", json=given | {"value": 0}).json()["error"]["code"] == "episode_has_ended"
        assert client.post(CHAT, json=asked(user("more"))).status_code == 409
        (counted,) = client.get("/outcomes").json()
    assert (counted["num_episodes"], counted["num_solved"], counted["is_candidate"]) == (1, 1, False)


def test_what_the_log_holds_is_gone_on_from(server: OurServer, tmp_path: Path) -> None:
    live = Address(url=server.url, token=TOKEN)
    with gateway(tmp_path, live) as before, before.client() as client:
        answer = client.post(CHAT, json=asked(user("Open the page"))).json()["choices"][0]["message"]
    with gateway(tmp_path, live) as after, after.client() as client:
        client.post(CHAT, json=asked(user("Open the page"), answer, user("click 12")))
        first, second = after.calls()
    assert (second.place.parent, second.place.episode) == (first.call_id, first.place.episode)
    assert second.messages == (Said(role="user", pieces=("click 12",)),)


def test_personal_data_is_not_stored(running: Gateway) -> None:
    with running.client(name="mine") as client:
        first = client.post(CHAT, json=asked(user("write to ann.smith@corp.io"))).json()["choices"][0]["message"]
        client.post(CHAT, json=asked(user("write to ann.smith@corp.io"), first, user("hello")))
        assert client.get("/episodes/mine").json()["withheld"] == ["an e-mail address"]
    text = (running.home.root / "gateway" / "calls.jsonl").read_text()
    assert "ann.smith" not in text and "hello" not in text
    first_call, second_call = running.calls()
    assert second_call.place.parent == first_call.call_id and not second_call.prompt_token_ids


def test_a_candidate_answers_its_share_of_the_episodes(server: OurServer, tmp_path: Path) -> None:
    from tests.models.conftest import small_model  # another policy

    folder = tmp_path / "other"
    from models.checkpoints.checkpoint import save

    save(folder, *small_model(1), stage="seed_policy", iteration="0000")
    with our_server(folder) as other:
        second = Address(url=other.url, token=TOKEN)
        settings = GatewaySettings(candidate_share=0.5)
        with gateway(tmp_path / "home", Address(url=server.url, token=TOKEN), settings, candidate=second) as running:
            for number in range(12):
                with running.client(name=f"run {number}") as client:
                    for _ in range(2):
                        assert client.post(CHAT, json=asked(user("hello"), max_tokens=2)).status_code == 200
                    client.post(f"/episodes/run {number}/outcome", json={"value": number % 2, "by": "test"})
            with running.client() as client:
                counted = client.get("/outcomes").json()
            by_episode: dict[str, set[str]] = {}
            for call in running.calls():
                by_episode.setdefault(call.place.episode, set()).add(call.policy_id)
    assert all(len(policies) == 1 for policies in by_episode.values())
    assert {one["policy_id"] for one in counted} == {server.engine.policy_id, other.engine.policy_id}
    assert sum(one["num_episodes"] for one in counted) == 12


def test_what_cannot_be_answered_leaves_nothing(server: OurServer, running: Gateway) -> None:
    with running.client() as client:
        assert client.post(CHAT, json=asked(user("hello"), max_tokens=4000)).json()["error"]["param"] == "max_tokens"
        for path, body in (
            (CHAT, {"messages": []}),
            (CHAT, asked(user("hello"), frequency=1)),
            (MESSAGES, {"messages": [user("hello")]}),
            (MESSAGES, {"messages": [user("hello")], "max_tokens": 4, "tools": [{"type": "computer_20250124", "name": "computer"}]}),
            (RESPONSES, {"input": "hello", "previous_response_id": "resp_1"}),
            (CHAT, asked(user([{"type": "image_url", "image_url": {"url": "http://192.0.2.1/a.png"}}]))),
        ):
            response = client.post(path, json=body)
            assert response.status_code == 400 and response.json()["error"]["message"], (path, body, response.text)
        assert httpx.post(f"{running.url}{CHAT}", json=asked(user("hello")), trust_env=False).status_code == 401
        assert client.get("/health").json()["num_running"] == 0
    assert running.calls() == []


def test_an_upstream_that_tells_no_ids_is_recorded_without(tmp_path: Path) -> None:
    def reply(method: str, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
        if method == "GET":
            return 200, {}, {"data": [{"id": "m", "owned_by": "somebody"}]}
        if body["messages"][0]["content"] == "break":
            return 200, {}, 'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
        return 200, {}, {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}

    with played_server(reply) as played, gateway(tmp_path, Address(url=played.url)) as running, running.client() as client:
        assert client.post(CHAT, json=asked(user("hello"))).json()["choices"][0]["message"]["content"] == "hi"
        broken = client.post(CHAT, json=asked(user("break"), stream=True))
        assert "upstream_failed" in broken.text
        (call,) = running.calls()
    assert (call.policy_id, call.response_token_ids, call.answer.text) == ("m", (), "hi")


def test_spans_go_into_the_log_of_the_day(running: Gateway) -> None:
    export = {"resourceSpans": [{"scopeSpans": []}]}
    with running.client() as client:
        assert client.post("/v1/traces", json=export).json() == {}
        assert client.post("/v1/traces", content=b"\x0a", headers={"content-type": "application/x-protobuf"}).status_code == 415
        assert client.post("/v1/traces", json={"spans": []}).status_code == 400
        assert client.post("/v1/traces", json=export, headers={"authorization": "Bearer none"}).status_code == 401
    (path,) = (running.home.root / "logs").rglob("alpha.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [export]
