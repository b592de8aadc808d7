"""What the gateway records: calls as lines of its log, and outcomes. Messages are kept in one form, whichever interface they came by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from warehouse.core.identity import canonical_json, content_id

Route = Literal["chat", "responses", "messages"]
Started = Literal["first", "continued", "beside", "rewritten", "separate"]
"""How a call stands to those before it: `continued` extends its line's last answer; `beside` extends an answer that another call has
extended already; `rewritten` is the same agent's with another context; `separate` has nothing of an earlier one."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shown(_Record):
    """A picture inside a message, by the id of its bytes as they were sent."""

    screenshot_id: str


class Called(_Record):
    """A call of a tool; `arguments` is JSON as the model wrote it or the client sent it."""

    id: str
    name: str
    arguments: str


class Said(_Record):
    """One message. `pieces` are its texts and pictures in their order."""

    role: Literal["system", "user", "assistant", "tool"]
    pieces: tuple[str | Shown, ...] = ()
    calls: tuple[Called, ...] = ()
    call_id: Annotated[str | None, Field(description="of a tool's message: the call that it answers")] = None
    name: str | None = None

    @property
    def text(self) -> str:
        """Its texts, and each call as a line `name(arguments as JSON)`."""
        calls = (f"{call.name}({json.dumps(arguments_of(call), ensure_ascii=False)})" for call in self.calls)
        return "\n".join((*(piece for piece in self.pieces if isinstance(piece, str)), *calls))

    @property
    def pictures(self) -> tuple[str, ...]:
        return tuple(piece.screenshot_id for piece in self.pieces if isinstance(piece, Shown))

    def digest(self, before: str) -> str:
        """Of the conversation up to here, `before` being the digest up to the message before. White space around texts and the spelling of
        arguments do not count: clients send answers back with either changed."""
        pieces = [stripped if isinstance(piece, str) else [piece.screenshot_id] for piece in self.pieces if (stripped := _stripped(piece))]
        calls = [[call.id, call.name, arguments_of(call)] for call in self.calls]
        return hashlib.sha256(before.encode() + canonical_json([self.role, pieces, calls, self.call_id])).hexdigest()[:32]


def _stripped(piece: str | Shown) -> Any:
    return piece.strip() if isinstance(piece, str) else piece


def arguments_of(call: Called) -> Any:
    """The arguments as JSON; as a text where they are none, or hold what only Python reads: NaN, 1e999, half a surrogate pair."""
    try:
        found = json.loads(call.arguments or "{}")
        canonical_json(found)
    except (ValueError, RecursionError):
        return call.arguments
    return found


def digests(messages: Iterable[Said], before: str = "") -> list[str]:
    """The digest of the conversation after each message."""
    found = []
    for message in messages:
        before = message.digest(before)
        found.append(before)
    return found


class Place(_Record):
    """Where a call belongs. `line`: one agent's calls inside an episode, one after the other; `branch` counts how often its context was
    rewritten."""

    episode: str
    line: int = 0
    branch: int = 0
    parent: Annotated[str | None, Field(description="the call whose answer it extends")] = None
    started: Started = "first"


class Call(_Record):
    """One answered call: a line of calls.jsonl."""

    call_id: str
    place: Place
    project: str
    name: Annotated[str | None, Field(description="what the client calls the episode")] = None
    task: str | None = None
    agent: Annotated[str, Field(description="digest of system prompt and tools: whose context it is")]
    route: Route
    messages: Annotated[tuple[Said, ...], Field(description="those that the parent and its answer do not hold")]
    num_before: Annotated[int, Field(ge=0, description="messages of the parent, its answer included")] = 0
    tools: tuple[dict[str, Any], ...] = ()
    sampling: dict[str, Any] = {}
    answer: Said
    finish: str | None = None
    policy_id: str
    is_candidate: Annotated[bool, Field(description="answered by the candidate of a canary")] = False
    prompt_token_ids: tuple[int, ...] = ()
    response_token_ids: tuple[int, ...] = ()
    response_logprobs: tuple[float, ...] = ()
    response_versions: tuple[int, ...] = ()
    began_at: Annotated[str, Field(description="UTC, as ISO 8601")]
    first_token_ms: float | None = None
    latency_ms: float
    digests: Annotated[tuple[str, ...], Field(description="of the conversation after each of `messages`, and after the answer")]
    withheld: Annotated[tuple[str, ...], Field(description="personal data that was found: then neither texts nor ids are kept")] = ()

    @property
    def temperature(self) -> float:
        return float(self.sampling.get("temperature", 1.0))

    def without_content(self, kinds: Sequence[str]) -> Call:
        """What may be stored of a call in which personal data was found."""
        empty = {"messages": (), "tools": (), "sampling": {}, "answer": Said(role="assistant"), "withheld": tuple(kinds)}
        return self.model_copy(update=empty | dict.fromkeys(TOKENS, ()))


TOKENS = ("prompt_token_ids", "response_token_ids", "response_logprobs", "response_versions")


class Outcome(_Record):
    """V of an episode: a line of outcomes.jsonl. It ends the episode."""

    episode: str
    project: str
    value: Literal[0, 1]
    by: Annotated[str, Field(min_length=1, max_length=200, description="who says so: a person's or a verifier's name")]
    origin: Annotated[Literal["human", "verifier"], Field(description="what says so")]
    reasons: tuple[str, ...] = ()
    given_at: str


def episode_of(project: str, name: str) -> str:
    """The id of the episode that a project's client calls so."""
    return content_id("gateway", [project, name])
