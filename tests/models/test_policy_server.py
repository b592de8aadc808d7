"""Our policy server, asked over real connections: OpenAI's routes, limits, weights that change, an end that lets answers finish."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.checkpoints.checkpoint import read_card, save
from models.server.settings import ServerSettings
from models.server.text import TextSoFar
from tests.models.policy_servers import TOKEN, OurServer, held, our_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Any]) -> Path:
    """Checkpoints `a` and `b` of one model, and `wide`, of another."""
    root = tmp_path_factory.mktemp("served")
    for name, options in {"a": {}, "b": {"seed": 1}, "wide": {"hidden_size": 64}}.items():
        model, tokenizer = make_model(**options)
        save(root / name, model, tokenizer, stage="seed_policy", iteration="0000")
    return root


@pytest.fixture(scope="module")
def server(roots: Path) -> Iterator[OurServer]:
    settings = ServerSettings(weight_roots=(roots,), max_tokens=1500, max_body_mib=1, max_image_pixels=1000)
    with our_server(roots / "a", settings) as running:
        yield running


@pytest.fixture
def client(server: OurServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def chat(text: str = 'Find "Ok"', **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "seed": 7} | fields


def long(num_tokens: int, **fields: Any) -> dict[str, Any]:
    """An answer that goes on to its limit: these weights, greedy, never end one."""
    return chat(max_tokens=num_tokens, temperature=0, **fields)


def seen(*urls: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, last = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert last == "[DONE]"
    return [json.loads(line) for line in lines]


def problem(response: httpx.Response) -> dict[str, Any]:
    """The error, which is in OpenAI's shape."""
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stop", [None, ["<"]])
def test_a_streamed_chat_is_the_whole_one(client: httpx.Client, temperature: float, stop: list[str] | None) -> None:
    asked = chat(temperature=temperature, stop=stop, logprobs=True, return_token_ids=True, max_tokens=40)
    whole = client.post(CHAT, json=asked).json()
    chunks = events(client.post(CHAT, json=asked | {"stream": True, "stream_options": {"include_usage": True}}))
    choice, pieces = whole["choices"][0], [chunk["choices"][0] for chunk in chunks[:-1]]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == choice["message"]["content"]
    assert [one for piece in pieces for one in piece.get("token_ids", [])] == choice["token_ids"]
    assert [one for piece in pieces for one in piece.get("logprobs", {}).get("content", [])] == choice["logprobs"]["content"]
    assert [one for piece in pieces for one in piece.get("flywheel", {}).get("versions", [])] == choice["flywheel"]["versions"]
    assert [piece.get("finish_reason") for piece in pieces] == [None] * (len(pieces) - 1) + [choice["finish_reason"]]
    assert chunks[-1]["usage"] == whole["usage"]
    if stop:
        assert "<" not in choice["message"]["content"]


def test_a_completion_takes_text_or_token_ids_as_they_are(client: httpx.Client) -> None:
    asked = {"prompt": [5, 9, 11], "max_tokens": 9, "seed": 1, "logprobs": 1, "return_token_ids": True}
    whole = client.post(COMPLETIONS, json=asked).json()["choices"][0]
    assert whole["prompt_token_ids"] == [5, 9, 11]
    assert len(whole["token_ids"]) == len(whole["logprobs"]["token_logprobs"]) == len(whole["flywheel"]["versions"]) > 0
    chunks = [chunk["choices"][0] for chunk in events(client.post(COMPLETIONS, json=asked | {"stream": True}))]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert [one for chunk in chunks for one in chunk["token_ids"]] == whole["token_ids"]
    assert chunks[0]["prompt_token_ids"] == [5, 9, 11] and "prompt_token_ids" not in chunks[1]
    text = client.post(COMPLETIONS, json={"prompt": "<bos> Find <act>", "max_tokens": 2, "return_token_ids": True}).json()["choices"][0]
    conversation = client.post(CHAT, json=chat("Find", return_token_ids=True)).json()
    assert text["prompt_token_ids"] == conversation["prompt_token_ids"], "special tokens of a text are obeyed"


def test_many_at_once_are_answered_as_one_by_one(client: httpx.Client) -> None:
    asked = [chat("see " * (1 + index), seed=index, return_token_ids=True) for index in range(12)]
    alone = [client.post(CHAT, json=one).json()["choices"][0]["token_ids"] for one in asked]
    with ThreadPoolExecutor(12) as pool:
        together = [answer.json()["choices"][0]["token_ids"] for answer in pool.map(lambda one: client.post(CHAT, json=one), asked)]
    assert together == alone


def test_names_and_health(client: httpx.Client, server: OurServer) -> None:
    (entry,) = client.get("/v1/models").json()["data"]
    assert (entry["id"], entry["owned_by"], entry["root"]) == ("policy", "flywheel", server.engine.policy_id)
    for name in ("policy", server.engine.policy_id):
        assert client.get(f"/v1/models/{name}").json() == entry
        assert client.post(CHAT, json=chat(model=name)).status_code == 200
    unknown = client.post(CHAT, json=chat(model="gpt"))
    assert (unknown.status_code, problem(unknown)["code"]) == (404, "model_not_found")
    assert client.get("/health").json()["status"] == "ok"
    for method, path in (("GET", "/v1/nothing"), ("DELETE", CHAT)):
        nothing = client.request(method, path)
        assert (nothing.status_code, problem(nothing)["code"]) == (404, "not_found")
    assert client.get("/openapi.json").json()["paths"].keys() >= {CHAT, COMPLETIONS, "/v1/weights"}


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \u00e9"])
def test_without_the_token_there_is_a_401_and_nothing_else(server: OurServer, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    answers = set()
    with httpx.Client(base_url=server.url, headers=headers, verify=False, trust_env=False) as stranger:
        asked = (("GET", "/health"), ("GET", "/metrics"), ("GET", "/nothing"), ("POST", CHAT), ("POST", "/v1/weights"), ("PUT", "/"))
        for method, path in asked:
            response = stranger.request(method, path, json={"messages": 3} if method == "POST" else None)
            answers.add((response.status_code, response.text, response.headers["www-authenticate"]))
    assert len(answers) == 1
    assert answers.pop()[0] == 401


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 17}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1501}, "max_tokens"),
        ({"stop": list("abcde")}, ""),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 3}, ""),
        ({"seed": "x"}, "seed"),
        ({"messages": [{"role": "assistant", "content": "Thought"}]}, "messages"),
        ({"messages": [seen("http://127.0.0.1/x.png")]}, "messages"),
        ({"messages": [seen("data:image/png;base64,AAAA")]}, "messages"),
        ({"messages": [seen("data:image/png;base64,AAAA", "data:image/png;base64,AAAA")]}, "messages"),
    ],
)
def test_what_is_not_carried_out_is_refused(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = client.post(CHAT, json=chat(**fields))
    assert response.status_code == 400, response.text
    assert problem(response)["param"] == param


def test_a_prompt_without_room_is_distinguished(client: httpx.Client) -> None:
    response = client.post(CHAT, json=chat("see " * 3000))
    assert (response.status_code, problem(response)["code"]) == (400, "context_length_exceeded")
    assert "3002 tokens" in problem(response)["message"]
    assert client.post(COMPLETIONS, json={"prompt": [10**6]}).status_code == 400


def test_limits_of_size(client: httpx.Client) -> None:
    large = client.post(CHAT, json=chat("x" * 2**21))
    assert (large.status_code, problem(large)["code"]) == (413, "too_large")
    in_pieces = client.post(CHAT, content=(b"x" * 2**18 for _ in range(9)), headers={"content-type": "application/json"})
    assert in_pieces.status_code == 413
    image = base64.b64encode(_png(100, 100)).decode()
    refused = client.post(CHAT, json=chat(messages=[seen(f"data:image/png;base64,{image}")]))
    assert "10000 pixels" in problem(refused)["message"]
    small = base64.b64encode(_png(10, 10)).decode()
    unseen = client.post(CHAT, json=chat(messages=[seen(f"data:image/png;base64,{small}")]))
    assert "reads text only" in problem(unseen)["message"]


def _png(width: int, height: int) -> bytes:
    import io

    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (width, height)).save(data, "PNG")
    return data.getvalue()


def test_requests_beyond_the_limit_wait_and_then_are_turned_away(roots: Path) -> None:
    settings = ServerSettings(max_concurrency=1, max_waiting=1)
    with our_server(roots / "a", settings) as server, ThreadPoolExecutor(8) as pool, server.client() as client:
        with held(server):
            asked = [pool.submit(client.post, CHAT, json=chat(seed=seed)) for seed in range(8)]
            wait_until(lambda: sum(one.done() for one in asked) == 6)
            turned_away = [one.result() for one in asked if one.done()]
            assert client.get("/health").json() | {"num_running": 1, "num_waiting": 1} == client.get("/health").json()
        for answer in turned_away:
            assert (answer.status_code, problem(answer)["type"], answer.headers["retry-after"]) == (429, "rate_limit_error", "1")
        assert sorted(one.result().status_code for one in asked) == [200, 200] + [429] * 6
        assert client.post(CHAT, json=chat()).status_code == 200


@pytest.mark.slow
def test_weights_change_under_a_running_answer(client: httpx.Client, server: OurServer, roots: Path) -> None:
    before, after = (read_card(roots / name).checkpoint_id for name in "ab")
    asked = long(1400, return_token_ids=True, stream=True)
    versions: list[int] = []
    with client.stream("POST", CHAT, json=asked) as response, ThreadPoolExecutor(1) as pool:
        for line in response.iter_lines():
            choices = json.loads(line[6:])["choices"] if line.startswith("data: {") else []
            versions += [version for choice in choices for version in choice.get("flywheel", {}).get("versions", [])]
            if len(versions) == 3:
                with held(server) as is_awaited:
                    loading = pool.submit(server_post, server, "/v1/weights", {"folder": str(roots / "b"), "version": 5})
                    wait_until(is_awaited)
                assert loading.result().json() == {"policy_id": after, "version": 5}
    assert len(versions) == 1400 and set(versions) == {0, 5} and versions == sorted(versions)
    assert client.get("/health").json()["policy_id"] == after
    named = {"folder": str(roots / "a"), "policy_id": "checkpoint-of-mine", "version": 0}
    assert client.post("/v1/weights", json=named).json()["policy_id"] == "checkpoint-of-mine"
    client.post("/v1/weights", json={"folder": str(roots / "a")})
    assert client.get("/health").json() | {"num_running": 0} == {
        "status": "ok",
        "policy_id": before,
        "version": 0,
        "num_running": 0,
        "num_waiting": 0,
        "following": None,
    }


def server_post(server: OurServer, path: str, body: Any) -> httpx.Response:
    with server.client() as other:
        return other.post(path, json=body)


def test_weights_come_from_allowed_folders_only_and_must_fit(client: httpx.Client, server: OurServer, roots: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(roots / "b", elsewhere)
    link = roots / "link"
    link.symlink_to(elsewhere)
    for folder in (elsewhere, link, roots / ".." / "b", Path("/"), Path("/does/not/exist")):
        refused = client.post("/v1/weights", json={"folder": str(folder)})
        assert (refused.status_code, problem(refused)["code"]) == (403, "folder_not_allowed")
        assert str(folder) not in problem(refused)["message"]
    answer = client.post(CHAT, json=chat(return_token_ids=True)).json()["choices"][0]
    for name, reason in (("wide", "do not fit"), ("missing", "missing"), ("a/config.json", "missing")):
        wrong = client.post("/v1/weights", json={"folder": str(roots / name)})
        assert (wrong.status_code, problem(wrong)["code"]) == (400, "weights_not_loaded")
        assert reason in problem(wrong)["message"]
    assert client.post(CHAT, json=chat(return_token_ids=True)).json()["choices"][0] == answer


def test_metrics_count(roots: Path) -> None:
    with our_server(roots / "a") as server, server.client() as client:
        usage = client.post(CHAT, json=chat()).json()["usage"]
        client.post(CHAT, json=chat(n=30))
        text = client.get("/metrics").text
        assert 'flywheel_policy_requests_total{route="chat",status="200"} 1.0' in text
        assert f"flywheel_policy_tokens_total {usage['completion_tokens']:.1f}" in text
        assert f"flywheel_policy_prompt_tokens_total {usage['prompt_tokens']:.1f}" in text


def test_answers_finish_when_the_server_ends_and_new_ones_are_sent_away(roots: Path) -> None:
    with our_server(roots / "a") as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        with held(server), server.client() as late:
            running = pool.submit(client.post, CHAT, json=chat())
            wait_until(lambda: late.get("/health").json()["num_running"] == 1)
            server.end()

            def is_sent_away() -> bool:
                try:
                    answer = late.post(CHAT, json=chat())
                except httpx.TransportError:  # nobody listens any more, and what was kept open is closed
                    return True
                assert (answer.status_code, problem(answer)["code"]) == (503, "shutting_down")
                return False

            wait_until(is_sent_away)
            assert not running.done()
        assert running.result().json()["choices"][0]["finish_reason"] in ("stop", "length")


def test_answers_that_take_too_long_are_reported(roots: Path) -> None:
    impatient = ServerSettings(grace_s=0)
    with our_server(roots / "a", impatient) as server, server.client() as client, ThreadPoolExecutor(2) as pool, held(server):
        whole = pool.submit(client.post, CHAT, json=chat())
        streamed = pool.submit(client.post, CHAT, json=chat(stream=True))
        wait_until(lambda: client.get("/health").json()["num_running"] == 2)
        server.end()
        assert (whole.result().status_code, problem(whole.result())["code"]) == (503, "shutting_down")
        assert "shutting_down" in streamed.result().text and streamed.result().text.endswith("data: [DONE]\n\n")


def test_an_answer_ends_when_its_client_goes_away(server: OurServer, client: httpx.Client) -> None:
    written = server.engine._engine.counts.tokens_written
    for streams in (True, False):
        with held(server):
            with pytest.raises(httpx.ReadTimeout):
                client.post(CHAT, json=long(1400, stream=streams), timeout=httpx.Timeout(60, read=0.2))
            wait_until(lambda: client.get("/health").json()["num_running"] == 0)
        wait_until(lambda: not server.engine._engine._is_working)
    assert server.engine._engine.counts.tokens_written == written, "nothing was written for nobody"


@pytest.mark.long
def test_the_client_of_openai_understands_it(server: OurServer) -> None:
    from openai import AuthenticationError, BadRequestError, OpenAI

    messages: Any = [{"role": "user", "content": 'Find "Ok"'}]
    with OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["policy"]
        whole = client.chat.completions.create(model="policy", messages=messages, max_tokens=8, seed=1, logprobs=True)
        assert whole.choices[0].logprobs is not None and whole.usage is not None
        assert len(whole.choices[0].logprobs.content or ()) == whole.usage.completion_tokens
        chunks = client.chat.completions.create(model="policy", messages=messages, max_tokens=8, seed=1, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
        plain = client.completions.create(model="policy", prompt=[5, 9, 11], max_tokens=4, extra_body={"return_token_ids": True})
        assert plain.choices[0].model_extra is not None and plain.choices[0].model_extra["prompt_token_ids"] == [5, 9, 11]
        with pytest.raises(BadRequestError, match="max_tokens"):
            client.chat.completions.create(model="policy", messages=messages, max_tokens=10**6)
    with OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(AuthenticationError):
        stranger.models.list()


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it never came to be"
        threading.Event().wait(0.005)


def test_text_is_held_back_while_it_may_change() -> None:
    pieces = {1: b"a", 2: b"\xc3", 3: b"\xa9", 4: b"ST", 5: b"OP", 6: b"STO", 7: b" "}

    def decode(ids: Any) -> str:
        return b"".join(pieces[one] for one in ids).decode(errors="replace")

    def fed(ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], str, bool]:
        text = TextSoFar(decode, stops)
        return [text.add(one) for one in ids], text.finish(), text.is_stopped

    assert fed([1, 2, 3, 1]) == (["a", "", "é", "a"], "", False)
    assert fed([1, 2]) == (["a", ""], "\ufffd", False)
    assert fed([1, 4, 5, 1], ("STOP",)) == (["a", "", "", ""], "", True)
    assert fed([1, 4, 7, 1], ("STOP",)) == (["a", "", "ST ", "a"], "", False)
    assert fed([6], ("STOP",)) == ([""], "STO", False)
    assert fed([1, 6, 6, 4, 5], ("STOP", " ")) == (["a", "", "STO", "STO", ""], "", True)
