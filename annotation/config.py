"""Settings of the scripted annotator. Light to import: profiles and requests are made of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["relabel", "intervene"]


class ScriptedAnnotatorConfig(BaseModel):
    """How the scripted annotator works in one round. The budgets are spread evenly over tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Annotated[Mode, Field(description="relabel finished episodes, or intervene in running ones")] = "relabel"
    temperature: Annotated[float, Field(ge=0, le=5, description="sampling temperature of the annotated policy; 0 is greedy")] = 0.0
    max_corrections: Annotated[int, Field(ge=0, description="steps overridden in a round")] = 250
    max_approvals: Annotated[int, Field(ge=0, description="steps approved in a round")] = 600
    max_interventions_per_episode: Annotated[int, Field(ge=1, description="intervene: corrections one episode may get")] = 3
    mend_typing: Annotated[
        bool, Field(description="relabel: go on after wrong typing where the oracle knows a way back; else what follows counts as lost")
    ] = True
