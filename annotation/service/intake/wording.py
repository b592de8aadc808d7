"""What a model adds to recordings that are taken in: other wordings of their tasks, and thoughts that say why (recording/enrichment.py).
Each request is made once: answers are kept beside the recording, so that importing it again gives the same samples without a request.

Nothing is sent of a recording whose person did not agree to that, nor what looks private in spite of all that was taken out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from annotation.config import WordingConfig
from annotation.recordings.bundle import Manifest
from annotation.recordings.consent import allows_models
from annotation.recordings.enrichment import other_wordings, with_reasons
from annotation.recordings.redaction import Redactor
from annotation.recordings.refinement import Refiner
from annotation.storage.parts import Answers
from warehouse.core.errors import ConfigError, WordingFailed
from warehouse.core.identity import content_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Worded:
    """A recording in other words: once for each, without those in which nothing changed. `problem`: why there are none."""

    others: tuple[Manifest, ...] = ()
    problem: str | None = None


class Wording:
    """Belongs to one intake: a model that did not answer once gets no further request in it. Close it after use."""

    def __init__(self, settings: WordingConfig) -> None:
        """Raises ConfigError where no address is named, for one to which texts would go in the clear, and for a token that is not there."""
        if settings.base_url is None:
            raise ConfigError("people.wording.base_url is null: there is no model to ask; set it to the address of one")
        token = os.environ.get(settings.token_env, "") if settings.token_env else ""
        if settings.token_env and not token:
            raise ConfigError(f"people.wording.token_env is {settings.token_env!r}, but that environment variable is empty: set it")
        self._settings = settings
        self._refiner = Refiner(settings.base_url, settings.model, token, attempts=settings.attempts)
        self.num_asked = 0
        self.failure: str | None = None

    def close(self) -> None:
        self._refiner.close()

    def of(self, manifest: Manifest, answers: Answers) -> Worded:
        """In other words, asked for or kept from before. Never raises for a model that is away: it says so."""
        if not allows_models(manifest.consent):
            return Worded(problem="signed before models were spoken of")
        asks = _Once(self, answers)
        try:
            queries = other_wordings(manifest.task.query, asks, self._settings.queries) if self._settings.queries else []
            actions = with_reasons(manifest, asks) if self._settings.reasons else manifest.actions
        except WordingFailed as error:
            self.failure = str(error)
            return Worded(problem="the model was away")
        variants = [manifest.task.query] * (actions != manifest.actions) + queries
        tasks = (manifest.task.model_copy(update={"query": query}) for query in variants)
        return Worded(others=tuple(manifest.model_copy(update={"task": task, "actions": actions}) for task in tasks))

    def ask(self, instructions: str, text: str) -> str:
        """Raises WordingFailed, without asking where the model was away before."""
        if self.failure is not None:
            raise WordingFailed(self.failure)
        self.num_asked += 1
        return self._refiner.ask(instructions, text)

    @property
    def model(self) -> str:
        return self._refiner.model


class _Once:
    """Asks what is not known of one recording."""

    def __init__(self, wording: Wording, answers: Answers) -> None:
        self._wording, self._answers = wording, answers

    def ask(self, instructions: str, text: str) -> str:
        if Redactor().find(text):
            return ""
        key = content_id("asked", [self._wording.model, instructions, text])
        known = self._answers.get(key)
        if known is None:
            known = self._wording.ask(instructions, text)
            self._answers.put(key, known)
        return known
