"""Quality filters over finished episodes: each gives a score in [0, 1], a threshold and reasons. Judging an episode's success is the
verifier's business, where an episode goes is warehouse/routing.py's; rows for the table `verdicts` are made in agent/verdicts.py.

The filters are pure functions of stored rows (tables `episodes` and `steps`), never of live objects, so that history can be judged
again with other thresholds or newer versions. Change what a filter computes, and its version must go up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]

PASSIVE_KINDS = frozenset({"wait", "finished", "call_user", "invalid"})
"""Actions that need not change the screen; `invalid` is the format filter's business."""
WRITTEN = {"type": "text", "finished": "answer"}
"""Actions that carry words of the agent's own, and the field they are in."""
VERBS = frozenset({"click", "type", "press", "scroll", "drag", "select", "double_click", "right_click", "run", "wait", "finished"})
QUOTED = re.compile(r'"[^"]*"')
INDEX = re.compile(r"\[(\d+)\]")
WORD = re.compile(r"[^\W\d_]+")


class QualityConfig(BaseModel):
    """Thresholds of the filters. Every filter passes when its score is at least its threshold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    success_threshold: Annotated[Share, Field(description="reward from which the environment's verifier says V = 1")] = 0.999
    min_valid_fraction: Annotated[Share, Field(description="share of steps whose action could be parsed")] = 1.0
    min_effective_fraction: Annotated[Share, Field(description="share of actions after which the screen or the elements differ")] = 0.5
    min_fresh_fraction: Annotated[Share, Field(description="share of steps that do not repeat an action on a screen it was tried on")] = 0.7
    min_consistent_fraction: Annotated[Share, Field(description="share of steps whose thought does not contradict the action")] = 1.0
    min_steps: Annotated[int, Field(ge=1, description="fewest steps with something written in them")] = 1
    length_floor: Annotated[int, Field(ge=1, description="an episode of so many steps is never too long")] = 8
    max_length_ratio: Annotated[float, Field(ge=1, description="longest episode, in median lengths of the task's solved ones")] = 3.0
    min_novelty: Annotated[Share, Field(description="1 - similarity to the most similar earlier episode with the same actions")] = 0.1
    leak_min_letters: Annotated[int, Field(ge=3, description="shortest typed word that must have been readable somewhere")] = 5
    leak_patterns: Annotated[tuple[str, ...], Field(description="regular expressions of hidden data in what the agent was shown")] = (
        r"\bWOB_[A-Z_]+", r"\bdata-wob[_-]", r'^\s*\{.*"[^"]+"\s*:', r'"(answer|solution|expected|ground_truth)"\s*:',
    )


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
        """The action as the policy meant it: element numbers where the answer names them, else pixels on an 8-pixel grid."""
        rest = [{key: value for key, value in action.items() if key not in _COORDINATES} for action in self.actions]
        indices = _indices(_split_response(self.response)[1])
        where = indices or [round(action[key] / 8) for action in self.actions for key in _COORDINATES if action.get(key) is not None]
        return json.dumps([rest, where], sort_keys=True)

    @property
    def state(self) -> str:
        """What identifies the screen: the element list, or the pixels where there is none."""
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
    """episode id -> (similarity, id) of the most similar earlier episode, where one has the same actions."""


def trajectory(episode: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Read rows of the tables; `action` is parsed from its JSON, a broken one counts as invalid."""
    return Trajectory(
        episode_id=episode["episode_id"], iteration=episode.get("iteration") or "", purpose=episode["purpose"], task_id=episode["task_id"],
        split=episode["split"], instruction=episode["instruction"] or "", outcome=episode["outcome"], reward=episode["reward"],
        steps=tuple(_step(row) for row in sorted(steps, key=lambda row: int(row["step_index"]))),
    )


def _step(row: Mapping[str, Any]) -> StepView:
    try:
        action = json.loads(row["action"])
    except ValueError:
        action = None
    messages = row["messages"] or ()
    return StepView(
        index=row["step_index"], observation=row["observation"], screenshot_id=row["screenshot_id"],
        read="\n".join(message["content"] or "" for message in messages),
        has_image=any(message.get("screenshot_id") for message in messages), response=row["response"], thought=row["thought"] or "",
        action=action if isinstance(action, dict) else {"kind": "invalid", "reason": "the stored action is not a JSON object"},
    )


def format_validity(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of steps whose answer was a valid action."""
    reasons = []
    for step in episode.steps:
        invalid = next((action for action in step.actions if action.get("kind") == "invalid"), None)
        if invalid is not None:
            reasons.append(f"step {step.index}: {invalid.get('reason', 'invalid action')}")
    return _share("format", "1", len(reasons), len(episode.steps), config.min_valid_fraction, reasons)


def no_op(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of actions that changed something: the elements, or the pixels where screenshots were taken. What the last action
    changed is not stored, so it is not counted; neither are actions that mean to change nothing."""
    pairs = [(a, b) for a, b in pairwise(episode.steps) if any(action.get("kind") not in PASSIVE_KINDS for action in a.actions)]
    idle = [a for a, b in pairs if a.observation == b.observation and a.screenshot_id == b.screenshot_id]
    return _share("no_op", "1", len(idle), len(pairs), config.min_effective_fraction, [f"step {s.index} changed nothing" for s in idle])


def loop(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of steps that do not repeat an action on a screen where the same action was tried before, whatever the period."""
    first: dict[tuple[str, str], int] = {}
    reasons = []
    for step in episode.steps:
        seen = first.setdefault((step.state, step.signature), step.index)
        if seen != step.index:
            reasons.append(f"step {step.index} repeats step {seen}")
    return _share("loop", "1", len(reasons), len(episode.steps), config.min_fresh_fraction, reasons)


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


def contradiction(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """Share of steps whose thought names the same verb and the same elements as the action, as far as both name any."""
    reasons = [f"step {step.index}: {why}" for step in episode.steps if (why := contradiction_in(step.response)) is not None]
    return _share("contradiction", "1", len(reasons), len(episode.steps), config.min_consistent_fraction, reasons)


def contradiction_in(response: str) -> str | None:
    """In what the thought of one answer contradicts its action; None where it does not."""
    thought, action = _split_response(response)
    said, done = set(_indices(thought)), set(_indices(action))
    if said and done and not done <= said:
        return f"the thought names {_names(said)}, the action {_names(done)}"
    verb_said, verb_done = (text.split()[0] if text.split() else "" for text in (thought, action))
    if verb_said in VERBS and verb_done in VERBS and verb_said != verb_done:
        return f"the thought says {verb_said}, the action {verb_done}"
    return None


def leaked_answer(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """1 unless the agent saw, or used, what it should not know: hidden data in a prompt; or a solved episode in which it typed a word
    that stands in none of its prompts so far, though these held no image. Short words and numbers may be worked out: they do not count."""
    patterns = [re.compile(pattern, re.MULTILINE) for pattern in config.leak_patterns]
    reasons, read, saw_image = [], "", False
    for step in episode.steps:
        hidden = [found.group()[:40] for pattern in patterns if (found := pattern.search(step.read)) is not None]
        reasons += [f"step {step.index}: hidden data {text!r}" for text in hidden]
        read += "\n" + step.read.casefold()
        saw_image = saw_image or step.has_image
        if saw_image or (episode.reward or 0.0) < config.success_threshold:
            continue
        typed = " ".join(str(action.get(WRITTEN[action["kind"]], "")) for action in step.actions if action.get("kind") in WRITTEN)
        unread = [w for w in WORD.findall(typed) if len(w) >= config.leak_min_letters and w.casefold() not in read]
        reasons += [f"step {step.index}: {word!r} was nowhere to be read" for word in unread]
    score = 0.0 if reasons else 1.0
    return FilterResult(judge="leak", judge_version="1", score=score, threshold=1.0, reasons=tuple(dict.fromkeys(reasons)))


def duplicate(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """1 - similarity to the most similar earlier episode of the task with the same instruction and the same actions."""
    similarity, other = context.nearest.get(episode.episode_id, (0.0, ""))
    reasons = (f"{similarity:.2f} like {other}",) if similarity > 1 - config.min_novelty else ()
    return FilterResult(judge="duplicate", judge_version="1", score=1 - similarity, threshold=config.min_novelty, reasons=reasons)


def contamination(episode: Trajectory, config: QualityConfig, context: Context) -> FilterResult:
    """1 on train instances only: what is evaluated on is never learned from."""
    clean = episode.split == "train"
    reasons = () if clean else (f"the instance belongs to the {episode.split} split",)
    return FilterResult(judge="contamination", judge_version="1", score=float(clean), threshold=1.0, reasons=reasons)


Filter = Callable[[Trajectory, QualityConfig, Context], FilterResult]

FILTERS: tuple[Filter, ...] = (
    format_validity, no_op, loop, too_long, too_short, contradiction, leaked_answer, duplicate, contamination,
)


def quality(episode: Trajectory, config: QualityConfig, context: Context) -> list[FilterResult]:
    """Every filter's result, in the order of FILTERS."""
    return [judge(episode, config, context) for judge in FILTERS]


def _share(judge: str, version: str, num_bad: int, num: int, threshold: float, reasons: Sequence[str]) -> FilterResult:
    score = (num - num_bad) / num if num else 1.0
    return FilterResult(judge=judge, judge_version=version, score=score, threshold=threshold, reasons=tuple(reasons))


def _split_response(response: str) -> tuple[str, str]:
    """(thought, action) of an answer written as `Thought … Action …`, with quoted text taken out: what a page says proves nothing."""
    thought, _, action = QUOTED.sub('""', response).rpartition("Action")
    return thought.strip().removeprefix("Thought").strip(), action.strip()


def _indices(text: str) -> list[int]:
    return [int(number) for number in INDEX.findall(text)]


def _names(indices: set[int]) -> str:
    return " ".join(f"[{index}]" for index in sorted(indices))
