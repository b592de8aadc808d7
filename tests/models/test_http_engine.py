"""The HTTP engine: what our server tells is what the embedded engine says; servers of other kinds are seen for what they give; whatever
fails is an error and never an empty answer."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from agent.policy import Message, Policy, Prompt, Sampling
from models.checkpoint import read_card, save
from models.engine import EmbeddedEngine
from models.families import load_codec, load_policy
from models.http.config import Capabilities, EngineChoice, HttpEngineConfig, ServerKind
from models.http.dialects import KINDS
from models.http.engine import HttpEngine
from models.server.settings import ServerSettings
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, OurServer, Reply, our_server, played_server, prompt
from warehouse.errors import ConfigError, EngineUnreachable, ModelError


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Any]) -> Path:
    root = tmp_path_factory.mktemp("handed")
    for name, seed in {"a": 0, "b": 1}.items():
        model, tokenizer = make_model(seed=seed)
        save(root / name, model, tokenizer, stage="seed_policy", iteration="0000")
    return root


@pytest.fixture(scope="module")
def server(roots: Path) -> Iterator[OurServer]:
    with our_server(roots / "a", ServerSettings(weight_roots=(roots,))) as running:
        yield running


def config(url: str, **fields: Any) -> HttpEngineConfig:
    return HttpEngineConfig(**({"base_url": url, "token_env": TOKEN_VARIABLE, "backoff_s": 0.0, "retries": 2} | fields))


def act(engine: Policy, *prompts: Prompt) -> Any:
    return asyncio.run(engine.act(prompts))


@pytest.mark.parametrize("send", ["messages", "token_ids"])
def test_our_server_answers_as_the_embedded_engine(server: OurServer, roots: Path, send: Any) -> None:
    asked = [prompt(temperature=t, top_p=p, seed=s) for s, (t, p) in enumerate(((0, 1), (1, 1), (0.7, 1), (1, 0.8), (1.3, 0.5)))]
    embedded, http = EmbeddedEngine.from_checkpoint(roots / "a"), HttpEngine.of_checkpoint(config(server.url, send=send), roots / "a")
    try:
        assert http.policy_id == embedded.policy_id
        for here, there in zip(act(embedded, *asked), act(http, *asked), strict=True):
            assert (there.prompt_token_ids, there.token_ids, there.text) == (here.prompt_token_ids, here.token_ids, here.text)
            assert (there.versions, there.policy_id) == (here.versions, here.policy_id)
            assert there.logprobs == pytest.approx(here.logprobs, abs=1e-5)
            assert len(there.logprobs) == len(there.token_ids) > 0
        gives = http.capabilities()
        assert (gives.server, gives.max_context, gives.loads) == ("flywheel", 2048, "checkpoints")
        http.require_learnable(0.7, 0.5)
    finally:
        embedded.close()
        http.close()


def test_a_conversation_reaches_the_engine_that_keeps_its_beginning(server: OurServer, roots: Path) -> None:
    engine = HttpEngine.of_checkpoint(config(server.url), roots / "a")
    text = "Find Ok then see Submit hello " * 3
    counts = server.engine._engine.counts
    for turn in range(1, 4):
        reused = counts.tokens_reused
        message = Message(role="user", content=text * turn)
        act(engine, Prompt(messages=(message,), sampling=Sampling(max_new_tokens=4), conversation="episode-1"))
        assert (counts.tokens_reused > reused) == (turn > 1)
    engine.close()


def test_a_prompt_without_room_gets_no_tokens_and_disturbs_nobody(server: OurServer) -> None:
    engine = HttpEngine(config(server.url))
    long, short = act(engine, prompt("see " * 3000), prompt())
    assert (long.text, long.token_ids, long.logprobs) == ("", (), ())
    assert short.token_ids
    engine.close()


def test_weights_are_loaded_and_handed_over(roots: Path, tmp_path: Path) -> None:
    ids = {name: read_card(roots / name).checkpoint_id for name in "ab"}
    settings = ServerSettings(weight_roots=(roots, tmp_path))
    with our_server(roots / "a", settings) as server:
        engine = HttpEngine.of_checkpoint(config(server.url, exchange=str(tmp_path)), roots / "b")
        assert engine.policy_id == ids["b"] == server.engine.policy_id
        embedded = EmbeddedEngine.from_checkpoint(roots / "b")
        assert act(engine, prompt())[0].token_ids == act(embedded, prompt())[0].token_ids
        engine.load_weights(load_policy(roots / "a").state_dict(), "checkpoint-learning", version=3)
        answer = act(engine, prompt())[0]
        assert (engine.policy_id, answer.policy_id) == ("checkpoint-learning", "checkpoint-learning")
        assert answer.versions == (3,) * len(answer.token_ids)
        embedded.load_weights(load_policy(roots / "a").state_dict(), "a")
        assert answer.token_ids == act(embedded, prompt())[0].token_ids
        assert list(tmp_path.iterdir()) == [], "what was handed over is taken away again"
        engine.require_updatable()
        elsewhere = HttpEngine.of_checkpoint(config(server.url, exchange=str(tmp_path.parent / "elsewhere")), roots / "b")
        with pytest.raises(ModelError, match=r"may not load from .*elsewhere.*--weights-root"):
            elsewhere.require_updatable()
        elsewhere.close()
        engine.load_checkpoint(roots / "b", ids["b"])
        with pytest.raises(ModelError, match="not loaded from there"):
            engine.load_checkpoint(Path("/etc"), "checkpoint-x")
        engine.close()
        embedded.close()
    with our_server(roots / "a") as server:
        with pytest.raises(ModelError, match="it loads nothing"):
            HttpEngine.of_checkpoint(config(server.url), roots / "b")
        unshared = HttpEngine.of_checkpoint(config(server.url), roots / "a")
        with pytest.raises(ModelError, match="exchange"):
            unshared.load_weights({}, "checkpoint-learning", version=1)
        with pytest.raises(ModelError, match="exchange"):
            unshared.require_updatable()
        unshared.close()


def test_weights_that_another_client_loads_are_noticed(roots: Path) -> None:
    with our_server(roots / "a", ServerSettings(weight_roots=(roots,))) as server:
        whatever, mine = HttpEngine(config(server.url)), HttpEngine.of_checkpoint(config(server.url), roots / "a")
        assert act(mine, prompt())[0].policy_id == mine.policy_id
        other = HttpEngine.of_checkpoint(config(server.url), roots / "b")
        with pytest.raises(ModelError, match="another client has loaded it"):
            act(mine, prompt())
        assert act(whatever, prompt())[0].policy_id == act(other, prompt())[0].policy_id == other.policy_id
        for engine in (whatever, mine, other):
            engine.close()


def test_a_server_that_goes_away_is_an_error(roots: Path) -> None:
    with our_server(roots / "a") as server:
        engine = HttpEngine(config(server.url))
        assert act(engine, prompt())[0].token_ids
    with pytest.raises(EngineUnreachable, match="failed 3 times"):
        act(engine, prompt(), prompt())
    assert engine.num_retries >= 2
    with pytest.raises(EngineUnreachable):
        HttpEngine(config(server.url))
    engine.close()
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        act(engine, prompt())


def test_a_wrong_or_missing_token_is_told(server: OurServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no token was sent"):
        HttpEngine(config(server.url, token_env=None))
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-altogether")
    with pytest.raises(ModelError, match=f"the token in {TOKEN_VARIABLE} is not accepted"):
        HttpEngine(config(server.url))
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE}, which is not set"):
        HttpEngine(config(server.url))


def test_requests_under_way_are_bounded_and_may_come_from_several_loops(server: OurServer) -> None:
    engine = HttpEngine(config(server.url, max_concurrency=2))
    asked = [prompt(seed=seed, temperature=1.0) for seed in range(6)]
    together = act(engine, *asked)
    assert [act(engine, one)[0].token_ids for one in asked] == [answer.token_ids for answer in together]
    engine.close()


def test_who_is_cancelled_takes_its_prompts_back(server: OurServer) -> None:
    engine, running = HttpEngine(config(server.url)), server.engine._engine

    async def give_up() -> None:
        task = asyncio.create_task(engine.act([prompt(max_new_tokens=1900)] * 3))
        while not running._answers:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    end_s, written = time.monotonic() + 60, running.counts.tokens_written
    while running._answers:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    assert running.counts.tokens_written - written < 3 * 1000, "they did not go on to their end"
    engine.close()


def test_an_engine_that_is_closed_under_an_answer_says_so(server: OurServer) -> None:
    engine = HttpEngine(config(server.url))

    async def close_under_it() -> None:
        task = asyncio.create_task(engine.act([prompt(max_new_tokens=1900)]))
        while not server.engine._engine._answers:
            await asyncio.sleep(0.005)
        engine.close()
        with pytest.raises(ModelError, match="closed while it answered"):
            await task

    asyncio.run(close_under_it())


# ---- servers of other kinds, played


def test_every_kind_of_server_that_a_profile_may_name_is_described() -> None:
    assert KINDS.keys() == set(get_args(ServerKind))


OK: dict[str, str] = {}


def chat_answer(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"} | choice]}


def vllm(*, processed: bool, root: str = "elsewhere") -> Callable[[str, str, Any], Reply]:
    """vLLM's answers for one token of probability 0.3: its log-probabilities are raw unless it was started with processed ones."""

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "root": root, "owned_by": "vllm", "max_model_len": 4096}]}
        if path == "/v1/load_lora_adapter":
            return 200, OK, "Success: LoRA adapter 'policy' added successfully."
        logprob = math.log(0.3)
        if processed and body["temperature"]:
            logprob = logprob / body["temperature"] + 0.1 * (1 - body["temperature"]) if body["top_p"] > 0.3 else 0.0
        if path == "/v1/completions":
            logprobs = {"tokens": ["hi"], "token_logprobs": [logprob], "top_logprobs": [{"hi": logprob}]}
            choice = {"index": 0, "text": "hi", "logprobs": logprobs, "finish_reason": "stop", "token_ids": [7]}
            return 200, OK, {"choices": [choice | {"prompt_token_ids": body["prompt"]}]}
        entry = {"token": "hi", "logprob": logprob, "top_logprobs": [{"token": "hi", "logprob": logprob}]}
        ids = {"token_ids": [7]} if body.get("return_token_ids") else {}
        return 200, OK, chat_answer(logprobs={"content": [entry]}, **ids) | {"prompt_token_ids": [1, 2, 3]}

    return reply


def test_vllm_with_raw_logprobs_can_be_learned_from_at_temperature_one_only(roots: Path) -> None:
    with played_server(vllm(processed=False)) as played:
        engine = HttpEngine(config(played.url))
        warm, cool, greedy = act(engine, prompt(temperature=1.0), prompt(temperature=0.7), prompt())
        assert (warm.prompt_token_ids, warm.token_ids, warm.logprobs) == ((1, 2, 3), (7,), (pytest.approx(math.log(0.3)),))
        assert (cool.token_ids, cool.logprobs) == ((7,), ()), "they are not of the distribution that was sampled from"
        assert greedy.logprobs == warm.logprobs
        engine.require_learnable()
        with pytest.raises(ModelError, match=r"not of the distribution sampled from at temperature 0.7"):
            engine.require_learnable(0.7)
        assert engine.capabilities().max_context == 4096
        body = played.bodies("/v1/chat/completions")[-1]
        assert (body["top_k"], body["repetition_penalty"], body["seed"]) == (-1, 1.0, 0), "the model's own defaults do not creep in"
        with pytest.raises(ModelError, match="it loads adapters"):
            engine.load_checkpoint(roots / "a", "checkpoint-a")
        engine.close()


def test_vllm_with_processed_logprobs_can_always_be_learned_from(roots: Path, tmp_path: Path) -> None:
    with played_server(vllm(processed=True)) as played:
        codec = load_codec(roots / "a")
        engine = HttpEngine(config(played.url, send="token_ids"), codec=codec)
        engine.require_learnable(0.7, 0.9)
        answer = act(engine, prompt(temperature=0.7))[0]
        sent = tuple(codec.encode(prompt().messages).token_ids)
        assert (answer.prompt_token_ids, len(answer.logprobs)) == (sent, 1)
        assert played.bodies("/v1/completions")[-1]["prompt"] == list(sent)
        (tmp_path / "adapter_config.json").write_text("{}")
        engine.load_checkpoint(tmp_path, "checkpoint-lora", version=2)
        answer = act(engine, prompt())[0]
        assert (engine.policy_id, answer.policy_id, answer.versions) == ("checkpoint-lora", "checkpoint-lora", (2,))
        assert played.bodies("/v1/completions")[-1]["model"] == "policy"
        assert played.bodies("/v1/load_lora_adapter")[0]["load_inplace"] is True
        with pytest.raises(ModelError, match="send: messages"):
            act(engine, Prompt(messages=(Message(role="user", content="", screenshot_id="s"),), sampling=Sampling(), images={"s": b"png"}))
        engine.close()


def test_vllm_started_on_a_checkpoint_answers_for_it(roots: Path) -> None:
    with played_server(vllm(processed=True, root=str(roots / "a"))) as played:
        engine = HttpEngine.of_checkpoint(config(played.url), roots / "a")
        assert engine.policy_id == act(engine, prompt())[0].policy_id == read_card(roots / "a").checkpoint_id
        engine.close()
        learner = HttpEngine.of_checkpoint(config(played.url, exchange="x"), roots / "a")
        with pytest.raises(ModelError, match="a learner's weights: it loads adapters"):
            learner.require_updatable()
        learner.close()
        with pytest.raises(ModelError, match="it loads adapters"):
            HttpEngine.of_checkpoint(config(played.url), roots / "b")


def test_sglang_is_asked_by_its_own_route(roots: Path) -> None:
    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 64}]}
        if path == "/update_weights_from_disk":
            return 200, OK, {"success": body["model_path"].endswith("b"), "message": "no such folder"}
        temperature = body["sampling_params"]["temperature"] or 1.0
        logprob = -1.0 / temperature
        meta = {
            "finish_reason": {"type": "stop"}, "output_token_logprobs": [[logprob, 5, None], [-0.5, 9, None]],
            "output_top_logprobs": [[[logprob, 5, None]], [[-0.5, 9, None]]],
        }  # fmt: skip
        return 200, OK, {"text": "hi", "output_ids": [5, 9], "meta_info": meta}

    with played_server(reply) as played:
        engine = HttpEngine.of_checkpoint(config(played.url, send="token_ids"), roots / "b")
        assert played.bodies("/update_weights_from_disk")[0]["abort_all_requests"] is False
        gives = engine.capabilities()
        assert (gives.logprobs_follow_temperature, gives.logprobs_follow_top_p, gives.loads) == (True, False, "checkpoints")
        answer = act(engine, prompt(temperature=0.5, seed=11))[0]
        assert (answer.token_ids, answer.logprobs) == ((5, 9), (-2.0, -0.5))
        assert played.bodies("/generate")[-1]["sampling_params"]["sampling_seed"] == 11
        assert act(engine, prompt(temperature=0.5, top_p=0.9))[0].logprobs == ()
        with pytest.raises(ModelError, match="no such folder"):
            engine.load_checkpoint(roots / "a", "checkpoint-a")
        assert engine.policy_id == read_card(roots / "b").checkpoint_id
        engine.close()


@pytest.mark.parametrize("send", ["token_ids", "messages"])
def test_weights_that_another_client_loads_into_sglang_are_noticed(roots: Path, send: Any) -> None:
    has = {"weight_version": "default"}  # as it starts

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 64}]}
        if path == "/update_weights_from_disk":
            has["weight_version"] = body["weight_version"]
            return 200, OK, {"success": True}
        if path == "/generate":
            return 200, OK, {"text": "hi", "output_ids": [5], "meta_info": {"finish_reason": {"type": "stop"}} | has}
        return 200, OK, chat_answer() | {"metadata": dict(has)}

    with played_server(reply) as played:
        mine = HttpEngine.of_checkpoint(config(played.url, send=send), roots / "a")
        assert act(mine, prompt())[0].policy_id == mine.policy_id == read_card(roots / "a").checkpoint_id
        other = HttpEngine.of_checkpoint(config(played.url, send=send), roots / "b")
        with pytest.raises(ModelError, match="another client has loaded it"):
            act(mine, prompt())
        again = HttpEngine.of_checkpoint(config(played.url, send=send), roots / "a")
        with pytest.raises(ModelError, match="another client has loaded it"):
            act(other, prompt())
        assert act(again, prompt())[0].policy_id == mine.policy_id
        for engine in (mine, other, again):
            engine.close()


def test_a_plain_server_gives_text_and_says_so() -> None:
    """As `transformers serve`: unknown fields are refused, log-probabilities are not given."""
    known = {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs"}

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": []}
        if unknown := set(body) - known:
            return 422, OK, {"detail": f"Unexpected fields in the request: {unknown}"}
        return 200, OK, chat_answer()

    with played_server(reply) as played:
        with pytest.raises(ConfigError, match="lists 0 models"):
            HttpEngine(config(played.url))
        engine = HttpEngine(config(played.url + "/v1/", model="m", stop=("\n",)))
        answer = act(engine, prompt())[0]
        assert (answer.text, answer.token_ids, answer.logprobs, answer.policy_id) == ("hi", (), (), "m")
        assert engine.capabilities() == Capabilities(server="openai", model="m", policy_id="m")
        with pytest.raises(ModelError, match="no token ids of the prompt, no token ids of the answer, no log-probabilities"):
            engine.require_learnable()
        assert played.bodies("/v1/chat/completions")[-1]["stop"] == ["\n"]
        with pytest.raises(ModelError, match="loads nothing"):
            engine.load_checkpoint(Path("anywhere"), "checkpoint-b")
        engine.close()


def test_llama_cpp_writes_ids_beside_logprobs(roots: Path) -> None:
    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 404, OK, {"error": {"message": "File Not Found", "code": 404}}
        entry = {"id": 31, "token": "hi", "logprob": -0.25, "top_logprobs": [{"id": 31, "logprob": -0.25}]}
        if path == "/v1/completions":
            return 200, OK, {"choices": [{"index": 0, "text": "hi", "finish_reason": "length", "logprobs": {"content": [entry]}}]}
        return 200, OK, chat_answer(logprobs={"content": [entry]})

    with played_server(reply) as played:
        exact = HttpEngine(config(played.url, model="gguf", send="token_ids"), codec=load_codec(roots / "a"))
        exact.require_learnable()
        assert act(exact, prompt())[0].logprobs == (-0.25,)
        exact.close()
        engine = HttpEngine(config(played.url, model="gguf"))
        answer = act(engine, prompt(temperature=1.0))[0]
        assert (answer.token_ids, answer.logprobs) == ((31,), (-0.25,))
        with pytest.raises(ModelError, match="it gives no token ids of the prompt"):
            engine.require_learnable()
        engine.close()


def flaky(*replies: Reply) -> Callable[[str, str, Any], Reply]:
    """After the probe, these one after the other, and then a good answer."""
    left = list(replies)

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m"}]}
        is_probe = body["max_tokens"] == 1
        return (200, OK, chat_answer()) if is_probe or not left else left.pop(0)

    return reply


def test_what_passes_is_asked_again() -> None:
    replies: tuple[Reply, ...] = (
        (503, {"retry-after": "0.01"}, {"error": {"message": "busy"}}), (429, OK, "slow down"), (502, OK, "<html>"),
        (200, OK, chat_answer(finish_reason="abort")), (200, {"content-length": "9999", "connection": "close"}, chat_answer()),
    )  # fmt: skip
    with played_server(flaky(*replies)) as played:
        engine = HttpEngine(config(played.url, retries=5))
        assert act(engine, prompt())[0].text == "hi"
        assert engine.num_retries == len(replies)
        engine.close()
    with played_server(flaky(*[replies[0]] * 9)) as played:
        engine = HttpEngine(config(played.url, retries=3))
        with pytest.raises(EngineUnreachable, match=r"failed 4 times, last with status 503: busy"):
            act(engine, prompt())
        engine.close()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ((400, OK, {"error": {"message": "bad field", "code": "x"}}), "answered 400: bad field"),
        ((404, OK, {"detail": "Not Found"}), "answered 404: Not Found"),
        ((307, {"location": "http://127.0.0.1:1/"}, ""), "answered 307"),
        ((200, OK, "<html>a login page</html>"), "no JSON"),
        ((200, OK, [1]), "not an object"),
        ((200, OK, {"choices": []}), "without choices"),
        ((200, OK, {"choices": [{"index": 0}]}), "without a message"),
        ((200, OK, chat_answer(token_ids=[1, 2], logprobs={"content": [{"token": "a", "logprob": -1.0}]})), "2 token ids and 1 log-prob"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_once(reply: Reply, told: str) -> None:
    with played_server(flaky(reply)) as played:
        engine = HttpEngine(config(played.url))
        with pytest.raises(ModelError, match=told):
            act(engine, prompt())
        assert engine.num_retries == 0
        engine.close()


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "the request exceeds the available context size. try increasing the context size",
    ],
)
def test_other_servers_words_for_a_prompt_that_is_too_long(message: str) -> None:
    with played_server(flaky((400, OK, {"error": {"message": message}}))) as played:
        engine = HttpEngine(config(played.url))
        assert act(engine, prompt())[0].text == ""
        engine.close()


def test_pictures_travel_in_their_messages() -> None:
    with played_server(flaky()) as played:
        engine = HttpEngine(config(played.url))
        messages = (
            Message(role="system", content="Look."), Message(role="user", content="What is it?", screenshot_id="p"),
            Message(role="assistant", content="A dot."), Message(role="user", content="", screenshot_id="j"),
        )  # fmt: skip
        images = {"p": b"\x89PNG\r\n", "j": b"\xff\xd8\xff\xe0"}
        act(engine, Prompt(messages=messages, sampling=Sampling(), images=images))
        sent = played.bodies("/v1/chat/completions")[-1]["messages"]
        assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
        assert [part["type"] for part in sent[1]["content"]] == ["image_url", "text"]
        assert sent[1]["content"][0]["image_url"]["url"] == "data:image/png;base64,iVBORw0K"
        assert sent[3]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4A=="}}]
        with pytest.raises(ModelError, match="names the screenshot q"):
            act(engine, Prompt(messages=(Message(role="user", content="", screenshot_id="q"),), sampling=Sampling()))
        engine.close()


def test_settings_say_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="no address"):
        HttpEngineConfig(base_url="localhost:8000")
    with pytest.raises(ValueError, match="give `http` for kind http"):
        EngineChoice(kind="http")
    assert HttpEngineConfig(base_url="https://host/prefix/v1/").base_url == "https://host/prefix"
    assert EngineChoice.model_validate(json.loads(EngineChoice(kind="http", http=config("http://h")).model_dump_json())).http is not None

