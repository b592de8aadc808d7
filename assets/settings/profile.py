"""The profile: every setting of an iteration, in one frozen object. Which profiles exist and how a file becomes one is pipelines/profiles.

A profile is composed of the configurations that each room defines for its own stage; this file and assets/*_settings.py add only what no
room owns. It crosses processes as JSON, so that a run can be stored and repeated.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from annotation.config import ScriptedAnnotatorConfig, WordingConfig
from assets.settings.agent import AgentSettings, HarnessSettings, LearnerHarnessSettings, PolicySettings
from assets.settings.execution import RunnerSettings, SandboxSettings
from assets.settings.plan import PlanSettings
from assets.settings.verdicts import OrmSettings, VerdictSettings
from assets.tasks.instances import TrainPurpose, max_instances
from models.engine.choice import EngineChoice
from models.merging.config import MethodConfig
from models.rl.config import PpoConfig
from models.rl.rollouts.curriculum import HIGHEST_QUOTA
from models.supervised.config import SupervisedConfig
from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.tracking_config import TrackingConfig
from warehouse.core.errors import ConfigError
from warehouse.datasets.mixing import MixtureConfig
from warehouse.quality.config import QualityConfig
from warehouse.routing.ct_objectives import OF_OBSERVATIONS
from warehouse.routing.failure_mining import FailureMiningConfig
from warehouse.routing.routes import RoutingConfig

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SelfChallengeSettings(_Settings):
    """Aiming the collection at what the policy solves now and then (assets/tasks/choice.py)."""

    enabled: bool = Field(False, description="choose families by what the policy solved of them; else every family gets as many instances")
    low: Annotated[float, Field(ge=0, le=1, description="solve rate below which a family is too hard")] = 0.2
    high: Annotated[float, Field(ge=0, le=1, description="solve rate above which a family is too easy")] = 0.8
    explore: Annotated[float, Field(ge=0, le=1, description="share of a domain's instances for families that nothing speaks for")] = 0.1
    memory: Annotated[float, Field(ge=0, le=1, description="what an episode counts, as evidence, one iteration later")] = 0.5

    @model_validator(mode="after")
    def _bounds_in_order(self) -> SelfChallengeSettings:
        if self.low >= self.high:
            raise ValueError(f"self_challenge.low is {self.low:g} and high is {self.high:g}: low must be below high, e.g. 0.2 and 0.8")
        return self


class TaskSettings(_Settings):
    """Which tasks are collected, trained on and evaluated."""

    lists: tuple[str, ...] = Field(
        min_length=1, description="SOURCE:GROUP of each list, e.g. miniwob:quickstart (sandbox/tasks/sources.py)"
    )
    domains: tuple[str, ...] = Field(min_length=1, description="what is collected, trained on and evaluated")
    rl_domains: tuple[str, ...] | None = Field(None, min_length=1, description="domains that get an RL specialist; null: all of them")
    joint: tuple[tuple[str, ...], ...] = Field(
        (),
        description="groups of domains that one more RL run each is trained on together, each domain with its part of the episodes: "
        "hybrid training, to compare with merging specialists",
    )
    self_challenge: SelfChallengeSettings = SelfChallengeSettings()

    @property
    def specialists(self) -> tuple[str, ...]:
        """The domains that an RL specialist is trained for, in the order of its weight in the merge."""
        return self.domains if self.rl_domains is None else self.rl_domains

    @model_validator(mode="after")
    def _specialists_of_known_domains(self) -> TaskSettings:
        if unknown := [domain for domain in self.specialists if domain not in self.domains]:
            raise ValueError(f"rl_domains has {', '.join(unknown)}, which is not one of the domains {', '.join(self.domains)}")
        return self

    @model_validator(mode="after")
    def _joint_groups_of_known_domains(self) -> TaskSettings:
        for group in self.joint:
            if len(set(group)) != len(group) or len(group) < 2 or not set(group) <= set(self.domains):
                raise ValueError(
                    f"joint has the group [{', '.join(group)}]: each group needs two or more different domains of {', '.join(self.domains)}"
                )
        if len({frozenset(group) for group in self.joint}) != len(self.joint):
            raise ValueError("joint has a group twice: give each once, whatever the order of its domains")
        return self


class SeedSettings(_Settings):
    """What the first iteration starts from."""

    curricula: tuple[str, ...] = Field(
        ("web",), min_length=1, description="what tutorials teach, and whose words (assets/seed_data/curricula.py)"
    )
    tutorials: Positive = Field(description="tutorial texts generated for CT")
    demonstrations_per_task: Positive = Field(description="oracle episodes per task for SFT")


class ActingSettings(_Settings):
    """What a policy acts on: which tasks, with which prompts, on which sessions."""

    tasks: TaskSettings
    agent: AgentSettings = AgentSettings()
    sandbox: SandboxSettings = SandboxSettings()
    engine: EngineChoice = EngineChoice()


class CollectionSettings(_Settings):
    """How the released policy acts on the task pool."""

    instances_per_task: Positive
    attempts: Positive = Field(1, description="samples per instance (rejection sampling)")
    temperature: Annotated[float, Field(ge=0, le=5)] = 1.0
    harness: HarnessSettings | None = Field(
        None, description="an agent program that acts; null: this project's agent", exclude_if=lambda harness: harness is None
    )


class AnnotationSettings(_Settings):
    """The scripted annotator's stage."""

    enabled: bool = True
    instances_per_task: Positive = 20
    annotator: ScriptedAnnotatorConfig = ScriptedAnnotatorConfig()


class PeopleSettings(_Settings):
    """What people annotated in an annotation server, and recorded of their own work, is taken in by every iteration."""

    enabled: bool = True
    database: str | None = Field(
        None,
        description="address of the annotation database, e.g. postgresql+psycopg://user@host/name; null: the home's own, where there is "
        "one. FLYWHEEL_ANNOTATION_DATABASE goes before both, for addresses with a password",
    )
    licence: str = Field(
        "unknown",
        min_length=1,
        max_length=200,
        description="under which terms annotators give their work, as an SPDX id or in words: samples and dataset cards say so",
    )
    wording: WordingConfig = WordingConfig()


class MergeSettings(MethodConfig):
    """How the specialists are merged (models/merging/config.py has the methods' parameters); the weights are chosen on the `eval` split."""

    weights: tuple[float, ...] | None = Field(
        None, description="fixed weights, one per domain, then per joint group if they are merged; null searches the simplex"
    )
    grid_steps: Positive = Field(4, description="resolution of the search: weights are multiples of 1/grid_steps")
    refine_rounds: Count = Field(0, description="then so often the neighbours of the best are tried, each time at half the step of before")
    instances_per_task: Positive = Field(8, description="eval episodes per task and candidate")
    min_kept: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="share of each specialist's success on its own domain that a mixture must keep to be chosen; where none does, the "
            "one that keeps most in its worst domain is",
        ),
    ] = 0.95
    include_joint: bool = Field(False, description="merge the policies of tasks.joint too; else they are only evaluated beside the merge")

    @property
    def config(self) -> MethodConfig:
        return MethodConfig.model_validate({name: getattr(self, name) for name in MethodConfig.model_fields})


class EvaluationSettings(_Settings):
    """Greedy success on fixed instances. `eval` chooses, `holdout` is only reported."""

    eval_per_task: Positive
    holdout_per_task: Positive
    playwright_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            exclude_if=lambda share: share == 0,
            description="share of the holdout on pages that the merged policy plays again in full Chromium through Playwright; the check "
            "`verdicts_agree_in_full_chromium` compares the verdicts",
        ),
    ] = 0.0
    release_significance: Annotated[
        float, Field(gt=0, lt=1, description="a candidate loses when an anytime-valid paired test says so at this level")
    ] = 0.05
    release_tolerance: Annotated[
        float, Field(ge=0, le=1, description="or when it is worse by more than this, whatever the test can prove")
    ] = 0.03


class ReleaseSettings(_Settings):
    """Who may release (docs/releases.md)."""

    needs_approval: bool = Field(
        False,
        description="a candidate that the gate lets pass is held until a person promotes it (`flywheel release promote`); iterations go "
        "on with the live release",
    )


class ScheduleSettings(_Settings):
    """Recurring retraining and the thresholds of the sensors."""

    cron: str = Field("0 2 * * *", description="when `recurring_retraining` completes the open iteration")
    ct: str | None = Field(None, description="when `recurring_ct` trains CT of the open iteration on all data so far, due or not")
    sft: str | None = Field(None, description="when `recurring_sft` brings SFT of the open iteration up to its data")
    rl: str | None = Field(None, description="when `recurring_rl` brings the specialists of the open iteration up to its SFT")
    enabled: bool = Field(
        False,
        exclude=True,  # what an iteration makes is the same
        description="the schedules are on when Dagster's page is started; else a person switches them on there",
    )
    set: dict[str, Any] = Field({}, description="settings that the runs of schedules change, by dotted key: {rl.rounds: 8}")
    late_after_h: Annotated[float, Field(gt=0)] | None = Field(
        None, description="hours after which an iteration's results are overdue and an alert is sent; null: two intervals of `cron`"
    )
    new_samples: Positive = Field(500, description="new D_SFT rows that start an iteration")
    new_annotations: Positive = Field(200, description="new annotations that start an iteration")
    new_work: Positive = Field(20, description="runs that people finished, and recordings of theirs, that start an iteration")
    regression: Annotated[float, Field(gt=0, le=1, description="drop in eval success that asks for a re-evaluation")] = 0.05


class LogSettings(_Settings):
    """Logs of agents that come in by day, in FLYWHEEL_HOME/logs/<day>/<format> (docs/importing.md)."""

    track: Literal["expert", "novice", "unreviewed"] = Field("unreviewed", description="as of `flywheel import demonstrations --track`")
    outcome: str | None = Field(None, description="who says whether they were carried out, as of --outcome; null: the logs themselves")
    domain: str = Field("desktop", description="which specialist learns from them")
    grammar: str = Field("uitars2", description="how their actions are written for training")
    policy: str | None = Field(None, description="who acted, by name; null: unknown")
    licence: str | None = Field(None, description="their licence; null: unknown")
    first_day: str = Field("2026-01-01", pattern=r"^\d{4}-\d{2}-\d{2}$", description="the first day that logs are taken of")
    cron: str | None = Field("30 1 * * *", description="when `daily_logs` imports the days that are over; null: no such schedule")


References = dict[str, str] | tuple[str, ...]
"""By name or as a list: module:attribute or path/to/file.py:attribute, with paths from the profile's folder."""


class PluginSettings(_Settings):
    """Plug-ins of your own (docs/plugins.md). Processes have them from the environment (warehouse/core/plugins.py)."""

    task_sources: References = Field((), description="sources of tasks, which tasks.lists may then name (docs/page-tasks.md)")
    grammars: References = Field((), description="ways of writing actions, which agent.grammar may then name")
    judges: References = Field((), description="functions or addresses that judge episodes, where verdicts.judges names them")
    harnesses: References = Field((), description="agent programs, of which collection.harness may name one (docs/harnesses.md)")


class Profile(_Settings):
    """All settings of an iteration."""

    name: str
    seed: Count = Field(0, description="seed of everything random that is not fixed by content")
    ct_every: Positive = Field(1, description="CT runs in iterations 1, 1+n, 1+2n, …; in between it passes its input on")
    max_parallel: Positive = Field(2, description="stages that may run at once, e.g. RL of two domains on two cores")
    runner: RunnerSettings = RunnerSettings()
    plugins: PluginSettings = Field(PluginSettings(), exclude=True)  # what is made is the same wherever the files lie
    policy: PolicySettings = PolicySettings()
    tasks: TaskSettings
    seed_data: SeedSettings
    agent: AgentSettings = AgentSettings()
    sandbox: SandboxSettings = SandboxSettings()
    engine: EngineChoice = Field(EngineChoice(), description="who answers when a checkpoint acts (docs/serving.md)")
    ct: SupervisedConfig
    ct_refresh: SupervisedConfig = Field(description="CT of later iterations, which continue from a trained policy")
    ct_mixture: MixtureConfig
    sft: SupervisedConfig
    sft_refresh: SupervisedConfig = Field(description="SFT of later iterations")
    sft_mixture: MixtureConfig
    rl: PpoConfig
    rl_harness: LearnerHarnessSettings | None = Field(
        None,
        description="an agent program that plays RL's episodes; null: this project's agent",
        exclude_if=lambda harness: harness is None,
    )
    merge: MergeSettings = MergeSettings()
    evaluation: EvaluationSettings
    release: ReleaseSettings = ReleaseSettings()
    collection: CollectionSettings
    annotation: AnnotationSettings = AnnotationSettings()
    people: PeopleSettings = PeopleSettings()
    quality: QualityConfig = QualityConfig()
    routing: RoutingConfig = RoutingConfig()
    verdicts: VerdictSettings = VerdictSettings()
    orm: OrmSettings = OrmSettings()
    failure_mining: FailureMiningConfig = FailureMiningConfig()
    tracking: TrackingConfig = Field(TrackingConfig(), description="where the curves of CT, SFT, the ORM and RL go besides TensorBoard")
    training: TrainingHosts = Field(THIS_MACHINE, description="machines that CT, SFT, the ORM and RL train on (docs/cluster.md)")
    schedule: ScheduleSettings = ScheduleSettings()
    logs: LogSettings | None = Field(None, exclude=True, description="how logs that come in are imported; null: no asset does it")
    plan: PlanSettings = PlanSettings()

    @property
    def acting(self) -> ActingSettings:
        return ActingSettings(tasks=self.tasks, agent=self.agent, sandbox=self.sandbox, engine=self.engine)

    @property
    def evaluates_first_ct(self) -> bool:
        """Whether the first iteration's CT is evaluated as well: all that a policy of random weights can by then, tutorials taught it."""
        return self.policy.is_random

    @property
    def rl_instances(self) -> int:
        """Train instances of a task that one RL run may ask for. Runs that share a task (a specialist, joint ones) have their own each."""
        return self.rl.rounds * self.rl.episodes_per_task * (HIGHEST_QUOTA if self.rl.adaptive_episodes else 1)

    @model_validator(mode="after")
    def _one_weight_per_domain(self) -> Profile:
        weights = self.merge.weights
        num = len(self.tasks.specialists) + (len(self.tasks.joint) if self.merge.include_joint else 0)
        if weights is not None and len(weights) != num:
            raise ValueError(f"merge.weights has {len(weights)} entries for {num} domains; give one per domain or null")
        return self

    @model_validator(mode="after")
    def _harness_beside_its_sessions(self) -> Profile:
        harness = self.collection.harness or self.rl_harness
        if harness is not None and (self.sandbox.servers or self.sandbox.ray is not None):
            raise ValueError(
                f"the harness {harness.name!r} is a program that drives sessions of this machine: leave out sandbox.servers and sandbox.ray"
            )
        if self.rl_harness is not None and (self.rl_harness.upstream is not None or self.engine.kind != "embedded"):
            raise ValueError(
                f"rl_harness asks the policy that learns, in this process, and engine.kind is {self.engine.kind!r}: leave out "
                "rl_harness.upstream, and set engine.kind to embedded"
            )
        return self

    @model_validator(mode="after")
    def _forks_where_episodes_are_resumed(self) -> Profile:
        """A fork is an episode that is resumed in the log of this machine."""
        if self.rl.fork_siblings and (self.rl_harness is not None or self.sandbox.ray is not None):
            what = "rl_harness" if self.rl_harness is not None else "sandbox.ray"
            raise ValueError(
                f"rl.fork_siblings is {self.rl.fork_siblings}, but an episode of {what} cannot begin at a state of another: set it to 0, "
                f"or leave out {what}"
            )
        return self

    @model_validator(mode="after")
    def _judge_where_nothing_verifies(self) -> Profile:
        unverified = self.verdicts.unverified_domains
        if unknown := [domain for domain in unverified if domain not in self.tasks.domains]:
            raise ValueError(f"verdicts.unverified_domains has {', '.join(unknown)}, not among the domains {', '.join(self.tasks.domains)}")
        if unverified and not self.orm.enabled and self.verdicts.judge.engine is None and not self.verdicts.judges:
            raise ValueError(
                f"verdicts.unverified_domains has {', '.join(unverified)}, but there is no judge for them: set orm.enabled, "
                "verdicts.judge.engine or verdicts.judges"
            )
        return self

    @model_validator(mode="after")
    def _objectives_that_weigh(self) -> Profile:
        """A prompt that weighs nothing is not learned, whatever the objective."""
        asked = [objective for objective in self.failure_mining.ct_objectives if objective in OF_OBSERVATIONS]
        if asked and self.ct_refresh.prompt_loss_weight == 0:
            raise ValueError(
                f"failure_mining.ct_objectives has {', '.join(asked)}, but ct_refresh.prompt_loss_weight is 0, so no prompt and no "
                "observation is learned: set it above 0, e.g. 0.1"
            )
        return self

    @model_validator(mode="after")
    def _instances_of_its_own(self) -> Profile:
        """No stage uses the train instances of another."""
        wanted: dict[TrainPurpose, tuple[int, str]] = {
            "demonstration": (self.seed_data.demonstrations_per_task, "seed_data.demonstrations_per_task"),
            "rollout": (self.collection.instances_per_task, "collection.instances_per_task"),
            "annotation": (self.annotation.instances_per_task, "annotation.instances_per_task"),
            "rl": (self.rl.seed_offset + self.rl_instances * (1 + len(self.tasks.joint)), "rl.rounds times rl.episodes_per_task"),
        }
        for purpose, (num, settings) in wanted.items():
            if num > (most := max_instances(purpose, self.seed)):
                raise ValueError(
                    f"{settings} needs up to {num} train instances per task, but {purpose} has {most} per iteration; "
                    "more would be those of another stage: use fewer"
                )
        return self


def parse_profile(data: dict[str, Any], source: str) -> Profile:
    """A profile from plain data. Raises ConfigError that lists every wrong key with its value and what is allowed."""
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"]) or "profile"
            value = "" if problem["type"] == "missing" else f" (got {problem['input']!r})"
            message = _unknown(problem["loc"]) if problem["type"] == "extra_forbidden" else problem["msg"]
            lines.append(f"  {where}{value}: {message}")
        raise ConfigError(f"the profile {source} is not valid:\n" + "\n".join(lines)) from error


def _unknown(location: tuple[int | str, ...]) -> str:
    """The message for an unknown key."""
    group: type[BaseModel] | None = Profile
    for part in location[:-1]:
        field = group.model_fields.get(str(part)) if group is not None else None
        kind = field.annotation if field is not None else None
        group = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    near = get_close_matches(str(location[-1]), group.model_fields, n=1) if group is not None else []
    guess = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {guess}The settings are described in assets/settings/profile.py, and pipelines/profiles/quickstart.yaml uses them"
