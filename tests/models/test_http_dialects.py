"""Servers of other kinds, played: each is seen for what it gives, and is asked for nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from agent.policy.policy import Message, Prompt, Sampling
from models.checkpoints.checkpoint import read_card
from models.families.registry import load_codec, load_policy
from models.http.config import Capabilities, ServerKind
from models.http.engine import HttpEngine
from models.http.kinds import KINDS
from models.training.adapter_config import AdapterConfig
from models.training.adapters import prepare_for_training, save_adapter
from tests.models.policy_servers import OK, Reply, act, chat_answer, config, flaky, played_server, prompt
from warehouse.core.errors import ConfigError, ModelError

pytestmark = pytest.mark.usefixtures("engine_token")


def test_every_kind_of_server_that_a_profile_may_name_is_described() -> None:
    assert KINDS.keys() == set(get_args(ServerKind))


def vllm(*, processed: bool, root: str = "elsewhere", adapters: dict[str, str] | None = None) -> Callable[[str, str, Any], Reply]:
    """vLLM's answers for one token of probability 0.3: its log-probabilities are raw unless it was started with processed ones. `adapters`
    are those that it has, by name; it lists them beside its model, as it does (vllm/entrypoints/openai/models/serving.py)."""
    loaded = {} if adapters is None else adapters

    def listed(name: str, place: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": 1,
            "owned_by": "vllm",
            "root": place,
            "parent": parent,
            "max_model_len": None if parent else 4096,
            "permission": [],
        }

    def refusal(status: int, message: str, kind: str) -> Reply:
        return status, OK, {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"object": "list", "data": [listed("m", root, None), *(listed(*pair, "m") for pair in loaded.items())]}
        if path == "/v1/load_lora_adapter":
            name = body["lora_name"]
            if name in loaded and not body.get("load_inplace"):
                return refusal(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
            loaded[name] = body["lora_path"]
            return 200, OK, f"Success: LoRA adapter '{name}' added successfully."
        if path == "/v1/unload_lora_adapter":
            if loaded.pop(body["lora_name"], None) is None:
                return refusal(404, f"The lora adapter '{body['lora_name']}' cannot be found.", "NotFoundError")
            return 200, OK, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."
        if path == "/weight_info":
            return refusal(404, "Not Found", "NotFoundError")
        if path == "/inference/v1/generate":
            return refusal(403, "Scale-out endpoints are disabled.", "PermissionDeniedError")
        if body["model"] not in {"m", *loaded}:
            return refusal(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
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
        assert played.bodies("/v1/completions")[-1]["model"] == played.bodies("/v1/load_lora_adapter")[0]["lora_name"]
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
        learner.require_updatable(adapters=True)
        learner.close()
        with pytest.raises(ModelError, match="it loads adapters"):
            HttpEngine.of_checkpoint(config(played.url), roots / "b")


def test_vllm_is_handed_a_learners_adapter_and_answers_with_it(roots: Path, tmp_path: Path) -> None:
    """The folder is there, whole, when the server loads it, and goes when the next one is loaded."""
    seen: list[list[str]] = []
    plain = vllm(processed=True, root=str(roots / "a"))

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/load_lora_adapter":
            seen.append(sorted(file.name for file in Path(body["lora_path"]).iterdir()))
        return plain(method, path, body)

    trained = AdapterConfig(lora_rank=2)
    model = load_policy(roots / "a")
    prepare_for_training(model, trained)
    with played_server(reply) as played:
        engine = HttpEngine.of_checkpoint(config(played.url, exchange=str(tmp_path)), roots / "a")
        assert engine.takes_adapters
        for version in (1, 2):
            engine.load_adapter(partial(save_adapter, model.state_dict(), config=trained), f"checkpoint-{version}", version)
            answer = act(engine, prompt())[0]
            assert (answer.policy_id, answer.versions) == (f"checkpoint-{version}", (version,))
            assert [folder.name for folder in tmp_path.iterdir()] == [f"checkpoint-{version}"]
        engine.close()
    assert len(seen) == 2 and all({"adapter_config.json", "adapter_model.safetensors"} <= set(names) for names in seen)
    assert not list(tmp_path.iterdir())


def test_adapters_of_one_engine_are_in_no_other_engines_way(tmp_path: Path) -> None:
    """A server lists an adapter as a model of its own until it is unloaded. What a killed client left there is passed over."""
    (tmp_path / "adapter_config.json").write_text("{}")
    adapters = {"left-by-a-killed-client": "/gone"}
    with played_server(vllm(processed=True, adapters=adapters)) as played:
        first = HttpEngine(config(played.url))
        first.load_checkpoint(tmp_path, "checkpoint-first", version=1)
        second = HttpEngine(config(played.url))
        assert (second.capabilities().model, second.capabilities().max_context) == ("m", 4096)
        second.load_checkpoint(tmp_path, "checkpoint-second", version=1)
        assert len(adapters) == 3, "each has a name of its own: none answers with the other's weights"
        second.close()
        assert act(first, prompt())[0].policy_id == "checkpoint-first", "and none loses its own when the other ends"
        first.close()
        assert list(adapters) == ["left-by-a-killed-client"]
        first.close()
        third = HttpEngine(config(played.url))
        third.close()
        assert len(played.bodies("/v1/unload_lora_adapter")) == 2
    gone = HttpEngine(config((again := played_server(vllm(processed=True))).__enter__().url))
    gone.load_checkpoint(tmp_path, "checkpoint-gone", version=1)
    again.__exit__(None, None, None)
    gone.close()


def test_sglang_is_asked_by_its_own_route(roots: Path) -> None:
    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 64}]}
        if path == "/update_weights_from_disk":
            return 200, OK, {"success": body["model_path"].endswith("b"), "message": "no such folder"}
        temperature = body["sampling_params"]["temperature"] or 1.0
        logprob = -1.0 / temperature
        meta = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[logprob, 5, None], [-0.5, 9, None]],
            "output_top_logprobs": [[[logprob, 5, None]], [[-0.5, 9, None]]],
        }
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
    """As it was seen to (test_llama_cpp.py). Where it lists fewer tokens than it counts, which they are is not known."""
    num_tokens = 1

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "gguf", "owned_by": "llamacpp"}]}
        assert (body["top_k"], body["min_p"]) == (0, 0.0)
        entry = {"id": 31, "token": "hi", "logprob": -0.25, "top_logprobs": [{"id": 31, "logprob": -0.25}]}
        if path == "/v1/completions":
            choice = {"index": 0, "text": "hi", "finish_reason": "length", "logprobs": {"content": [entry]}}
            return 200, OK, {"choices": [choice], "usage": {"completion_tokens": num_tokens}}
        return 200, OK, chat_answer(logprobs={"content": [entry]})

    with played_server(reply) as played:
        exact = HttpEngine(config(played.url, send="token_ids"), codec=load_codec(roots / "a"))
        exact.require_learnable()
        assert act(exact, prompt())[0].logprobs == (-0.25,)
        num_tokens = 2
        answer = act(exact, prompt())[0]
        assert (answer.text, answer.token_ids, answer.logprobs) == ("hi", (), ())
        exact.close()
        engine = HttpEngine(config(played.url))
        answer = act(engine, prompt(temperature=1.0))[0]
        assert (answer.token_ids, answer.logprobs) == ((31,), (-0.25,))
        with pytest.raises(ModelError, match="it gives no token ids of the prompt"):
            engine.require_learnable()
        engine.close()


def test_pictures_travel_in_their_messages() -> None:
    with played_server(flaky()) as played:
        engine = HttpEngine(config(played.url))
        messages = (
            Message(role="system", content="Look."),
            Message(role="user", content="What is it?", screenshot_id="p"),
            Message(role="assistant", content="A dot."),
            Message(role="user", content="", screenshot_id="j"),
        )
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
