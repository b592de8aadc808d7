"""Where training runs are reported to besides their own files. Light: a profile and requests carry it; what it does is tracking.py's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TrackingConfig(BaseModel):
    """One setting for CT, SFT, the ORM and RL alike."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report_to: Annotated[
        tuple[Literal["mlflow"], ...],
        Field(description="trackers that curves go to, besides metrics.jsonl, TensorBoard's files and the table training_metrics"),
    ] = ()
    project: Annotated[str, Field(min_length=1, max_length=128, description="the experiment; MLFLOW_EXPERIMENT_NAME goes before it")] = (
        "flywheel"
    )
