"""What `flywheel blame` does: the regression of a policy from lineage, the influence of each sample of the stage that it has learned from,
blame by source and episode, and, as the check, the stage trained again without those that are blamed, beside it on the same instances.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.progress import Progress

from agent.policy.policy import Message
from agent.prompts.prompt import training_messages
from annotation.service.intake.intake import campaigns
from assets.people import database_of
from assets.settings.profile import Profile
from models.families.registry import is_vision
from models.families.vision import ReadImage
from models.supervised.config import SupervisedConfig
from models.supervised.influence import InfluenceConfig, Question, influences, log_odds
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from models.training.metrics import Progress as TrainingProgress
from pipelines.stages.context import profile_tasks
from pipelines.stages.engines import open_engine
from pipelines.stages.evaluate import greedy_requests
from pipelines.stages.images import spooled_images
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.supervised import DatasetSamples
from sandbox.tasks.task import Split
from warehouse.core.errors import CheckpointError, ConfigError
from warehouse.core.home import atomic_write
from warehouse.evaluation.comparing import Instance, Part, Played, compare, only, played
from warehouse.lineage import registry
from warehouse.lineage.blame import Blame, Scored, blame, members
from warehouse.lineage.regression import SPLIT, Answer, Regression, Stage, regression, said, stages_between
from warehouse.lineage.sources import Traced, num_members, traced
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

EPISODES = "episodes"
"""Names what is named itself, in place of a source."""
IDS_IN_A_COMMAND = 12


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PairedGain(_Record):
    """A difference of success on the same instances, mean over tasks."""

    first: float
    second: float
    gain: float
    low: float
    high: float
    num_pairs: int
    num_won: int
    num_lost: int


class Withdrawal(_Record):
    """What to take out, with the command that does."""

    what: str
    sample_ids: tuple[str, ...]
    command: str


class Check(_Record):
    """The stage as it was against the same stage trained without a group."""

    without: str
    num_left_out: int
    log_odds_with: Annotated[float, Field(description="mean log-odds of the answers that lost, nats, to the stage as it was")]
    log_odds_without: float
    success: Annotated[PairedGain | None, Field(description="null where nothing was played")]


class BlameReport(_Record):
    """All that the command found."""

    policy: str
    predecessor: str
    split: str
    success: Annotated[PairedGain, Field(description="the policy against its predecessor")]
    num_lost: int
    lost_by_task: dict[str, int]
    stage: str
    dataset: str
    other_stages: Annotated[tuple[str, ...], Field(description="that stand between the two policies as well, and were not looked at")]
    num_withdrawn: Annotated[
        int, Field(description="samples that the stage read and that were withdrawn since: the order of the others is then approximate")
    ]
    num_weights: int
    blame: Blame
    withdrawals: tuple[Withdrawal, ...]
    check: Check | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asks for. `without` names the group of the check; None: what is most blamed."""

    policy: str
    against: str | None = None
    tasks: tuple[str, ...] = ()
    stage: str | None = None
    with_oracle: bool = False
    check: bool = False
    without: str | None = None
    plays: bool = True


def find_blame(warehouse: Warehouse, asked: Asked, profile: Profile, config: InfluenceConfig, console: Console) -> BlameReport:
    """Raises what the parts raise: ConfigError, CheckpointError, UnknownId, UnknownTable."""
    found = regression(warehouse, asked.policy, against=asked.against, tasks=asked.tasks, with_oracle=asked.with_oracle)
    stages = stages_between(warehouse, found.policy, found.predecessor)
    stage = _chosen(stages, asked.stage)
    samples = traced(warehouse, stage.dataset_id, campaigns=_campaigns(warehouse, profile))
    if asked.check:
        _check_checkable(warehouse, found, samples, profile, asked)
    questions = [question(one.wanted, one.given) for one in found.lost]
    check = None
    with TemporaryDirectory(prefix="blame-", dir=warehouse.home.scratch) as name:  # of screens and weights that nobody needs afterwards
        folder = Path(name)
        read_image = _images(warehouse, stage, questions, folder / "images")
        measured = measure(warehouse, stage, samples, questions, config, console, read_image)
        if asked.check:
            group = asked.without or _most_blamed(measured.blame)
            ids = _left_out(measured.blame, samples, group)
            check = check_without(warehouse, stage, group, ids, found, questions, profile, asked, console, read_image, folder)
    return BlameReport(
        policy=said(found.policy),
        predecessor=said(found.predecessor),
        split=SPLIT,
        success=_gain(found.comparison.total),
        num_lost=len(found.lost),
        lost_by_task=_count(one.task for one in found.lost),
        stage=f"{stage.name} ({stage.made.checkpoint_id})",
        dataset=stage.dataset_id,
        other_stages=tuple(one.name for one in stages if one is not stage),
        num_withdrawn=num_members(warehouse, stage.dataset_id) - len(samples),
        num_weights=measured.num_weights,
        blame=measured.blame,
        withdrawals=tuple(_withdrawals(warehouse, measured.blame, samples, found)),
        check=check,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    blame: Blame
    num_weights: int


def measure(
    warehouse: Warehouse,
    stage: Stage,
    samples: Sequence[Traced],
    questions: Sequence[Question],
    config: InfluenceConfig,
    console: Console,
    read_image: ReadImage | None = None,
) -> Measured:
    """The influence of a stage's samples on the answers that were lost, aggregated."""
    init = registry.find(warehouse, stage.parent_id).folder
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("gradients of samples")
        scored = influences(
            config,
            settings_of(stage),
            DatasetSamples(warehouse, stage.dataset_id, init=init),
            questions,
            init=init,
            final=stage.made.folder,
            num_steps=stage.num_steps,
            first={one.sample_id for one in samples if one.episode_id is not None or one.annotation_id is not None},
            on_scored=lambda done, total: bar.update(task, completed=done, total=total),
            read_image=read_image,
        )
    by_id = {one.sample_id: one for one in samples}
    rows = Scored(harm_NF=scored.harm_NF, draws_N=scored.draws_N, stands_for_N=scored.stands_for_N, fold_sizes_F=scored.fold_sizes_F)
    return Measured(blame=blame([by_id[id_] for id_ in scored.sample_ids], rows, seed=config.seed), num_weights=scored.num_weights)


def settings_of(stage: Stage) -> SupervisedConfig:
    """As the stage was trained. Raises CheckpointError where they were not kept."""
    try:
        return SupervisedConfig.model_validate(dict(stage.config))
    except ValueError as error:
        raise CheckpointError(
            f"{stage.name} ({stage.made.checkpoint_id}) is registered without the settings that it was trained with, so its training "
            f"cannot be looked into: {error}"
        ) from error


def check_without(
    warehouse: Warehouse,
    stage: Stage,
    group: str,
    left_out: Collection[str],
    found: Regression,
    questions: Sequence[Question],
    profile: Profile,
    asked: Asked,
    console: Console,
    read_image: ReadImage | None,
    folder: Path,
) -> Check:
    """Train the stage again without some samples, in `folder`, from the same weights, with the same settings and seed, and play both."""
    init = registry.find(warehouse, stage.parent_id).folder
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"{stage.name} without {group}")

        def report(state: TrainingProgress) -> None:
            bar.update(task, completed=state.step, total=state.num_steps)

        train_supervised(
            settings_of(stage),
            _without(DatasetSamples(warehouse, stage.dataset_id, init=init), left_out),
            init=init,
            output=folder / "checkpoint",
            run_folder=folder / "run",
            stage=stage.made.stage,
            iteration=stage.made.iteration,
            on_progress=report,
            read_image=read_image,
        )
    return Check(
        without=group,
        num_left_out=len(left_out),
        log_odds_with=log_odds(stage.made.folder, questions, read_image),
        log_odds_without=log_odds(folder / "checkpoint", questions, read_image),
        success=_play_both(warehouse, stage, folder / "checkpoint", found, profile, asked, console) if asked.plays else None,
    )


def _play_both(
    warehouse: Warehouse, stage: Stage, without: Path, found: Regression, profile: Profile, asked: Asked, console: Console
) -> PairedGain:
    """On those instances of the profile that the regression is about; of the stage as it was, what is stored already is not played."""
    wanted = only(played(warehouse, found.policy.checkpoint_id, SPLIT), asked.tasks)
    before = {key: one for key, one in played(warehouse, stage.made.checkpoint_id, SPLIT).items() if key in wanted}
    after = _play(without, wanted, profile, f"{stage.name} without", console)
    missing = {key: one for key, one in after.items() if key not in before}
    if missing:
        before |= _play(stage.made.folder, missing, profile, f"{stage.name} as it was", console)
    return _gain(compare(before, after).total)


def _play(folder: Path, wanted: Mapping[Instance, Played], profile: Profile, text: str, console: Console) -> dict[Instance, Played]:
    """Greedy episodes, not stored; crashed ones are left out."""

    async def play() -> dict[Instance, Played]:
        found = {}
        with closing(open_engine(folder, profile.engine)) as engine, Progress(console=console, transient=True) as bar:
            drawn = greedy_requests(profile.acting, engine.policy_id, Split(SPLIT), profile.evaluation.eval_per_task)
            requests = [one for one in drawn if (one.task.task_id, one.seed) in wanted]
            task = bar.add_task(f"episodes of {text}", total=len(requests))
            async with open_collector(profile.acting) as collector:
                async for episode in collector.collect(engine, requests):
                    bar.advance(task)
                    one = episode.request.task
                    if episode.reward is not None:
                        found[(one.task_id, episode.request.seed)] = Played(
                            task=one.name, domain=one.domain, solved=episode.is_success, episode_id=episode.request.episode_id
                        )
        return found

    return asyncio.run(play())


def _without(samples: DatasetSamples, left_out: Collection[str]) -> Iterator[TrainingSample]:
    held = frozenset(left_out)
    return (sample for sample in samples if sample.sample_id not in held)


def _chosen(stages: Sequence[Stage], name: str | None) -> Stage:
    """The stage that is named, by default the last that learned D_SFT, else the last."""
    if name is None:
        return next((stage for stage in stages if stage.kind == "sft"), stages[0])
    for stage in stages:
        if name in (stage.made.stage, stage.name, stage.made.checkpoint_id):
            return stage
    raise ConfigError(f"--stage {name!r} does not stand between the two policies; there are {', '.join(stage.name for stage in stages)}")


def _check_checkable(warehouse: Warehouse, found: Regression, samples: Sequence[Traced], profile: Profile, asked: Asked) -> None:
    """Before anything is measured. Raises ConfigError for a group that is none or is all, and where the profile has none of the tasks."""
    if asked.without not in (None, EPISODES):
        _members(samples, str(asked.without))
    if asked.plays:
        wanted = only(played(warehouse, found.policy.checkpoint_id, SPLIT), asked.tasks)
        if not {task.task_id for task in profile_tasks(profile.tasks)} & {task_id for task_id, _ in wanted}:
            raise ConfigError(
                f"none of the instances of {SPLIT} is of the profile's tasks ({', '.join(profile.tasks.lists)}): give the --profile that "
                "they were played with, or --no-play"
            )


def _members(samples: Sequence[Traced], group: str) -> set[str]:
    try:
        ids = members(samples, group)
    except ValueError as error:
        raise ConfigError(f"--without {group}: {error}") from error
    if len(ids) == len(samples):
        raise ConfigError(f"--without {group} leaves nothing of the {len(samples)} samples to train on: name a smaller group")
    return ids


def _left_out(found: Blame, samples: Sequence[Traced], group: str) -> set[str]:
    """Ids of the samples that a check leaves out. Raises ConfigError."""
    if group != EPISODES:
        return _members(samples, group)
    if not found.named:
        raise ConfigError("--without episodes: no episode stands out, so none can be left out; name a source, DIMENSION=NAME")
    return _named_ids(found)


def _most_blamed(found: Blame) -> str:
    """The most blamed source, else what is named itself. Raises ConfigError."""
    if (source := found.most_blamed) is not None:
        return source.key
    if found.named:
        return EPISODES
    raise ConfigError(
        "--check leaves out what is most blamed, and no source's blame is surely above zero and no episode stands out: name a group with "
        "--without DIMENSION=NAME to leave it out all the same"
    )


def _withdrawals(warehouse: Warehouse, found: Blame, samples: Sequence[Traced], of: Regression) -> Iterator[Withdrawal]:
    """The episodes that are named, and all of the most blamed source: every sample that was cut from them, in other datasets too."""
    if found.named:
        held = _samples_of(warehouse, {one.episode_id for one in found.named if one.episode_id is not None}) | _named_ids(found)
        yield _withdrawal(warehouse, _named_words(found), held, of, EPISODES)
    if (source := found.most_blamed) is not None:
        whole = members(samples, source.key)
        held = _samples_of(warehouse, {one.episode_id for one in samples if one.sample_id in whole and one.episode_id is not None}) | whole
        yield _withdrawal(warehouse, f"all of {source.key}", held, of, "source")


def _named_words(found: Blame) -> str:
    """Of what stands out."""
    num = sum(one.episode_id is not None for one in found.named)
    others = len(found.named) - num
    words = [f"{num} episode{'s' * (num != 1)}"] * (num > 0) + [f"{others} sample{'s' * (others != 1)} of no episode"] * (others > 0)
    return f"the {' and '.join(words)} that stand out"


def _withdrawal(warehouse: Warehouse, what: str, ids: Collection[str], of: Regression, name: str) -> Withdrawal:
    chosen = tuple(sorted(ids))
    if len(chosen) <= IDS_IN_A_COMMAND:
        command = f"flywheel withdraw {' '.join(chosen)}"
    else:
        path = warehouse.home.reports / f"blame-{of.policy.iteration}-{of.policy.stage}-{name}.txt"
        atomic_write(path, ("\n".join(chosen) + "\n").encode())
        command = f"flywheel withdraw $(cat {shlex.quote(str(path))})"
    return Withdrawal(what=what, sample_ids=chosen, command=command)


def _samples_of(warehouse: Warehouse, episode_ids: Collection[str]) -> set[str]:
    """Every sample that was cut from these episodes and is not withdrawn."""
    query = " union ".join(
        f"select sample_id from {table} where not withdrawn and episode_id in (select unnest($1))"
        for table in ("ct_samples", "sft_samples")
    )
    with connect(warehouse, tables=["ct_samples", "sft_samples"]) as con:
        return {id_ for (id_,) in con.execute(query, [sorted(episode_ids)]).fetchall()}


def _named_ids(found: Blame) -> set[str]:
    return {id_ for one in found.named for id_ in one.samples}


def _campaigns(warehouse: Warehouse, profile: Profile) -> dict[str, str]:
    """Names of campaigns by episode; none where nobody annotates."""
    database = database_of(warehouse.home, profile.people)
    if database is None:
        return {}
    try:
        return campaigns(database)
    finally:
        database.close()


def _images(warehouse: Warehouse, stage: Stage, questions: Sequence[Question], folder: Path) -> ReadImage | None:
    if not is_vision(stage.made.folder):
        return None
    shown = [*DatasetSamples(warehouse, stage.dataset_id), *(one for asked in questions for one in (asked.wanted, asked.unwanted))]
    return spooled_images(warehouse, shown, folder)


def question(wanted: Answer, given: Answer) -> Question:
    def sample(answer: Answer) -> TrainingSample:
        messages = tuple(Message(**message) for message in answer.messages)
        return TrainingSample(messages=training_messages(messages, answer.response))

    return Question(wanted=sample(wanted), unwanted=sample(given))


def _count(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _gain(part: Part) -> PairedGain:
    paired, gain = part.paired, part.paired.difference
    return PairedGain(
        first=part.first,
        second=part.second,
        gain=gain.mean,
        low=gain.interval.low,
        high=gain.interval.high,
        num_pairs=paired.num_pairs,
        num_won=paired.candidate_only,
        num_lost=paired.incumbent_only,
    )
