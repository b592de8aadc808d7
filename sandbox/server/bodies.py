"""What requests and answers of the sandbox server hold, beside the sessions' own values (sandbox/wire.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.actions import Action
from sandbox.session import Observation, Transition
from sandbox.tasks.task import Task
from sandbox.wire import Codec

LARGEST = 2**63 - 1
"""What tables and MessagePack hold."""
Seed = Annotated[int, Field(ge=0, le=LARGEST, description="which instance of the task")]
Number = Annotated[
    int | None,
    Field(
        ge=1,
        le=LARGEST,
        description="counts the resets and steps of this session from 1. The number of the last call gets its answer again and does "
        "nothing, so that a request may be repeated when its answer was lost. Left out, the call is a new one.",
    ),
]
NAME_PATTERN = r"^[\w.:-]{1,128}$"


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        """JSON can spell half of a pair of surrogates, which no answer and no table can hold."""
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a text in it is not Unicode: it holds {error.object[error.start : error.end]!r} alone") from error
        return value


class CreateSession(_Body):
    """A lease. With a task and a seed the session starts on an instance at once; with a task alone it is one that has its page."""

    task: Task | None = None
    seed: Seed | None = None
    screenshots: Annotated[bool, Field(description="without them a step is cheaper")] = True
    ttl_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="the lease ends this long after its last sign of life")] = (
        None
    )
    wait_s: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False, description="how long to wait for a session; the server's limit is the longest")
    ] = None
    key: Annotated[
        str | None, Field(pattern=NAME_PATTERN, description="a request with the same key gets the same session: for repeating it")
    ] = None


class ResetSession(_Body):
    task: Task
    seed: Seed
    screenshots: bool = True
    number: Number = None


class StepSession(_Body):
    action: Action
    number: Number = None


class OneStep(StepSession):
    session_id: str


class StepSessions(_Body):
    """Steps of several sessions, carried out side by side."""

    steps: Annotated[tuple[OneStep, ...], Field(min_length=1, max_length=1024)]


class Heartbeat(_Body):
    sessions: Annotated[tuple[str, ...], Field(max_length=4096)]


class HeartbeatAnswer(_Body):
    alive: tuple[str, ...]
    gone: Annotated[tuple[str, ...], Field(description="no longer yours; lease others")]


class SessionStatus(_Body):
    """One of the client's sessions."""

    session_id: str
    task: Task | None
    seed: int | None
    age_s: float
    left_s: Annotated[float, Field(description="until it is reclaimed, if no sign of life comes")]
    num_calls: Annotated[int, Field(description="number of the last reset or step")]
    num_steps: Annotated[int, Field(description="since the last reset")]
    reward: Annotated[float, Field(description="since the last reset")]
    is_over: bool
    instruction: str
    screenshot_id: str | None


class Health(_Body):
    status: str
    version: str
    num_sessions: int
    num_waiting: int


class DrainServer(_Body):
    is_draining: Annotated[bool, Field(description="false: grant sessions again")] = True


class ServerStatus(BaseModel):
    """What a client that may choose among servers wants to know of one. Fields that it does not know are of a later release."""

    model_config = ConfigDict(frozen=True)

    version: Annotated[str, Field(description="of the release")]
    code: Annotated[str, Field(description="id of the sandbox's code and pages (sandbox/server/identity.py)")]
    sources: Annotated[dict[str, str], Field(description="task sources, and what each is known by")]
    num_sessions: Annotated[int, Field(description="on lease at once, at most")]
    num_leased: Annotated[int, Field(description="on lease now, of all clients")]
    num_waiting: Annotated[int, Field(description="requests that wait for one")]
    num_free: Annotated[int, Field(description="that this client would get at once")]
    oracles: bool
    is_draining: Annotated[bool, Field(description="grants no new session and lets those on lease end")]
    free_disk_mib: Annotated[float, Field(description="of the folder that sessions write to")]
    is_disk_short: Annotated[bool, Field(description="so short that it grants no new session")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Answer to a lease and to a reset. `observation` is None where nothing was started; `environment` are the versions that pixels
    and behaviour depend on."""

    session_id: str
    ttl_s: float
    num_calls: int
    environment: str
    observation: Observation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedSession:
    """One of a batch: a transition, or the problem that there was instead."""

    session_id: str
    transition: Transition | None
    problem: dict[str, Any] | None


STARTED: Codec[Started] = Codec("started session", Started)
STEPPED: Codec[tuple[SteppedSession, ...]] = Codec("batch of steps", tuple[SteppedSession, ...])
