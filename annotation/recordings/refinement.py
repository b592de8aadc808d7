"""The wording of thoughts, refined by an OpenAI-compatible model: a recogniser's words have no punctuation and many errors. Optional; the
raw words stay beside it.

What is sent (each thought, the action after it with its typed text, what that was done to, the window's title) leaves the machine where the
address is another's: so only what the person has looked through and confirmed, only to the address that they name, and sealed on its way.
What comes back has not been looked at: it takes the confirmation back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from annotation.recordings.addresses import is_here
from annotation.recordings.bundle import RecordedAction
from sandbox.actions import ACTION
from sandbox.http.chat import ChatClient
from warehouse.core.errors import ServerUnreachable, WordingFailed

MAX_TOKENS = 512
MAX_GROWTH = 3.0
INSTRUCTIONS = """A person thought aloud while using a computer, and speech recognition wrote it down with errors. Rewrite what was said
as one or two plain sentences in the first person. Keep the meaning; correct words that were misheard, using the action that followed; add
nothing that was not said. Leave words in square brackets as they are. If nothing sensible can be made of it, answer with an empty text.
Answer with JSON only: {"text": "..."}"""


class Refiner:
    """One endpoint, e.g. http://127.0.0.1:8000/v1."""

    def __init__(self, base_url: str, model: str, api_key: str = "", *, attempts: int = 3, pause_s: float = 1.0) -> None:
        """`pause_s`: before the second attempt; it doubles. Raises ConfigError for an address to which texts would go in the clear."""
        uses_proxies = not is_here(base_url)  # no proxy gets what stays on this machine
        self.model = model
        self._client = ChatClient(
            base_url, model, token=api_key, max_tokens=MAX_TOKENS, max_attempts=attempts, pause_s=pause_s, uses_proxies=uses_proxies
        )

    def close(self) -> None:
        self._client.close()

    def ask(self, instructions: str, text: str) -> str:
        """The model's answer. Raises WordingFailed where the endpoint fails."""
        try:
            return self._client.complete([{"role": "system", "content": instructions}, {"role": "user", "content": text}])
        except ServerUnreachable as error:
            raise WordingFailed(f"{error} Start it, or name another.") from error

    def refine(self, actions: Sequence[RecordedAction]) -> list[RecordedAction]:
        """Actions whose thoughts are reworded where the answer can be used: JSON, not empty, not much longer than what was said, with
        every bracket kept. Thoughts that the person wrote stay."""
        return [self._refined(action) for action in actions]

    def _refined(self, action: RecordedAction) -> RecordedAction:
        thought = action.thought
        if thought is None or not thought.raw or thought.origin == "person":
            return action
        target = f"{action.target.role} {action.target.text[:80]!r}" if action.target is not None else "unknown"
        said = json.dumps(
            {"said": thought.raw, "action": ACTION.dump_python(action.action, mode="json"), "on": target, "window": action.window.title},
            ensure_ascii=False,
        )
        text = text_of(self.ask(INSTRUCTIONS, said))
        if not text or len(text) > MAX_GROWTH * len(thought.raw) + 40 or _brackets(text) != _brackets(thought.raw):
            return action
        return action.model_copy(update={"thought": thought.model_copy(update={"text": text, "origin": "refined"})})


def text_of(answer: str) -> str:
    """The text of an answer {"text": "…"}; empty for anything else."""
    text = json_of(answer).get("text")
    return " ".join(text.split()) if isinstance(text, str) else ""


def json_of(answer: str) -> dict[str, Any]:
    """An answer in JSON, with or without a fence around it; empty for anything else."""
    body = answer.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return {key.strip(): each for key, each in value.items()} if isinstance(value, dict) else {}


def _brackets(text: str) -> list[str]:
    return sorted(part.partition("]")[0] for part in text.split("[")[1:])
