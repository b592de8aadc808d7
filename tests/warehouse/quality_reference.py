"""The filters once more, one episode at a time in plain Python: what warehouse/quality*.sql is compared with. Written for reading."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from warehouse.quality.config import QualityConfig

PASSIVE_KINDS = frozenset({"wait", "finished", "call_user", "invalid"})
WRITTEN = {"type": "text", "finished": "answer"}
QUOTED = re.compile(r'"[^"]*"|<[^<>]*>')
WORD = re.compile(r"[^\W\d_]+")
LEADING = re.compile(
    r"""[\s"'*#>(-]*(?:(?:i|we|let|me|us|will|ll|am|m|going\s+to|now|next|then|first|please|just)[\s,:’']+)*("""
    r"(?:(?:double|triple|right|left|middle)[-_ ]?)?(?:click(?:ing)?|tap(?:ping)?)\b|(?:long[-_ ])?press(?:ing)?\b|typ(?:e|ing)\b|"
    r"scroll(?:ing)?\b|drag(?:ging)?\b|swip(?:e|ing)\b|select(?:ing)?\b|hover(?:ing)?\b|finished\b|"
    r"wait(?:ing)?(?:\s+(?:for|until|till|a|one)\b|\s+\d|[\s.]*$))"
)
WORDS = {
    "click": "click|double|triple|right|middle|tap|press|hit|push|select|choos|pick|check|tick|toggl|open|clos|focus|activat",
    "type": "typ|enter|writ|input|fill|press|hit|insert|past|search|run|execut",
    "scroll": "scroll|swip|wheel|drag",
    "wait": "wait",
    "finished": "finish|done|answer|complet|report",
    "drag": "drag|drop|swip|mov|slid|scroll|select",
    "tool": "run|execut|typ|writ|enter|search|read|open|creat|edit|call|us|select|look|list",
    "hotkey": "press|hit|key|hotkey|shortcut|typ|enter|select|copy|past|sav|ctrl|scroll",
}
"""Of the kinds that the tests use."""
Rows = Sequence[Mapping[str, Any]]
JUDGED_PURPOSES = ("annotation", "rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """One filter's word on one episode, with the column names of the table `verdicts`."""

    judge: str
    judge_version: str
    score: float
    threshold: float
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.score >= self.threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What the filters read of one row of `steps`; `read` is all text of its prompt."""

    index: int
    observation: str
    screenshot_id: str | None
    read: str
    has_image: bool
    response: str
    thought: str
    action: Mapping[str, Any]

    @property
    def actions(self) -> list[Mapping[str, Any]]:
        """The actions of the answer; mostly one."""
        return list(self.action["actions"]) if self.action.get("kind") == "several" else [self.action]

    @property
    def signature(self) -> str:
        """What was done, and where on an 8-pixel grid."""
        rest = [
            {key: value for key, value in action.items() if key not in _COORDINATES or action.get("kind") == "tool"}
            for action in self.actions
        ]
        where = [[None if action.get(key) is None else round(action[key] / 8) for key in _COORDINATES] for action in self.actions]
        return json.dumps([rest, where], sort_keys=True)

    @property
    def state(self) -> str:
        """What identifies the screen: the element list, or else the pixels."""
        return self.observation or self.screenshot_id or ""


_COORDINATES = ("x", "y", "to_x", "to_y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One row of `episodes` with its rows of `steps`, in order."""

    episode_id: str
    iteration: str
    purpose: str
    task_id: str
    split: str
    instruction: str
    outcome: str
    reward: float | None
    steps: tuple[StepView, ...]

    @property
    def is_duplicable(self) -> bool:
        """Whether later episodes may be called duplicates of this one."""
        return self.outcome != "crashed" and self.split == "train" and bool(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a filter may know beside the episode: figures of the whole set that is judged."""

    typical_steps: Mapping[str, float] = field(default_factory=dict)
    """task id -> median number of steps of its solved episodes."""
    nearest: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    """episode id -> (similarity, id) of the most similar earlier episode, where one has the same actions."""


def trajectory(episode: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Read rows of the tables; `action` is parsed from its JSON, a broken one counts as invalid."""
    return Trajectory(
        episode_id=episode["episode_id"],
        iteration=episode.get("iteration") or "",
        purpose=episode["purpose"],
        task_id=episode["task_id"],
        split=episode["split"],
        instruction=episode["instruction"] or "",
        outcome=episode["outcome"],
        reward=episode["reward"],
        steps=tuple(_step(row) for row in sorted(steps, key=lambda row: int(row["step_index"]))),
    )


def _step(row: Mapping[str, Any]) -> StepView:
    try:
        action = json.loads(row["action"])
    except ValueError:
        action = None
    messages = row["messages"] or ()
    return StepView(
        index=row["step_index"],
        observation=row["observation"],
        screenshot_id=row["screenshot_id"],
        read="\n".join(message["content"] or "" for message in messages),
        has_image=any(message.get("screenshot_id") for message in messages),
        response=row["response"],
        thought=row["thought"] or "",
        action=action if isinstance(action, dict) else {"kind": "invalid", "reason": "the stored action is not a JSON object"},
    )


def format_validity(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of steps whose answer was a valid action."""
    reasons = []
    for step in episode.steps:
        invalid = next((action for action in step.actions if action.get("kind") == "invalid"), None)
        if invalid is not None:
            reasons.append(f"step {step.index}: {invalid.get('reason', 'invalid action')}")
    return _share("format", "2", len(reasons), len(episode.steps), config.min_valid_fraction, reasons)


def no_op(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of actions that changed something: the elements, or the pixels where screenshots were taken. What the last action
    changed is not stored, so it is not counted; neither are actions that mean to change nothing."""
    pairs = [(a, b) for a, b in pairwise(episode.steps) if any(action.get("kind") not in PASSIVE_KINDS for action in a.actions)]
    idle = [a for a, b in pairs if a.observation == b.observation and a.screenshot_id == b.screenshot_id]
    return _share("no_op", "2", len(idle), len(pairs), config.min_effective_fraction, [f"step {s.index} changed nothing" for s in idle])


def loop(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of steps that do not repeat an action on a screen where the same action was tried before, whatever the period."""
    first: dict[tuple[str, str], int] = {}
    reasons = []
    for step in episode.steps:
        seen = first.setdefault((step.state, step.signature), step.index)
        if seen != step.index:
            reasons.append(f"step {step.index} repeats step {seen}")
    return _share("loop", "3", len(reasons), len(episode.steps), config.min_fresh_fraction, reasons)


def too_long(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Allowed length over length; the limit follows the task's solved episodes."""
    typical = context.typical_steps.get(episode.task_id, 0.0)
    limit = max(float(config.length_floor), config.max_length_ratio * typical)
    num = len(episode.steps)
    score = 1.0 if num <= limit else limit / num
    reasons = () if num <= limit else (f"{num} steps, at most {limit:g} (solved episodes of this task take {typical:g})",)
    return FilterResult(judge="too_long", judge_version="1", score=score, threshold=1.0, reasons=reasons)


def too_short(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Steps with something written in them, over the fewest allowed."""
    written = sum(bool(step.response.strip()) for step in episode.steps)
    empty = [f"step {step.index} is empty" for step in episode.steps if not step.response.strip()]
    enough = written >= config.min_steps and not empty
    score = 1.0 if enough else min(written / config.min_steps, written / max(1, len(episode.steps)))
    reasons = empty or ([] if enough else [f"{written} written steps, at least {config.min_steps}"])
    return FilterResult(judge="too_short", judge_version="1", score=score, threshold=1.0, reasons=tuple(reasons))


def contradiction(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult | None:
    """Share of steps whose thought, but for what it quotes, has a word for what was done; None where no step can be compared. Steps whose
    thought begins with no verb are left out."""
    reasons, num, num_said = [], 0, 0
    for step in episode.steps:
        kinds = [str(action.get("kind")) for action in step.actions]
        thought = QUOTED.sub(" _ ", step.thought).lower()
        verb = LEADING.match(thought)
        is_said = bool(step.response.strip())
        is_read = is_said and verb is not None and bool(kinds) and all(kind in WORDS for kind in kinds)
        if verb and is_read and not any(re.search(rf"\b(?:{WORDS[kind]})", thought) for kind in kinds):
            reasons.append(f"step {step.index}: the thought says {verb[1]}, the action {', '.join(kinds)}")
        num, num_said = num + (is_read or not is_said), num_said + is_read
    if num < len(episode.steps) and not num_said:
        return None
    return _share("contradiction", "4", len(reasons), num, config.min_consistent_fraction, reasons)


def leaked_answer(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """1 unless the agent saw, or used, what it should not know: hidden data in a prompt; or a solved episode in which it typed a word
    that stands in none of its prompts so far, though these held no image. Short words and numbers may be worked out: they do not count."""
    patterns = [re.compile(pattern, re.MULTILINE) for pattern in config.leak_patterns]
    reasons, read, saw_image = [], "", False
    for step in episode.steps:
        hidden = [found.group()[:40] for pattern in patterns if (found := pattern.search(step.read)) is not None]
        reasons += [f"step {step.index}: hidden data '{text}'" for text in hidden]
        read += "\n" + step.read.casefold()
        saw_image = saw_image or step.has_image
        if saw_image or (episode.reward or 0.0) < config.success_threshold:
            continue
        typed = " ".join(str(action.get(WRITTEN[action["kind"]], "")) for action in step.actions if action.get("kind") in WRITTEN)
        unread = [w for w in WORD.findall(typed) if len(w) >= config.leak_min_letters and w.casefold() not in read]
        reasons += [f"step {step.index}: '{word}' was nowhere to be read" for word in unread]
    score = 0.0 if reasons else 1.0
    return FilterResult(judge="leak", judge_version="2", score=score, threshold=1.0, reasons=tuple(dict.fromkeys(reasons)))


def duplicate(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """1 - similarity to the most similar earlier episode of the task with the same instruction and the same actions."""
    similarity, other = context.nearest.get(episode.episode_id, (0.0, ""))
    reasons = (f"{similarity:.2f} like {other}",) if similarity > 1 - config.min_novelty else ()
    return FilterResult(judge="duplicate", judge_version="3", score=1 - similarity, threshold=config.min_novelty, reasons=reasons)


def contamination(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """1 on train instances only: what is evaluated on is never learned from."""
    clean = episode.split == "train"
    reasons = () if clean else (f"the instance belongs to the {episode.split} split",)
    return FilterResult(judge="contamination", judge_version="1", score=float(clean), threshold=1.0, reasons=reasons)


def repeats(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    longest, start = (0, 0), 0
    steps = episode.steps
    for end in range(1, len(steps) + 1):
        if end == len(steps) or steps[end].signature != steps[start].signature:
            longest = max(longest, (end - start, -start))
            start = end
    num, first = longest[0], -longest[1]
    reasons = ()
    if num > config.max_repeats:
        reasons = (f"steps {steps[first].index} to {steps[first + num - 1].index} repeat one action {num} times",)
    score = min(1.0, config.max_repeats / max(num, 1))
    return FilterResult(judge="repeats", judge_version="2", score=score, threshold=1.0, reasons=reasons)


def settled(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    acting = [step for step in episode.steps if any(action.get("kind") not in PASSIVE_KINDS for action in step.actions)]
    shows_screens = any(step.observation or step.screenshot_id is not None for step in episode.steps)
    reasons = []
    for step in acting:
        blank = not step.observation and step.screenshot_id is None
        if blank and shows_screens:
            reasons.append(f"step {step.index} was taken on a screen that shows nothing")
        elif not blank and any(re.search(pattern, step.observation) for pattern in config.busy_patterns):
            reasons.append(f"step {step.index} was taken on a screen that is still loading")
    return _share("settled", "1", len(reasons), len(acting), config.min_settled_fraction, reasons)


def balance(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult | None:
    rank, limit = context.ranks.get(episode.episode_id), config.max_solved_per_task
    if rank is None or limit is None:
        return None
    reasons = (f"number {rank} of the solved episodes of this task, at most {limit} are kept",) if rank > limit else ()
    return FilterResult(judge="balance", judge_version="1", score=min(1.0, limit / rank), threshold=1.0, reasons=reasons)


Filter = Callable[[Trajectory, QualityConfig, Context], FilterResult | None]

FILTERS: tuple[Filter, ...] = (
    balance,
    contamination,
    contradiction,
    duplicate,
    format_validity,
    leaked_answer,
    loop,
    no_op,
    repeats,
    settled,
    too_long,
    too_short,
)


def ranks(judged: Iterable[Trajectory], config: QualityConfig) -> dict[str, int]:
    solved: dict[tuple[str, str], list[str]] = {}
    for episode in judged:
        if (episode.reward or 0.0) >= config.success_threshold:
            solved.setdefault((episode.iteration, episode.task_id), []).append(episode.episode_id)
    return {episode_id: rank for ids in solved.values() for rank, episode_id in enumerate(sorted(ids), start=1)}


def quality(episode: Trajectory, config: QualityConfig, context: Context) -> list[FilterResult]:
    """Every filter's result, in the order of FILTERS."""
    return [result for judge in FILTERS if (result := judge(episode, config, context)) is not None]


def _share(judge: str, version: str, num_bad: int, num: int, threshold: float, reasons: Sequence[str]) -> FilterResult:
    score = (num - num_bad) / num if num else 1.0
    return FilterResult(judge=judge, judge_version=version, score=score, threshold=threshold, reasons=tuple(reasons))


def verdict_rows(episodes: Rows, steps: Rows, config: QualityConfig, *, iteration: str | None = None) -> list[dict[str, Any]]:
    """Judge the episodes of `iteration` (None: of all rows), in the order of their ids.

    `episodes` and `steps` may, and for duplicates should, reach back to earlier iterations: those are compared with, not judged. A
    crashed episode has no V: only its filters are recorded. Rows lack `iteration` and `stage`, which the warehouse fills in.
    """
    trajectories = read_trajectories(episodes, steps)
    judged = [t for t in trajectories if iteration is None or t.iteration == iteration]
    context = Context(
        typical_steps=typical_steps(trajectories, config), nearest=nearest_earlier(trajectories, config), ranks=ranks(judged, config)
    )
    rows: list[dict[str, Any]] = []
    for episode in sorted(judged, key=lambda t: t.episode_id):
        if episode.outcome != "crashed" and episode.reward is not None:
            rows.append(_verifier_row(episode, config))
        for result in quality(episode, config, context):
            rows.append(
                _row(
                    episode,
                    judge=result.judge,
                    judge_version=result.judge_version,
                    kind="filter",
                    origin="filter",
                    score=result.score,
                    threshold=result.threshold,
                    reasons=list(result.reasons),
                )
            )
    return rows


def read_trajectories(episodes: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> list[Trajectory]:
    """Join the rows of the routed purposes, earliest first. An episode recorded in two iterations counts in the first."""
    by_episode: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in steps:
        by_episode.setdefault(row["episode_id"], {})[row["step_index"]] = row
    rows = sorted(
        (row for row in episodes if row["purpose"] in JUDGED_PURPOSES),
        key=lambda row: (row.get("iteration") or "", JUDGED_PURPOSES.index(row["purpose"]), row["episode_id"]),
    )
    unique: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        unique.setdefault(row["episode_id"], row)
    return [trajectory(row, list(by_episode.get(row["episode_id"], {}).values())) for row in unique.values()]


def typical_steps(trajectories: Iterable[Trajectory], config: QualityConfig) -> dict[str, float]:
    """Median number of steps of the solved episodes of each task."""
    lengths: dict[str, list[int]] = {}
    for episode in trajectories:
        if (episode.reward or 0.0) >= config.success_threshold:
            lengths.setdefault(episode.task_id, []).append(len(episode.steps))
    return {task: float(median(values)) for task, values in lengths.items()}


def nearest_earlier(trajectories: Sequence[Trajectory], config: QualityConfig) -> dict[str, tuple[float, str]]:
    """For each episode its (similarity, id) to the most similar original before it; `trajectories` come earliest first.

    Two episodes are compared when task, instruction and every action agree; their similarity is the mean, over steps, of the Jaccard
    index of the screens' element lines. Only originals, i.e. episodes that are not duplicates themselves, are compared with. An
    annotated episode is a duplicate of annotated ones only: a rollout that was made before has not been corrected.
    """
    originals: dict[str, list[tuple[Trajectory, list[frozenset[str]]]]] = {}
    nearest: dict[str, tuple[float, str]] = {}
    for episode in trajectories:
        if not episode.is_duplicable:
            continue
        bucket = originals.setdefault(json.dumps([episode.task_id, episode.instruction, [s.signature for s in episode.steps]]), [])
        screens = [frozenset(step.state.splitlines()) for step in episode.steps]
        others = [(o, s) for o, s in bucket if episode.purpose != "annotation" or o.purpose == "annotation"]
        best = max(((_similarity(screens, seen), other.episode_id) for other, seen in others), default=(0.0, ""))
        if best[0] > 0:
            nearest[episode.episode_id] = best
        if 1 - best[0] >= config.min_novelty:
            bucket.append((episode, screens))
    return nearest


def _similarity(first: Sequence[frozenset[str]], second: Sequence[frozenset[str]]) -> float:
    scores = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in zip(first, second, strict=True)]
    return sum(scores) / len(scores)


def _verifier_row(episode: Trajectory, config: QualityConfig) -> dict[str, Any]:
    reward = episode.reward or 0.0
    return _row(
        episode,
        judge="verifier",
        judge_version="1",
        kind="verdict",
        origin="verifier",
        score=min(1.0, max(0.0, reward)),
        threshold=config.success_threshold,
        reasons=[f"reward {reward:g}", f"outcome {episode.outcome}"],
    )


def _row(episode: Trajectory, **columns: Any) -> dict[str, Any]:
    return {"episode_id": episode.episode_id, **columns, "passed": columns["score"] >= columns["threshold"]}
