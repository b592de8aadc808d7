"""The policy server behind the gateway: requests as OpenAI's chat completions have them, answers whole or in chunks, with token ids and
log-probabilities where the server has them. Our own server, vLLM and others differ in a few fields (models/http/kinds.py)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from pydantic import ValidationError

from models.http.kinds import KINDS, MODELS, kind_owning
from models.http.routes import OWN_FIELD
from models.server.problems import CLOSING, ApiError
from models.server.wire import ChatRequest, Problem, ProblemAnswer
from sandbox.http.certificates import rejection, verification
from warehouse.core.errors import EngineUnreachable, ModelError

CHAT = "/v1/chat/completions"
MESSAGE_CHARS = 400
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
CONNECTIONS = 1024
CONNECT_S, IDLE_S = 30.0, 4.0
"""uvicorn closes what was idle for 5 s: a connection is not used again when that is near."""


class Unreachable(ApiError):
    """A server that does not answer at all, or ends; another may be asked instead."""


class Upstream:
    """One server, for one event loop. `policy_id`: of the weights that it had when it was opened, or that it was made to load before; an
    answer that names others is then refused."""

    def __init__(self, url: str, token: str | None, *, timeout_s: float, policy_id: str | None = None, model: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE_S),
            verify=verification(self.url),
            trust_env=False,
        )
        self._wanted_model, self._wanted_policy = model, policy_id
        self._model, self.policy_id = "", ""
        self.entry: Mapping[str, Any] = {}
        self._kind = KINDS["openai"]
        self.num_running = 0

    @property
    def served(self) -> tuple[str, str, str]:
        """Kind of server, model and weights."""
        return kind_owning(self.entry.get("owned_by")), self._model, self.policy_id

    @contextmanager
    def running(self) -> Iterator[None]:
        """An answer is under way as long as the block lasts."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    async def open(self) -> None:
        """Find out what it serves. Raises EngineUnreachable, ModelError."""
        try:
            response = await self._http.get(MODELS)
            listed = response.raise_for_status().json()["data"]
            entry = dict(next((one for one in listed if one["id"] == self._wanted_model), listed[0]))
        except httpx.TransportError as error:
            why = rejection(error) or f"{type(error).__name__}: start the policy server first"
            raise EngineUnreachable(f"{self.url} cannot be reached: {why}") from error
        except (httpx.HTTPStatusError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"{self.url}{MODELS} lists no model ({error}): is this a policy server, and its token right?") from error
        self._kind = KINDS[kind_owning(entry.get("owned_by"))]
        self.entry, self._model = entry, str(entry["id"])
        self.policy_id = self._wanted_policy or str(entry.get("root") or entry["id"])

    def body(self, asked: ChatRequest, conversation: str) -> dict[str, Any]:
        """The request to the server: the client's fields, and those that make it return ids and log-probabilities."""
        fields = asked.model_dump(mode="json", exclude_unset=True, exclude_none=True, by_alias=True)
        fields |= dict(self._kind.chat_fields) | {"model": self._model}
        if self._kind.takes_conversation:
            fields["conversation"] = conversation[:200]
        return fields

    async def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer. Raises ApiError: the server's own refusal, or that it failed."""
        response = await self._send(body)
        try:
            return self._of_wanted(_object((await response.aread()).decode(errors="replace")))
        except httpx.TransportError as error:
            raise _unreachable(self.url, error) from error
        finally:
            await response.aclose()

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of its answer, as they come. Raises ApiError, also for a stream that ends before its end."""
        response = await self._send(body)
        try:
            async for line in _lines(response):
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                chunk = _object(data)
                if "error" in chunk:
                    raise _refusal(500, data)
                yield self._of_wanted(chunk)
        except httpx.TransportError as error:
            raise _unreachable(self.url, error) from error
        finally:
            await response.aclose()
        raise _failed("the policy server ended its answer before its end")

    def _of_wanted(self, data: dict[str, Any]) -> dict[str, Any]:
        """Raises ApiError where a choice is of other weights than those that the server was made to load."""
        found = {policy_of(choice)[0] for choice in data.get("choices") or ()} - {None, self._wanted_policy}
        if self._wanted_policy is not None and found:
            raise _failed(f"the policy server at {self.url} answered with {min(map(str, found))}, not with {self._wanted_policy}")
        return data

    async def _send(self, body: Mapping[str, Any]) -> httpx.Response:
        """The beginning of its answer. A connection that breaks before is retried: nobody has read anything of it."""
        for is_last in (False, False, True):
            try:
                response = await self._http.send(self._http.build_request("POST", CHAT, json=body), stream=True)
                break
            except httpx.TransportError as error:
                if is_last or isinstance(error, httpx.TimeoutException):
                    raise _unreachable(self.url, error) from error
        if response.status_code != httpx.codes.OK:
            text = (await response.aread()).decode(errors="replace")
            await response.aclose()
            raise _refusal(response.status_code, text)
        return response

    async def close(self) -> None:
        await self._http.aclose()


def policy_of(choice: Mapping[str, Any]) -> tuple[str | None, list[int]]:
    """Whose weights wrote a choice, and the version of each token, where the server says so."""
    own = choice.get(OWN_FIELD) or {}
    return own.get("policy_id"), list(own.get("versions") or ())


async def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    """Lines as server-sent events have them: JSON may hold U+2028 and its like, which end a line for `aiter_lines`."""
    rest = b""
    async for block in response.aiter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


def _object(text: str) -> dict[str, Any]:
    """Half a surrogate pair, which UTF-8 cannot carry on, becomes a question mark."""
    try:
        found = json.loads(text)
        if SURROGATE.search(text):
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _failed(f"the policy server answered with {text[:80]!r}, not with a JSON object")
    return found


def _refusal(status: int, text: str) -> ApiError:
    """The server's own words; that it does not know our token is the gateway's fault, not the client's."""
    try:
        problem = ProblemAnswer.model_validate_json(text).error
    except ValidationError:
        problem = Problem(message=text[:MESSAGE_CHARS], type="server_error", code="upstream_refused")
    if status in (401, 403):
        return _failed(f"the policy server refuses the gateway: {problem.message}")
    refusal = Unreachable if problem.code == CLOSING else ApiError
    return refusal(status, problem, {"retry-after": "1"} if status in (429, 503) else None)


def _failed(message: str) -> ApiError:
    return ApiError(502, Problem(message=message, type="server_error", code="upstream_failed"))


def _unreachable(url: str, error: httpx.TransportError) -> ApiError:
    failed = _failed(f"the policy server at {url} does not answer: {rejection(error) or type(error).__name__}")
    return failed if isinstance(error, httpx.TimeoutException) else Unreachable(failed.status, failed.problem)
