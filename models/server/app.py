"""The routes of the policy server. What an answer is made of is service.py's and answers.py's, who may ask guard.py's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from models.engine.grammar import Grammar, json_rule
from models.families.chat import EncodedChat
from models.http.config import Capabilities
from models.server.answers import EVENT_STREAM, ChatWriter, CompletionWriter, Writer
from models.server.backend import ServedEngine
from models.server.guard import Guard
from models.server.metrics import MEDIA_TYPE, Metrics
from models.server.problems import ApiError, app_with_problems, closing, forbidden, refused, wrong
from models.server.prompts import encode_messages
from models.server.service import Job, Part, Service
from models.server.settings import ServerSettings
from models.server.tools import ToolForm
from models.server.wire import (
    ChatAnswer,
    ChatRequest,
    CompletionAnswer,
    CompletionRequest,
    Health,
    ModelEntry,
    ModelList,
    NamedTool,
    WeightsAnswer,
    WeightsRequest,
)
from sandbox.http.serving import unless_gone
from warehouse.core.errors import ModelError, RequestRefused

DESCRIPTION = """A policy, as OpenAI's interface has it. Every request needs `Authorization: Bearer TOKEN`.

`return_token_ids` adds the token ids of prompt and answer, `logprobs` their log-probabilities under the distribution that was sampled from,
and `flywheel` in each choice whose weights wrote them. `POST /v1/weights` loads another checkpoint; answers under way go on with it.
"""
JSON_TYPE = "application/json"
CLIENT_GONE = 499


def create_app(engine: ServedEngine, token: str, settings: ServerSettings | None = None) -> tuple[ASGIApp, Service]:
    """The ASGI application of a server, and what it runs on. The engine's opener closes it. Raises ConfigError for a token that is
    not usable. Call it in the event loop that serves."""
    settings = settings or ServerSettings()
    metrics = Metrics()
    service = Service(engine, settings, metrics)
    app = app_with_problems("Flywheel policy", DESCRIPTION)
    routes = _Routes(service)
    stream: dict[int | str, dict[str, Any]] = {200: {"content": {EVENT_STREAM: {}}}}
    app.post("/v1/chat/completions", response_model=ChatAnswer, responses=stream, summary="Answer a conversation")(routes.chat)
    app.post("/v1/completions", response_model=CompletionAnswer, responses=stream, summary="Continue a text or token ids")(routes.complete)
    app.get("/v1/models", summary="What is served")(routes.models)
    app.get("/v1/models/{name:path}", summary="The served model, by a name of it")(routes.model)
    app.post("/v1/weights", summary="Answer with another checkpoint")(routes.load)
    app.get("/health", summary="Whether the server takes requests")(routes.health)
    app.get("/metrics", response_class=Response, summary="Counters for Prometheus")(routes.metrics)
    return Guard(app, {"policy": token}, metrics, max_body_bytes=settings.max_body_mib * 2**20), service


class _Routes:
    def __init__(self, service: Service) -> None:
        self._service, self._engine, self._settings = service, service.engine, service.settings
        self._created = int(time.time())

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        self._check_name(asked.model)
        tools = [tool.model_dump(exclude_none=True) for tool in asked.tools] if asked.choice != "none" else []
        prompt = await asyncio.to_thread(encode_messages, self._engine.encode, asked.messages, self._settings.max_image_pixels, tools)
        try:
            form = await asyncio.to_thread(self._engine.tool_form) if tools else None
            grammar = await asyncio.to_thread(self._grammar, asked, form)
        except RequestRefused as error:
            raise refused(error) from error
        job = self._service.job(asked, prompt, grammar=grammar, tools=form)
        writer = ChatWriter(asked, job, self._engine.codec, self._settings.model_name)
        return await self._answer("chat", job, writer, request, streams=asked.stream)

    def _grammar(self, asked: ChatRequest, form: ToolForm | None) -> Grammar | None:
        """What the answer is held to; None: nothing. Raises RequestRefused."""
        if form is not None and asked.choice != "auto":
            functions = [tool.function for tool in asked.tools]
            if isinstance(asked.choice, NamedTool):
                functions = [function for function in functions if function.name == asked.choice.function.name]
            return self._engine.grammar(form.grammar(functions), "tools")
        if asked.response_format.type == "text":
            return None
        described = asked.response_format.json_schema
        schema = {"type": "object"} if described is None else described.schema_
        return self._engine.grammar(f"start: {json_rule(schema, 'response_format')}", "response_format")

    async def complete(self, asked: CompletionRequest, request: Request) -> Response:
        self._check_name(asked.model)
        ids = await asyncio.to_thread(self._engine.encode_text, asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
        job = self._service.job(asked, EncodedChat(token_ids=ids, loss_weights=()))
        writer = CompletionWriter(asked, job, self._engine.codec, self._settings.model_name)
        return await self._answer("completions", job, writer, request, streams=asked.stream)

    async def _answer(self, route: str, job: Job, writer: Writer, request: Request, *, streams: bool) -> Response:
        """Counted by its status; of a stream, by that of its beginning."""
        count, gone = self._service.metrics.requests, wrong("the client went away", status=CLIENT_GONE, code="gone")
        try:
            leave = await unless_gone(request, self._service.enter(), gone)
            if streams:
                count.labels(route, "200").inc()
                return _Events(writer.events(self._service.parts(job)), leave)
            try:
                answers = await unless_gone(request, self._all(job), gone)
            finally:
                leave()
        except ApiError as error:
            count.labels(route, str(error.status)).inc()
            raise
        count.labels(route, "200").inc()
        return Response(writer.whole(answers), media_type=JSON_TYPE)

    async def _all(self, job: Job) -> list[list[Part]]:
        answers: list[list[Part]] = [[] for _ in job.requests]
        async with aclosing(self._service.parts(job)) as parts:
            async for number, part in parts:
                answers[number].append(part)
        return answers

    async def models(self) -> ModelList:
        return ModelList(data=[self._entry()])

    async def model(self, name: str) -> ModelEntry:
        self._check_name(name)
        return self._entry()

    def _entry(self) -> ModelEntry:
        name, max_context, policy_id = self._settings.model_name, self._engine.max_context, self._engine.policy_id
        gives = Capabilities(
            server="flywheel",
            model=name,
            policy_id=policy_id,
            max_context=max_context,
            prompt_token_ids=True,
            token_ids=True,
            logprobs=True,
            logprobs_follow_temperature=True,
            logprobs_follow_top_p=True,
            versions=True,
            loads="checkpoints" if self._settings.weight_roots else "nothing",
        )
        return ModelEntry(id=name, created=self._created, root=policy_id, max_model_len=max_context, flywheel=gives)

    def _check_name(self, name: str | None) -> None:
        known = (self._settings.model_name, self._engine.policy_id)
        if name is not None and name not in known:
            raise wrong(f"there is no model {name!r}; this server has {' and '.join(known)}", status=404, code="model_not_found")

    async def load(self, asked: WeightsRequest) -> WeightsAnswer:
        """Waits for weights that are being loaded already."""
        if self._service.is_closing:
            raise closing()
        folder = self._allowed(asked.folder)
        try:
            await self._service.load(folder, asked.policy_id, asked.version)
        except ModelError as error:
            raise wrong(str(error), param="folder", code="weights_not_loaded") from error
        return WeightsAnswer(policy_id=self._engine.policy_id, version=self._engine.version)

    def _allowed(self, folder: str) -> Path:
        """The folder, links followed, where it lies below an allowed root; of what is elsewhere nobody learns whether it exists."""
        try:
            path: Path | None = Path(folder).resolve()
        except ValueError:  # no name of a folder: a NUL, half a character
            path = None
        if path is None or not any(path.is_relative_to(root.resolve()) for root in self._settings.weight_roots):
            message = "weights are not loaded from there: start the server with a --weights-root above the folder"
            raise forbidden(message, "folder_not_allowed")
        return path

    async def health(self) -> Health:
        service = self._service
        return Health(
            status="closing" if service.is_closing else "ok",
            policy_id=self._engine.policy_id,
            version=self._engine.version,
            num_running=service.num_running,
            num_waiting=service.num_waiting,
            following=service.following,
        )

    async def metrics(self) -> Response:
        return Response(self._service.metrics.render(), media_type=MEDIA_TYPE)


class _Events(StreamingResponse):
    """A stream that leaves the service when it ends, whether it was sent, broken off, or never begun."""

    def __init__(self, events: AsyncGenerator[str, None], leave: Callable[[], None]) -> None:
        super().__init__(events, media_type=EVENT_STREAM, headers={"cache-control": "no-store"})
        self._events, self._leave = events, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            self._leave()
