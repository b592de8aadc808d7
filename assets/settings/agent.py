"""Who acts: the policy that the first iteration starts from, how a policy is prompted and answers, and the agent program that may stand in
its place.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agent.grammars.base import Grammar
from agent.grammars.registry import grammar_named
from agent.grammars.uitars15 import UiTars15Grammar
from agent.prompts.prompt import PromptBuilder
from agent.prompts.texts import Mode, standing_text, task_alone
from warehouse.core.errors import ConfigError

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
TOKEN_SHIFT = 3
"""Of the quickstart's model, as models/families/shift_qwen3.py has it."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PolicySettings(_Settings):
    """The policy that the first iteration starts from."""

    source: Literal["quickstart", "small-vision", "medium-vision", "checkpoint", "huggingface"] = Field(
        "quickstart",
        description="quickstart: our tiny model with random weights; small-vision, medium-vision: a Qwen2-VL of 2.7 or 82 million "
        "parameters with random weights, which sees (models/families/tiny_vision.py); checkpoint: a folder as save_pretrained "
        "writes it, ours or any other; huggingface: a model of the hub, or of its cache on this machine",
    )
    token_shift: int = Field(
        TOKEN_SHIFT,
        ge=2,
        le=16,
        exclude_if=lambda value: value == TOKEN_SHIFT,
        description="quickstart: each position also reads so many tokens before it, at its input (models/families/shift_qwen3.py): "
        "elements whose names end alike are told apart where this reaches their first words",
    )
    model: str | None = Field(
        None, description="the folder (from the working directory), or the name on the hub, e.g. Qwen/Qwen2-VL-2B-Instruct"
    )
    revision: str | None = Field(None, description="branch, tag or commit on the hub; null: its main branch, whatever that is on the day")
    dtype: Literal["as stored", "float32", "bfloat16", "float16"] = Field(
        "as stored", description="dtype of the stored weights; one other than the model's needs to load the whole model once"
    )
    link: bool = Field(
        False, description="hard-link the weight files instead of copying them; the folder they come from must then not change"
    )

    @model_validator(mode="after")
    def _model_where_there_is_one(self) -> PolicySettings:
        if self.is_random != (self.model is None):
            raise ValueError(
                f"policy.source is {self.source!r} and policy.model is {self.model!r}: set a model for `checkpoint` and `huggingface`, "
                "and none for what begins with random weights"
            )
        if self.is_random and self.dtype not in ("as stored", "float32"):
            raise ValueError(f"policy.dtype is {self.dtype!r}: the {self.source} policy has float32 weights: use float32 or remove it")
        if self.token_shift != TOKEN_SHIFT and self.source != "quickstart":
            raise ValueError(f"policy.token_shift is {self.token_shift}: the {self.source} policy has no token shift: remove the setting")
        return self

    @property
    def is_random(self) -> bool:
        """Whether it begins with random weights, built here."""
        return self.source not in ("checkpoint", "huggingface")


class AgentSettings(_Settings):
    """How a policy is prompted and answers, in every stage that acts and in its training data. A null setting has the default of the
    grammar's kind of prompt (agent/prompts/prompt.py)."""

    grammar: str = Field("compact", description="how answers are written, as agent/grammars/registry.py names it: uitars15, uitars2:TOKEN")
    mode: Mode = Field("computer", description="standing text of the chat grammars")
    standing: Literal["full", "task"] = Field(
        "full",
        exclude_if=lambda value: value == "full",
        description="what opens a chat prompt: role, actions and task, or the task alone, for policies too small to read the rest",
    )
    window: Positive | None = Field(None, description="working memory: so many last steps stand in the prompt (compact 4, chat 100)")
    episodic_chars: Count | None = Field(
        None, description="episodic memory: length of the summary of earlier steps; 0 switches it off (compact 160, chat 1600)"
    )
    notes: bool = Field(False, description="add to each past step what came into view after it")
    max_prompt_tokens: Positive | None = Field(
        None, description="the oldest history is left out of a longer prompt (compact 960, chat 32000)"
    )
    max_new_tokens: Positive = Field(96, description="tokens of the longest answer")
    max_screenshots: Count = Field(5, description="pictures in a chat prompt, the current one included; older turns keep their text")
    max_image_pixels: Positive | None = Field(
        None,
        description="area that a larger picture is shrunk to before a vision-language policy reads it: set in its image processor when it "
        "is taken in, and what uitars15 counts pixels in; null: as the model comes",
    )
    list_elements: bool = Field(False, description="add the elements to a chat prompt, for models that do not see")

    @field_validator("grammar")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            return grammar_named(name).name
        except ConfigError as error:
            raise ValueError(str(error)) from error

    def builder(self) -> PromptBuilder:
        """The prompt builder of every stage and of tutorials."""
        grammar: Grammar = grammar_named(self.grammar)
        if isinstance(grammar, UiTars15Grammar) and self.max_image_pixels is not None:
            grammar = UiTars15Grammar(max_area_px=self.max_image_pixels)
        return PromptBuilder(
            grammar,
            window=self.window,
            episodic_chars=self.episodic_chars,
            notes=self.notes,
            max_tokens=self.max_prompt_tokens,
            max_screenshots=self.max_screenshots,
            mode=self.mode,
            list_elements=self.list_elements,
            standing=standing_text if self.standing == "full" else task_alone,
        )


class HarnessSettings(_Settings):
    """An agent program of one's own that acts in place of this project's agent (docs/harnesses.md)."""

    name: str = Field(description="of a harness, as `plugins.harnesses` or an installed package registers it")
    upstream: str | None = Field(
        None, pattern=r"^https?://", description="a server that answers instead of the policy, e.g. a larger model's, to learn from"
    )
    token_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="variable that holds the upstream's bearer token")
    max_tokens: Positive = Field(4096, description="longest answer that the program may ask of the policy")
    num_at_once: Positive = Field(2, description="programs that run at once, each with a browser of its own")
    devtools: bool = Field(True, description="give it its browser's DevTools address; a script that it runs in the page can set the reward")


class LearnerHarnessSettings(HarnessSettings):
    """Of a program that plays RL's episodes: what earns a reward there is learned."""

    devtools: bool = Field(False, description="as of a harness that collects; RL would find out that such scripts are paid")
