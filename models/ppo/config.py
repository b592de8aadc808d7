"""Every setting of reinforcement learning, with its default and where that comes from. Flat, frozen, serialisable; no code.

Defaults are the quickstart's, measured on live browsers with a 0.5 M parameter policy. VAPO is arXiv 2504.05118, UI-TARS-2 2509.02544.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class PpoConfig(BaseModel):
    """One specialist's reinforcement learning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Annotated[Literal["ppo", "reinforce"], Field(description="ppo: critic and GAE; reinforce: per-task baseline, no critic")] = (
        "ppo"
    )
    mode: Annotated[Literal["learn", "replay_only"], Field(
        description="replay_only is a benchmark's control: as many episodes and as much compute, every advantage 0, so only replay teaches"
    )] = "learn"  # fmt: skip
    seed: Annotated[int, Field(ge=0, description="of minibatch order and replay choice; episodes sample by their own ids")] = 0

    # Collection
    rounds: Annotated[Count, Field(description="collect-then-update rounds")] = 6
    episodes_per_task: Annotated[Count, Field(description="episodes a task and round on average, each on a seed of its own")] = 28
    adaptive_episodes: Annotated[bool, Field(description="spend a round's episodes on the tasks whose outcome is open")] = False
    seed_offset: Annotated[
        int, Field(ge=0, description="train seeds of each task to skip, so that no run meets the seeds of an earlier one")
    ] = 0
    temperature: Annotated[Positive, Field(description="sampling temperature; the loss uses the same distribution")] = 1.0
    screenshots: Annotated[bool, Field(description="record screenshots of learning episodes; a text policy does without")] = False
    reward: Annotated[
        Literal["success", "score"],
        Field(description="success: the verdict, 0 or 1, at the end (binary, as UI-TARS-2); score: the verifier's number and step rewards"),
    ] = "success"

    # Advantages
    level: Annotated[Literal["token", "step"], Field(
        description="what GAE runs over: every response token, or one decision a step, valued at its first response token"
    )] = "step"  # fmt: skip
    gamma: Annotated[float, Field(gt=0, le=1, description="discount per token or step; 1 in UI-TARS-2's sources")] = 1.0
    lambda_policy: Annotated[Fraction | None, Field(description="fixed trace of the policy's advantages; null: length-adaptive")] = None
    lambda_alpha: Annotated[
        Positive, Field(description="length-adaptive lambda = 1 - 1/(alpha l), l response tokens (VAPO; UI-TARS-2)")
    ] = 0.05
    lambda_floor: Annotated[
        Fraction, Field(description="lowest lambda; without it episodes below 1/alpha tokens would get a negative one")
    ] = 0.95
    lambda_critic: Annotated[Fraction, Field(description="trace of the critic's targets; 1 is the Monte-Carlo return (VC-PPO, VAPO)")] = 1.0
    bootstrap_truncated: Annotated[bool, Field(
        description="an episode cut off by its step limit ends in the critic's value instead of 0"
    )] = True  # fmt: skip
    baseline_std_floor: Annotated[Positive, Field(description="added to the standard deviation of a task's rewards")] = 0.1
    advantage_clip: Annotated[Positive, Field(description="advantages are clipped to +-this after scaling")] = 2.0
    skip_uniform_tasks: Annotated[bool, Field(description="no policy gradient from a task whose episodes were all rewarded alike")] = True

    # Policy update
    clip_low: Annotated[float, Field(gt=0, lt=1, description="1 - clip_low bounds the ratio from below (VAPO)")] = 0.2
    clip_high: Annotated[Positive, Field(description="1 + clip_high bounds the ratio from above: clip-higher (DAPO, VAPO)")] = 0.28
    aggregation: Annotated[Literal["token", "episode", "step"], Field(
        description="episode: summed over an episode's tokens, mean over episodes; token: mean over tokens; step: mean over steps"
    )] = "episode"  # fmt: skip
    episode_scale: Annotated[Positive, Field(description="divides the episode-wise loss; about the tokens that decide in an episode")] = 6.0
    kl_coefficient: Annotated[float, Field(ge=0, description="penalty for leaving the initial policy; none in UI-TARS-2's objective")] = 0.0
    max_kl: Annotated[Positive, Field(description="a round stops after an epoch whose approximate KL exceeds this, in nats a step")] = 0.04
    epochs: Annotated[Count, Field(description="passes over a round's episodes")] = 2
    minibatch_episodes: Annotated[Count, Field(description="episodes an optimizer step")] = 48
    microbatch_tokens: Annotated[
        Count, Field(description="padded tokens of one forward pass; changes speed and memory, not the result")
    ] = 6144
    learning_rate: Positive = 2e-4
    warmup_updates: Annotated[Count, Field(description="optimizer steps of linear warm-up, once a run")] = 10
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.99
    grad_clip: Positive = 1.0
    replay_weight: Annotated[
        float, Field(ge=0, description="weight of the supervised loss on replayed samples (VAPO's auxiliary loss: 0.1)")
    ] = 0.1
    replay_sft: Annotated[int, Field(ge=0, description="SFT samples an optimizer step")] = 24
    replay_ct: Annotated[int, Field(ge=0, description="CT samples an optimizer step")] = 16

    # Critic
    critic_learning_rate: Positive = 5e-4
    critic_weight_decay: Annotated[float, Field(ge=0)] = 0.01
    critic_epochs: Annotated[Count, Field(description="passes over a round's episodes, after the gate")] = 1
    critic_minibatch_tokens: Annotated[Count, Field(description="padded tokens of one critic step")] = 6144

    # Value pretraining
    pretraining_rounds: Annotated[int, Field(ge=0, description="at most so many of the rounds fit the critic before it may steer")] = 1
    pretraining_epochs: Annotated[Count, Field(description="passes of the critic over each of these rounds")] = 3
    pretraining_policy: Annotated[Literal["frozen", "baseline"], Field(
        description="frozen: the policy waits, as published; baseline: it learns by REINFORCE meanwhile, so that no episode is wasted"
    )] = "frozen"  # fmt: skip
    gate_explained_variance: Annotated[float, Field(lt=1, description="the critic passes above this, on episodes it was not fitted to")] = (
        0.1
    )
    gate_holdout: Annotated[float, Field(gt=0, lt=1, description="share of a pretraining round's episodes kept for the gate")] = 0.25
