"""What an asset sends to the subprocess that does its work, and gets back: one request type per worker, one result type for all.

Requests are complete and frozen: a worker needs nothing else, and the same request gives the same result, which is how a relaunched
iteration recognises finished work. The workers themselves are pipelines/stages.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from annotation.config import ScriptedAnnotatorConfig
from assets.settings.agent import LearnerHarnessSettings, PolicySettings
from assets.settings.profile import ActingSettings, CollectionSettings, EvaluationSettings, MergeSettings, SeedSettings
from assets.settings.verdicts import OrmSettings, VerdictSettings
from models.engine.choice import EngineChoice
from models.rl.config import PpoConfig
from models.supervised.config import SupervisedConfig
from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.tracking_config import TrackingConfig

Tracking = Annotated[TrackingConfig, Field(exclude_if=lambda tracking: tracking == TrackingConfig())]
"""Left out of a request that tracks nothing, which is then the request that it was before there were trackers."""
Hosts = Annotated[TrainingHosts, Field(exclude_if=lambda hosts: hosts == THIS_MACHINE)]


class StageRequest(BaseModel):
    """Common to all: which stage of which iteration, with which seed. `reads` are the tables that its worker reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reads: ClassVar[tuple[str, ...]] = ()

    iteration: str
    stage: str
    seed: int


class InitialiseRequest(StageRequest):
    """Build a tokenizer and a small policy with random weights, or import an existing model."""

    worker: Literal["initialise"] = "initialise"
    curricula: tuple[str, ...] = Field(description="their words get tokens of their own in a tokenizer that is built")
    policy: PolicySettings = PolicySettings()
    max_image_pixels: int | None = Field(None, description="what the image processor of a model that sees is set to")


class DemonstrateRequest(StageRequest):
    """Let the oracle demonstrate each task of the profile on training instances."""

    worker: Literal["demonstrate"] = "demonstrate"
    acting: ActingSettings
    seed_data: SeedSettings


class SupervisedRequest(StageRequest):
    """CT, SFT or the ORM: continue a checkpoint on one dataset snapshot."""

    reads = ("checkpoints", "datasets", "ct_samples", "sft_samples")
    worker: Literal["supervised"] = "supervised"
    kind: Literal["ct", "sft", "orm"]
    checkpoint_id: str
    dataset_id: str
    config: SupervisedConfig
    tracking: Tracking = TrackingConfig()
    hosts: Hosts = THIS_MACHINE


class RlRequest(StageRequest):
    """RL of one domain, or of several jointly, on live sessions. What its critic begins with is left out where there is nothing before."""

    reads = ("checkpoints", "datasets", "ct_samples", "sft_samples", "episodes", "steps")
    worker: Literal["rl"] = "rl"
    domains: tuple[str, ...] = Field(min_length=1, description="one for a specialist; of several each gets its part of the episodes")
    skip_instances: int = Field(0, ge=0, description="train instances of each task that are other runs' of the iteration")
    checkpoint_id: str
    critic_id: str | None = Field(None, description="critic that an earlier iteration left", exclude_if=lambda id_: id_ is None)
    stored: tuple[str, ...] = Field(
        (), description="ITERATION/STAGE of the episodes that the critic is pretrained on", exclude_if=lambda names: not names
    )
    replay_dataset_ids: tuple[str, ...]
    acting: ActingSettings
    harness: LearnerHarnessSettings | None = Field(
        None, description="a program that plays the episodes", exclude_if=lambda harness: harness is None
    )
    config: PpoConfig
    tracking: Tracking = TrackingConfig()
    hosts: Hosts = THIS_MACHINE


class MergeRequest(StageRequest):
    """Interpolate the specialists; search the weights on the eval split where none are given."""

    reads = ("checkpoints",)
    worker: Literal["merge"] = "merge"
    specialists: dict[str, str] = Field(description="stage that trained it → checkpoint id")
    base: str | None = Field(None, description="checkpoint that they were trained from, for methods that merge task vectors")
    acting: ActingSettings
    merge: MergeSettings


class EvaluateRequest(StageRequest):
    """Greedy success of several checkpoints on the fixed instances."""

    reads = ("checkpoints",)
    worker: Literal["evaluate"] = "evaluate"
    checkpoints: dict[str, str] = Field(description="role → checkpoint id")
    splits: dict[str, tuple[Literal["eval", "holdout"], ...]] = Field(description="role → splits to run")
    acting: ActingSettings
    evaluation: EvaluationSettings


class CollectRequest(StageRequest):
    """The released policy acts on the task pool; each episode is one Prefect task."""

    reads = ("checkpoints",)
    worker: Literal["collect"] = "collect"
    checkpoint_id: str
    first_instance: Annotated[int, Field(ge=0, description="train instances to skip, so that iterations see new ones")]
    task_pool: dict[str, tuple[int, ...]] | None = Field(None, description="task id → seeds to play; null: as many of every task")
    acting: ActingSettings
    collection: CollectionSettings


class AnnotateRequest(StageRequest):
    """The scripted annotator corrects the released policy."""

    reads = ("checkpoints",)
    worker: Literal["annotate"] = "annotate"
    checkpoint_id: str
    first_instance: Annotated[int, Field(ge=0)]
    instances_per_task: Annotated[int, Field(ge=1)]
    acting: ActingSettings
    annotator: ScriptedAnnotatorConfig


class JudgeRequest(StageRequest):
    """Judges that may err read the iteration's episodes, and others of known truth to be measured on."""

    reads = ("checkpoints", "episodes", "steps", "tasks", "verdicts")
    worker: Literal["judge"] = "judge"
    orm_id: str | None = Field(description="checkpoint of the ORM; null: none judges")
    orm: OrmSettings
    verdicts: VerdictSettings
    judge_versions: dict[str, str] = Field({}, description="of the judges of one's own: another version judges again")
    layout: Literal["elements", "chat"] = Field(description="of the profile's grammar")
    engine: EngineChoice
    success_threshold: float = Field(description="reward from which on the verifier calls an episode good")
    known: str = Field(description="digest of the stored episodes and of people's verdicts on them, on which judges are measured")


class StageResult(BaseModel):
    """What a worker did: where rows were committed, what was made, and the figures for the asset's metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint_id: str | None = None
    read_versions: dict[str, int] = Field(default_factory=dict, description="version of each table that was read, when the work began")
    table_versions: dict[str, int] = Field(default_factory=dict, description="version of each table that was written")
    commits: dict[str, str] = Field(default_factory=dict, description="digest of the commit of each of these versions")
    counts: dict[str, int] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    notes: dict[str, str] = Field(default_factory=dict)
    details: dict[str, Any] = Field(default_factory=dict)
    started_at: float = Field(0.0, description="Unix seconds when the work itself began, the worker's imports done")
    duration_s: float = Field(0.0, description="seconds of the work itself")
