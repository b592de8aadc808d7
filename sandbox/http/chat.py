"""ChatClient: chat completions of any OpenAI-compatible server, sampled at temperature 0, for the commands that have texts worded. Policies
are asked through models/http, which needs token ids and log-probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from sandbox.http.certificates import verification
from warehouse.core.errors import ServerUnreachable

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
SHOWN_CHARACTERS = 200


class ChatClient:
    """One model of one server. Close it after use."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        token: str = "",
        timeout_s: float = 120.0,
        max_tokens: int = 1024,
        max_attempts: int = 3,
        pause_s: float = 1.0,
        uses_proxies: bool = False,
    ) -> None:
        """`base_url`: up to and with /v1. `pause_s`: before the second attempt; it doubles. `uses_proxies`: those that the environment
        names. Raises ConfigError where SSL_CERT_FILE holds no certificate."""
        self.base_url, self.model = base_url, model
        self._max_tokens, self._max_attempts, self._pause_s = max_tokens, max_attempts, pause_s
        self._http = httpx.Client(
            base_url=base_url,
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
            trust_env=uses_proxies,
            verify=verification(base_url),
        )

    def close(self) -> None:
        self._http.close()

    def complete(self, messages: Sequence[Mapping[str, str]]) -> str:
        """What the model answers, without what it thought before. Raises ServerUnreachable where the server fails each time, or its
        answer is not a chat completion."""
        body = {"model": self.model, "temperature": 0, "max_tokens": self._max_tokens, "messages": list(messages)}
        reason = ""
        for attempt in range(self._max_attempts):
            time.sleep(self._pause_s * 2 ** (attempt - 1) if attempt else 0)
            try:
                response = self._http.post("/chat/completions", json=body)
            except httpx.TransportError as error:
                reason = type(error).__name__
                continue
            except httpx.HTTPError as error:  # e.g. a packed body that cannot be unpacked
                reason = type(error).__name__
                break
            if response.status_code == httpx.codes.OK:
                return _content(response, self._name)
            reason = f"HTTP {response.status_code}: {response.text[:SHOWN_CHARACTERS]}"
            if response.status_code not in RETRIED:
                break
        raise ServerUnreachable(f"{self._name} did not answer: {reason}.")

    @property
    def _name(self) -> str:
        return f"The model {self.model} at {self.base_url}"


def _content(response: httpx.Response, name: str) -> str:
    try:
        parsed: Any = response.json()
        content = parsed["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        shown = response.text[:SHOWN_CHARACTERS]
        raise ServerUnreachable(f"{name} did not answer: what it says is not a chat completion: {shown!r}.") from error
    return str(content or "").rpartition("</think>")[2].strip()
