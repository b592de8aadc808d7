"""Settings of verdicts that may err: the outcome reward model and how it is trained, the LLM judge, and the requirements on both.

What a judge reads is agent/judging/prompt.py, who judges is models/judges, how thresholds come about is
warehouse/evaluation/judge_reports.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent.judging.prompt import JudgePromptConfig
from models.http.config import HttpEngineConfig
from models.supervised.config import SupervisedConfig

Votes = Annotated[int, Field(ge=1, le=64, description="answers a case, whose scores are averaged; one is greedy, several are sampled")]


OWN_JUDGES = frozenset({"judge", "orm", "verifier", "human"})
"""Who gives V besides judges of a user's own."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OrmSettings(_Settings):
    """The generative outcome reward model: trained on episodes whose truth is known, then asked about those whose truth is not."""

    enabled: bool = Field(False, description="train an ORM in each iteration and let it judge; else its assets pass and say so")
    base: Literal["sft_model", "released_policy", "previous"] = Field(
        "previous", description="what it is trained from: this iteration's SFT, the policy that entered, or the ORM of before (first: SFT)"
    )
    training: SupervisedConfig = Field(
        SupervisedConfig(steps=700, learning_rate=2e-3, batch_tokens=2048), description="single-turn training on D_ORM"
    )
    min_samples: int = Field(40, ge=1, description="of each verdict, good and bad; with fewer the ORM of before is passed on")
    max_samples: int = Field(4000, ge=2, description="episodes that an iteration adds to D_ORM at most")
    claim_share: float = Field(
        0.0, ge=0, le=1, description="share of them, good and bad, whose last screen gets an injected claim of success"
    )
    votes: Votes = 1
    temperature: float = Field(0.7, gt=0, le=5, description="of the answers where there are several")
    max_new_tokens: int = Field(96, ge=8, description="tokens of the longest answer")


class JudgeSettings(_Settings):
    """A model behind an OpenAI-compatible server that judges against a reference, or a rubric."""

    engine: HttpEngineConfig | None = Field(None, description="the server; null: no such judge")
    rubrics: dict[str, str] = Field(
        default_factory=dict, description="by domain: what counts as carried out, for instances without a reference answer"
    )
    votes: Votes = 1
    repeats: int = Field(2, ge=0, le=20, description="times that an answer without a verdict is requested again")
    max_new_tokens: int = Field(256, ge=8, description="tokens of the longest answer")


class VerdictSettings(_Settings):
    """What judges that may err are shown and held to."""

    prompt: JudgePromptConfig = JudgePromptConfig()
    judge: JudgeSettings = JudgeSettings()
    judges: tuple[str, ...] = Field((), description="judges of your own that judge, by their names in plugins.judges (docs/plugins.md)")
    target_precision: float = Field(
        0.95, gt=0, le=1, description="a domain's threshold is the lowest that gives this on the eval part; false positives poison SFT"
    )
    min_passed: int = Field(
        20, ge=1, description="good episodes that a threshold needs; a domain with fewer borrows that of all; else a judge abstains"
    )
    max_measured: int = Field(400, ge=0, description="episodes of known truth that are judged to measure, for each of eval and holdout")
    unverified_domains: tuple[str, ...] = Field(
        (), description="domains whose verifier decides no route: a judge's word counts there, and the verifier only measures it"
    )

    @model_validator(mode="after")
    def _each_once(self) -> VerdictSettings:
        for key in ("unverified_domains", "judges"):
            named = getattr(self, key)
            if len(set(named)) != len(named):
                raise ValueError(f"{key} has a name twice: {', '.join(named)}")
        if taken := sorted(OWN_JUDGES & set(self.judges)):
            raise ValueError(f"judges names {', '.join(taken)}, which are Flywheel's own: call yours otherwise")
        return self
