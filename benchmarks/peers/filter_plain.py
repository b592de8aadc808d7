"""The default filters and routes of an episode in plain Python, for peers that call a function for each episode. Stands alone: it is
read in venvs that Flywheel is not installed in. Prompts come as text, one message each.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

PASSIVE = frozenset({"wait", "finished", "call_user", "invalid"})
QUOTED, WORD = r'"[^"]*"|<[^<>]*>', re.compile(r"[^\W\d_]{5,}")
LEADING = r"^(click|type)\b"
NAMED = {"click": r"\b(?:click|press|select|open|clos)", "type": r"\b(?:typ|enter|writ|input|fill)", "wait": r"\bwait"}
"""Verbs and words for kinds of actions, of those that the episodes of benchmarks/common/episodes.py have."""
HIDDEN = re.compile(
    r"(?m)(?:\bWOB_[A-Z_]+)|(?:\bdata-wob[_-])|(?:^\s*\{.*\"[^\"]+\"\s*:)|(?:\"(?:answer|solution|expected|ground_truth)\"\s*:)"
)
BUSY = re.compile(r'<progressbar>|<busy>|aria-busy|"[Ll]oading[ .…]*"|"[Pp]lease wait[ .…]*"')
COORDINATES = ("x", "y", "to_x", "to_y")
JUDGES = ("contamination", "contradiction", "duplicate", "format", "leak", "loop", "no_op", "repeats", "settled", "too_long", "too_short")
"""In the order in which the digest has their scores."""
MINIMUM = {
    "contradiction": 1.0,
    "format": 1.0,
    "loop": 0.7,
    "no_op": 0.5,
    "repeats": 1.0,
    "settled": 0.0,
    "too_long": 1.0,
    "too_short": 1.0,
}
"""Filters that demote below their threshold."""


def contradicts(thought: str, kind: str) -> bool | None:
    """None where the two cannot be compared."""
    said = re.sub(QUOTED, " _ ", thought).lower()
    return re.search(NAMED[kind], said) is None if kind in NAMED and re.search(LEADING, said) else None


def features(episode: dict[str, Any]) -> dict[str, Any]:
    """What one episode's steps say: the scores of the filters that need nothing else, and what it is compared by. `episode` has lists
    observation, screenshot_id, prompt, response, thought, action, in the order of steps, and its reward."""
    observations, responses, prompts = episode["observation"], episode["response"], episode["prompt"]
    actions = [json.loads(text) for text in episode["action"]]
    compared = [contradicts(thought, action["kind"]) for thought, action in zip(episode["thought"], actions, strict=True)]
    signatures = []
    for action in actions:
        where = [round(action[key] / 8) for key in COORDINATES if action.get(key) is not None]
        rest = sorted((key, value) for key, value in action.items() if key not in COORDINATES)
        signatures.append(json.dumps([rest, where]))
    num = len(actions)
    states = [text or shot or "" for text, shot in zip(observations, episode["screenshot_id"], strict=True)]
    invalid = sum(action["kind"] == "invalid" for action in actions)
    pairs = [(i, j) for i, j in pairwise(range(num)) if actions[i]["kind"] not in PASSIVE]
    idle = sum(observations[i] == observations[j] and episode["screenshot_id"][i] == episode["screenshot_id"][j] for i, j in pairs)
    repeated = num - len(set(zip(states, signatures, strict=True)))
    run = longest = 1
    for first, second in pairwise(signatures):
        run = run + 1 if first == second else 1
        longest = max(longest, run)
    acting = [text for text, action in zip(observations, actions, strict=True) if action["kind"] not in PASSIVE]
    unsettled = sum(BUSY.search(text) is not None for text in acting)
    written = sum(bool(response.strip()) for response in responses)
    return {
        "num_steps": num,
        "actions_key": hashlib.md5("\n".join(signatures).encode()).hexdigest(),
        "screens": states,
        "format": share(invalid, num),
        "no_op": share(idle, len(pairs)),
        "loop": share(repeated, num),
        "repeats": min(1.0, 24 / longest),
        "settled": share(unsettled, len(acting)),
        "contradiction": share(compared.count(True), num - compared.count(None)),
        "too_short": 1.0 if num and written == num else min(written / 1, written / max(1, num)),
        "leak": float(not leaks(prompts, actions, episode["reward"])),
    }


def share(num_bad: int, num: int) -> float:
    return (num - num_bad) / num if num else 1.0


def leaks(prompts: Sequence[str], actions: Sequence[dict[str, Any]], reward: float | None) -> bool:
    read = ""
    for prompt, action in zip(prompts, actions, strict=True):
        if HIDDEN.search(prompt):
            return True
        if (reward or 0.0) >= 0.999:
            read += "\n" + prompt.casefold()
            typed = action.get("text", "") if action["kind"] == "type" else action.get("answer", "") if action["kind"] == "finished" else ""
            if any(word.casefold() not in read for word in WORD.findall(typed or "")):
                return True
    return False


def judged(episodes: Iterable[dict[str, Any]]) -> dict[str, tuple[str, list[float]]]:
    """The route of each episode and its scores in the order of JUDGES, by its row and features: adds the filters that need more than the
    episode itself (lengths of solved ones, duplicates)."""
    rows = sorted(episodes, key=lambda row: row["episode_id"])
    lengths: dict[str, list[int]] = {}
    for row in rows:
        if (row["reward"] or 0.0) >= 0.999:
            lengths.setdefault(row["task_id"], []).append(row["num_steps"])
    typical = {task: median(values) for task, values in lengths.items()}
    likeness = likeness_of(rows)
    found = {}
    for row in rows:
        limit = max(8.0, 3.0 * typical.get(row["task_id"], 0.0))
        scores = {judge: row[judge] for judge in JUDGES if judge in row} | {
            "too_long": 1.0 if row["num_steps"] <= limit else limit / row["num_steps"],
            "duplicate": 1 - likeness.get(row["episode_id"], 0.0),
            "contamination": float(row["split"] == "train"),
        }
        is_out = row["outcome"] == "crashed" or row["reward"] is None or row["split"] != "train"
        if is_out or scores["leak"] < 1 or scores["duplicate"] < 0.1:
            route = "withheld"
        else:
            good = row["reward"] >= 0.999 and all(scores[judge] >= least for judge, least in MINIMUM.items())
            route = "sft" if good else "ct"
        found[row["episode_id"]] = route, [scores[judge] for judge in JUDGES]
    return found


def likeness_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each episode that is like an original before it, how much. Only episodes with the same actions are compared."""
    buckets: dict[tuple[str, str, str], list[list[Any]]] = {}
    found = {}
    for row in rows:
        if row["outcome"] == "crashed" or row["split"] != "train" or not row["num_steps"]:
            continue
        bucket = buckets.setdefault((row["task_id"], row["instruction"], row["actions_key"]), [])
        if not bucket:
            bucket.append([row["screens"], None])
            continue
        screens = [frozenset(text.splitlines()) for text in row["screens"]]
        best = 0.0
        for original in bucket:
            if original[1] is None:
                original[1] = [frozenset(text.splitlines()) for text in original[0]]
            scores = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in zip(screens, original[1], strict=True)]
            best = max(best, sum(scores) / len(scores))
        found[row["episode_id"]] = best
        if 1 - best >= 0.1:
            bucket.append([row["screens"], screens])
    return found


def peak_mb() -> float:
    """Highest resident memory of this process; the kernel's other figure, ru_maxrss, begins with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def digest(found: dict[str, tuple[str, Sequence[float]]]) -> str:
    """Of every episode's route and scores, as benchmarks/ours/route_episodes.py has it."""
    rows = (episode + route + "".join(f" {score:.4f}" for score in scores) for episode, (route, scores) in sorted(found.items()))
    return hashlib.md5(",".join(rows).encode()).hexdigest()
