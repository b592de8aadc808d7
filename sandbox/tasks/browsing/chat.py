"""A model behind any OpenAI-compatible server, as Rewriter and as ClosedBook: one request each."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sandbox.http.chat import ChatClient
from sandbox.http.tokens import sendable
from warehouse.core.errors import ConfigError

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
        token = ""
        if settings.token_env is not None:
            token = os.environ.get(settings.token_env, "").strip()
            if not token:
                raise ConfigError(f"token_env is {settings.token_env!r}, but that environment variable is empty: set it to the token.")
            token = sendable(token, f"the variable {settings.token_env}")
        self._client = ChatClient(
            settings.base_url,
            settings.model,
            token=token,
            timeout_s=settings.timeout_s,
            max_tokens=settings.max_tokens,
            max_attempts=settings.max_attempts,
            pause_s=settings.pause_s,
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
        self._client.close()

    def _ask(self, prompt: str) -> str:
        return self._client.complete([{"role": "user", "content": prompt}])
