"""Every setting of reinforcement learning, with its default and where that comes from. Flat, frozen, serialisable; no code.

Defaults are chosen for a 0.5 M parameter policy on short browser episodes. UI-TARS-2 is arXiv 2509.02544, VAPO 2504.05118,
VC-PPO 2503.01491, DAPO 2503.14476, GRPO 2402.03300, Dr. GRPO 2503.20783, GiGPO 2505.10978,
REINFORCE++ 2501.03262, AReaL 2505.24298, IcePop 2510.18855.
Formulas and what is logged: docs/rl.md.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.rl.updates.shaping import ShapingConfig
from models.training.adapter_config import AdapterConfig

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class PpoConfig(ShapingConfig, AdapterConfig):
    """One specialist's reinforcement learning, by PPO or by one of the algorithms it is compared with."""

    algorithm: Annotated[
        Literal["ppo", "reinforce", "reinforce++", "grpo", "gigpo", "rejection"],
        Field(
            description="ppo: critic and GAE; reinforce: per-task baseline; reinforce++: normalised over the batch; grpo: normalised in "
            "each group; gigpo: that, and each step among the group's steps at the same state; rejection: log-likelihood of successful "
            "episodes alone. All but ppo do without a critic"
        ),
    ] = "ppo"
    mode: Annotated[
        Literal["learn", "replay_only"],
        Field(
            description="replay_only is a benchmark's control: as many episodes and as much compute, every advantage 0, so only replay "
            "teaches"
        ),
    ] = "learn"
    seed: Annotated[int, Field(ge=0, description="of minibatch order and replay choice; episodes sample by their own ids")] = 0
    num_processes: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="processes, over all of training.hosts, that learn together, each on a GPU of its own where there are "
            "any; what is learned differs by rounding alone, and a killed run may go on with another number",
        ),
    ] = 1

    zero_stage: Annotated[
        int,
        Field(
            ge=0,
            le=3,
            description="ZeRO, of policy and critic alike: 0 has everything in each process, 1 shares the optimizers' state out over them, "
            "2 gradients too, 3 weights too; what is learned differs by rounding alone",
        ),
    ] = 0

    # Collection
    rounds: Annotated[Count, Field(description="collect-then-update rounds")] = 6
    episodes_per_task: Annotated[Count, Field(description="episodes a task and round on average, each on a seed of its own")] = 28
    adaptive_episodes: Annotated[bool, Field(description="spend a round's episodes on the tasks whose outcome is open")] = False
    seed_offset: Annotated[
        int, Field(ge=0, description="train seeds of each task to skip, so that no run meets the seeds of an earlier one")
    ] = 0
    group_size: Annotated[Count, Field(description="attempts at each instance (task and seed); GRPO's groups: 8 or more are usual")] = 1
    temperature: Annotated[
        Positive,
        Field(
            description="sampling temperature; the loss uses the same distribution. Every token that an answer may hold can be sampled: a "
            "top-p cut would make the learner's probabilities and the sampler's two different things"
        ),
    ] = 1.0
    screenshots: Annotated[bool, Field(description="record screenshots of learning episodes: only for a policy that sees")] = False
    reward: Annotated[
        Literal["success", "score"],
        Field(description="success: the verdict, 0 or 1, at the end (binary, as UI-TARS-2); score: the verifier's number and step rewards"),
    ] = "success"

    # Advantages
    level: Annotated[
        Literal["token", "step"],
        Field(description="what GAE runs over: every response token, or one decision a step, valued at its first response token"),
    ] = "step"
    gamma: Annotated[float, Field(gt=0, le=1, description="discount per token or step; 1 in UI-TARS-2's sources")] = 1.0
    lambda_policy: Annotated[Fraction | None, Field(description="fixed trace of the policy's advantages; null: length-adaptive")] = None
    lambda_alpha: Annotated[
        Positive,
        Field(
            description="length-adaptive lambda = 1 - 1/(alpha l), l the episode's response tokens (VAPO; UI-TARS-2); at level step too, "
            "where it decays over steps: there it is not from a publication, and lambda_policy fixes it"
        ),
    ] = 0.05
    lambda_floor: Annotated[
        Fraction, Field(description="lowest lambda; without it episodes below 1/alpha tokens would get a negative one")
    ] = 0.95
    lambda_critic: Annotated[Fraction, Field(description="trace of the critic's targets; 1 is the Monte-Carlo return (VC-PPO, VAPO)")] = 1.0
    bootstrap_truncated: Annotated[
        bool, Field(description="an episode cut off by a limit of steps or time ends in the critic's value instead of 0")
    ] = True
    baseline_std_floor: Annotated[Positive, Field(description="added to the standard deviation of a task's rewards")] = 0.1
    advantage_clip: Annotated[
        Positive | Literal["by_algorithm"] | None,
        Field(
            description="advantages are clipped to +-this after scaling; null: no bound. by_algorithm: 2 for ppo and reinforce, none for "
            "the others, as they are published"
        ),
    ] = "by_algorithm"
    advantage_normalisation: Annotated[
        Literal["none", "std", "mean_std"],
        Field(
            description="of the critic's advantages: as they are, divided by their spread, or also centred (UI-TARS-2 is silent; most PPO "
            "codes centre). std keeps each advantage's sign, which is the critic's verdict"
        ),
    ] = "std"
    advantage_scope: Annotated[
        Literal["batch", "minibatch"],
        Field(description="what mean and spread are taken over, each value counted once: tokens, or steps at level step"),
    ] = "batch"
    skip_uniform_tasks: Annotated[
        bool,
        Field(
            description="no policy gradient from a task (or group_by's group) whose episodes were all rewarded alike, a KL penalty aside; "
            "rejection, which compares nothing, learns from all successes"
        ),
    ] = True
    group_by: Annotated[
        Literal["instance", "task"],
        Field(
            description="GRPO's group, and the baseline's of reinforce++: attempts at one instance, as published, or all episodes of a task"
        ),
    ] = "instance"
    group_normalise_std: Annotated[
        bool,
        Field(description="GRPO divides by the group's standard deviation; false is Dr. GRPO, whose other half is aggregation: episode"),
    ] = True
    step_group_weight: Annotated[
        float,
        Field(
            ge=0,
            description="gigpo: weight of a step's advantage among the steps of its group at the same state (1: arXiv 2505.10978)",
            exclude_if=lambda weight: weight == 1.0,
        ),
    ] = 1.0
    group_baseline: Annotated[bool, Field(description="reinforce++ subtracts the group's mean first: its Baseline variant")] = False

    # Forks. Left out of what names a run where they are as they were before there were any
    fork_siblings: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="episodes that begin again, by replay, where an episode has been, at each of its fork_points; from there on each "
            "is compared with the others there, its parent too. 0: none. For ppo and reinforce, which say what steps before are worth",
            exclude_if=lambda num: num == 0,
        ),
    ] = 0
    fork_points: Annotated[
        Count, Field(description="steps at which an episode is forked, of an episode with as many", exclude_if=lambda num: num == 1)
    ] = 1
    fork_choice: Annotated[
        Literal["entropy", "uniform"],
        Field(
            description="which steps: entropy takes those whose answer was least likely (minus its log-probability, a sample of the "
            "policy's entropy there); uniform any, by the episode's id",
            exclude_if=lambda choice: choice == "entropy",
        ),
    ] = "entropy"
    fork_pixels: Annotated[
        bool,
        Field(
            description="episodes that may be forked keep their screens, so that a fork has to meet the same pixels; else only elements",
            exclude_if=lambda is_kept: is_kept,
        ),
    ] = True

    # Policy update
    clip_low: Annotated[float, Field(gt=0, lt=1, description="1 - clip_low bounds the ratio from below (VAPO)")] = 0.2
    clip_high: Annotated[Positive, Field(description="1 + clip_high bounds the ratio from above: clip-higher (DAPO, VAPO)")] = 0.28
    dual_clip: Annotated[
        float | None,
        Field(
            gt=1, description="bounds the loss of a token with negative advantage at this times |A|; 3 in arXiv 1912.09729; null: no bound"
        ),
    ] = None
    aggregation: Annotated[
        Literal["token", "episode", "episode_mean", "step"],
        Field(
            description="episode: summed over an episode's tokens, mean over episodes (Dr. GRPO); episode_mean: mean over an episode's "
            "tokens, mean over episodes (GRPO); token: mean over tokens (DAPO, VAPO); step: mean over steps"
        ),
    ] = "episode"
    episode_scale: Annotated[Positive, Field(description="divides the episode-wise loss; about the tokens that decide in an episode")] = 6.0
    kl_coefficient: Annotated[float, Field(ge=0, description="penalty for leaving the initial policy; none in UI-TARS-2's objective")] = 0.0
    kl_placement: Annotated[
        Literal["loss", "reward"],
        Field(description="loss: estimator k3 beside the policy loss (GRPO); reward: estimator k1 off each token's reward (REINFORCE++)"),
    ] = "loss"
    entropy_coefficient: Annotated[
        float, Field(ge=0, description="bonus for entropy; 0: UI-TARS-2 watches it (it rises by itself on GUI tasks) and does not steer it")
    ] = 0.0
    positive_nll_weight: Annotated[
        float, Field(ge=0, description="weight of the log-likelihood of successful episodes' tokens beside the policy loss (VAPO: 0.1)")
    ] = 0.0
    max_kl: Annotated[Positive, Field(description="a round stops where its approximate KL exceeds this, in nats a step")] = 0.04
    kl_check: Annotated[
        Literal["epoch", "minibatch"],
        Field(
            description="epoch: a round's KL is that of a whole pass, looked at when the pass is over; minibatch: each minibatch's, before "
            "its step is made, so that large steps cannot run far in one pass (Stable-Baselines3's target_kl)"
        ),
    ] = "epoch"
    explosive_kl: Annotated[
        Positive,
        Field(
            description="a minibatch whose approximate KL exceeds this, in nats a step, ends the update at once: the policy has left what "
            "its samples speak of"
        ),
    ] = 2.0
    on_explosion: Annotated[
        Literal["stop", "roll_back"],
        Field(
            description="stop: keep what was learned before that minibatch; roll_back: undo the whole update (costs a copy of weights and "
            "optimizer state)"
        ),
    ] = "stop"
    on_non_finite: Annotated[
        Literal["raise", "skip"],
        Field(
            description="a loss or gradient that is not finite: raise ends the run; skip leaves the minibatch out and counts it, and "
            "raises when nothing else is left"
        ),
    ] = "raise"
    epochs: Annotated[Count, Field(description="passes over a round's episodes")] = 2
    minibatch_episodes: Annotated[Count, Field(description="episodes an optimizer step")] = 48
    microbatch_tokens: Annotated[
        Count, Field(description="padded tokens of one forward pass; changes speed and memory, not the result")
    ] = 6144
    learning_rate: Annotated[Positive, Field(description="of the policy, constant after the warm-up")] = 2e-4
    warmup_steps: Annotated[Count, Field(description="optimizer steps of linear warm-up, once a run")] = 10
    adam_beta1: Annotated[Beta, Field(description="decay of Adam's mean of gradients, the policy's")] = 0.9
    adam_beta2: Annotated[Beta, Field(description="decay of Adam's mean of squared gradients, the policy's")] = 0.99
    max_grad_norm: Annotated[Positive, Field(description="longer gradients are scaled down to this, the policy's and the critic's")] = 1.0
    replay_weight: Annotated[
        float, Field(ge=0, description="weight of the supervised loss on replayed samples (VAPO's auxiliary loss: 0.1)")
    ] = 0.1
    replay_sft: Annotated[int, Field(ge=0, description="SFT samples an optimizer step")] = 24
    replay_ct: Annotated[int, Field(ge=0, description="CT samples an optimizer step")] = 16

    # Critic
    critic_learning_rate: Annotated[Positive, Field(description="of the critic, constant")] = 5e-4
    critic_weight_decay: Annotated[float, Field(ge=0, description="AdamW, on all that the critic trains")] = 0.01
    critic_epochs: Annotated[Count, Field(description="passes over a round's episodes, after the gate")] = 1
    critic_minibatch_tokens: Annotated[
        Count, Field(description="padded tokens of one optimizer step of the critic: few, so that a pass over a round has many")
    ] = 1024
    value_clip: Annotated[
        float | None,
        Field(gt=0, description="keeps new value estimates this near to those before the fit (PPO2; 0.2); null, as VAPO: no clipping"),
    ] = None

    # Value pretraining, before the run on stored episodes, then in its first rounds
    offline_episodes: Annotated[
        int,
        Field(
            ge=0,
            description="stored episodes of the run's tasks, the newest first, whose returns the critic is fitted to before the first "
            "round; 0: none. A first iteration has none stored",
        ),
    ] = 512
    offline_patience: Annotated[
        Count, Field(description="epochs that do not lower the loss on held-out stored episodes end that fit; the best epoch is kept")
    ] = 2
    offline_max_epochs: Annotated[Count, Field(description="that fit takes no more passes than this")] = 20
    carry_critic: Annotated[
        bool,
        Field(description="the critic begins as the one that the same stage of an earlier iteration left; else as a copy of the policy"),
    ] = True
    pretraining_rounds: Annotated[int, Field(ge=0, description="at most so many of the rounds fit the critic before it may steer")] = 1
    pretraining_epochs: Annotated[Count, Field(description="passes of the critic over each of these rounds")] = 3
    pretraining_policy: Annotated[
        Literal["frozen", "baseline"],
        Field(
            description="frozen: the policy waits, as published; baseline: it learns by REINFORCE meanwhile, so that no episode is wasted"
        ),
    ] = "frozen"
    gate_explained_variance: Annotated[
        float, Field(lt=1, description="the critic steers a round above this, on that round's episodes before it is fitted to them")
    ] = 0.1
    gate_baseline: Annotated[
        Literal["constant", "task"],
        Field(
            description="what else the critic has to predict better than: constant: nothing more; task: the mean return of the task's "
            "other episodes of the round, which a per-task baseline knows without a critic"
        ),
    ] = "constant"
    value_offset: Annotated[
        Literal["none", "task"],
        Field(
            description="task: values that steer are shifted, for each episode by what its task's other episodes of the round earned above "
            "their values on average, so that the critic need only distinguish episodes of one task; the gate judges shifted values"
        ),
    ] = "none"
    gate_holdout: Annotated[
        float, Field(gt=0, lt=1, description="share of the stored episodes, and of a pretraining round's, that the critic is not fitted to")
    ] = 0.25
    gate_policy: Annotated[
        Literal["block", "fallback", "open"],
        Field(
            description="when pretraining ends and the critic has never passed: block raises and blocks the merge; fallback lets the "
            "per-task baseline steer in rounds that it does not pass, and warns; open lets the critic steer all the same, for comparison, "
            "and warns"
        ),
    ] = "fallback"

    # Tokens that other weights than the learner's sampled
    off_policy: Annotated[
        Literal["none", "tis", "decoupled", "icepop", "sequence_mask"],
        Field(
            description="none: ratio and clipping against the sampler's log-probabilities. The others clip against the learner's own at "
            "the update's start (proximal) and weigh each token by proximal / sampler: tis truncates that weight (verl, SkyRL); decoupled "
            "takes it whole (AReaL); icepop drops tokens outside a band; sequence_mask drops episodes whose mean is off (SkyRL)"
        ),
    ] = "none"
    proximal: Annotated[
        Literal["recompute", "loglinear"],
        Field(
            description="proximal log-probabilities: by a forward pass, or interpolated between sampler and learner by token version "
            "(A-3PO)"
        ),
    ] = "recompute"
    tis_cap: Annotated[float, Field(ge=1, description="tis truncates weights here (verl, SkyRL: 2 a token, 1.5 to 5)")] = 2.0
    decoupled_cap: Annotated[
        float | None,
        Field(gt=1, description="decoupled drops tokens whose weight exceeds this (AReaL's behave_imp_weight_cap: 5); null keeps all"),
    ] = 5.0
    icepop_low: Annotated[float, Field(gt=0, le=1, description="lowest weight that icepop keeps (IcePop: 0.5)")] = 0.5
    icepop_high: Annotated[float, Field(ge=1, description="highest weight that icepop keeps (IcePop: 5; SkyRL: 2)")] = 5.0
    sequence_mask_low: Annotated[float, Field(gt=0, le=1, description="lowest geometric mean of an episode's weights (SkyRL)")] = 0.99
    sequence_mask_high: Annotated[float, Field(ge=1, description="highest geometric mean of an episode's weights (SkyRL)")] = 1.01
    max_staleness: Annotated[
        int | None,
        Field(
            ge=0,
            description="tokens whose weights lag more updates than this give no policy gradient; they stay part of GAE; null: no bound",
        ),
    ] = None

    # Rounds that the sandbox spoils
    min_intact: Annotated[
        Fraction,
        Field(
            description="share of a batch's episodes that must not have crashed, twice each; with fewer the round passes without an "
            "update, rather than learn from the few that were spared"
        ),
    ] = 0.25
    max_fruitless_rounds: Annotated[Count, Field(description="so many rounds in a row without anything to learn from end the run")] = 3
    fruitless_pause_s: Annotated[
        float,
        Field(
            ge=0, description="pause after a round without anything to learn from, doubled after each further one: most outages are short"
        ),
    ] = 30.0

    # Streaming
    streaming: Annotated[
        bool,
        Field(
            description="episodes go on while the policy learns, and an update starts when enough have finished (UI-TARS-2); else each "
            "round collects, then learns"
        ),
    ] = False
    min_batch_episodes: Annotated[
        int | None,
        Field(
            ge=1,
            description="finished episodes that start a streaming update, in whole groups; null: a round's. The run has rounds x "
            "episodes_per_task x tasks episodes either way, so that a smaller batch means more updates, and none is larger than that",
        ),
    ] = None
    batches_ahead: Annotated[
        int,
        Field(
            ge=0,
            description="an episode is admitted while episodes before it fill at most so many batches more than were learned from: "
            "AReaL's eta (max_head_offpolicyness; 2 to 8, NeMo-RL 1); 0 waits as rounds do",
        ),
    ] = 2
    state_every: Annotated[Count, Field(description="updates between states on disk; after a kill the updates since are done again")] = 1

    @property
    def highest_advantage(self) -> float:
        """What `advantage_clip` comes to; infinite where nothing is clipped."""
        if self.advantage_clip == "by_algorithm":
            return 2.0 if self.algorithm in ("ppo", "reinforce") else math.inf
        return math.inf if self.advantage_clip is None else self.advantage_clip

    @property
    def with_forks(self) -> int:
        """Episodes, its forks among them, that come of one that is asked for; fewer where it has fewer steps than fork_points."""
        return 1 + self.fork_siblings * self.fork_points

    @property
    def keeps_screens(self) -> bool:
        """Whether episodes record their screens."""
        return self.screenshots or bool(self.fork_siblings and self.fork_pixels)

    @property
    def compares_attempts(self) -> bool:
        """Whether an episode's reward is compared with those of other attempts at its instance, not with all of its task."""
        has_groups = self.algorithm in ("grpo", "gigpo") or (self.algorithm == "reinforce++" and self.group_baseline)
        return has_groups and self.group_by == "instance"

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.compares_attempts and self.group_size < 2:
            raise ValueError(
                f"{self.algorithm} compares attempts at one instance, but group_size is {self.group_size}: use at least 2, or group_by task"
            )
        if self.fork_siblings and self.algorithm not in ("ppo", "reinforce"):
            raise ValueError(
                f"fork_siblings is {self.fork_siblings}, but algorithm {self.algorithm} does not say what the steps before a fork are "
                "worth: use ppo or reinforce, or set fork_siblings to 0"
            )
        if self.algorithm == "gigpo" and self.group_by != "instance":
            raise ValueError("gigpo compares steps at the same state of one instance: group_by must be instance, not task")
        if self.algorithm == "rejection" and self.off_policy != "none":
            raise ValueError(f"algorithm rejection has no ratio to correct: off_policy must be none, not {self.off_policy!r}")
        if self.off_policy == "sequence_mask" and self.proximal == "loglinear":
            raise ValueError("off_policy sequence_mask masks whole episodes before the update: with it proximal must be recompute")
        if self.shapes and self.reward == "score":
            raise ValueError("shaping needs a reward of 0 or 1: with `reward: score` leave every shaping weight at 0")
        if self.shaping_progress and self.gamma != 1.0:
            raise ValueError(f"shaping_progress is an undiscounted potential, but gamma is {self.gamma}: set gamma to 1")
        return self
