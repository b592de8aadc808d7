"""A decision of an annotator, person or program, as a row of the table `annotations` (warehouse/storage/catalogue.py)."""

from __future__ import annotations

from typing import Any

from warehouse.core.identity import content_id

Row = dict[str, Any]


def annotation_row(
    *,
    episode_id: str,
    step_index: int,
    annotator: str,
    origin: str,
    mode: str,
    decision: str,
    proposal: str,
    response: str | None,
    messages: list[Any],
) -> Row:
    """A row of the table `annotations`, under the id of its content."""
    return {
        "annotation_id": content_id("annotation", [episode_id, step_index, annotator, mode, response]),
        "episode_id": episode_id,
        "step_index": step_index,
        "annotator": annotator,
        "origin": origin,
        "mode": mode,
        "decision": decision,
        "proposal": proposal,
        "response": response,
        "messages": messages,
        "withdrawn": False,
    }
