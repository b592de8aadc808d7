"""A judge of a user's own as a Judge: a Python function of a Case, or an address that is asked over HTTP.

    def judge(case: Case) -> bool | float | Verdict: ...     # or `async def`

The score of a Verdict counts; thresholds are chosen on episodes of known truth, as for every judge that may err.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from models.http.config import HttpEngineConfig
from models.judges.judge import Case, Judgement, bounded
from sandbox.session import Verdict
from warehouse.core.errors import ConfigError, EngineUnreachable, ModelError
from warehouse.core.identity import file_digest

Said = bool | float | Verdict
JudgeFunction = Callable[[Case], Said | Awaitable[Said]]
TOKEN_VARIABLE = "FLYWHEEL_JUDGE_TOKEN"
AT_ONCE = 8
"""Episodes that are asked about at once, of a judge that waits for somebody."""


class OwnJudge:
    """A Judge that calls a function. `version` is of the file that defines it, unless it has a `version` of its own."""

    origin: Literal["judge", "orm"] = "judge"

    def __init__(self, name: str, function: JudgeFunction) -> None:
        self.name, self._function = name, function
        self.version = str(getattr(function, "version", None) or _version_of(function))

    async def judge(self, cases: Sequence[Case]) -> list[Judgement]:
        """Raises ModelError, with the episode, for a function that fails or returns what is not a score; EngineUnreachable where an address
        does not answer."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(case: Case) -> Judgement:
            async with slots:
                return await self._judge(case)

        return list(await asyncio.gather(*(one(case) for case in cases)))

    async def _judge(self, case: Case) -> Judgement:
        started = time.monotonic()
        try:
            said = self._function(case)
            verdict = _verdict(await said if inspect.isawaitable(said) else said)
        except EngineUnreachable:
            raise
        except Exception as error:
            raise ModelError(f"judge {self.name!r}, episode {case.record.episode_id}: {type(error).__name__}: {error}") from error
        return Judgement(
            episode_id=case.record.episode_id,
            score=bounded(verdict.score),
            reasons=verdict.reasons,
            num_asked=1,
            num_readable=1,
            cost_tokens=None,
            cost_ms=1000 * (time.monotonic() - started),
        )


def _verdict(said: object) -> Verdict:
    """Raises TypeError or ValueError for what is not a score."""
    score = said.score if isinstance(said, Verdict) else said
    if not isinstance(score, bool | int | float):
        raise TypeError(f"it returned {said!r}: expected True or False, a score from 0 to 1, or a Verdict")
    if not 0 <= score <= 1:
        raise ValueError(f"it returned {said!r}: a score is from 0 to 1")
    return said if isinstance(said, Verdict) else Verdict(origin="judge", score=float(score), threshold=0.5)


def _version_of(function: JudgeFunction) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # a callable object: its class says where it is from
        path = inspect.getsourcefile(type(function))
    return file_digest(Path(path))[:16] if path else "unknown"


class AddressJudge:
    """What answers at an address as a judge. It is sent an episode by POST, as `episode_json` has it, and answers with JSON
    `{"score": 0.9, "reasons": ["…"]}`. The bearer token is that of FLYWHEEL_JUDGE_TOKEN, if it is set."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ConfigError(
                f"The judge {parts.scheme}://{parts.hostname} is not a plain address: write https://HOST/PATH, without name, password, "
                f"query or fragment. A token goes into {TOKEN_VARIABLE}."
            )
        self._config = HttpEngineConfig(
            base_url=f"{parts.scheme}://{parts.netloc}", token_env=TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else None
        )
        self._path = parts.path or "/"
        self.version = url

    async def __call__(self, case: Case) -> Verdict:
        from models.http.client import HttpClient

        client = HttpClient(self._config)
        try:
            said = await client.post(self._path, episode_json(case))
        finally:
            await client.close()
        score, reasons = said.get("score"), said.get("reasons", [])
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise ValueError(f"{self.version} answered with the score {score!r}: expected a number from 0 to 1")
        if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
            raise ValueError(f"{self.version} answered with the reasons {reasons!r}: expected a list of texts")
        return Verdict(origin="judge", score=float(score), threshold=0.5, reasons=tuple(reasons))


def episode_json(case: Case) -> dict[str, Any]:
    """An episode as an AddressJudge sends it: what was asked, all steps, the reference answer where there is one, and the screenshots that
    a prompt would show, in base64 by id."""
    images = {name: base64.b64encode(data).decode() for name, data in case.images.items()}
    return {"episode": asdict(case.record), "reference": case.reference, "screenshots": images}
