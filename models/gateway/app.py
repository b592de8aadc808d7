"""The gateway's routes: OpenAI's chat completions and responses, Anthropic's messages, and the episodes that they make. What is recorded is
recorder.py's, the form of each interface messages.py's and responses.py's; errors, guard and counters are the policy server's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.gateway.grouping import Group
from agent.gateway.intake import Intake
from agent.gateway.records import Outcome, Route
from models.gateway import messages, responses
from models.gateway.gathering import Gathering
from models.gateway.messages import MessagesRequest, MessagesWriter
from models.gateway.recorder import Caller, Recorder, UnderWay
from models.gateway.responses import ResponsesRequest, ResponsesWriter
from models.server.answers import DONE, EVENT_STREAM
from models.server.app import CLIENT_GONE
from models.server.guard import Guard
from models.server.metrics import MEDIA_TYPE, Metrics
from models.server.problems import ApiError, app_with_problems, refused, wrong
from models.server.wire import ChatRequest
from sandbox.http.serving import unless_gone
from warehouse.core.errors import RequestRefused
from warehouse.evaluation.statistics import wilson

DESCRIPTION = """A policy behind the interfaces that agents know, and a record of what passes: change an agent's base URL and its key.

Every request needs `Authorization: Bearer TOKEN` or `x-api-key: TOKEN`. `X-Flywheel-Episode`, or `TOKEN/NAME` as the key, names the episode
that a call belongs to; without a name a call belongs to the conversation that it extends. `POST /episodes/NAME/outcome` ends an episode.
"""
EPISODE, TASK = "x-flywheel-episode", "x-flywheel-task"
MAX_NAME = 200


class OutcomeRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Annotated[Literal[0, 1], Field(description="V: 1 where the task was done")]
    by: Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="who says so: a person or a program, by name")]
    origin: Annotated[Literal["human", "verifier"], Field(description="what says so")] = "verifier"
    reasons: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=20)] = []


class EpisodeState(BaseModel):
    """An episode as the gateway knows it."""

    episode: str
    name: str | None
    policy_id: str | None
    num_calls: int
    num_running: int
    withheld: Annotated[tuple[str, ...], Field(description="personal data that was found: it will not be stored")]
    outcome: Outcome | None


class PolicyOutcomes(BaseModel):
    """Outcomes of one policy's episodes, with the 95 % interval of the share that was solved (Wilson)."""

    policy_id: str
    is_candidate: bool
    num_episodes: int
    num_solved: int
    solved: float
    solved_low: float
    solved_high: float


class Writer(Protocol):
    """One request's answers in its interface's form. Streams are texts of server-sent events."""

    def whole(self, data: Mapping[str, Any]) -> dict[str, Any]: ...
    def opening(self) -> Iterator[str]: ...
    def chunk(self, chunk: Mapping[str, Any]) -> Iterator[str]: ...
    def closing(self, gathered: Gathering) -> Iterator[str]: ...
    def problem(self, body: str) -> Iterator[str]: ...


def create_app(recorder: Recorder, tokens: Mapping[str, str], metrics: Metrics, intake: Intake) -> ASGIApp:
    """The ASGI application. `tokens` by project. Raises ConfigError for a token that is not usable."""
    app = app_with_problems("Flywheel gateway", DESCRIPTION)
    routes = _Routes(recorder, metrics, intake)
    stream: dict[int | str, dict[str, Any]] = {200: {"content": {EVENT_STREAM: {}}}}
    app.post("/v1/chat/completions", responses=stream, summary="OpenAI's chat completions")(routes.chat)
    app.post("/v1/responses", responses=stream, summary="OpenAI's responses")(routes.responses)
    app.post("/v1/messages", responses=stream, summary="Anthropic's messages")(routes.messages)
    app.get("/v1/models", summary="What the upstream serves")(routes.models)
    if not recorder.has_owner:
        app.post("/v1/traces", summary="Spans of agents, as OTLP in JSON, into the log of the day")(routes.traces)
        _add_episodes(app, routes)
    app.get("/health", summary="Whether the gateway takes calls")(routes.health)
    app.get("/metrics", response_class=Response, summary="Counters for Prometheus")(routes.metrics)
    return Guard(app, tokens, metrics, max_body_bytes=recorder.settings.max_body_mib * 2**20)


def _add_episodes(app: FastAPI, routes: _Routes) -> None:
    """What a gateway has whose callers say themselves what their episodes are."""
    app.get("/episodes", summary="The project's episodes")(routes.episodes)
    app.get("/episodes/{name:path}", summary="One episode")(routes.episode)
    app.post("/episodes/{name:path}/outcome", summary="End an episode: what came of it")(routes.outcome)
    app.get("/outcomes", summary="Outcomes by policy: the live one beside a candidate")(routes.outcomes)


class _Routes:
    def __init__(self, recorder: Recorder, metrics: Metrics, intake: Intake) -> None:
        self._recorder, self._metrics, self._intake = recorder, metrics, intake
        metrics.watch("calls_running", "Calls under way.", lambda: recorder.running.total())

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        return await self._answer("chat", asked, ChatWriter(asked), request)

    async def responses(self, asked: ResponsesRequest, request: Request) -> Response:
        chat = responses.chat_of(asked)
        return await self._answer("responses", chat, ResponsesWriter(chat), request)

    async def messages(self, asked: MessagesRequest, request: Request) -> Response:
        chat = messages.chat_of(asked)
        return await self._answer("messages", chat, MessagesWriter(chat), request)

    async def _answer(self, route: Route, asked: ChatRequest, writer: Writer, request: Request) -> Response:
        try:
            call = await self._recorder.begin(self._caller(request), route, asked)
            answer = await (self._stream(call, writer) if asked.stream else self._whole(call, writer, request))
        except ApiError as error:
            self._metrics.requests.labels(route, str(error.status)).inc()
            raise
        self._metrics.requests.labels(route, "200").inc()
        answer.headers[EPISODE] = call.episode
        return answer

    async def _whole(self, call: UnderWay, writer: Writer, request: Request) -> Response:
        gone = wrong("the client went away", status=CLIENT_GONE, code="gone")
        data = await unless_gone(request, self._recorder.whole(call), gone)
        return JSONResponse(writer.whole(data))

    async def _stream(self, call: UnderWay, writer: Writer) -> Response:
        """The first chunk is awaited, so that what the upstream refuses has its status."""
        gathered = Gathering(call.asked.n)
        chunks = self._recorder.chunks(call, gathered)
        try:
            first = await anext(chunks)
        except BaseException:
            await chunks.aclose()
            self._recorder.leave(call)
            raise
        return _Events(_events(chunks, first, gathered, writer), chunks)

    async def traces(self, request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or request.headers.get("content-encoding", "identity") != "identity":
            raise wrong("spans are taken as application/json without compression: OTLP's exporters of JSON send it", status=415)
        try:
            await asyncio.to_thread(self._intake.add, request.state.client, await request.body())
        except RequestRefused as error:
            raise refused(error) from error
        return {}

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [dict(self._recorder.live.entry)]}

    async def episodes(self, request: Request) -> list[EpisodeState]:
        return [_state(group) for group in self._recorder.grouping.of_project(caller_of(request).project)]

    async def episode(self, name: str, request: Request) -> EpisodeState:
        return _state(self._found(name, request))

    async def outcome(self, name: str, given: OutcomeRequest, request: Request) -> Outcome:
        group = self._found(name, request)
        outcome = Outcome(
            episode=group.episode,
            project=group.project,
            value=given.value,
            by=given.by,
            origin=given.origin,
            reasons=tuple(given.reasons),
            given_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        )
        return await self._recorder.close_episode(group, outcome)

    def _caller(self, request: Request) -> Caller:
        """Where the episodes have an owner, the key alone says whose call it is: knowing an episode's name gives no access."""
        caller = caller_of(request, self._recorder.settings.episode_header)
        return replace(caller, name=request.state.label or None) if self._recorder.has_owner else caller

    def _found(self, name: str, request: Request) -> Group:
        group = self._recorder.grouping.find(caller_of(request).project, name)
        if group is None or not group.calls:
            raise wrong(f"there is no episode {name!r} of this project: GET /episodes lists them", status=404, code="no_episode")
        return group

    async def outcomes(self, request: Request) -> list[PolicyOutcomes]:
        by_policy: dict[tuple[str, bool], list[int]] = {}
        for group in self._recorder.grouping.of_project(caller_of(request).project):
            if group.outcome is not None and group.policy_id is not None:
                by_policy.setdefault((group.policy_id, bool(group.is_candidate)), []).append(group.outcome.value)
        return [_outcomes(*key, values) for key, values in sorted(by_policy.items())]

    async def health(self) -> dict[str, Any]:
        state = "closing" if self._recorder.is_closing else "ok"
        return {"status": state, "policy_id": self._recorder.live.policy_id, "num_running": self._recorder.running.total()}

    async def metrics(self) -> Response:
        return Response(self._metrics.render(), media_type=MEDIA_TYPE)


def caller_of(request: Request, episode_header: str | None = None) -> Caller:
    """`episode_header`: what names the episode where nothing of ours does. Raises ApiError for names that are too long or not printable."""
    named = [request.headers.get(EPISODE), request.state.label, request.headers.get(episode_header) if episode_header else None]
    name = next(filter(None, named), None)
    task = request.headers.get(TASK) or None
    for given in (name, task):
        if given is not None and (len(given) > MAX_NAME or not given.isprintable()):
            raise wrong(f"names of episodes and tasks have at most {MAX_NAME} printable characters, not {given[:80]!r}", param=EPISODE)
    return Caller(project=request.state.client, name=name, task=task)


def _state(group: Group) -> EpisodeState:
    return EpisodeState(
        episode=group.episode,
        name=group.name,
        policy_id=group.policy_id,
        num_calls=len(group.calls),
        num_running=group.num_running,
        withheld=group.withheld,
        outcome=group.outcome,
    )


def _outcomes(policy_id: str, is_candidate: bool, values: list[int]) -> PolicyOutcomes:
    interval = wilson(sum(values), len(values))
    return PolicyOutcomes(
        policy_id=policy_id,
        is_candidate=is_candidate,
        num_episodes=len(values),
        num_solved=sum(values),
        solved=sum(values) / len(values),
        solved_low=interval.low,
        solved_high=interval.high,
    )


class ChatWriter:
    """Chat completions as the upstream wrote them, without what the client did not ask for."""

    def __init__(self, asked: ChatRequest) -> None:
        self._tells_ids, self._tells_logprobs = asked.return_token_ids, asked.logprobs

    def whole(self, data: Mapping[str, Any]) -> dict[str, Any]:
        hidden = {"prompt_token_ids"} if not self._tells_ids else set()
        choices = [self._choice(choice) for choice in data.get("choices") or ()]
        return {name: value for name, value in data.items() if name not in hidden} | {"choices": choices}

    def _choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        hidden = set() if self._tells_ids else {"token_ids", "prompt_token_ids"}
        hidden |= set() if self._tells_logprobs else {"logprobs"}
        return {name: value for name, value in choice.items() if name not in hidden}

    def opening(self) -> Iterator[str]:
        return iter(())

    def chunk(self, chunk: Mapping[str, Any]) -> Iterator[str]:
        yield f"data: {json.dumps(self.whole(chunk), ensure_ascii=False)}\n\n"

    def closing(self, gathered: Gathering) -> Iterator[str]:
        yield DONE

    def problem(self, body: str) -> Iterator[str]:
        yield f"data: {body}\n\n"
        yield DONE


async def _events(
    chunks: AsyncGenerator[dict[str, Any], None], first: dict[str, Any], gathered: Gathering, writer: Writer
) -> AsyncGenerator[str, None]:
    """The stream that a client gets; what goes wrong after its beginning is an event of its own."""
    try:
        for text in writer.opening():
            yield text
        for text in writer.chunk(first):
            yield text
        async for chunk in chunks:
            for text in writer.chunk(chunk):
                yield text
        for text in writer.closing(gathered):
            yield text
    except ApiError as error:
        for text in writer.problem(error.body):
            yield text
    finally:
        await chunks.aclose()


class _Events(StreamingResponse):
    """A stream whose call is over when it ends, whether it was sent, broken off, or never begun."""

    def __init__(self, events: AsyncGenerator[str, None], chunks: AsyncGenerator[dict[str, Any], None]) -> None:
        super().__init__(events, media_type=EVENT_STREAM, headers={"cache-control": "no-store"})
        self._events, self._chunks = events, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            await self._chunks.aclose()
