"""Environments of OpenEnv servers as a task source, by their addresses:

    SOURCE = openenv_source("echo", [OpenEnvTask(url="http://localhost:8000", instruction="Say hello.", success_at=1.0)])

The protocol is that of openenv-core 0.3, a WebSocket for each session; no package of OpenEnv's is needed here. Ours offered to its clients
is sandbox/server/openenv.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.headers import build_authorization_basic
from websockets.protocol import State

from sandbox.actions import without_halves
from sandbox.adapters.adapted_session import BadAction, Seen
from sandbox.adapters.adapted_source import Playable, adapted_source, name_of, version_of
from sandbox.http.serving import is_loopback, without_secrets
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, SandboxError
from warehouse.storage.screenshots import pictures

MAX_MESSAGE_BYTES = 64 << 20
MAX_SHOWN_CHARS = 2000
"""Of one text in an observation: what is longer is data, e.g. a picture in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvTask:
    """One environment as a task.

    `url`: http or https, without `/ws`; a user and password in it are sent. `success_at`: the sum of rewards from which on it is solved.
    `actions`: the environment's actions by the words that an agent uses. `reset`: further arguments of its reset, e.g. a level. `text`: an
    observation in words, by default its fields as JSON; `picture`: the field that holds a PNG or JPEG in base64. `oracle`: from an
    observation to the action that solves it from here, or None.
    """

    url: str
    instruction: str
    success_at: float
    name: str = ""
    domain: str = "games"
    max_steps: int = 100
    actions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reset: Mapping[str, Any] = field(default_factory=dict)
    text: Callable[[Mapping[str, Any]], str] | None = None
    picture: str | None = None
    oracle: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(
                f"{without_secrets(self.url)!r} is not the address of an OpenEnv server: write scheme and host, as http://localhost:8000, "
                "and no query."
            )


def openenv_source(name: str, tasks: Sequence[OpenEnvTask], *, has_one_instance: bool = False, **more: Any) -> TaskSource:
    """`has_one_instance`: a reset with another seed gives the same instance, as in an environment that takes no seed. `more`: other parts
    of the TaskSource, such as `licence`. Raises ConfigError for two tasks of one name."""
    playable = [_playable(each) for each in tasks]
    return adapted_source(name, playable, environment="openenv 0.3", has_one_instance=has_one_instance, **more)


def _playable(task: OpenEnvTask) -> Playable:
    parts = urlsplit(task.url)
    name = task.name or name_of(parts.path or str(parts.hostname))
    return Playable(
        name=name,
        instruction=task.instruction,
        success_at=task.success_at,
        version=version_of("openenv", name, dict(task.reset), dict(task.actions), task.success_at, task.instruction),
        make=lambda: OpenEnvironment.connected(task),
        domain=task.domain,
        max_steps=task.max_steps,
        has_oracle=task.oracle is not None,
    )


class OpenEnvironment:
    """Satisfies Adapted; made by `connected`. Of a server's actions, one whose only required field is a string takes plain text."""

    tools: Collection[str] = ()

    def __init__(self, task: OpenEnvTask, schema: Mapping[str, Any], version: str) -> None:
        self._task, self._fields, self.version = task, dict(schema.get("properties", {})), version
        required = list(schema.get("required", []))
        is_text = len(required) == 1 and self._fields.get(required[0], {}).get("type") == "string"
        self._text_field: str | None = required[0] if is_text else None
        self.named: Mapping[str, Any] = task.actions
        self._socket: ClientConnection | None = None
        self._observation: Mapping[str, Any] = {}

    @classmethod
    async def connected(cls, task: OpenEnvTask) -> OpenEnvironment:
        """Raises httpx.HTTPError, OSError and websockets' errors where the server is not there or is another's."""
        base = _base(task.url)
        async with httpx.AsyncClient(trust_env=not _is_local(base), timeout=30, headers=_credentials(task.url)) as http:
            answers = [await http.get(f"{base}/{what}") for what in ("schema", "metadata")]
        schema, metadata = (without_halves(answer.raise_for_status().json()) for answer in answers)
        environment = cls(task, schema["action"], f"{metadata['name']} {metadata.get('version') or '?'}; openenv 0.3")
        await environment._connect()
        return environment

    @property
    def takes_text(self) -> bool:
        return self._text_field is not None

    async def reset(self, seed: int) -> Seen:
        """Connects again where the connection has ended, as after an error of the server's."""
        if self._socket is None or self._socket.state is not State.OPEN:
            await self._connect()
        seen = await self._ask("reset", {**self._task.reset, "seed": seed % 2**31})
        return seen if self.named else replace(seen, asked=self._how())

    async def step(self, action: Any) -> Seen:
        if isinstance(action, str) and self._text_field is not None:
            action = {self._text_field: action}
        if not isinstance(action, Mapping):
            raise BadAction(f"{action!r} is not an action of the environment. {self._how()}")
        return await self._ask("step", dict(action))

    async def oracle(self) -> Any | None:
        return None if self._task.oracle is None else self._task.oracle(self._observation)

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _connect(self) -> None:
        base = _base(self._task.url)
        self._socket = await connect(
            f"{base.replace('http', 'ws', 1)}/ws",
            additional_headers=_credentials(self._task.url),
            max_size=MAX_MESSAGE_BYTES,
            proxy=None if _is_local(base) else True,
        )

    async def _ask(self, kind: str, data: dict[str, Any]) -> Seen:
        """What it shows now. Raises BadAction for an action that does not fit, SandboxError for any other error of the server."""
        if self._socket is None:
            raise SandboxError("The environment is closed.")
        await self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = without_halves(json.loads(await self._socket.recv()))
        said = answer.get("data") or {}
        if answer.get("type") == "error":
            if kind == "step" and said.get("code") == "VALIDATION_ERROR":
                raise BadAction(f"{json.dumps(data)[:200]} is not an action of the environment: {said.get('message')}. {self._how()}")
            raise SandboxError(f"The OpenEnv server answered {kind} with {said.get('code')}: {said.get('message')}")
        return self._seen(said)

    def _seen(self, said: Mapping[str, Any]) -> Seen:
        self._observation = said.get("observation") or {}
        picture = self._observation.get(self._task.picture or "")
        return Seen(
            text=(self._task.text or self._as_text)(self._observation),
            picture=None if picture is None else _decoded(picture),
            reward=float(said.get("reward") or 0.0),
            is_over=bool(said.get("done")),
        )

    def _as_text(self, observation: Mapping[str, Any]) -> str:
        shown = {key: value for key, value in observation.items() if key != self._task.picture and not _is_data(value)}
        texts = [value for value in shown.values() if isinstance(value, str)]
        return texts[0] if len(shown) == 1 and texts else json.dumps(shown, ensure_ascii=False)

    def _how(self) -> str:
        fields = {key: each.get("type") or "…" for key, each in self._fields.items() if key != "metadata"}
        return f"An action is JSON with these fields: {json.dumps(fields)}." if fields else "An action is a JSON object."


def _base(url: str) -> str:
    """What errors may show: the credentials are sent beside it."""
    return without_secrets(url).rstrip("/")


def _credentials(url: str) -> dict[str, str]:
    """The header of a user and a password in an address."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    return {"Authorization": build_authorization_basic(unquote(parts.username), unquote(parts.password or ""))}


def _is_local(url: str) -> bool:
    """A proxy for the web does not reach this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def _is_data(value: Any) -> bool:
    return value in (None, "", [], {}) or (isinstance(value, str) and len(value) > MAX_SHOWN_CHARS)


def _decoded(picture: str) -> np.ndarray[Any, Any]:
    """(height, width, 3) uint8."""
    return np.asarray(pictures.decoded(base64.b64decode(picture)))
