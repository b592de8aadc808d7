"""The contract of every harness, checked in one episode of a small task on a real page, with a model that only says it does not know."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.runner import EpisodeRunner, RunnerSettings
from agent.harness.harness import Harness
from agent.harness.runner import HarnessRunner
from agent.prompts.prompt import PromptBuilder
from models.gateway.episode_gateway import EpisodeGateway
from models.gateway.serve import Address
from sandbox.http.serving import Server, on_free_port
from sandbox.pool.pool import SessionPool
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split
from warehouse.core.conformance import Checked, checked, require
from warehouse.core.home import Home

SOURCE, TASK = "miniwob", "click-button"
LIMIT_S = 90.0
ANSWER = "I do not know."


def check_harness(harness: Harness) -> Iterator[Checked]:
    """Plays the episode first. Raises BrowserMissing, ConfigError."""
    episode = asyncio.run(_played(harness))
    yield from checked(PROMISES, episode)


async def _played(harness: Harness) -> Episode:
    task = next(task for task in tasks_of(SOURCE) if task.name == TASK)
    request = EpisodeRequest(purpose="gateway", task=task, seed=task.seeds(Split.TRAIN, 1)[0], policy_id="checked")
    with tempfile.TemporaryDirectory() as folder:
        async with (
            on_free_port(Server(_model(), grace_s=1, lifespan="off")) as url,
            EpisodeGateway.open(Home(Path(folder)), Address(url=url)) as gateway,
            SessionPool(kind="devtools", size=1) as pool,
        ):
            runner = EpisodeRunner(pool, PromptBuilder("compact"), settings=RunnerSettings(max_retries=0))
            return await HarnessRunner(runner, "checked", harness, gateway, timeout_s=LIMIT_S).run(request)


def _model() -> Starlette:
    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": "checked", "owned_by": "flywheel check"}]})

    async def chat(request: Request) -> Response:
        choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
        return JSONResponse({"id": "1", "object": "chat.completion", "created": 0, "model": "checked", "choices": [choice]})

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])])


def _starts(episode: Episode) -> None:
    require(episode.outcome is not Outcome.CRASHED, str(episode.error))


def _asks(episode: Episode) -> None:
    require(bool(episode.steps), "it ended without a call at OPENAI_BASE_URL or ANTHROPIC_BASE_URL with the key that it was given")


def _ends(episode: Episode) -> None:
    require(episode.outcome is not Outcome.TIMEOUT, f"it still ran after {LIMIT_S:g} s, with a model that knows nothing")


PROMISES: Mapping[str, Callable[[Episode], None]] = {
    "it starts": _starts,
    "it asks the model at the address that it was given": _asks,
    "it ends by itself, or once its calls are refused": _ends,
}
