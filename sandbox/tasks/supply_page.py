"""The report of a generator's supply (supply_report.py): figures for JSON, rows for a terminal, and a page with samples for a person."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from sandbox.tasks.supply_report import NEAR, Supplied, Supply
from sandbox.tasks.task import Split

NUM_SAMPLES = 20
MAX_ACTIONS = 12
"""Of an oracle are shown."""
MAX_CHARS = 400
MAX_VALUES = 4
"""Most frequent values of a part of the provenance that are named."""
BANDS = 5
"""Of difficulty, between 0 and 1."""
SOLUTIONS = ("answer", "answers", "goal", "goals", "expected")
"""Keys of an instance's content that say what solves it."""


def figures(supply: Supply) -> dict[str, Any]:
    """All that was counted, JSON-able."""
    duplicates = supply.duplicates
    played = [each.played_s for each in supply.proved]
    return {
        "instances": len(supply.instances),
        "families": len(supply.by_family),
        "splits": dict(Counter(str(each.split) for each in supply.instances)),
        "candidates": supply.num_candidates,
        "yield": round(supply.yield_, 4),
        "dropped": supply.refused,
        "of_other_splits": supply.num_of_other_splits,
        "duplicates_within_splits": duplicates.within_splits,
        "duplicates_across_splits": duplicates.across_splits,
        "same_instructions": duplicates.same_instructions,
        "near_instructions": duplicates.near_instructions,
        "made_ms_mean": round(mean(each.made_ms for each in supply.instances), 3),
        "proved": len(supply.proved),
        "solved": supply.num_solved,
        "crashed": sum(bool(each.error) for each in supply.instances),
        "oracle_steps_mean": round(mean(each.proof.num_steps for each in supply.proved if each.proof), 2) if played else None,
        "episode_s_mean": round(mean(played), 3) if played else None,
        "proving_s": round(supply.proving_s, 1) if played else None,
        "difficulty": bands(supply.instances),
        "provenance": provenance(supply.instances),
        "by_family": {name: _of_family(group) for name, group in supply.by_family.items()},
    }


def bands(instances: Sequence[Supplied]) -> dict[str, int]:
    """Instances by difficulty, in bands of equal width; the last holds 1 too."""
    counts = Counter(min(int(each.facts.difficulty * BANDS), BANDS - 1) for each in instances)
    return {f"{band / BANDS:.1f}–{(band + 1) / BANDS:.1f}": counts[band] for band in range(BANDS)}


def provenance(instances: Sequence[Supplied]) -> dict[str, dict[str, int]]:
    """How often each value of each part of the provenance comes, most frequent first."""
    found: dict[str, Counter[str]] = {}
    for each in instances:
        for part, value in each.facts.provenance.items():
            found.setdefault(part, Counter())[value] += 1
    return {part: dict(counts.most_common()) for part, counts in found.items()}


def _of_family(group: Sequence[Supplied]) -> dict[str, Any]:
    proofs = [each.proof for each in group if each.proof is not None]
    return {
        "instances": len(group),
        "difficulty": round(mean(each.facts.difficulty for each in group), 3),
        "yield": round(Supply(instances=tuple(group), dropped=_dropped(group)).yield_, 3),
        "solved": sum(proof.is_success for proof in proofs),
        "proved": len(proofs),
        "steps": round(mean(proof.num_steps for proof in proofs), 1) if proofs else None,
        "max_steps": group[0].task.max_steps,
        "episode_s": round(mean(each.played_s for each in group if each.proof is not None), 2) if proofs else None,
        "held_out": group[0].task.held_out,
    }


def _dropped(group: Sequence[Supplied]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in group:
        found.update(each.facts.dropped)
    return found


def to_json(selection: str, supply: Supply) -> str:
    """Figures and every instance: what each asks, where it is from, how its oracle fared."""
    instances = [
        {
            "task": each.task.name,
            "seed": each.seed,
            "split": str(each.split),
            "content_id": each.facts.content_id,
            "instruction": each.facts.instruction,
            "difficulty": each.facts.difficulty,
            "provenance": dict(each.facts.provenance),
            "solved": None if each.proof is None else each.proof.is_success,
            "steps": None if each.proof is None else each.proof.num_steps,
            "why_not": each.why_not,
        }
        for each in supply.instances
    ]
    return json.dumps({"selection": selection, **figures(supply), "of": instances}, indent=1, ensure_ascii=False) + "\n"


def summary_rows(supply: Supply) -> list[tuple[str, str]]:
    """The figures that count, in words."""
    counted = figures(supply)
    splits = ", ".join(f"{counted['splits'].get(str(split), 0)} {split}" for split in Split)
    dropped = sorted(supply.refused.items(), key=lambda pair: -pair[1])
    left = f"; {supply.num_of_other_splits} good ones were left to the split they belong to" if supply.num_of_other_splits else ""
    rows = [
        ("instances", f"{counted['instances']} of {counted['families']} families ({splits})"),
        ("yield after filters", f"{supply.yield_:.1%} of {counted['candidates']} candidates{left}"),
        ("dropped", ", ".join(f"{reason} {num}" for reason, num in dropped) or "none"),
        ("duplicates", f"{counted['duplicates_within_splits']} within a split, {counted['duplicates_across_splits']} across splits"),
        (
            "instructions",
            f"{counted['same_instructions']} said before to the word, {counted['near_instructions']} nearly (similarity ≥ {NEAR})",
        ),
        ("difficulty", ", ".join(f"{band}: {num}" for band, num in counted["difficulty"].items())),
        ("time to generate", f"{counted['made_ms_mean']:.2f} ms an instance"),
    ]
    if counted["proved"] or counted["crashed"]:
        crashed = f", {counted['crashed']} could not be run" if counted["crashed"] else ""
        share = counted["solved"] / counted["instances"]
        rows.append(("solved by the oracle", f"{counted['solved']} of {counted['instances']} ({share:.1%}){crashed}"))
    if counted["proved"]:
        wall = supply.proving_s / counted["instances"]
        rows.append(("time per task", f"{counted['episode_s_mean']:.2f} s an episode of the oracle, {wall:.2f} s of the wall clock a task"))
        rows.append(("steps", f"{counted['oracle_steps_mean']:.1f} of the oracle, on average"))
    return rows


FAMILY_COLUMNS = ("family", "instances", "difficulty", "yield", "solved", "steps", "at most", "s")


def family_rows(supply: Supply) -> list[tuple[str, ...]]:
    return [
        (
            f"{name} (held out)" if counted["held_out"] else name,
            str(counted["instances"]),
            f"{counted['difficulty']:.2f}",
            f"{counted['yield']:.0%}",
            f"{counted['solved']}/{counted['proved']}" if counted["proved"] else "–",
            "–" if counted["steps"] is None else f"{counted['steps']:.1f}",
            str(counted["max_steps"]),
            "–" if counted["episode_s"] is None else f"{counted['episode_s']:.2f}",
        )
        for name, counted in ((name, _of_family(group)) for name, group in supply.by_family.items())
    ]


def samples(supply: Supply, num: int = NUM_SAMPLES) -> list[Supplied]:
    """Spread over the families, and in each from its easiest to its hardest; none of `holdout` and `report`, which nobody looks at."""
    groups = [
        sorted(
            (each for each in group if each.split not in (Split.HOLDOUT, Split.REPORT)), key=lambda each: (each.facts.difficulty, each.seed)
        )
        for group in supply.by_family.values()
    ]
    groups = [group for group in groups if group]
    if len(groups) > num:
        groups = [groups[at * len(groups) // num] for at in range(num)]
    shares = [num // len(groups) + (at < num % len(groups)) for at in range(len(groups))] if groups else []
    return [
        group[at * (len(group) - 1) // max(share - 1, 1)]
        for group, share in zip(groups, shares, strict=True)
        for at in range(min(share, len(group)))
    ]


def page(title: str, command: str, supply: Supply, *, above: str = "") -> str:
    """A page for a person to judge by."""
    parts = [f"# {title}", "", f"Written by `{command}`; the figures are of that run.", ""]
    parts += [above, ""] if above else []
    parts += [*_table(("what", "measured"), summary_rows(supply)), "", "## Families", "", *_table(FAMILY_COLUMNS, family_rows(supply)), ""]
    if made_from := provenance(supply.instances):
        parts += ["## What they are made from", "", *_table(("part", "values", "most frequent"), _provenance_rows(made_from)), ""]
    if supply.failed:
        parts += ["## Not solved", "", *(f"- {each.task.name}, seed {each.seed}: {each.why_not}" for each in supply.failed), ""]
    shown = samples(supply)
    parts += [f"## {len(shown)} samples", "", "Of `train` and `eval`: what is only ever reported is not shown.", ""]
    for number, each in enumerate(shown, start=1):
        parts += [*_sample(number, each), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def _provenance_rows(made_from: Mapping[str, Mapping[str, int]]) -> list[tuple[str, ...]]:
    return [
        (part, str(len(counts)), ", ".join(f"{_short(value, 60)} ({num})" for value, num in list(counts.items())[:MAX_VALUES]))
        for part, counts in made_from.items()
    ]


def _sample(number: int, each: Supplied) -> list[str]:
    facts = each.facts
    made_from = ", ".join(f"{part} {_short(value, 80)}" for part, value in facts.provenance.items())
    lines = [
        f"### {number}. {each.task.name}, seed {each.seed}",
        "",
        *(f"> {line}" for line in facts.instruction.strip().splitlines()),
        "",
        f"- difficulty {facts.difficulty:.2f}; {each.split}; made from: {_plain(made_from)}",
    ]
    if isinstance(facts.content, Mapping):
        lines += [f"- {key}: {_code(facts.content[key])}" for key in SOLUTIONS if key in facts.content]
    if each.proof is not None:
        lines.append(f"- oracle: {'solved' if each.proof.is_success else 'FAILED'} in {each.proof.num_steps} steps, {each.played_s:.2f} s")
        lines += [f"  {at}. {_code(action)}" for at, action in enumerate(each.actions[:MAX_ACTIONS], start=1)]
        if (more := len(each.actions) - MAX_ACTIONS) > 0:
            lines.append(f"  … and {more} more")
    return lines


def _code(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ⏎ ".join(_short(text, MAX_CHARS).splitlines())
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if fence == "``" or not text else f"`{text}`"


def _short(text: str, num: int) -> str:
    return text if len(text) <= num else text[: num - 1] + "…"


def _plain(text: str) -> str:
    return text.replace("<", "\\<").replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines]
