"""What fails between the HTTP engine and a server: what passes is asked again, what is wrong is raised at once, and none of it is an empty
answer."""

from __future__ import annotations

import json

import pytest

from models.engine.choice import EngineChoice
from models.http.config import HttpEngineConfig
from models.http.engine import HttpEngine
from tests.models.policy_servers import OK, Reply, act, chat_answer, config, flaky, played_server, prompt
from warehouse.core.errors import EngineUnreachable, ModelError

pytestmark = pytest.mark.usefixtures("engine_token")


def test_what_passes_is_asked_again() -> None:
    replies: tuple[Reply, ...] = (
        (503, {"retry-after": "0.01"}, {"error": {"message": "busy"}}),
        (429, OK, "slow down"),
        (502, OK, "<html>"),
        (200, OK, chat_answer(finish_reason="abort")),
        (200, {"content-length": "9999", "connection": "close"}, chat_answer()),
    )
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
    ("reply", "message"),
    [
        ((400, OK, {"error": {"message": "bad field", "code": "x"}}), "answered 400: bad field"),
        ((404, OK, {"detail": "Not Found"}), "answered 404: Not Found"),
        ((307, {"location": "http://127.0.0.1:1/"}, ""), "answered 307"),
        ((200, OK, "<html>a login page</html>"), "not answer with JSON"),
        ((200, OK, [1]), "not an object"),
        ((200, OK, {"choices": []}), "without choices"),
        ((200, OK, {"choices": [{"index": 0}]}), "without a message"),
        ((200, OK, chat_answer(token_ids=[1, 2], logprobs={"content": [{"token": "a", "logprob": -1.0}]})), "2 token ids and 1 log-prob"),
    ],
)
def test_errors_are_raised_at_once(reply: Reply, message: str) -> None:
    with played_server(flaky(reply)) as played:
        engine = HttpEngine(config(played.url))
        with pytest.raises(ModelError, match=message):
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


def test_settings_say_what_is_wrong_with_them() -> None:
    with pytest.raises(ValueError, match="not an address"):
        HttpEngineConfig(base_url="localhost:8000")
    with pytest.raises(ValueError, match="give `http` if and only if"):
        EngineChoice(kind="http")
    assert HttpEngineConfig(base_url="https://host/prefix/v1/").base_url == "https://host/prefix"
    assert EngineChoice.model_validate(json.loads(EngineChoice(kind="http", http=config("http://h")).model_dump_json())).http is not None
