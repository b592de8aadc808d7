"""Success by iteration and stage over several seeds, beside the controls that say where a gain comes from.

    quickstart    the profile as it is
    no_annotator  without the scripted annotator
    replay_only   same compute, no new data: D_CT and D_SFT stay the seed's, RL only replays
    no_failures   CT without the V=0 data (ct_weight 0)
    miniwob       the profile of that name, on all tasks but those held out whole: four iterations

Every table begins with the two policies that a run starts from: *tutorials only*, the first CT, which has seen no demonstration, and
*seed SFT*, after two demonstrations a task. What the flywheel adds is over those.

Every (variant, seed) is an ordinary home under .bench/iterations, made by `flywheel run`; run again after an interruption and it goes on.
Both starts and the newest released policy of each home are also measured on the tasks of `unseen`, which are never trained on. All
figures are on the holdout split; whole tasks that `miniwob` holds out are counted apart.

    python -m benchmarks.iteration_curves --variants quickstart no_annotator replay_only no_failures --publish
    python -m benchmarks.iteration_curves --variants miniwob --iterations 4 --publish

`--publish` writes docs/measured/iteration_curves.json, the page and the drawing of it, with commit, date and machine of every home; homes
that are not named keep the figures that they have there. `--from-published` writes page and drawing again and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.homes import launches, run_flywheel
from benchmarks.common.provenance import Publish, require_no_changes, sentence
from sandbox.tasks.miniwob.source import load_tasks
from warehouse.core.home import Home, atomic_write
from warehouse.evaluation.evaluations import REPORTED_SPLIT
from warehouse.evaluation.novelty import Novelty, TaskNovelty, novelty, reported_counts
from warehouse.evaluation.statistics import Estimate, Interval, TaskCount, difference, macro_average
from warehouse.reporting.svg import Axis, Drawing
from warehouse.storage.tables import Warehouse

ROOT = Path(".bench/iterations")
PUBLISHED, PAGE, DRAWING = Path("docs/measured/iteration_curves.json"), Path("docs/measured.md"), Path("docs/iteration-curves.svg")
FIRST = "0001"
STARTS = {"ct_model": "tutorials only", "sft_model": "seed SFT"}
"""The policies of the first iteration that a run starts from, by role."""
PROFILES = {"miniwob": "miniwob"}
"""By variant, the profile that it changes; the others change the quickstart."""
VARIANTS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "no_annotator": {"annotation.enabled": False},
    "replay_only": {
        "annotation.enabled": False,
        "rl.mode": "replay_only",
        "sft_mixture.correction": None,
        "sft_mixture.on_policy": None,
        "ct_mixture.failure": None,
    },
    "no_failures": {"ct_mixture.ct_weight": 0.0},
    "miniwob": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Success of one policy of one home."""

    variant: str
    seed: int
    iteration: str
    role: str
    tasks: str
    mean: float
    standard_error: float
    low: float
    high: float
    num_episodes: int


def points_of(variant: str, seed: int, home: Home) -> Iterator[Point]:
    """Every holdout figure of a home, on novel instances (warehouse/evaluation/novelty.py), and the unseen tasks' where they were
    measured."""
    listed = load_tasks()
    groups: dict[tuple[str, str, str], list[TaskCount]] = {}
    for iteration, role, count in reported_counts(Warehouse(home)):
        tasks = "held out" if listed[count.task].held_out else "trained on"
        groups.setdefault((tasks, iteration, role), []).append(count)
    for (tasks, iteration, role), counts in sorted(groups.items()):
        yield _point(variant, seed, iteration, role, tasks, macro_average(counts))
    unseen = home.root / "unseen.json"
    if unseen.exists():
        for stored in json.loads(unseen.read_text()):
            counts = [TaskCount(**count) for count in stored["counts"]]
            yield _point(variant, seed, stored["iteration"], stored["role"], "unseen", macro_average(counts))


def _point(variant: str, seed: int, iteration: str, role: str, tasks: str, found: Estimate) -> Point:
    return Point(
        variant=variant,
        seed=seed,
        iteration=iteration,
        role=role,
        tasks=tasks,
        mean=found.mean,
        standard_error=found.standard_error,
        low=found.interval.low,
        high=found.interval.high,
        num_episodes=found.num_episodes,
    )


def measure_unseen(home: Home, per_task: int) -> None:
    """Greedy success on the tasks nobody trained on, of both starts and of the newest released policy; each policy is measured once."""
    from models.engine.embedded import EmbeddedEngine
    from pipelines import profiles
    from pipelines.stages.evaluate import task_counts
    from pipelines.stages.evaluate_checkpoint import run_evaluation
    from sandbox.tasks.task import Split
    from warehouse.lineage import registry

    warehouse = Warehouse(home)
    released = sorted(row["iteration"] for row in warehouse.read("checkpoints", stage="released_policy").to_pylist())
    if not released:
        return
    target = home.root / "unseen.json"
    measured = {row["checkpoint_id"]: row for row in json.loads(target.read_text())} if target.exists() else {}
    profile, rows = profiles.load("quickstart", {"tasks.lists": ["miniwob:unseen"]}), []
    for iteration, role in (*((FIRST, role) for role in STARTS), (released[-1], "released_policy")):
        policy = registry.made_by(warehouse, iteration, role)
        names = {"iteration": iteration, "role": role, "checkpoint_id": policy.checkpoint_id}
        if (found := measured.get(policy.checkpoint_id)) is None:
            with closing(EmbeddedEngine.from_checkpoint(policy.folder)) as engine:
                episodes = run_evaluation(profile, engine, Split.HOLDOUT, per_task, Console(quiet=True))
            found = {"counts": [asdict(count) for count in task_counts(episodes)]}
        rows.append({**names, "counts": found["counts"]})
        atomic_write(target, json.dumps(rows).encode())


def gain(points: Sequence[Point], start: str = "sft_model") -> dict[str, float] | None:
    """From a start of a home to its last policy: the merged one, and the released one where only that was measured."""
    first = next((p for p in points if (p.iteration, p.role) == (FIRST, start)), None)
    ends = [p for p in points if p.role == "merged_policy"] or [p for p in points if p.role == "released_policy"]
    if first is None or not ends:
        return None
    last = max(ends, key=lambda p: p.iteration)
    found = difference(_estimate(first), _estimate(last))
    return {"start": first.mean, "last": last.mean, "gain": found.mean, "low": found.interval.low, "high": found.interval.high}


def _estimate(point: Point) -> Estimate:
    return Estimate(
        mean=point.mean,
        standard_error=point.standard_error,
        interval=Interval(low=point.low, high=point.high),
        num_tasks=0,
        num_episodes=point.num_episodes,
    )


def print_tables(points: Sequence[Point], console: Console) -> dict[str, Any]:
    """The curves and the gains; returns the gains for a machine."""
    curves = Table(title="Greedy success on the holdout split, mean over tasks ± standard error")
    for column in ("variant", "seed", "tasks", "iteration", "policy", "success", "95 % interval", "episodes"):
        curves.add_column(column)
    for p in points:
        curves.add_row(
            p.variant,
            str(p.seed),
            p.tasks,
            p.iteration,
            p.role,
            f"{p.mean:.3f} ± {p.standard_error:.3f}",
            f"{p.low:.3f} – {p.high:.3f}",
            str(p.num_episodes),
        )
    console.print(curves)
    gains: dict[str, Any] = {}
    table = Table(title="From a start to the last policy: the merged one, of unseen tasks the released one")
    for column in ("variant", "seed", "tasks", "from", "start", "last", "gain", "95 % interval"):
        table.add_column(column)
    for variant, seed, tasks in dict.fromkeys((p.variant, p.seed, p.tasks) for p in points):
        own = [p for p in points if (p.variant, p.seed, p.tasks) == (variant, seed, tasks)]
        for role, name in STARTS.items():
            found = gain(own, role)
            if found is not None:
                gains[f"{variant}-{seed}, {tasks}, from {name}"] = found
                change, interval = f"{found['gain']:+.3f}", f"{found['low']:+.3f} – {found['high']:+.3f}"
                table.add_row(variant, str(seed), tasks, name, f"{found['start']:.3f}", f"{found['last']:.3f}", change, interval)
    console.print(table)
    return gains


ROLES = ("ct_model", "sft_model", "rl_pointing", "rl_forms", "merged_policy", "released_policy")


def markdown(homes: Mapping[str, Mapping[str, Any]]) -> str:
    """Every point as a page: one line a home and iteration, one column a policy. `homes` are those of the published file."""
    points = points_in(homes)
    lines = [
        "# Measured",
        "",
        "Greedy success on the holdout split, mean over tasks ± standard error, (95 % interval), number of episodes. Of iteration 0001",
        "`ct_model` is *tutorials only* and `sft_model` the *seed SFT*. `benchmarks/iteration_curves.py` says which variant is which and",
        "wrote this page; the figures lie in `docs/measured/iteration_curves.json`.",
        "",
        "A figure is of the commit named here, and says nothing of a later one:",
        "",
        *_when(homes),
        "",
        *_from_starts(points),
        "",
        f"| variant | seed | tasks | iteration | {' | '.join(f'`{role}`' for role in ROLES)} |",
        "|---" * (4 + len(ROLES)) + "|",
    ]
    for key in dict.fromkeys((p.variant, p.seed, p.tasks, p.iteration) for p in points):
        cells = {p.role: p for p in points if (p.variant, p.seed, p.tasks, p.iteration) == key}
        lines.append(f"| {' | '.join(map(str, key))} | {' | '.join(_cell(cells.get(role)) for role in ROLES)} |")
    return "\n".join([*lines, *_novelty(homes), ""])


def _novelty(homes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table a home whose novelty was published: what of each task's instances was novel to the last policy."""
    for name, home in homes.items():
        if tasks := tuple(TaskNovelty(**each) for each in home.get("novelty", ())):
            found = Novelty(iteration=max(point["iteration"] for point in home["points"]), split=REPORTED_SPLIT, tasks=tasks)
            yield from ("", f"{name}, iteration {found.iteration}: {found.summary}.", "", found.table)


def points_in(homes: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    return [Point(**point) for home in homes.values() for point in home["points"]]


def _when(homes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for all homes of the same launches."""
    names: dict[str, list[str]] = {}
    for name, home in homes.items():
        said = "; ".join(sentence(each) for each in home["measured"]) or "at a time that nobody noted"
        names.setdefault(f"{said}. {home.get('note', '')}".strip(), []).append(name)
    return [f"- {', '.join(of)}: measured {said}" for said, of in names.items()]


def publish(homes: Mapping[str, Mapping[str, Any]]) -> None:
    """The file, and what is made of it."""
    PUBLISHED.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(PUBLISHED, (json.dumps({"homes": homes}, indent=1, ensure_ascii=False) + "\n").encode())
    atomic_write(PAGE, markdown(homes).encode())
    draw(points_in(homes), DRAWING)


def published() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))["homes"] if PUBLISHED.exists() else {}
    return found


def _from_starts(points: Sequence[Point]) -> list[str]:
    """One line a home and set of tasks: both starts, the last policy, and what it gained over each."""
    lines = [f"| variant | seed | tasks | {' | '.join(STARTS.values())} | last | {' | '.join(f'over {n}' for n in STARTS.values())} |"]
    lines.append("|---" * (4 + 2 * len(STARTS)) + "|")
    for variant, seed, tasks in dict.fromkeys((p.variant, p.seed, p.tasks) for p in points):
        own = [p for p in points if (p.variant, p.seed, p.tasks) == (variant, seed, tasks)]
        found = [gain(own, role) for role in STARTS]
        if not any(found):
            continue
        starts = [f"{each['start']:.3f}" if each else "" for each in found]
        last = next((f"{each['last']:.3f}" for each in found if each), "")
        over = [f"{each['gain']:+.3f} ({each['low']:.3f} to {each['high']:.3f})" if each else "" for each in found]
        lines.append(f"| {' | '.join((variant, str(seed), tasks, *starts, last, *over))} |")
    return lines


def _cell(point: Point | None) -> str:
    if point is None:
        return ""
    return f"{point.mean:.3f} ± {point.standard_error:.3f} ({point.low:.3f}–{point.high:.3f}), {point.num_episodes}"


def draw(points: Sequence[Point], path: Path) -> None:
    """One line a home: both starts, then the merged policy of each iteration, each with one standard error to either side."""
    drawing = Drawing(660, 340, "Greedy success on the holdout split by iteration")
    lowest = math.floor(10 * min((p.mean - p.standard_error for p in points), default=0.0))
    axis = Axis(lowest / 10, 1.0, 290, 30)
    for tenths in range(lowest, 11):
        drawing.line(48, axis.px(tenths / 10), 470, axis.px(tenths / 10), "grid")
        drawing.text(40, axis.px(tenths / 10) + 4, f"{tenths / 10:.1f}", "small muted", "end")
    styles = dict(zip(VARIANTS, ("blue", "teal", "amber", "violet", "rose"), strict=True))
    homes = list(dict.fromkeys((p.variant, p.seed) for p in points))
    columns = {(FIRST, role): label for role, label in STARTS.items()}
    iterations = sorted({p.iteration for p in points if p.role == "merged_policy"})
    columns |= {(iteration, "merged_policy"): f"iteration {int(iteration)}" for iteration in iterations}
    apart = 368 / max(1, len(columns) - 1)
    for number, (variant, seed) in enumerate(homes):
        own = [p for p in points if (p.variant, p.seed, p.tasks) == (variant, seed, "trained on")]
        chosen = [p for name in columns for p in own if (p.iteration, p.role) == name]
        aside = 5 * (number - (len(homes) - 1) / 2)  # so that whiskers of different homes do not overlap
        places = [(75 + apart * list(columns).index((p.iteration, p.role)) + aside, axis.px(p.mean)) for p in chosen]
        drawing.polyline(places, styles[variant])
        for (x, _), p in zip(places, chosen, strict=True):
            drawing.line(x, axis.px(p.mean - p.standard_error), x, axis.px(p.mean + p.standard_error), f"line {styles[variant]}")
    for index, label in enumerate(columns.values()):
        drawing.text(75 + apart * index, 312, label, "small", "middle")
    for index, variant in enumerate(dict.fromkeys(variant for variant, _ in homes)):
        seeds = ", ".join(str(seed) for own, seed in homes if own == variant)
        drawing.line(490, 60 + 22 * index, 510, 60 + 22 * index, f"line {styles[variant]}")
        drawing.text(518, 64 + 22 * index, f"{variant.replace('_', ' ')}, seed {seeds}", "small")
    atomic_write(path, drawing.render().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=["quickstart"], help="which variants to run (default: quickstart)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="profile seeds (default: 0 1 2)")
    parser.add_argument("--iterations", type=int, default=3, help="iterations of each (default: 3)")
    parser.add_argument("--unseen-per-task", type=int, default=20, help="episodes per unseen task (default: 20)")
    parser.add_argument("--only-report", action="store_true", help="run nothing; report what is there")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help=f"write {PUBLISHED}, {PAGE} and {DRAWING}")
    parser.add_argument("--from-published", action="store_true", help=f"write {PAGE} and {DRAWING} from {PUBLISHED}, and nothing else")
    arguments = parser.parse_args()
    if arguments.from_published:
        publish(published())
        return
    console = Console()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    homes: dict[str, dict[str, Any]] = {}
    for variant in arguments.variants:
        for seed in arguments.seeds:
            home = Home((ROOT / f"{variant}-{seed}").absolute())
            if not arguments.only_report:
                options = ["--profile", PROFILES.get(variant, "quickstart"), "--iterations", str(arguments.iterations)]
                run_flywheel(home, options, {**VARIANTS[variant], "seed": seed}, console)
                measure_unseen(home, arguments.unseen_per_task)
            if home.root.exists():
                found = [asdict(point) for point in points_of(variant, seed, home)]
                last = novelty(Warehouse(home), max(point["iteration"] for point in found))
                reported = [asdict(each) for each in last.tasks] if last else []
                homes[home.root.name] = {"measured": launches(home), "points": found, "novelty": reported}
    points = points_in(homes)
    gains = print_tables(points, console)
    if arguments.json:
        atomic_write(arguments.json, json.dumps({"points": [asdict(p) for p in points], "gains": gains}, indent=2).encode())
    if arguments.publish:
        require_no_changes(homes)
        publish(published() | homes)


if __name__ == "__main__":
    main()
