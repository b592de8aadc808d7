"""How much work a profile asks for, stage by stage: episodes, steps, tokens. Counted from the settings and the task lists; how long an
episode and how many tokens a prompt is comes from the episodes of the home where there are any, else from the profile's `plan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import duckdb

from assets.settings.profile import Profile
from models.families.shapes import ModelShape
from models.supervised.config import SupervisedConfig
from pipelines.cli.terminal import counted
from pipelines.stages.context import profile_tasks
from sandbox.tasks.task import Split, Task
from warehouse.core.stages import joint_name, rl_stage

Kind = Literal["supervised", "rl", "acting", "small"]
MIN_EPISODES = 30
"""Of one domain, for its mean length to be trusted."""
LOOP_PROMPTS = 64
"""Steps of an episode that a chat prompt's mean length is taken over, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured on the home's own episodes; None where there are too few."""

    num_episodes: int = 0
    steps: dict[str, float]
    """mean steps of an episode, by domain."""
    prompt_tokens: float | None = None
    response_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One stage: what it does, in numbers. Tokens are per step (prompt and answer) for stages that act."""

    stage: str
    kind: Kind
    amount: str
    num_episodes: int = 0
    num_steps: float = 0.0
    prompt_tokens: float = 0.0
    response_tokens: float = 0.0
    image_tokens: float = 0.0
    """of the prompt, those of pictures."""
    training_tokens: float = 0.0
    training: SupervisedConfig | None = None
    keeps_screens: bool = False
    with_flow: bool = False
    """whether episodes are tasks of a Prefect flow."""
    num_policies: int = 1
    """that act."""


def measure(con: duckdb.DuckDBPyConnection) -> Measured:
    """Lengths of the home's episodes that a policy played."""
    rows = con.execute(
        "select domain, count(*), avg(num_steps) from episodes "
        "where outcome <> 'crashed' and policy_id <> 'oracle' group by domain order by 1"
    ).fetchall()
    row = con.execute(
        "select avg(len(prompt_token_ids)), avg(len(response_token_ids)) from steps where len(response_token_ids) > 0"
    ).fetchone()
    known = {domain: steps for domain, num, steps in rows if num >= MIN_EPISODES}
    prompt, response = row if row is not None and known else (None, None)
    return Measured(num_episodes=sum(num for _, num, _ in rows), steps=known, prompt_tokens=prompt, response_tokens=response)


class Workload:
    """Counts the work of a profile. `shape` is the policy's, for the tokens of pictures."""

    def __init__(self, profile: Profile, shape: ModelShape, measured: Measured) -> None:
        self._profile, self._shape, self._measured = profile, shape, measured
        self._tasks = profile_tasks(profile.tasks)
        builder = profile.agent.builder()
        self._is_chat, self._shows_screens = builder.grammar.layout == "chat", builder.shows_screens

    def seed(self) -> list[Work]:
        """The stages before the first iteration."""
        settings = self._profile.seed_data
        tasks = self._trained(self._profile.tasks.domains)
        return [
            Work(stage="seed_tutorials", kind="small", amount=counted(settings.tutorials, "text")),
            Work(stage="seed_policy", kind="small", amount="random weights" if self._profile.policy.is_random else "taken in"),
            self._acting("seed_demonstrations", tasks, settings.demonstrations_per_task, screens=True, oracle=True),
        ]

    def iteration(self, number: int) -> list[Work]:
        """The stages of iteration `number`, in their order; a CT that is skipped is left out."""
        profile = self._profile
        first = number == 1
        works = []
        if (number - 1) % profile.ct_every == 0:
            works.append(self._supervised("ct_model", profile.ct if first else profile.ct_refresh))
        works.append(self._supervised("sft_model", profile.sft if first else profile.sft_refresh))
        works += [self._rl((domain,), rl_stage(domain)) for domain in profile.tasks.specialists]
        works += [self._rl(group, rl_stage(joint_name(group))) for group in profile.tasks.joint]
        works += [self._merge(), self._evaluation(is_first=first)]
        if profile.orm.enabled:
            works.append(self._supervised("orm_model", profile.orm.training))
        collected = profile.collection.instances_per_task * profile.collection.attempts
        tasks = self._trained(profile.tasks.domains)
        works.append(self._acting("rollouts", tasks, collected, screens=True, with_flow=True))
        if profile.annotation.enabled:
            works.append(self._acting("annotations", tasks, profile.annotation.instances_per_task, screens=True))
        if profile.orm.enabled:
            works.append(self._judging(collected * len(tasks)))
        return works

    def _judging(self, num_rollouts: int) -> Work:
        """The ORM reads each episode once a vote: the rollouts, and those that it is measured on."""
        profile = self._profile
        num = (num_rollouts + 2 * profile.verdicts.max_measured) * profile.orm.votes
        prompt = float(profile.verdicts.prompt.builder(profile.agent.builder().grammar.layout).max_tokens)
        return Work(
            stage="judgements",
            kind="acting",
            amount=f"{num:,} judgements",
            num_episodes=num,
            num_steps=num,
            prompt_tokens=prompt,
            response_tokens=float(profile.orm.max_new_tokens),
        )

    def prompt_tokens(self, steps: float) -> tuple[float, float]:
        """Mean tokens of a prompt over an episode of so many steps, and of these the pictures'."""
        agent, plan = self._profile.agent, self._profile.plan
        most = float(agent.builder().max_tokens)
        if not self._is_chat:
            return (self._measured.prompt_tokens or float(plan.standing_tokens or 65)), 0.0
        vision = self._shape.vision
        picture = vision.image_tokens(*plan.screen_px, agent.max_image_pixels) if vision and agent.max_screenshots else 0
        standing, answer = float(900 if plan.standing_tokens is None else plan.standing_tokens), self.response_tokens
        window = agent.builder().window
        lengths = []
        for done in range(min(LOOP_PROMPTS, max(1, round(steps)))):
            pictures = min(done + 1, agent.max_screenshots) * picture
            lengths.append((min(most, standing + min(done, window) * answer + pictures), min(most, pictures)))
        return (self._measured.prompt_tokens or fmean(total for total, _ in lengths)), fmean(seen for _, seen in lengths)

    @property
    def response_tokens(self) -> float:
        assumed = self._profile.plan.response_tokens or (120 if self._is_chat else 13)
        return self._measured.response_tokens or float(assumed)

    @property
    def sample_tokens(self) -> float:
        """A training sample is a prompt and its answer."""
        return self.prompt_tokens(self.steps_of(self._tasks))[0] + self.response_tokens

    def steps_of(self, tasks: Sequence[Task]) -> float:
        """Mean steps of an episode over these tasks."""
        measured, share = self._measured.steps, self._profile.plan.steps_share
        return fmean(measured.get(task.domain, max(1.0, share * task.max_steps)) for task in tasks) if tasks else 0.0

    def _trained(self, domains: Sequence[str]) -> list[Task]:
        return [task for task in self._tasks if task.domain in domains and not task.held_out]

    def _acting(
        self,
        stage: str,
        tasks: Sequence[Task],
        per_task: int,
        *,
        screens: bool,
        with_flow: bool = False,
        oracle: bool = False,
        amount: str = "",
        num: int | None = None,
        num_policies: int = 1,
    ) -> Work:
        """`num`: of episodes in all, where not every task has so many."""
        num = per_task * len(tasks) if num is None else num
        steps = self.steps_of(tasks)
        prompt, pictures = (0.0, 0.0) if oracle else self.prompt_tokens(steps)
        return Work(
            stage=stage,
            kind="acting",
            num_episodes=num,
            num_steps=num * steps,
            keeps_screens=screens,
            with_flow=with_flow,
            amount=amount or f"{counted(num, 'episode')} of {counted(len(tasks), 'task')}",
            prompt_tokens=prompt,
            image_tokens=pictures,
            response_tokens=0.0 if oracle else self.response_tokens,
            num_policies=num_policies,
        )

    def _supervised(self, stage: str, config: SupervisedConfig) -> Work:
        amount = f"{config.steps:,} steps of {config.batch_tokens:,} tokens"
        prompt, pictures = self.prompt_tokens(self.steps_of(self._tasks))
        share = pictures / (prompt + self.response_tokens)
        total = float(config.steps * config.batch_tokens)
        return Work(
            stage=stage,
            kind="supervised",
            amount=amount,
            training_tokens=total,
            prompt_tokens=prompt,
            response_tokens=self.response_tokens,
            image_tokens=share * total,
            training=config,
        )

    def _rl(self, domains: Sequence[str], stage: str) -> Work:
        """Of one domain, or of several jointly with the budget of one."""
        config, tasks = self._profile.rl, self._trained(domains)
        groups = math.ceil(max(1, config.episodes_per_task // len(domains)) / config.group_size) * config.group_size
        work = self._acting(stage, tasks, config.rounds * groups * config.with_forks, screens=config.keeps_screens)
        tokens = work.num_steps * (work.prompt_tokens + work.response_tokens)
        return Work(
            stage=work.stage,
            kind="rl",
            amount=f"{config.rounds} rounds, {work.num_episodes:,} episodes",
            training_tokens=tokens,
            num_episodes=work.num_episodes,
            num_steps=work.num_steps,
            prompt_tokens=work.prompt_tokens,
            image_tokens=work.image_tokens,
            response_tokens=work.response_tokens,
            keeps_screens=work.keeps_screens,
        )

    def _merge(self) -> Work:
        merge, tasks = self._profile.merge, self._profile.tasks
        num = len(tasks.specialists) + (len(tasks.joint) if merge.include_joint else 0)
        if merge.weights is not None or num == 1:
            return Work(stage="merged_policy", kind="small", amount=counted(num, "specialist"))
        # A round of refinement tries the neighbours of the best: some share moved from each one to each other.
        candidates = math.comb(merge.grid_steps + num - 1, num - 1) + merge.refine_rounds * num * (num - 1)
        amount = f"{candidates} candidates x {merge.instances_per_task} a task"
        found = candidates * self._instances(Split.EVAL, merge.instances_per_task)
        return self._acting("merged_policy", self._tasks, 0, screens=False, amount=amount, num=found, num_policies=candidates)

    def _instances(self, split: Split, per_task: int) -> int:
        """Of all tasks, of which some have fewer different ones than are asked for, or none."""
        return sum(len(task.seeds(split, per_task)) for task in self._tasks)

    def _evaluation(self, *, is_first: bool) -> Work:
        settings, tasks = self._profile.evaluation, self._profile.tasks
        policies = 2 + len(tasks.specialists) + len(tasks.joint) + (is_first and self._profile.evaluates_first_ct)
        reported, chosen_by = self._instances(Split.HOLDOUT, settings.holdout_per_task), self._instances(Split.EVAL, settings.eval_per_task)
        num = policies * reported + chosen_by
        amount = f"{policies} policies, {num:,} episodes"
        return self._acting("evaluations", self._tasks, 0, screens=self._shows_screens, amount=amount, num=num, num_policies=policies)
