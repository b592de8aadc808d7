"""What every materialization says about itself, in one shape: counts, figures, durations, digests of code and configuration, table
versions, a data version, and a picture where one helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import BaseModel

from assets.stages.asset_keys import ITERATION_OUTPUT
from assets.stages.requests import StageResult
from warehouse.core.code import code_digest
from warehouse.core.identity import content_id, long_list_id

ITERATIONS_DRAWN = 12
"""Newest iterations in a picture that Dagster keeps of each of them; all are in the report."""


def config_digest(config: BaseModel) -> str:
    return content_id("config", config.model_dump(mode="json"))


def picture(markdown: str) -> dg.MarkdownMetadataValue:
    """An inline picture (see warehouse/reporting/svg.py: `as_markdown`)."""
    return dg.MetadataValue.md(markdown)


def describe(
    *,
    config: BaseModel | None = None,
    counts: Mapping[str, int] | None = None,
    figures: Mapping[str, float] | None = None,
    read: Mapping[str, int] | None = None,
    wrote: Mapping[str, int] | None = None,
    duration_s: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Metadata of one materialization. `read` and `wrote` are table versions. Dagster shows it in this order: what a person would look
    at first comes first (`more`: pictures, names, reasons), what only a machine compares last."""
    metadata: dict[str, Any] = {**more, "lineage": dg.MetadataValue.asset(ITERATION_OUTPUT)}
    metadata.update({name: float(value) for name, value in (figures or {}).items()})
    metadata.update({name: int(value) for name, value in (counts or {}).items()})
    if duration_s is not None:
        metadata["duration_s"] = round(duration_s, 2)
    metadata.update({f"read/{table}": version for table, version in (read or {}).items()})
    metadata.update({f"wrote/{table}": version for table, version in (wrote or {}).items()})
    if config is not None:
        metadata["config"] = config_digest(config)
    return metadata | {"code": code_digest()}


def of_result(result: StageResult, *, config: BaseModel | None = None, **more: Any) -> dict[str, Any]:
    """Metadata of a stage that a worker did."""
    return describe(
        config=config,
        counts=result.counts,
        figures=result.metrics,
        read=result.read_versions,
        wrote=result.table_versions,
        duration_s=result.duration_s,
        **{**more, **result.notes},
    )


def data_version(*parts: Any) -> dg.DataVersion:
    """The data version of an output, from what determines it."""
    return dg.DataVersion(content_id("data", list(parts)))


def data_version_in_parts(parts: Iterable[Sequence[Any]]) -> dg.DataVersion:
    """`data_version` of one list that comes in parts and need not fit memory."""
    return dg.DataVersion(long_list_id("data", parts))
