"""A model behind any OpenAI-compatible server, as Rewriter and as ClosedBook: one request each, sampled at temperature 0."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from sandbox.http.certificates import verification
from sandbox.http.tokens import sendable
from warehouse.core.errors import ConfigError, ServerUnreachable

REPEATED = frozenset({408, 429, 500, 502, 503, 504})
REWRITE = (
    "Put this question into natural English, in fewer sentences if that reads better. Keep every number, every quoted text, every name and "
    "every initial letter exactly as it stands. Add nothing, and do not answer it. Reply with the question alone.\n\n"
)
ANSWER = "Answer from memory, with the name or value alone and nothing else. If you do not know, reply: unknown.\n\n"


class ChatSettings(BaseModel):
    """Which model, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: Annotated[str, Field(pattern=r"^https?://", description="up to and with /v1, e.g. http://127.0.0.1:8000/v1")]
    model: Annotated[str, Field(min_length=1)]
    token_env: Annotated[str | None, Field(description="environment variable that holds the token")] = None
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    max_attempts: Annotated[int, Field(ge=1)] = 4
    pause_s: Annotated[float, Field(ge=0, description="before the second attempt; doubled before each further one")] = 1.0


class ChatModel:
    """Satisfies Rewriter and ClosedBook. Close it after use."""

    def __init__(self, settings: ChatSettings) -> None:
        """Raises ConfigError where the token's variable is not set."""
        self._settings = settings
        headers = {}
        if settings.token_env is not None:
            token = os.environ.get(settings.token_env, "").strip()
            if not token:
                raise ConfigError(f"token_env is {settings.token_env!r}, but that environment variable is empty: set it to the token.")
            headers["authorization"] = f"Bearer {sendable(token, f'the variable {settings.token_env}')}"
        self._http = httpx.Client(
            base_url=settings.base_url, headers=headers, timeout=settings.timeout_s, trust_env=False, verify=verification(settings.base_url)
        )

    @property
    def name(self) -> str:
        return self._settings.model

    def rewrite(self, question: str) -> str:
        """Raises ServerUnreachable."""
        return self._ask(REWRITE + question)

    def answer(self, question: str) -> str:
        """The last line of what it says. Raises ServerUnreachable."""
        return (self._ask(ANSWER + question).splitlines() or [""])[-1].strip()

    def close(self) -> None:
        self._http.close()

    def _ask(self, prompt: str) -> str:
        body = {
            "model": self._settings.model,
            "temperature": 0,
            "max_tokens": self._settings.max_tokens,
            "messages": [{"role": "user", "content": prompt}],
        }
        reason = ""
        for attempt in range(self._settings.max_attempts):
            if attempt:
                time.sleep(self._settings.pause_s * 2 ** (attempt - 1))
            try:
                response = self._http.post("/chat/completions", json=body)
            except httpx.TransportError as error:
                reason = repr(error)
                continue
            if response.status_code == 200:
                return _content(response)
            reason = f"HTTP {response.status_code}: {response.text[:200]}"
            if response.status_code not in REPEATED:
                break
        raise ServerUnreachable(f"{self._settings.model} at {self._settings.base_url} did not answer: {reason}")


def _content(response: httpx.Response) -> str:
    """What the model said, without what it thought before."""
    try:
        parsed: Any = response.json()
        content = parsed["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise ServerUnreachable(f"The server's answer is not a chat completion: {response.text[:200]!r}") from error
    return str(content or "").rpartition("</think>")[2].strip()
