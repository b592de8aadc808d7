"""A policy that learns, as an upstream of the gateway: whole answers to plain conversations, sampled as its learner wants them, since it
learns from their log-probabilities. What would bend these (tools, schemas, other samplings) is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from agent.policy.policy import Policy, Prompt, Response, Sampling
from models.gateway.serve import Address
from models.gateway.settings import GatewaySettings
from models.http.routes import OWN_FIELD
from models.server.guard import Guard
from models.server.metrics import Metrics
from models.server.problems import ApiError, app_with_problems, refused, wrong
from models.server.prompts import read_messages
from models.server.wire import ChatRequest
from sandbox.http.serving import Server, on_free_port
from warehouse.core.errors import RequestRefused

REFUSED = ("tools", "response_format", "stop", "n", "stream", "top_p", "frequency_penalty", "presence_penalty", "logit_bias")
"""Fields of a request that say something else than how it is learned from, where they are not as they are by default."""


@asynccontextmanager
async def served_learner(policy: Policy, *, temperature: float, max_tokens: int) -> AsyncIterator[Address]:
    """Where the policy answers, with whatever weights it has by then, for as long as the block lasts."""
    token = secrets.token_urlsafe(32)
    app = create_app(policy, token, temperature=temperature, max_tokens=max_tokens)
    async with on_free_port(Server(app, grace_s=1, lifespan="off")) as url:
        yield Address(url=url, token=token)


def create_app(policy: Policy, token: str, *, temperature: float, max_tokens: int) -> ASGIApp:
    app, settings = app_with_problems("Flywheel learner", "A policy that learns."), GatewaySettings()

    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": policy.policy_id, "object": "model", "owned_by": "flywheel", "root": policy.policy_id}]}

    async def chat(asked: ChatRequest) -> dict[str, Any]:
        _refuse(asked)
        messages, images = read_messages(asked.messages, settings.max_image_pixels)
        sampling = Sampling(
            temperature=temperature,
            max_new_tokens=min(asked.limit or max_tokens, max_tokens),
            seed=secrets.randbits(63) if asked.seed is None else asked.seed % 2**63,
        )
        prompt = Prompt(messages=tuple(messages), sampling=sampling, conversation=asked.conversation, images=images)
        try:
            (response,) = await policy.act([prompt])
        except RequestRefused as error:
            raise refused(error) from error
        if not response.token_ids:
            raise wrong("the prompt is too long for the policy", param="messages", code="context_length_exceeded")
        return _answer(response, sampling.max_new_tokens)

    app.get("/v1/models")(models)
    app.post("/v1/chat/completions")(chat)
    return Guard(app, {"learner": token}, Metrics(), max_body_bytes=settings.max_body_mib * 2**20)


def _refuse(asked: ChatRequest) -> None:
    plain = ChatRequest(messages=asked.messages)
    if bent := [name for name in REFUSED if getattr(asked, name) != getattr(plain, name)]:
        raise _not_taken(bent[0])


def _not_taken(name: str) -> ApiError:
    return wrong(f"{name}: a policy that learns answers plain conversations, sampled as its learner wants; leave it out", param=name)


def _answer(response: Response, limit: int) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": response.text},
        "finish_reason": "length" if len(response.token_ids) >= limit else "stop",
        "token_ids": response.token_ids,
        "logprobs": {"content": [{"token": "", "bytes": [], "logprob": value, "top_logprobs": []} for value in response.logprobs]},
        OWN_FIELD: {"policy_id": response.policy_id, "versions": response.versions},
    }
    return {
        "id": f"chat-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": 0,
        "model": response.policy_id,
        "choices": [choice],
        "prompt_token_ids": response.prompt_token_ids,
        "usage": {
            "prompt_tokens": len(response.prompt_token_ids),
            "completion_tokens": len(response.token_ids),
            "total_tokens": len(response.prompt_token_ids) + len(response.token_ids),
        },
    }
