"""An upstream's answer put together, whole or chunk by chunk: texts, calls, token ids and log-probabilities of each choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.gateway.records import Called, Said
from models.gateway.upstream import policy_of


@dataclass(slots=True)
class Choice:
    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    policy_id: str | None = None
    finish: str | None = None

    def said(self) -> Said:
        calls = tuple(Called(**call) for _, call in sorted(self.calls.items()))
        return Said(role="assistant", pieces=(self.text,) if self.text else (), calls=calls)

    def add(self, choice: Mapping[str, Any]) -> None:
        said = choice.get("message") or choice.get("delta") or {}
        self.text += said.get("content") or ""
        for place, call in enumerate(said.get("tool_calls") or ()):
            self._add_call(call.get("index", place if "message" in choice else len(self.calls)), call)
        self.token_ids += choice.get("token_ids") or ()
        self.logprobs += [float(entry["logprob"]) for entry in (choice.get("logprobs") or {}).get("content") or ()]
        policy_id, versions = policy_of(choice)
        self.policy_id, self.versions = self.policy_id or policy_id, self.versions + versions
        self.finish = choice.get("finish_reason") or self.finish

    def _add_call(self, index: int, call: Mapping[str, Any]) -> None:
        known = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["name"] = function.get("name") or known["name"]
        known["arguments"] += function.get("arguments") or ""


@dataclass(slots=True)
class Gathering:
    """`num`: choices that were asked for."""

    num: int = 1
    prompt_token_ids: list[int] = field(default_factory=list)
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Gathering:
        """Of a whole answer."""
        gathered = cls()
        gathered.add(data)
        return gathered

    def add(self, data: Mapping[str, Any]) -> None:
        """A whole answer, or its next chunk."""
        self.usage = data.get("usage") or self.usage
        for choice in data.get("choices") or ():
            prompt = choice.get("prompt_token_ids") or data.get("prompt_token_ids")
            self.prompt_token_ids = self.prompt_token_ids or list(prompt or ())
            self.choices.setdefault(int(choice.get("index") or 0), Choice()).add(choice)

    @property
    def is_ended(self) -> bool:
        return len(self.choices) >= self.num and all(choice.finish is not None for choice in self.choices.values())

    @property
    def first(self) -> Choice:
        return self.choices[0] if 0 in self.choices else Choice()
