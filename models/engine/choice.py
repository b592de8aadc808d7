"""Who answers when a policy acts: the embedded engine, in this process or in servers of its own, or a policy server. Light: reading a
profile imports no HTTP library and no torch. pipelines/stages/engines.py builds the engines.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.engine.settings import EngineSettings
from models.http.config import HttpEngineConfig


class EngineChoice(BaseModel):
    """Who answers when a policy acts: this process, servers that it starts for itself, or one that somebody started. A stage's own
    checkpoint answers in any case: a server is made to load it, and refused where it cannot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Annotated[
        Literal["embedded", "served", "http"],
        Field(description="embedded: the engine in this process; served: in servers that this process starts and ends; http: a server"),
    ] = "embedded"
    replicas: Annotated[
        int, Field(ge=1, le=64, exclude_if=lambda value: value == 1, description="servers that are started, for kind served")
    ] = 1
    http: Annotated[HttpEngineConfig | None, Field(description="the server, for kind http")] = None
    device: Annotated[
        str,
        Field(
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="where the embedded engine runs; auto: on the GPU where there is one; of several servers cuda:N is the first one's",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(description="of the embedded engine's weights; auto: float32, and while a policy learns, the type of what learns"),
    ] = "auto"
    settings: Annotated[EngineSettings, Field(description="of the embedded engine: rows, memory, context, threads")] = EngineSettings()

    @model_validator(mode="after")
    def _servers_where_they_are_asked(self) -> EngineChoice:
        if (self.kind == "http") != (self.http is not None):
            raise ValueError(f"kind is {self.kind!r} and http is {'set' if self.http else 'null'}: give `http` if and only if kind is http")
        if self.replicas > 1 and self.kind != "served":
            raise ValueError(
                f"replicas is {self.replicas} and kind is {self.kind!r}: only kind served starts servers; further servers of "
                "kind http are engine.http.replicas"
            )
        return self
