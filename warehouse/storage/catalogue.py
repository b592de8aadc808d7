"""The one description of every table: columns, types, units, meaning, keys, who writes it. Data only.

From it come the Arrow schema (here), the Delta tables (tables.py), the DuckDB views (sql/query.py), the Great Expectations suites
(expectations.py) and the docs page (docs_page.py, docs/tables.md). A table's name is its asset's name and its view's name.

Every table is partitioned by `iteration` ("0000" is the seed) and `stage` (which asset or run wrote the rows): a stage is re-run by
replacing its partition in one commit. `screenshots` alone is keyed by content and only ever added to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

STRING, INT, FLOAT, BOOL, BYTES = pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.binary()
STRINGS, INTS, FLOATS = pa.list_(STRING), pa.list_(INT), pa.list_(pa.float32())
MESSAGES = pa.list_(pa.struct([("role", STRING), ("content", STRING), ("screenshot_id", STRING), ("loss", pa.float32())]))
"""Chat messages as Hugging Face chat templates read them; `loss` is the weight of the message's tokens in the loss (0 = context only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str
    nullable: bool = False
    values: tuple[str, ...] | None = None
    """The closed set of allowed values, where there is one."""
    minimum: float | None = None
    maximum: float | None = None
    references: str | None = None
    """`table.column` that this value names; the lineage view and the foreign-key checks are made of these."""
    names_nothing: tuple[str, ...] = ()
    """Values of a referencing column that are not ids, e.g. `oracle`."""
    before: str | None = None
    """SQL for the value of a row that was written before there was the column; null where nothing says it."""
    may_dangle: bool = False
    """What a value names need not have been kept: lineage follows it where it was, and no check asks for it."""

    @property
    def checked_reference(self) -> str | None:
        return None if self.may_dangle else self.references


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    meaning: str
    writer: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    partitioned: bool = True

    @property
    def schema(self) -> pa.Schema:
        """Names and types only: what a column means is said here, and a reworded meaning must not keep old tables from being written."""
        return pa.schema([pa.field(column.name, column.type, nullable=column.nullable) for column in self.columns])

    @property
    def partition_by(self) -> list[str]:
        return ["iteration", "stage"] if self.partitioned else []

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


SPLITS = ("train", "eval", "holdout", "report")
OUTCOMES = ("success", "failure", "truncated", "timeout", "invalid_action", "crashed")
WITHDRAWN_STAGE = "withdrawn"
"""Stage of the tombstones of a table with a column `withdrawn`: a row there takes back every row of the same key."""
VERDICT_STAGE = "human"
"""Stage of the verdicts, and of the changes of releases, that people gave by command."""
RELEASE_STATES = ("held", "refused", "live", "superseded", "rolled_back")
"""What becomes of a candidate. One that has no row in `releases` has not been decided on."""
ROLES = ("system", "user", "assistant", "tool")
ROUTES = ("sft", "ct", "withheld")
ROUTE_CAUSES = ("solved", "not_solved", "demoted", "withheld", "crashed", "contamination", "unjudged", "erased")
SAMPLE_ORIGINS = (
    "tutorial",
    "demonstration",
    "rollout",
    "annotation",
    "variation",
    "general",
    "manual",
    "judgement",
    "correction",
    "reflection",
    "gateway",
)
"""`variation`: what a person did, in a model's words beside the person's own (`annotation`); `gateway`: a step of an agent that
called the gateway."""
ROUTED_PURPOSES = ("annotation", "rollout", "gateway")
"""Purposes whose episodes are judged and routed, in the order in which they count as the original of a duplicate."""
PURPOSES = ("seed", "rollout", "annotation", "rl", "evaluation", "second_browser", "gateway")


_CAUSE_BEFORE = """case
    when reason = 'erased' then 'erased'
    when starts_with(reason, 'V=0') then 'not_solved'
    when starts_with(reason, 'V=1 (') then 'demoted'
    when starts_with(reason, 'V=1') then 'solved'
    when reason = 'crashed' or starts_with(reason, 'crashed: ') then 'crashed'
    when starts_with(reason, 'contamination: ') then 'contamination'
    when starts_with(reason, 'unjudged: ') then 'unjudged'
    else 'withheld' end"""
"""Of `routes`: reasons began with the cause, or with the judge and a space."""


def _col(name: str, type_: pa.DataType, meaning: str, **rest: Any) -> Column:
    return Column(name=name, type=type_, meaning=meaning, **rest)


ITERATION = _col("iteration", STRING, "iteration that made the row: 0000 is the seed, then 0001, 0002, …")
STAGE = _col("stage", STRING, "asset or run that wrote the row, e.g. rollouts or rl_pointing")


def _table(name: str, meaning: str, writer: str, key: tuple[str, ...], *columns: Column, partitioned: bool = True) -> Table:
    own = (ITERATION, STAGE, *columns) if partitioned else columns
    return Table(name=name, meaning=meaning, writer=writer, key=key, columns=own, partitioned=partitioned)


_TABLES = (
    _table(
        "tasks",
        "Every task that the profile's lists and sources name; a seed makes an instance of it.",
        "asset tasks",
        ("task_id",),
        _col("task_id", STRING, "hash of the specification"),
        _col("source", STRING, "task source, e.g. miniwob"),
        _col("name", STRING, "name inside the source"),
        _col("domain", STRING, "specialist that learns it"),
        _col("max_steps", INT, "steps after which an episode is truncated", minimum=1),
        _col("held_out", BOOL, "whole task never trained on"),
        _col("version", STRING, "version of the source"),
        _col(
            "is_known_by_first_screen",
            BOOL,
            "instances with the same first screen are the same one, as the source says; null where it was not asked",
            nullable=True,
            before="source = 'miniwob'",
        ),
    ),
    _table(
        "task_instances",
        "Generated instances that are evaluated on, and those that self-challenge chose to be played: what is asked.",
        "assets tasks, task_pool",
        ("task_id", "seed"),
        _col("task_id", STRING, "the task", references="tasks.task_id"),
        _col("seed", INT, "seed of the instance", minimum=0),
        _col("split", STRING, "split of the instance", values=SPLITS),
        _col("content_id", STRING, "hash of what makes the instance what it is: no two instances of the task pool share it"),
        _col("instruction", STRING, "what the agent is asked, where the source knows it before it is run", nullable=True),
        _col("difficulty", FLOAT, "0 easy to 1 hard, by the source's own scale, where it has one", nullable=True, minimum=0, maximum=1),
        _col("provenance", STRING, "JSON: what it was made from"),
        _col("why", STRING, "why it is here: `evaluated on`; `seed` (nothing was known), or what the policy solved of its like"),
    ),
    _table(
        "episodes",
        "One attempt of one policy at one task instance, whatever became of it.",
        "assets seed_demonstrations, rollouts, annotations, gateway_episodes, rl_model, evaluation",
        ("episode_id",),
        _col("episode_id", STRING, "hash of (purpose, policy at its start, task, seed, attempt), of a fork also of where it begins"),
        _col("purpose", STRING, "why it was run", values=PURPOSES),
        _col("task_id", STRING, "the task", references="tasks.task_id"),
        _col("task_name", STRING, "the task's name, repeated for people who read the table"),
        _col("domain", STRING, "the task's domain"),
        _col("seed", INT, "seed of the instance", minimum=0),
        _col("split", STRING, "split of the instance", values=SPLITS),
        _col("attempt", INT, "sampling index, not a retry; forks of one parent and step count from 1", minimum=0),
        _col(
            "parent_episode_id",
            STRING,
            "of a fork: the episode whose first `fork_step` steps it begins with, carried out again and compared",
            nullable=True,
            references="episodes.episode_id",
        ),
        _col("fork_step", INT, "of a fork: how many of its steps are its parent's", nullable=True, minimum=0),
        _col(
            "fork_refused",
            STRING,
            "why the environment did not come to its parent's state: the episode was played from its first step on, and has none of its "
            "parent's",
            nullable=True,
        ),
        _col(
            "policy_id",
            STRING,
            "checkpoint that acted (in RL: the policy of that round, which is not kept), or `oracle`",
            references="checkpoints.checkpoint_id",
            names_nothing=("oracle",),
            may_dangle=True,
        ),
        _col("temperature", FLOAT, "sampling temperature; 0 is greedy", minimum=0),
        _col("instruction", STRING, "what the agent was asked", nullable=True),
        _col("outcome", STRING, "how it ended", values=OUTCOMES),
        _col(
            "reward",
            FLOAT,
            "reward of the environment's verifier; null where the infrastructure failed",
            nullable=True,
            minimum=-1,
            maximum=1,
        ),
        _col(
            "points",
            FLOAT,
            "of a game: its score in its own points at the end; null elsewhere, where no verdict was asked for (timeout, invalid_action, "
            "crashed), and of rows from before this was kept",
            nullable=True,
        ),
        _col(
            "content_id",
            STRING,
            "hash of what the first observation says: instruction and elements, without coordinates; null where nothing was seen",
            nullable=True,
        ),
        _col("num_steps", INT, "steps taken", minimum=0),
        _col("num_retries", INT, "infrastructure retries before this result", minimum=0),
        _col("error", STRING, "the infrastructure's error, for `crashed`", nullable=True),
        _col("duration_ms", FLOAT, "wall time", minimum=0),
        _col("environment", STRING, "digest of browser build, fonts and source version that the pixels depend on"),
    ),
    _table(
        "steps",
        "One thought and action, with what was seen and every token that was read and written.",
        "as episodes",
        ("episode_id", "step_index"),
        _col("episode_id", STRING, "the episode", references="episodes.episode_id"),
        _col("step_index", INT, "0-based", minimum=0),
        _col("policy_id", STRING, "checkpoint that acted at this step"),
        _col("observation", STRING, "the element list as text"),
        _col("screenshot_id", STRING, "the screen before the action", nullable=True, references="screenshots.screenshot_id"),
        _col("messages", MESSAGES, "the prompt as it was asked"),
        _col("response", STRING, "what the policy wrote"),
        _col("thought", STRING, "its thought", nullable=True),
        _col("action", STRING, "the parsed action, as JSON; kind `invalid` carries the reason"),
        _col("prompt_token_ids", INTS, "tokens as they went in"),
        _col("response_token_ids", INTS, "tokens as they came out, end token included"),
        _col("response_logprobs", FLOATS, "log-probability of each response token under the sampling distribution"),
        _col(
            "response_versions",
            INTS,
            "updates that the weights behind each response token had seen; empty or null where none are counted",
            nullable=True,
        ),
        _col("reward", FLOAT, "reward of this step", minimum=-1, maximum=1),
        _col("latency_ms", FLOAT, "time from prompt to executed action", minimum=0),
    ),
    _table(
        "screenshots",
        "Image bytes, each stored once by content.",
        "as episodes",
        ("screenshot_id",),
        _col("screenshot_id", STRING, "hash of the bytes"),
        _col("format", STRING, "image format", values=("png", "jpeg", "webp")),
        _col("width_px", INT, "pixels", minimum=1),
        _col("height_px", INT, "pixels", minimum=1),
        _col("data", BYTES, "the image file"),
        partitioned=False,
    ),
    _table(
        "verdicts",
        "One judgement or filter result on one episode; routing is a pure SQL function of these.",
        "assets verdicts, judgements, gateway_episodes; `flywheel verdict`",
        ("episode_id", "judge", "judge_version"),
        _col("episode_id", STRING, "the episode", references="episodes.episode_id"),
        _col("judge", STRING, "name of the verifier, judge or quality filter"),
        _col("judge_version", STRING, "its version"),
        _col("kind", STRING, "V(s) or a quality filter", values=("verdict", "filter")),
        _col("origin", STRING, "who says so", values=("verifier", "judge", "orm", "human", "scripted", "filter")),
        _col("score", FLOAT, "0 to 1; higher is better", minimum=0, maximum=1),
        _col("threshold", FLOAT, "passes when score >= threshold", minimum=0, maximum=1),
        _col("passed", BOOL, "score >= threshold"),
        _col("reasons", STRINGS, "why"),
        _col("cost_tokens", INT, "tokens that a model read and wrote to say so; null of verifiers, filters", nullable=True, minimum=0),
        _col("cost_ms", FLOAT, "time it took to say so; null where not taken: verifiers, filters", nullable=True, minimum=0),
    ),
    _table(
        "judge_reports",
        "How far a judge that may err agrees with one that does not: a row for each pair, domain and threshold.",
        "asset judge_reports",
        ("judge", "judge_version", "reference", "split", "domain", "threshold"),
        _col("judge", STRING, "who is measured, as in verdicts.judge"),
        _col("judge_version", STRING, "its version: of the ORM, the checkpoint"),
        _col("reference", STRING, "whose word is taken for the truth", values=("verifier", "human")),
        _col("split", STRING, "split of the judged instances", values=SPLITS),
        _col("domain", STRING, "domain of the tasks; `all` for every one together"),
        _col("threshold", FLOAT, "passes when score >= threshold", minimum=0, maximum=1),
        _col("is_chosen", BOOL, "the domain's threshold that routing uses; `all` counts each domain at its own, and names the lowest"),
        _col("target_precision", FLOAT, "precision that was asked for", minimum=0, maximum=1),
        _col("num_true_positive", INT, "passed both", minimum=0),
        _col("num_false_positive", INT, "passed by the judge alone: what would poison SFT", minimum=0),
        _col("num_false_negative", INT, "passed by the reference alone", minimum=0),
        _col("num_true_negative", INT, "passed neither", minimum=0),
        _col("precision", FLOAT, "true positives of all that passed; null where nothing did", nullable=True, minimum=0, maximum=1),
        _col("recall", FLOAT, "true positives of all that should pass; null where nothing should", nullable=True, minimum=0, maximum=1),
        _col("f1", FLOAT, "harmonic mean of the two", nullable=True, minimum=0, maximum=1),
        _col("brier", FLOAT, "mean squared distance of score and truth, lower is better", minimum=0, maximum=1),
        _col("calibration_error", FLOAT, "expected calibration error over ten bins of the score", minimum=0, maximum=1),
    ),
    _table(
        "routes",
        "Where each terminal episode of the iteration went, and why. Total and disjoint.",
        "asset routing",
        ("episode_id",),
        _col("episode_id", STRING, "the episode", references="episodes.episode_id"),
        _col("route", STRING, "its one destination", values=ROUTES),
        _col("reason", STRING, "the rule that decided, with the deciding values, for people"),
        _col(
            "cause",
            STRING,
            "what decided: V (solved, not_solved), a filter (demoted, withheld), or what keeps an episode out whatever was said of it",
            nullable=True,
            values=ROUTE_CAUSES,
            before=_CAUSE_BEFORE,
        ),
        _col(
            "withheld_by",
            STRING,
            "the filter that withheld it, of the cause `withheld`",
            nullable=True,
            before=f"case when {_CAUSE_BEFORE} = 'withheld' then split_part(reason, ' ', 1) end",
        ),
        _col(
            "demoted_by",
            STRING,
            "the filter that sent it to CT, of the cause `demoted`",
            nullable=True,
            before=f"case when {_CAUSE_BEFORE} = 'demoted' then split_part(split_part(reason, '), demoted by ', 2), ' ', 1) end",
        ),
        _col(
            "decided_verdict",
            BOOL,
            "V, also of one that was withheld for something else; null where nobody gave it",
            nullable=True,
            before="case when starts_with(reason, 'V=') then starts_with(reason, 'V=1') end",
        ),
        _col(
            "decided_by",
            STRING,
            "the judge who gave V",
            nullable=True,
            before="case when starts_with(reason, 'V=') then ltrim(string_split(reason, ' ')[2], '(') end",
        ),
        _col(
            "decided_score",
            FLOAT,
            "the score by which V was given; of rows from before there was the column to three digits",
            nullable=True,
            minimum=0,
            maximum=1,
            before="case when starts_with(reason, 'V=') then try_cast(string_split(reason, ' ')[3] as double) end",
        ),
    ),
    _table(
        "annotations",
        "One decision of an annotator at one step.",
        "asset annotations",
        ("annotation_id",),
        _col("annotation_id", STRING, "hash of (episode, step, annotator, mode, response)"),
        _col("episode_id", STRING, "the annotated episode", references="episodes.episode_id"),
        _col("step_index", INT, "the annotated step", minimum=0),
        _col("annotator", STRING, "who: `oracle` for the scripted one"),
        _col("origin", STRING, "human or scripted", values=("human", "scripted")),
        _col("mode", STRING, "relabel after the fact, or intervene live", values=("relabel", "intervene")),
        _col(
            "decision",
            STRING,
            "what was done with the proposal; rejected: a reviewer called the decision wrong, it teaches nothing",
            values=("accept", "edit", "override", "beyond_repair", "rejected"),
        ),
        _col("proposal", STRING, "what the policy wrote"),
        _col("response", STRING, "thought and action that stand after the decision", nullable=True),
        _col("messages", MESSAGES, "the prompt at that step"),
        _col("withdrawn", BOOL, "a tombstone: excluded from the next snapshot"),
    ),
    *(
        _table(
            f"{kind}_samples",
            meaning,
            f"assets {writers}",
            ("sample_id",),
            _col("sample_id", STRING, "hash of the messages and where they come from"),
            _col("origin", STRING, "what it was made from", values=SAMPLE_ORIGINS),
            _col("domain", STRING, "domain of the task; `general` for tutorials, manuals and general data"),
            _col("messages", MESSAGES, "chat messages with per-message loss weight"),
            _col("episode_id", STRING, "the episode it was cut from", nullable=True, references="episodes.episode_id"),
            _col("step_index", INT, "the step it was cut from", nullable=True, minimum=0),
            _col("annotation_id", STRING, "the annotation that corrected it", nullable=True, references="annotations.annotation_id"),
            _col(
                "prompt_episode_ids",
                STRINGS,
                "of corrections and reflections: the failed episodes whose prompt it is; null where it is that of `episode_id`",
                nullable=True,
                references="episodes.episode_id",
            ),
            _col("prompt_step_indices", INTS, "of each of these the step that was asked so", nullable=True),
            _col("verdict", BOOL, "V of the episode; null for tutorials", nullable=True),
            _col("withdrawn", BOOL, "a tombstone: excluded from the next snapshot"),
        )
        for kind, meaning, writers in (
            ("ct", "D_CT: everything continual training may learn from.", "seed_tutorials, routing"),
            ("sft", "D_SFT: steps of successful episodes and corrected steps.", "seed_demonstrations, routing"),
            ("orm", "D_ORM: judgements whose truth is known, for the outcome reward model.", "orm_samples"),
        )
    ),
    _table(
        "datasets",
        "Immutable snapshots: which samples a training run read, and how often.",
        "assets ct_dataset, sft_dataset, orm_dataset",
        ("dataset_id", "sample_id"),
        _col("dataset_id", STRING, "hash of the members and their weights"),
        _col("kind", STRING, "which table the samples are in", values=("ct", "sft", "orm")),
        _col("sample_id", STRING, "the sample"),
        _col("component", STRING, "part of the mixture, e.g. demonstration, correction, approved, replay"),
        _col("weight", FLOAT, "relative sampling weight of this row in training", minimum=0),
    ),
    _table(
        "checkpoints",
        "One trained, merged or released set of weights.",
        "assets seed_policy, ct_model, sft_model, rl_model, merged_policy, released_policy",
        ("iteration", "stage"),
        _col("checkpoint_id", STRING, "policy id: hash of weights and tokenizer"),
        _col(
            "kind",
            STRING,
            "model: it answers; critic: it estimates what episodes of an RL stage will earn; null of rows from before critics were kept",
            values=("model", "critic"),
            nullable=True,
        ),
        _col("path", STRING, "folder, relative to FLYWHEEL_HOME"),
        _col("parents", STRINGS, "checkpoints it was made from", references="checkpoints.checkpoint_id"),
        _col("datasets", STRINGS, "dataset ids it learned from", references="datasets.dataset_id"),
        _col(
            "episode_ids",
            STRINGS,
            "of RL and its critics: the episodes that they learned from; null of other stages, and of RL before this was kept",
            nullable=True,
            references="episodes.episode_id",
        ),
        _col("config", STRING, "JSON of the run's configuration"),
        _col("metrics", STRING, "JSON of the run's closing metrics"),
        _col("note", STRING, "e.g. why a stage passed its input on"),
    ),
    _table(
        "releases",
        "What became of each candidate for a release: a row for each policy that a change concerns. Append-only, and the newest counts.",
        "asset released_policy; `flywheel release`",
        ("number", "checkpoint_id"),
        _col("number", INT, "the change, counted from 1 through all iterations; its rows are committed together", minimum=1),
        _col("checkpoint_id", STRING, "the policy", references="checkpoints.checkpoint_id"),
        _col("release", STRING, "what made it, ITERATION/STAGE"),
        _col("state", STRING, "its state from here on", values=RELEASE_STATES),
        _col(
            "live_id",
            STRING,
            "the policy that is live from here on: it enters the next iteration, collects and is served; null where none ever was",
            nullable=True,
            references="checkpoints.checkpoint_id",
        ),
        _col("decided_by", STRING, "the person's name, or the rule"),
        _col("origin", STRING, "who decided", values=("human", "rule")),
        _col("reason", STRING, "why, with the deciding values"),
        _col("decided_at", STRING, "when, UTC, as ISO 8601"),
        _col(
            "compared_with",
            STRING,
            "the policy that it was compared with on the eval split; null where there was none, or no instance in common",
            nullable=True,
            references="checkpoints.checkpoint_id",
        ),
        _col("gain", FLOAT, "success less that policy's, mean over tasks", nullable=True, minimum=-1, maximum=1),
        _col("gain_low", FLOAT, "lower end of its 95 % interval", nullable=True, minimum=-1, maximum=1),
        _col("gain_high", FLOAT, "upper end", nullable=True, minimum=-1, maximum=1),
        _col("num_pairs", INT, "instances that both have played", nullable=True, minimum=0),
        _col("num_won", INT, "of these, solved by it alone", nullable=True, minimum=0),
        _col("num_lost", INT, "of these, solved by the other alone", nullable=True, minimum=0),
        _col("p_worse", FLOAT, "anytime-valid p-value of being worse", nullable=True, minimum=0, maximum=1),
    ),
    _table(
        "sources",
        "Where samples come from, and under which licence: sources of tasks, imports, people. Of a source that is named twice the newest "
        "iteration's row counts.",
        "assets tasks, annotations, recordings; `flywheel import`",
        ("source",),
        _col("source", STRING, "a task source's name (of a set of tasks imported:NAME), the stage of an import, annotators, or recordings"),
        _col("kind", STRING, "what it is", values=("tasks", "import", "people", "own")),
        _col("licence", STRING, "its licence: an SPDX id or words; unknown where nobody said"),
        _col("origin", STRING, "what it is and where it is from, as far as it says"),
        _col("stated_by", STRING, "who says so: the source, the importer of a public collection, whoever imported it, the profile"),
    ),
    _table(
        "taints",
        "Checkpoints that learned from what was forgotten afterwards; what was made from them is tainted too, and has no row. Append-only.",
        "`flywheel forget`",
        ("forget_id", "checkpoint_id"),
        _col("forget_id", STRING, "hash of what was forgotten: a person's account, an episode, or an import"),
        _col("checkpoint_id", STRING, "the checkpoint, which stays as it is", references="checkpoints.checkpoint_id"),
        _col("release", STRING, "what made it, ITERATION/STAGE"),
        _col("because", STRING, "from how much of it the checkpoint learned"),
        _col("forgotten_at", STRING, "when, UTC, as ISO 8601"),
    ),
    _table(
        "evaluations",
        "Greedy success of one checkpoint on one task, on a fixed set of instances.",
        "asset evaluation",
        ("checkpoint_role", "split", "task_id"),
        _col("checkpoint_id", STRING, "who was evaluated", references="checkpoints.checkpoint_id"),
        _col("checkpoint_role", STRING, "stage that made it: sft_model, rl_pointing, merged_policy, released_policy, …"),
        _col("task_id", STRING, "the task", references="tasks.task_id"),
        _col("task_name", STRING, "its name"),
        _col("domain", STRING, "its domain"),
        _col("split", STRING, "eval chooses, the others only report", values=SPLITS[1:]),
        _col("num_episodes", INT, "episodes with a reward", minimum=0),
        _col("num_success", INT, "of these, solved", minimum=0),
        _col("num_crashed", INT, "episodes without a reward", minimum=0),
        _col(
            "mean_points",
            FLOAT,
            "of a game: mean of `points` over the episodes with a reward, 0 where no verdict was asked for; null elsewhere",
            nullable=True,
        ),
        _col("points_deviation", FLOAT, "of a game: their sample standard deviation; null of one episode", nullable=True, minimum=0),
    ),
    _table(
        "merge_candidates",
        "What every mixture that the search of the merge weights tried solved of the eval split, task by task.",
        "asset merged_policy",
        ("candidate", "task_id"),
        _col("candidate", INT, "place in the order in which they were tried", minimum=0),
        _col("method", STRING, "how it was merged, e.g. linear; specialist: one of the parents as it is, beside the mixtures"),
        _col("weights", STRING, "JSON: stage that trained the specialist → its weight"),
        _col("is_chosen", BOOL, "this mixture became the merged policy"),
        _col("task_id", STRING, "the task", references="tasks.task_id"),
        _col("task_name", STRING, "its name"),
        _col("domain", STRING, "its domain"),
        _col("num_episodes", INT, "episodes with a reward", minimum=0),
        _col("num_success", INT, "of these, solved", minimum=0),
        _col("num_crashed", INT, "episodes without a reward", minimum=0),
    ),
    _table(
        "training_metrics",
        "Curves of every training run.",
        "assets ct_model, sft_model, rl_model",
        ("run", "step", "metric"),
        _col("run", STRING, "training run, e.g. sft_model or rl_pointing"),
        _col("step", INT, "optimizer step or update", minimum=0),
        _col("metric", STRING, "name, e.g. loss, reward, entropy"),
        _col("value", FLOAT, "its value"),
        _col("checkpoint_id", STRING, "the checkpoint the run made, or began from if it failed", references="checkpoints.checkpoint_id"),
    ),
)

TABLES: dict[str, Table] = {table.name: table for table in _TABLES}
