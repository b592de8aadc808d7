"""Requests to a policy server: a bounded number at once, repeated where repeating can help. What is asked and how answers are read is
models/http/routes.py.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx

from models.http.config import HttpEngineConfig
from sandbox.http.certificates import rejection, verification
from sandbox.http.tokens import sendable
from warehouse.core.errors import ConfigError, EngineUnreachable, ModelError

REPEATED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
UNAUTHORISED = 401
MESSAGE_CHARS = 400


class Refused(ModelError):
    """A server understood a request and will not carry it out: sending it again would not help. Stays inside the engine, which knows what
    was asked."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class HttpClient:
    """One server's connections, for one event loop. A request ends with the server's JSON object, or with ModelError: `Refused` for what
    the server will not do, EngineUnreachable after the last attempt at what it could not."""

    def __init__(self, config: HttpEngineConfig, token: str | None = None) -> None:
        """Without a `token`, it is that of the variable that the settings name, if they do."""
        self._config = config
        token = token_in(config.token_env) if token is None and config.token_env else token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=config.base_url,
            headers=headers,
            timeout=httpx.Timeout(config.timeout_s, connect=config.connect_timeout_s),
            limits=httpx.Limits(max_connections=config.max_concurrency, max_keepalive_connections=config.max_concurrency),
            verify=verification(config.base_url),
            trust_env=False,  # neither proxies nor a netrc of the machine decide where tokens go
        )
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._jitter = random.Random()
        self.num_retries = 0
        self.num_lost = 0
        """Attempts that ended without an answer, as where the server was stopped."""

    async def get(self, path: str) -> dict[str, Any]:
        """A list or a status: where a server fails at it by itself (500), a retry would not help."""
        return await self._request("GET", path, None, repeated=REPEATED_STATUSES - {500})

    async def check_alive(self, path: str) -> None:
        """Raises EngineUnreachable where the server does not answer within connect_timeout_s."""
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                with suppress(Refused):
                    await self._request("GET", path, None, expects_json=False, retries=0)
        except TimeoutError as error:
            raise EngineUnreachable(f"{self._config.base_url} did not answer within {self._config.connect_timeout_s:g} s") from error

    async def post(
        self, path: str, body: Mapping[str, Any], is_broken_off: Callable[[Any], bool] = lambda _: False, *, waits_for_lost: bool = True
    ) -> dict[str, Any]:
        """`is_broken_off` recognises an answer that the server aborted: the request is retried. `waits_for_lost`: also where there is no
        answer at all."""
        return await self._request("POST", path, body, is_broken_off, waits_for_lost=waits_for_lost)

    async def command(self, path: str, body: Mapping[str, Any], *, retries: int | None = None) -> None:
        """A request whose answer carries nothing but its status. `retries` in place of the settings'."""
        await self._request("POST", path, body, expects_json=False, retries=retries)

    async def close(self) -> None:
        await self._http.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        is_broken_off: Callable[[Any], bool] = lambda _: False,
        *,
        expects_json: bool = True,
        repeated: frozenset[int] = REPEATED_STATUSES,
        retries: int | None = None,
        waits_for_lost: bool = True,
    ) -> dict[str, Any]:
        retries = self._config.retries if retries is None else retries
        async with self._slots:
            failure, num_tried = "", 0
            for attempt in range(retries + 1):
                pause_s, num_tried = 0.0, attempt + 1
                try:
                    response = await self._http.request(method, path, json=body)
                    if response.status_code in repeated:
                        failure = f"status {response.status_code}: {_said(response)[0]}"
                        pause_s = _retry_after_s(response)
                    elif is_broken_off(data := self._read(response, expects_json=expects_json)):
                        failure = "an answer that the server broke off"
                    else:
                        return data
                except httpx.TransportError as error:
                    if untrusted := rejection(error):
                        refused = EngineUnreachable(f"{self._config.base_url} cannot be spoken to: {untrusted}")
                        refused.is_retryable = False
                        raise refused from None
                    self.num_lost += 1
                    is_late = isinstance(error, httpx.TimeoutException)
                    failure = f"no answer in time ({type(error).__name__})" if is_late else f"{type(error).__name__}: {error}"
                    if not waits_for_lost:
                        break
                if attempt < retries:
                    self.num_retries += 1
                    await asyncio.sleep(self._pause_s(attempt, pause_s))
            raise EngineUnreachable(
                f"{self._config.base_url}{path} failed {num_tried} times, last with {failure}. Check that the server runs there and is "
                "healthy; retries, backoff_s and timeout_s of the engine's settings say how long to wait for it"
            )

    def _pause_s(self, attempt: int, asked_s: float) -> float:
        """Doubling, between half and all of it so that many clients do not come back at once; what the server asks for is the least."""
        doubling: float = self._config.backoff_s * 2**attempt * self._jitter.uniform(0.5, 1.0)
        return min(self._config.max_backoff_s, max(doubling, asked_s))

    def _read(self, response: httpx.Response, *, expects_json: bool) -> dict[str, Any]:
        where = f"{self._config.base_url}{response.request.url.path}"
        if response.status_code == UNAUTHORISED:
            variable = self._config.token_env
            held = f"the token in {variable} is not accepted" if variable else "no token was sent: set token_env to its variable"
            raise ModelError(f"{where} answered {response.status_code}: {held}")
        if response.is_error or response.is_redirect:
            message, code = _said(response)
            raise Refused(f"{where} answered {response.status_code}: {message}", response.status_code, code)
        if not expects_json:
            return {}
        try:
            data = response.json()
        except ValueError as error:
            raise ModelError(f"{where} did not answer with JSON but {response.text[:80]!r}: is this a policy server?") from error
        if not isinstance(data, dict):
            raise ModelError(f"{where} answered with a JSON {type(data).__name__}, not an object: is this a policy server?")
        return data


def token_in(variable: str) -> str:
    """Raises ConfigError for a variable that is not set, or whose text no header can carry."""
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"token_env names {variable}, which is not set: set it to the server's token, or remove token_env")
    return sendable(token, f"the variable {variable}")


def _said(response: httpx.Response) -> tuple[str, str]:
    """Message and code of an error, in OpenAI's shape, FastAPI's, or none."""
    try:
        data = response.json()
    except ValueError:
        return response.text[:MESSAGE_CHARS], ""
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return str(error)[:MESSAGE_CHARS], ""
    message = error.get("message") or error.get("detail") or error
    return str(message)[:MESSAGE_CHARS], str(error.get("code") or "")


def _retry_after_s(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; 0 where it does not say, or names a date."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
