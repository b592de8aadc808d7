"""Our server as clients know OpenAI's: the fields that they send by default, several answers, likeliest tokens, pictures in their order,
tools, and JSON of a schema; asked with the client of OpenAI."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.engine.grammar import json_rule
from models.server.settings import ServerSettings
from tests.models.chat_models import png
from tests.models.policy_servers import TOKEN, OurServer, our_server
from tests.models.served_models import save_chat_model, save_vision_model

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "see the screen"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"$ref": "#/$defs/few"}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"few": {"enum": [1, 2]}},
        },
    },
}
CLICK = {
    "type": "function",
    "function": {
        "name": "click",
        "parameters": {"type": "object", "properties": {"x": {"enum": [3, 14]}}, "required": ["x"], "additionalProperties": False},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    folder = tmp_path_factory.mktemp("served") / "chat"
    save_chat_model(folder)
    with our_server(folder, ServerSettings(max_tokens=1500)) as running:
        yield running


@pytest.fixture
def client(server: OurServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], "max_tokens": 12, "seed": 7} | fields


def prompt_ids(client: httpx.Client, **fields: Any) -> list[int]:
    response = client.post(CHAT, json=asked(return_token_ids=True, max_tokens=1) | fields)
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["prompt_token_ids"]
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}},
        {"n": 1, "user": "me", "metadata": {"run": "7"}, "store": False, "service_tier": "auto", "modalities": ["text"]},
        {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "stop": [], "parallel_tool_calls": True, "tool_choice": "none"},
        dict.fromkeys(
            [
                "model",
                "temperature",
                "top_p",
                "n",
                "stop",
                "max_tokens",
                "presence_penalty",
                "frequency_penalty",
                "logit_bias",
                "user",
                "seed",
                "tools",
                "tool_choice",
                "response_format",
                "stream",
                "stream_options",
                "logprobs",
                "top_logprobs",
                "metadata",
                "store",
                "reasoning_effort",
                "verbosity",
                "audio",
                "prediction",
            ]
        ),
        {"max_tokens": None, "max_completion_tokens": 5, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"tools": [], "functions": [], "function_call": "none", "safety_identifier": "x", "prompt_cache_key": "y"},
    ],
)
def test_what_clients_send_by_default_is_taken(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = client.post(CHAT, json=asked(**fields))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"frequency_penalty": 3}, "frequency_penalty: Input should be less than or equal to 2 (got 3)"),
        ({"logit_bias": {"100000": 3}}, "logit_bias 100000: 3.0: ids below"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"reasoning_effort": "high"}, 'reasoning_effort is not supported by this server; remove it (got "high")'),
        ({"store": True}, "store: Input should be False (got true)"),
        ({"n": 17}, "n: Input should be less than or equal to 16 (got 17)"),
        ({"temperature": 1e-300}, "temperature 1e-300"),
        ({"top_k": 5}, "top_k"),
        ({"modalities": ["audio"]}, "modalities"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 5, "maximum": 3}}}},
            "minimum (5) is greater than maximum (3)",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}}, "uniqueItems"),
        ({"response_format": {"type": "json_schema"}}, "give json_schema if and only if"),
        ({"tools": [CLICK], "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "names 'fly', but tools has click"),
        ({"tool_choice": "required"}, "tools is empty"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "</tool_call><|im_end|>"}}]}, "control token"),
        ({"messages": [{"role": "user", "content": None}]}, "no content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "input_audio"),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "click", "arguments": "[1]"}}],
                    },
                    USER,
                ]
            },
            "arguments of the call of click",
        ),
    ],
)
def test_what_is_not_done_is_refused_by_name_and_value(client: httpx.Client, fields: dict[str, Any], said: str) -> None:
    response = client.post(CHAT, json=asked(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert said in error["message"] and error["type"] == "invalid_request_error"


def test_a_refused_request_is_in_nobodys_way(client: httpx.Client) -> None:
    from concurrent.futures import ThreadPoolExecutor

    good = [asked(seed=seed, max_tokens=30, return_token_ids=True) for seed in range(4)]
    alone = [client.post(CHAT, json=one).json()["choices"][0]["token_ids"] for one in good]
    with ThreadPoolExecutor(8) as pool:
        bad = pool.map(lambda _: client.post(CHAT, json=asked(temperature=1e-300)).status_code, range(4))
        together = pool.map(lambda one: client.post(CHAT, json=one).json()["choices"][0]["token_ids"], good)
        assert (list(together), list(bad)) == (alone, [400] * 4)


def test_several_answers_have_seeds_of_their_own(client: httpx.Client) -> None:
    body = asked(n=3, return_token_ids=True, max_tokens=20)
    whole = client.post(CHAT, json=body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    each = [client.post(CHAT, json=body | {"n": 1, "seed": 7 + index}).json()["choices"][0] for index in range(3)]
    assert [choice["token_ids"] for choice in whole["choices"]] == [choice["token_ids"] for choice in each]
    assert whole["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in each)
    lines = [line[6:] for line in client.post(CHAT, json=body | {"stream": True}).text.split("\n\n") if line]
    texts = ["", "", ""]
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    plain = client.post("/v1/completions", json={"prompt": [5, 9], "n": 2, "max_tokens": 4, "seed": 2**63 - 1}).json()
    assert len(plain["choices"]) == 2, "the second seed begins again at the other end"


def test_likeliest_tokens_are_of_the_distribution_that_was_sampled_from(client: httpx.Client) -> None:
    whole = client.post(CHAT, json=asked(logprobs=True, top_logprobs=20, temperature=0.7, top_p=0.5)).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    for entry in entries:
        likeliest = entry["top_logprobs"]
        assert likeliest == sorted(likeliest, key=lambda one: -one["logprob"])
        assert entry["logprob"] in [one["logprob"] for one in likeliest] or len(likeliest) == 20
        if len(likeliest) < 20:
            assert sum(math.exp(one["logprob"]) for one in likeliest) == pytest.approx(1, abs=1e-4), "the whole nucleus"
    plain = client.post("/v1/completions", json={"prompt": [5, 9], "max_tokens": 3, "logprobs": 5}).json()["choices"][0]["logprobs"]
    assert len(plain["top_logprobs"]) == len(plain["tokens"]) and all(1 <= len(top) <= 5 for top in plain["top_logprobs"])


def test_penalties_and_bias_change_the_distribution_that_is_reported(client: httpx.Client) -> None:
    body = asked(temperature=0, logprobs=True, top_logprobs=20, return_token_ids=True, max_tokens=40)
    plain = client.post(CHAT, json=body).json()["choices"][0]
    penalised = client.post(CHAT, json=body | {"frequency_penalty": 2.0, "presence_penalty": 2.0}).json()["choices"][0]
    assert len(set(penalised["token_ids"])) > len(set(plain["token_ids"])), "a greedy answer that repeats itself repeats itself less"
    first = plain["token_ids"][0]
    banned = client.post(CHAT, json=body | {"logit_bias": {str(first): -100}}).json()["choices"][0]
    assert first not in banned["token_ids"]
    reported, shifted = plain["logprobs"]["content"][0], banned["logprobs"]["content"][0]
    second = reported["top_logprobs"][1]["logprob"] - math.log1p(-math.exp(reported["logprob"]))
    assert shifted["logprob"] == pytest.approx(second, abs=1e-4), "renormalised without it"


def test_a_developers_message_is_the_systems_and_texts_are_lines(client: httpx.Client) -> None:
    rest = [USER]
    system = prompt_ids(client, messages=[{"role": "system", "content": "click"}, *rest])
    assert prompt_ids(client, messages=[{"role": "developer", "content": "click"}, *rest]) == system
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt_ids(client, messages=[{"role": "user", "content": parts}]) == prompt_ids(
        client, messages=[{"role": "user", "content": "one\ntwo"}]
    )


def test_calls_and_their_results_are_written_by_the_template(client: httpx.Client, server: OurServer) -> None:
    call = {"id": "c12345678", "type": "function", "function": {"name": "click", "arguments": '{"x": 3}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c12345678", "content": "a <b>page</b> <|im_end|>"},
        USER,
    ]
    codec: Any = server.engine.codec
    ids = prompt_ids(client, messages=messages, tools=[CLICK])
    text = codec.tokenizer.decode(ids)
    assert '<tool_call>\n{"name": "click", "arguments": {"x": 3}}\n</tool_call><|im_end|>' in text
    assert "<tool_response>\na <b>page</b> <|im_end|>\n</tool_response>" in text
    assert ids.count(codec.eos_token_ids[0]) == 5, "the one in the page's text is spelled"
    assert '"name": "click"' in text.split("<|im_start|>user")[0], "the tools come first"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_demanded_call_is_one(client: httpx.Client, choice: Any, stream: bool) -> None:
    names = set()
    for seed in range(4):
        body = asked(tools=[CLICK, WEATHER], tool_choice=choice, seed=seed, max_tokens=200, temperature=1.0, stream=stream)
        response = client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        calls, finish, content = read_calls(response, stream=stream)
        assert (finish, content, len(calls)) == ("tool_calls", "", 1), response.text
        name, arguments = calls[0]
        names.add(name)
        given = json.loads(arguments)
        assert given["x"] in (3, 14) if name == "click" else (len(given["city"]) <= 4 and given["days"] in (1, 2))
    assert names <= ({"click", "weather"} if choice == "required" else {"weather"})


def read_calls(response: httpx.Response, *, stream: bool) -> tuple[list[tuple[str, str]], str | None, str]:
    if not stream:
        choice = response.json()["choices"][0]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", [])]
        return calls, choice["finish_reason"], choice["message"].get("content") or ""
    chunks = [json.loads(line[6:])["choices"][0] for line in response.text.split("\n\n") if line.startswith("data: {")]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    return calls, chunks[-1].get("finish_reason"), "".join(chunk["delta"].get("content", "") for chunk in chunks)


def test_an_answer_is_held_to_a_schema_and_its_log_probabilities_are_of_what_was_left(client: httpx.Client, server: OurServer) -> None:
    """Checked against the model's own forward pass: the logits of tokens that were not allowed are left out, the rest renormalised."""
    import torch

    schema = {
        "type": "object",
        "properties": {"x": {"enum": [3, 14]}, "go": {"type": "boolean"}},
        "required": ["x", "go"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "point", "strict": True, "schema": schema}}
    for temperature in (0.0, 0.8):
        body = asked(response_format=form, max_tokens=100, temperature=temperature, logprobs=True, return_token_ids=True)
        whole = client.post(CHAT, json=body).json()
        choice = whole["choices"][0]
        said = json.loads(choice["message"]["content"])
        assert set(said) == {"x", "go"} and said["x"] in (3, 14) and choice["finish_reason"] == "stop"
        model: Any = server.engine._engine._scheduler.backend._model  # type: ignore[attr-defined]
        ids, answer = whole["prompt_token_ids"], choice["token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
        constraint = server.engine.grammar(f"start: {json_rule(schema, 'x')}", "x").begin()
        for row, token, entry in zip(logits, answer, choice["logprobs"]["content"], strict=True):
            allowed = constraint.allowed()
            assert allowed[token]
            left = row.masked_fill(~allowed, -torch.inf) / (temperature or 1.0)
            assert entry["logprob"] == pytest.approx(float(left.log_softmax(-1)[token]), abs=1e-4)
            constraint.take(token)
    anything = client.post(CHAT, json=asked(response_format={"type": "json_object"}, max_tokens=1000, temperature=1.0, seed=3)).json()
    if anything["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(anything["choices"][0]["message"]["content"]), dict)


def test_a_tokenizer_of_words_says_what_it_cannot_do(roots: Path) -> None:
    with our_server(roots / "a") as words, words.client() as client:
        for fields, param in (({"tools": [CLICK]}, "tools"), ({"response_format": {"type": "json_object"}}, "response_format")):
            response = client.post(CHAT, json=asked(**fields))
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
            assert "tokenizer of whole words" in response.json()["error"]["message"]


def seen(*parts: str | bytes) -> dict[str, Any]:
    def part(one: str | bytes) -> dict[str, Any]:
        if isinstance(one, str):
            return {"type": "text", "text": one}
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(one).decode()}", "detail": "auto"}}

    return {"role": "user", "content": [part(one) for one in parts]}


def test_pictures_stay_where_the_message_shows_them(tmp_path: Path) -> None:
    save_vision_model(tmp_path / "vision")
    red, blue = png(32, 16, "red"), png(16, 16, "blue")
    with our_server(tmp_path / "vision") as server, server.client() as client:
        codec: Any = server.engine.codec
        place = int(codec.tokenizer.convert_tokens_to_ids("<|image_pad|>"))

        def shape(*parts: str | bytes) -> str:
            ids = prompt_ids(client, messages=[seen(*parts)])
            runs = codec.tokenizer.decode(ids).replace(" ", "")
            assert ids.count(place) == runs.count("<|image_pad|>")
            return str(runs.replace("<|image_pad|>", "P"))

        one, two = shape(red).count("P"), shape(blue).count("P")
        assert one != two
        text = shape("see", red, "click", blue, "finished")
        places = [text.index("see"), text.index("P" * one), text.index("click"), text.rindex("P" * two), text.index("finished")]
        assert places == sorted(places)
        other = shape("see", blue, "click", red, "finished")
        assert other != text and other.index("P" * two + "<") < other.index("click")
        for bad in (b"no picture", red[:60], png(2, 1000, "red")[:-20]):
            response = client.post(CHAT, json=asked(messages=[seen("see", bad)]))
            assert (response.status_code, response.json()["error"]["param"]) == (400, "messages"), response.text
        narrow = client.post(CHAT, json=asked(messages=[seen(png(1, 1000, "red"))]))
        assert narrow.status_code in (200, 400)
        if narrow.status_code == 400:
            assert "1 x 1000" in narrow.json()["error"]["message"]


def test_browser_use_asks_as_it_does_by_default(client: httpx.Client) -> None:
    """The fields of browser-use's ChatOpenAI (browser_use/llm/openai/chat.py, 0.13) for structured output."""
    schema = {
        "type": "object",
        "properties": {"action": {"enum": ["click", "finished"]}},
        "required": ["action"],
        "additionalProperties": False,
    }
    messages = [{"role": "system", "content": [{"type": "text", "text": "You are helpful."}], "name": None}, USER]
    body = {
        "model": "policy",
        "messages": messages,
        "temperature": 0.2,
        "frequency_penalty": 0.3,
        "max_completion_tokens": 60,
        "seed": None,
        "response_format": {"type": "json_schema", "json_schema": {"name": "agent_output", "strict": True, "schema": schema}},
    }
    answered = client.post(CHAT, json=body)
    assert answered.status_code == 200, answered.text
    assert json.loads(answered.json()["choices"][0]["message"]["content"])["action"] in ("click", "finished")


@pytest.mark.slow
def test_the_client_of_openai_calls_tools_streams_and_parses(server: OurServer) -> None:
    from openai import BadRequestError, OpenAI
    from pydantic import BaseModel

    class Point(BaseModel):
        x: int

    tools: Any = [CLICK]
    messages: Any = [USER]
    with OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as client:
        whole = client.chat.completions.create(
            model="policy",
            messages=messages,
            tools=tools,
            tool_choice="required",
            max_completion_tokens=100,
            seed=1,
            n=2,
            logprobs=True,
            top_logprobs=2,
            frequency_penalty=0,
            presence_penalty=0,
            logit_bias={},
            parallel_tool_calls=False,
            user="me",
            store=False,
        )
        assert len(whole.choices) == 2
        message = whole.choices[0].message
        assert message.tool_calls is not None and message.tool_calls[0].type == "function"
        assert json.loads(message.tool_calls[0].function.arguments)["x"] in (3, 14)
        follow: Any = [USER, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}]
        assert client.chat.completions.create(model="policy", messages=follow, tools=tools, max_tokens=4).choices
        names = ""
        for chunk in client.chat.completions.create(
            model="policy",
            messages=messages,
            tools=tools,
            tool_choice="required",
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        ):
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or ():
                    assert call.index == 0 and call.function is not None
                    names += call.function.name or ""
        assert names == "click"
        parsed = client.chat.completions.parse(model="policy", messages=messages, response_format=Point, max_tokens=200, temperature=0)
        assert isinstance(parsed.choices[0].message.parsed, Point)
        with pytest.raises(BadRequestError, match="presence_penalty"):
            client.chat.completions.create(model="policy", messages=messages, presence_penalty=3)
