"""Samples: rows of `ct_samples` and `sft_samples` made of routed episodes, annotations, demonstrations and tutorials.

A sample is a chat: the prompt exactly as it was asked, and the answer that stands. The answer weighs 1 in the loss; the prompt weighs 0
for SFT and `ct_prompt_loss` for CT, which a training run scales again by its `prompt_loss_weight` (0, its default, learns answers only).
Which samples a run reads, and how often, is warehouse/mixing.py's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import duckdb

from warehouse.identity import content_id
from warehouse.salvage import SalvageConfig, pairs, trimmed_steps
from warehouse.withdrawal import TAKEN_BACK

Kind = Literal["ct", "sft", "orm"]

NO_LIMIT = 1 << 62
GENERAL = "general"
"""Domain of samples that belong to no task."""

_ROUTED_STEPS = f"""
select r.route, r.reason, e.domain, s.episode_id, s.step_index, s.messages, s.response
from routes r
join episodes e on e.episode_id = r.episode_id and e.iteration = r.iteration
join steps s on s.episode_id = r.episode_id and s.iteration = r.iteration
where r.iteration = $iteration and r.route <> 'withheld' and trim(s.response) <> ''
    and (r.route = 'ct' or not exists (
        from annotations a where a.episode_id = s.episode_id and a.step_index = s.step_index and a.iteration = r.iteration))
    and s.episode_id not in ({TAKEN_BACK})
order by s.episode_id, s.step_index
"""
"""Steps that speak for themselves. A step of a solved episode that an annotator has decided on comes in by that decision instead."""

_ANNOTATED_STEPS = """
select r.reason, e.domain, a.episode_id, a.step_index, a.annotation_id, a.messages, a.response
from annotations a
join routes r on r.episode_id = a.episode_id and r.iteration = a.iteration
join episodes e on e.episode_id = a.episode_id and e.iteration = a.iteration
where a.iteration = $iteration and r.route <> 'withheld'
    and a.decision in ('accept', 'edit', 'override') and not a.withdrawn and trim(coalesce(a.response, '')) <> ''
order by a.annotation_id
"""


def samples_from_routes(
    con: duckdb.DuckDBPyConnection, iteration: str, *, ct_prompt_loss: float = 1.0, salvage: SalvageConfig | None = None,
    left_out: Counter[str] | None = None,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """What joins D_CT and D_SFT in one iteration: rows by table name, in a fixed order.

    Episodes routed to CT and SFT give one sample a step. Steps that an annotator approved or corrected join D_SFT whatever the
    episode's V, with loss on that step's answer alone, unless the episode is withheld. A withdrawn annotation gives nothing. `salvage`
    says what else failed episodes give; on a connection that is read only by SQL of ours, since it makes temporary views there.
    `left_out` is told how many steps were not taken: `trimmed steps`, from the first wrong one of a failed episode on.
    """
    settings = salvage or SalvageConfig()
    first_wrong = trimmed_steps(con, settings) if settings.trim_failures else {}
    trimmed, ct = 0, list[dict[str, Any]]()
    sft: list[dict[str, Any]] = []
    for row in _rows(con, _ROUTED_STEPS, iteration):
        common = _common(row) | {"origin": "rollout"}
        if row["route"] == "ct" and not common["verdict"] and row["step_index"] >= first_wrong.get(row["episode_id"], NO_LIMIT):
            trimmed += 1
            continue
        if row["route"] == "ct":
            ct.append(sample_row("ct", prompt_loss=ct_prompt_loss, **common))
        else:
            sft.append(sample_row("sft", **common))
    for row in _rows(con, _ANNOTATED_STEPS, iteration):
        sft.append(sample_row("sft", origin="annotation", annotation_id=row["annotation_id"], **_common(row)))
    sft += pair_rows(con, iteration, settings)
    if left_out is not None:
        left_out["trimmed steps"] += trimmed
    return {"ct_samples": ct, "sft_samples": list({row["sample_id"]: row for row in sft}.values())}


def pair_rows(con: duckdb.DuckDBPyConnection, iteration: str, salvage: SalvageConfig) -> list[dict[str, Any]]:
    """Corrections and reflections of an iteration, as rows of `sft_samples`."""
    parts = ("origin", "domain", "messages", "response", "episode_id", "step_index")
    return [sample_row("sft", verdict=True, **{name: row[name] for name in parts}) for row in pairs(con, iteration, salvage)]


def demonstration_rows(episodes: Sequence[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `sft_samples` from solved demonstrations on train instances; others are left out. Takes rows of `episodes` and `steps`."""
    usable = {row["episode_id"]: row for row in episodes if row["outcome"] == "success" and row["split"] == "train"}
    return [
        sample_row(
            "sft", origin="demonstration", domain=usable[step["episode_id"]]["domain"], messages=step["messages"],
            response=step["response"], episode_id=step["episode_id"], step_index=step["step_index"], verdict=True,
        )
        for step in steps
        if step["episode_id"] in usable
    ]


def tutorial_rows(tutorials: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of `ct_samples` from tutorials, each a chat of messages (objects or mappings) with their own loss weights. A text that
    occurs twice is one sample."""
    rows = {}
    for messages in tutorials:
        row = _finish("ct", [_message(message) for message in messages], origin="tutorial", domain=GENERAL)
        rows[row["sample_id"]] = row
    return list(rows.values())


def chat_row(kind: Kind, *, origin: str, domain: str, messages: Iterable[Any], verdict: bool | None = None) -> dict[str, Any]:
    """One sample of a whole chat, whose messages have their own loss weights."""
    return _finish(kind, [_message(message) for message in messages], origin=origin, domain=domain, verdict=verdict)


def sample_row(
    kind: Kind, *, origin: str, domain: str, messages: Sequence[Any], response: str, prompt_loss: float = 0.0, **source: Any
) -> dict[str, Any]:
    """One sample: a prompt whose messages weigh `prompt_loss`, and the answer, which weighs 1. `source` names the columns
    episode_id, step_index, annotation_id and verdict, as far as there are any."""
    prompt = [_message(message) | {"loss": float(prompt_loss)} for message in messages]
    answer = {"role": "assistant", "content": response, "screenshot_id": None, "loss": 1.0}
    return _finish(kind, [*prompt, answer], origin=origin, domain=domain, **source)


def _finish(kind: Kind, messages: list[dict[str, Any]], *, origin: str, domain: str, **source: Any) -> dict[str, Any]:
    made_from = {name: source.pop(name, None) for name in ("episode_id", "step_index", "annotation_id")}
    verdict = source.pop("verdict", None)
    if source:
        raise TypeError(f"a sample has no column {sorted(source)}; allowed are episode_id, step_index, annotation_id, verdict")
    return {
        "sample_id": content_id("sample", [kind, origin, messages, *made_from.values()]), "origin": origin, "domain": domain,
        "messages": messages, **made_from, "verdict": verdict, "withdrawn": False,
    }


def _message(message: Any) -> dict[str, Any]:
    read = message.get if isinstance(message, Mapping) else lambda name, default=None: getattr(message, name, default)
    return {
        "role": read("role"), "content": read("content"), "screenshot_id": read("screenshot_id", None),
        "loss": float(read("loss", 0.0) or 0.0),
    }


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("domain", "messages", "response", "episode_id", "step_index")} | {
        "verdict": str(row["reason"]).startswith("V=1")
    }


def _rows(con: duckdb.DuckDBPyConnection, query: str, iteration: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = con.sql(query, params={"iteration": iteration}).to_arrow_table().to_pylist()
    return rows
