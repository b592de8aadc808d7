"""The wording of thoughts, refined by an OpenAI-compatible model: a recogniser's words have no punctuation and many errors. Optional; the
raw words stay beside it. Only redacted words are sent, and only to the address that the person names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx

from annotation.recording.bundle import RecordedAction
from sandbox.actions import ACTION
from warehouse.errors import UploadFailed

LIMIT_S = 120.0
MAX_GROWTH = 3.0
INSTRUCTIONS = """A person thought aloud while using a computer, and speech recognition wrote it down with errors. Rewrite what was said
as one or two plain sentences in the first person. Keep the meaning; correct words that were misheard, using the action that followed; add
nothing that was not said. Leave words in square brackets as they are. If nothing sensible can be made of it, answer with an empty text.
Answer with JSON only: {"text": "..."}"""


class Refiner:
    """One endpoint, e.g. http://127.0.0.1:8000/v1."""

    def __init__(self, base_url: str, model: str, api_key: str = "") -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base_url.rstrip("/") + "/", headers=headers, timeout=LIMIT_S)
        self._model = model

    def close(self) -> None:
        self._client.close()

    def ask(self, instructions: str, text: str) -> str:
        """The model's answer. Raises UploadFailed where the endpoint fails."""
        body = {
            "model": self._model, "temperature": 0,
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": text}],
        }  # fmt: skip
        try:
            answer = self._client.post("chat/completions", json=body)
            answer.raise_for_status()
            return str(answer.json()["choices"][0]["message"]["content"] or "")
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise UploadFailed(f"The model at {self._client.base_url} did not answer ({type(error).__name__}).") from error

    def refine(self, actions: Sequence[RecordedAction]) -> list[RecordedAction]:
        """Actions whose thoughts are worded anew where the answer can be used: JSON, not empty, not much longer than what was said, with
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
        )  # fmt: skip
        text = read_text(self.ask(INSTRUCTIONS, said))
        if not text or len(text) > MAX_GROWTH * len(thought.raw) + 40 or _brackets(text) != _brackets(thought.raw):
            return action
        return action.model_copy(update={"thought": thought.model_copy(update={"text": text, "origin": "refined"})})


def read_text(answer: str) -> str:
    """The text of an answer {"text": "…"}, with or without a fence around it; empty for anything else."""
    body = answer.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    text = value.get("text") if isinstance(value, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else ""


def _brackets(text: str) -> list[str]:
    return sorted(part.partition("]")[0] for part in text.split("[")[1:])
