"""Where a home stands: iterations, stages, artefact ids, success with counts and intervals. Read from the home alone, printed by the
CLI; Dagster is asked only for an older home, which does not say which of its iterations have closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import duckdb
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from assets.iterations.keys import next_key
from assets.iterations.opened import read_opened, write_opened
from pipelines.cli.options import command_in
from pipelines.cli.terminal import counted
from pipelines.orchestration.instance import CONFIG, open_instance
from pipelines.orchestration.runs.iteration_lock import running_process
from pipelines.orchestration.work.progress import working
from pipelines.reporting.games import games_tables
from sandbox.tasks.reserved import is_indexed, reserved_of
from sandbox.tasks.task import Task
from warehouse.core.errors import FlywheelError
from warehouse.core.home import Home
from warehouse.core.stages import SEED_ITERATION, rank
from warehouse.evaluation.evaluations import REPORTED_SPLIT, evaluations
from warehouse.evaluation.novelty import Novelty, novel_counts, novelty
from warehouse.evaluation.statistics import macro_average
from warehouse.lineage.release_ledger import read_ledger
from warehouse.reporting.iteration_summaries import TABLES_READ, summaries
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

COUNTED = ("episodes", "steps", "annotations", "ct_samples", "sft_samples")
"""Tables of which it is said how many rows an iteration has."""
NEWEST = 10
"""Iterations that people are shown unless they ask for all."""


class Success(BaseModel):
    """Greedy success of one policy on one split: the mean over tasks, its standard error and 95 % interval."""

    model_config = ConfigDict(frozen=True)

    role: str
    checkpoint_id: str
    split: str
    mean: float
    standard_error: float
    low: float
    high: float
    num_tasks: int
    num_episodes: int
    num_success: int


class GamesMean(BaseModel):
    """One policy's mean over games, in percent of what people score, or the oracle: `normalised` says which."""

    model_config = ConfigDict(frozen=True)

    role: str
    group: str
    """of tasks, one of each game"""
    normalised: str
    mean: float
    low: float
    high: float
    num_games: int
    scores: dict[str, float]
    """by game, in its own points"""


class StageStatus(BaseModel):
    model_config = ConfigDict(frozen=True)

    stage: str
    artefact: str
    note: str
    same_as: str = ""
    """ITERATION/STAGE that made these very weights first, where this stage made none of its own"""


class IterationStatus(BaseModel):
    model_config = ConfigDict(frozen=True)

    iteration: str
    complete: bool
    """every stage is made, every check that blocks has passed, and the next iteration is open"""
    checkpoints: list[StageStatus]
    datasets: dict[str, str]
    rows: dict[str, int]
    routes: dict[str, int]
    success: list[Success]
    games: list[GamesMean] = []


class Status(BaseModel):
    model_config = ConfigDict(frozen=True)

    home: str
    iterations: list[IterationStatus]
    novelty: Novelty | None = None
    """of what the newest evaluated iteration was reported on"""
    novel_success: dict[str, float] = {}
    """success of its policies on the novel instances alone, by role: where not all are"""
    not_reported: list[str] = []
    """tasks that have too few different instances"""
    is_of_older_splits: bool = False
    """some of its tasks were made before splits were by content"""
    live: str | None = None
    """ITERATION/STAGE of the live release"""
    held: list[str] = []
    """of candidates that wait for a person's word"""
    running_process_id: int | None = None
    """process that runs an iteration now"""
    working: list[str] = []
    """how far each stage is that works now"""


def read_status(warehouse: Warehouse) -> Status:
    """The status of everything in the warehouse; empty where nothing has run."""
    opened = _opened(warehouse.home)
    listing = Listing(warehouse, dict.fromkeys((*COUNTED, *TABLES_READ)))
    found = summaries(warehouse, listing)
    keys = listing.iterations("checkpoints", "datasets")
    with connect(warehouse, tables=["evaluations", "tasks"]) as con:
        success, first_made, games = _successes(con), dict[str, str](), _games(con)
        not_reported, is_of_older_splits = _tasks(con)
    evaluated = [key for key in keys if success.get(key)]
    novel = novelty(warehouse, evaluated[-1], listing=listing) if evaluated else None
    novel_success = _novel_success(warehouse, novel, listing)
    num_rows = {table: listing.num_rows(table) for table in COUNTED}
    iterations = []
    for key in keys:
        of = found[key]
        checkpoints = [
            StageStatus(
                stage=made.stage,
                artefact=made.checkpoint_id,
                note=made.note,
                same_as=_made_before(first_made, made.checkpoint_id, f"{key}/{made.stage}"),
            )
            for made in sorted(of.checkpoints, key=lambda made: rank(made.stage))
        ]
        iterations.append(
            IterationStatus(
                iteration=key,
                complete=next_key(key) in opened,
                checkpoints=checkpoints,
                datasets={members.stage: members.dataset_id for members in of.members},
                rows={table: num_rows[table].get(key, 0) for table in COUNTED},
                routes=of.routes,
                success=success.get(key, []),
                games=games.get(key, []),
            )
        )
    process, at_work = running_process(warehouse.home), list[str]()
    if process is not None:
        newest = (sorted(opened) or [SEED_ITERATION])[-1]
        at_work = [f"{each.stage} {each.done}/{each.total or '?'} {each.unit}" for each in working(warehouse.home, newest)]
    ledger = read_ledger(warehouse)
    return Status(
        home=str(warehouse.home.root),
        iterations=iterations,
        live=None if ledger.live_id is None else ledger.name(ledger.live_id),
        held=ledger.with_state("held"),
        running_process_id=process,
        working=at_work,
        novelty=novel,
        novel_success=novel_success,
        not_reported=not_reported,
        is_of_older_splits=is_of_older_splits,
    )


def _opened(home: Home) -> set[str]:
    """Keys of the iterations that are open."""
    known = read_opened(home)
    if known is not None or not (home.dagster / CONFIG).exists():
        return known or set()
    from assets.iterations.partitions import ITERATIONS

    with open_instance(home) as instance:
        known = set(instance.get_dynamic_partitions(str(ITERATIONS.name)))
    with suppress(OSError, FlywheelError):  # a home that cannot be written to is read all the same
        write_opened(home, known)
    return known


def _novel_success(warehouse: Warehouse, novel: Novelty | None, listing: Listing) -> dict[str, float]:
    if novel is None or novel.num_novel == novel.num_instances:
        return {}
    counts = novel_counts(warehouse, novel.iteration, listing=listing)
    return {role: macro_average(counts[role]).mean for role in sorted(counts, key=rank)}


def _tasks(con: duckdb.DuckDBPyConnection) -> tuple[list[str], bool]:
    """Names of those that are not reported, and whether any is of an older rule of splits."""
    columns = ("source", "name", "domain", "max_steps", "held_out", "version")
    rows = con.execute(f"select distinct task_id, {', '.join(columns)} from tasks").fetchall()
    tasks = {task_id: Task(**dict(zip(columns, rest, strict=True))) for task_id, *rest in rows}
    named = {task.name for task in tasks.values() if (found := reserved_of(task.source, task.name)) and not found.contents.is_reported}
    return sorted(named), any(is_indexed(task.source) and task.task_id != task_id for task_id, task in tasks.items())


def _made_before(first_made: dict[str, str], artefact: str, where: str) -> str:
    """Who made this before; remembers who made it first."""
    before = first_made.setdefault(artefact, where)
    return "" if before == where else before


def _successes(con: duckdb.DuckDBPyConnection) -> dict[str, list[Success]]:
    found: dict[str, list[Success]] = {}
    for one in evaluations(con):
        estimate = one.success
        found.setdefault(one.iteration, []).append(
            Success(
                role=one.role,
                checkpoint_id=one.checkpoint_id,
                split=one.split,
                mean=estimate.mean,
                standard_error=estimate.standard_error,
                low=estimate.interval.low,
                high=estimate.interval.high,
                num_tasks=estimate.num_tasks,
                num_episodes=estimate.num_episodes,
                num_success=sum(count.num_success for count in one.tasks),
            )
        )
    return found


def _games(con: duckdb.DuckDBPyConnection) -> dict[str, list[GamesMean]]:
    found: dict[str, list[GamesMean]] = {}
    for table in games_tables(con):
        for policy in table.policies:
            of = policy.normalised
            found.setdefault(policy.iteration, []).append(
                GamesMean(
                    role=policy.role,
                    group=table.group,
                    normalised=of.name,
                    mean=of.mean,
                    low=of.interval.low,
                    high=of.interval.high,
                    num_games=of.num_games,
                    scores={game: score.mean for game, score in policy.games.items()},
                )
            )
    return found


def games_table(status: Status) -> RichTable:
    """Means over games by iteration and stage, for the terminal."""
    table = RichTable(title=f"Scores at games on the {REPORTED_SPLIT} split, in percent of the oracle's or people's", title_justify="left")
    for column in ("iteration", "policy", "tasks", "mean over games", "95 % interval", "games"):
        table.add_column(column, justify="left" if column in ("iteration", "policy", "tasks") else "right")
    for iteration in status.iterations:
        for item in iteration.games:
            shown = (f"{item.mean:.1f} {item.normalised}", f"{item.low:.1f} – {item.high:.1f}", str(item.num_games))
            table.add_row(iteration.iteration, item.role, f"games:{item.group}", *shown)
    return table


def success_table(status: Status, split: str = REPORTED_SPLIT) -> RichTable:
    """Success by iteration and stage, for the terminal."""
    table = RichTable(title=f"Greedy success on the {split} split, mean over tasks", title_justify="left")
    for column in ("iteration", "policy", "success", "95 % interval", "solved"):
        table.add_column(column, justify="left" if column in ("iteration", "policy") else "right")
    for iteration in status.iterations:
        for item in iteration.success:
            if item.split == split:
                table.add_row(
                    iteration.iteration,
                    item.role,
                    f"{item.mean:.3f}",
                    f"{item.low:.3f} – {item.high:.3f}",
                    f"{item.num_success} of {item.num_episodes}",
                )
    return table


def print_status(status: Status, console: Console, *, show_all: bool = False) -> None:
    """Iterations, what each stage made, where its episodes went, success, and where to read on. The newest NEWEST, unless all are
    asked for."""
    if status.running_process_id is not None:
        at_work = f", now at {', '.join(status.working)}" if status.working else ""
        console.print(
            f"process {status.running_process_id} is running an iteration in {status.home}{at_work}", highlight=False, soft_wrap=True
        )
    if not status.iterations:
        if status.running_process_id is None:
            console.print(f"nothing has run in {status.home}; `flywheel run` starts the first iteration", soft_wrap=True)
        return
    done = sum(iteration.complete for iteration in status.iterations if iteration.iteration != SEED_ITERATION)
    console.print(f"{status.home}: {counted(done, 'iteration')} complete\n", highlight=False, soft_wrap=True)
    earlier = [] if show_all else status.iterations[:-NEWEST]
    if earlier:
        ended = sum(each.complete for each in earlier)
        more = f"the newest {NEWEST}; `--all` shows {len(earlier)} more, {ended} of them complete\n"
        console.print(more, highlight=False, soft_wrap=True)
        status = status.model_copy(update={"iterations": status.iterations[-NEWEST:]})
    for iteration in status.iterations:
        console.print(_heading(iteration, is_running=status.running_process_id is not None), highlight=False)
        console.print(_stages(iteration))
        console.print()
    if any(item.split == REPORTED_SPLIT for iteration in status.iterations for item in iteration.success):
        console.print(success_table(status))
        for line in _novelty_lines(status):
            console.print(line, highlight=False)
    if any(iteration.games for iteration in status.iterations):
        console.print(games_table(status))
    if status.live is not None or status.held:
        waiting = f"; held until a person promotes it: {', '.join(status.held)}" if status.held else ""
        said = f"Live: {status.live or 'nothing yet'}{waiting} ({command_in(Path(status.home), 'flywheel release list')})"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
    shown = f"{command_in(Path(status.home), 'flywheel report')}   the same as HTML pages, with curves and episodes to read"
    for line in filter(None, (shown, lineage_hint(status))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _novelty_lines(status: Status) -> Iterator[str]:
    """What a figure above is worth."""
    if status.novelty is not None:
        yield f"Iteration {status.novelty.iteration}: {status.novelty.summary}."
    if status.novel_success:
        yield "On the novel ones alone: " + ", ".join(f"{role} {mean:.3f}" for role, mean in status.novel_success.items())
    if status.not_reported:
        yield f"Not reported, since they have too few different instances: {', '.join(status.not_reported)}."
    if status.is_of_older_splits:
        yield "[bold]This home was begun before splits were by content[/]: the table above counts repeats; new iterations use others."


def _heading(iteration: IterationStatus, *, is_running: bool) -> str:
    unfinished = "under way" if is_running else "not complete; `flywheel run` goes on from here"
    if iteration.iteration == SEED_ITERATION:
        return "[bold]seed[/]" + ("" if iteration.complete else f": {unfinished}")
    return f"[bold]iteration {iteration.iteration}[/]: {'complete' if iteration.complete else unfinished}"


def _stages(iteration: IterationStatus) -> RichTable:
    """A line a stage, and below it why it made what it made."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    datasets = [StageStatus(stage=stage, artefact=dataset, note="") for stage, dataset in iteration.datasets.items()]
    for item in sorted([*datasets, *iteration.checkpoints], key=lambda item: rank(item.stage)):
        same = f"the weights of {item.same_as.removeprefix(f'{iteration.iteration}/')}" if item.same_as else ""
        shown = ": ".join(part for part in (same, item.note) if part)
        grid.add_row(f"  {item.stage}", item.artefact + (f"\n[dim]{escape(shown)}[/]" if shown else ""))
    if iteration.routes:
        grid.add_row("  routing", f"{counted(sum(iteration.routes.values()), 'episode')}: " + _routes(iteration.routes))
    return grid


def _routes(routes: Mapping[str, int]) -> str:
    return ", ".join(f"{num} {'' if route == 'withheld' else 'to '}{route}" for route, num in routes.items())


def lineage_hint(status: Status) -> str:
    """The command that shows what the newest release was made from; empty where nothing was released."""
    released = [each.iteration for each in status.iterations if any(item.stage == "released_policy" for item in each.checkpoints)]
    if not released:
        return ""
    command = command_in(Path(status.home), f"flywheel lineage {released[-1]}/released_policy")
    return f"{command}   what it was made from, to the seed"
