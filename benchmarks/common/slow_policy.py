"""A policy server that thinks for a fixed time: OpenAI's chat completions with token ids, and no model.

`python -m benchmarks.common.slow_policy MS` prints its address and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandbox.http.serving import Server, address_of, bind, serve_until_signalled

NUM_PROMPT, NUM_ANSWER = 1000, 100
TEXT = "click [3] " * 10


def create(think_s: float) -> Starlette:
    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": "slow", "owned_by": "vllm", "root": "slow"}]})

    async def chat(request: Request) -> Response:
        asked: dict[str, Any] = await request.json()
        await asyncio.sleep(think_s)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": f"{TEXT}{len(asked['messages'])}"},
            "finish_reason": "stop",
        }
        if asked.get("return_token_ids"):
            entries = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}] * NUM_ANSWER
            choice |= {"token_ids": list(range(NUM_ANSWER)), "logprobs": {"content": entries}}
            return JSONResponse({"choices": [choice], "prompt_token_ids": list(range(NUM_PROMPT))})
        return JSONResponse({"choices": [choice]})

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])])


def main() -> None:
    async def serve() -> None:
        with bind("127.0.0.1", 0) as listener:
            server = Server(create(float(sys.argv[1]) / 1000), grace_s=1, lifespan="off")
            await serve_until_signalled(server, listener, lambda: print(address_of(listener), flush=True))

    asyncio.run(serve())


if __name__ == "__main__":
    main()
