"""Settings of the scripted annotator, and of what a model adds to recordings. Light to import: profiles and requests are made of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

Mode = Literal["relabel", "intervene"]


class ScriptedAnnotatorConfig(BaseModel):
    """How the scripted annotator works in one round. The budgets are spread evenly over tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Annotated[Mode, Field(description="relabel finished episodes, or intervene in running ones")] = "relabel"
    temperature: Annotated[float, Field(ge=0, le=5, description="sampling temperature of the annotated policy; 0 is greedy")] = 0.0
    max_corrections: Annotated[int, Field(ge=0, description="steps overridden in a round")] = 250
    max_approvals: Annotated[int, Field(ge=0, description="steps approved in a round")] = 600
    max_interventions_per_episode: Annotated[int, Field(ge=1, description="intervene: corrections one episode may get")] = 3
    fix_typing: Annotated[
        bool,
        Field(
            validation_alias=AliasChoices("fix_typing", "mend_typing"),  # the second is what it was called before
            description="relabel: go on after wrong typing where the oracle knows a way back; else what follows counts as lost",
        ),
    ] = True


class WordingConfig(BaseModel):
    """What a model adds to people's recordings when they are taken in: the same steps in other words, as samples of origin `variation`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: Annotated[
        str | None,
        Field(description="OpenAI-compatible server, https:// or on this machine, e.g. http://127.0.0.1:8000/v1; null: no model is asked"),
    ] = None
    model: Annotated[str, Field(description="its name there")] = ""
    token_env: Annotated[str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="variable that holds the bearer token")] = None
    queries: Annotated[int, Field(ge=0, le=8, description="other wordings of each task, each with a further copy of its samples")] = 2
    reasons: Annotated[
        bool, Field(description="thoughts of the copies say why, and the task's own wording has one too; one request an action")
    ] = False
    attempts: Annotated[int, Field(ge=1, le=20, description="times that a request is sent before the model counts as away")] = 3

    @model_validator(mode="after")
    def _asks_for_something(self) -> WordingConfig:
        if self.base_url is not None and not self.model:
            raise ValueError("wording.model is empty: name the model that the server at wording.base_url answers with")
        if self.base_url is not None:
            from annotation.recordings.addresses import is_here  # brings an HTTP library

            is_here(self.base_url)
        if self.base_url is not None and not self.queries and not self.reasons:
            raise ValueError("wording requests nothing from the model: set queries to 1 or more, or reasons, or base_url to null")
        return self
