"""Outcomes from a run of Prime Intellect's verifiers (0.4) whose model calls went through a gateway: verifiers names each call by its
trace (the header X-Session-ID), which names the episode with `--episode-header`, and its `traces.jsonl` has the rewards by trace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.http.certificates import verification
from warehouse.core.errors import ConfigError, EngineUnreachable

TRACES_FILE = "traces.jsonl"
MOST_REASONS = 20
ROUNDING = 1e-9
"""Weighted rewards that make up `success_at` may sum to a little less."""
TIMEOUT_S = 60.0
CONFLICT, UNKNOWN = 409, 404


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Reward(_Lenient):
    score: Annotated[float, Field(allow_inf_nan=False)]
    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class Trace(_Lenient):
    """What is read of a trace. `rewards` is None by name where scoring did not run."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    rewards: dict[str, Reward | None] = {}
    ok: bool = False

    @property
    def reward(self) -> float | None:
        """The weighted sum, as verifiers defines it; None where nothing was scored or the run failed."""
        scored = [one for one in self.rewards.values() if one is not None]
        return sum(one.score * one.weight for one in scored) if scored and self.ok else None

    def solves(self, success_at: float) -> bool:
        return self.reward is not None and self.reward >= success_at - ROUNDING


@dataclass(slots=True)
class Posted:
    """What became of the traces of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """In words, of traces whose outcome was refused."""

    @property
    def is_complete(self) -> bool:
        """Whether every trace with a reward has its outcome now."""
        return not self.counts["refused"] and not self.counts["not of this gateway"]


def read_traces(path: Path) -> Iterator[Trace]:
    """Of `traces.jsonl`, or of the folder of a run. A line is an episode with its traces, or a trace. Raises ConfigError, which names the
    line."""
    file = path / TRACES_FILE if path.is_dir() else path
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from _of_line(line, f"{file}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): give the folder that `vf-eval` wrote, or its {TRACES_FILE}") from error


def _of_line(line: str, where: str) -> list[Trace]:
    try:
        row = json.loads(line)
        return [Trace.model_validate(one) for one in (row["traces"] if isinstance(row, dict) and "traces" in row else [row])]
    except (ValueError, TypeError, RecursionError) as error:
        words = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"{where} is not a trace of verifiers 0.4: {words}") from error


def post_outcomes(path: Path, url: str, token: str, *, success_at: float, by: str) -> Posted:
    """Give each episode of the gateway at `url` that a trace of the run names its outcome: V = 1 from a reward of `success_at` on. The
    same run may be posted again. Raises ConfigError, EngineUnreachable."""
    posted = Posted()
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=verification(url)) as client:
        for trace in read_traces(path):
            if trace.reward is None:
                posted.counts["without a reward"] += 1
                continue
            try:
                _post(client, trace, posted, success_at, by)
            except httpx.HTTPError as error:
                raise EngineUnreachable(f"the gateway at {url} did not answer ({error!r}): is `flywheel gateway serve` running?") from error
    return posted


def _post(client: httpx.Client, trace: Trace, posted: Posted, success_at: float, by: str) -> None:
    rewards = [f"{name}: {one.score:g} × {one.weight:g}" for name, one in sorted(trace.rewards.items()) if one is not None]
    asked = {"value": int(trace.solves(success_at)), "by": by, "reasons": [f"reward {trace.reward:g}", *rewards][:MOST_REASONS]}
    answer = client.post(f"/episodes/{quote(trace.id, safe='')}/outcome", json=asked)
    if answer.status_code == httpx.codes.OK:
        posted.counts["solved" if asked["value"] else "not solved"] += 1
    elif answer.status_code == UNKNOWN:
        posted.counts["not of this gateway"] += 1
    elif answer.status_code == CONFLICT:
        posted.counts["refused"] += 1
        posted.problems.append(f"{trace.id}: {_words(answer)}")
    else:
        raise ConfigError(f"the gateway refuses the outcome of trace {trace.id} ({answer.status_code}): {_words(answer)}")


def _words(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
