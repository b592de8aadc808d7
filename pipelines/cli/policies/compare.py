"""`flywheel compare`: two policies on the same instances. The figures are warehouse/evaluation/comparing.py's, the page is
pipelines/replay/side_by_side.py's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.cli.options import HomeOption, ProfileOption, SetOption, console, made_home, profile_of, warehouse_of
from pipelines.cli.terminal import slim_table
from warehouse.core.errors import ConfigError
from warehouse.evaluation.evaluations import REPORTED_SPLIT

if TYPE_CHECKING:
    from warehouse.evaluation.comparing import Comparison, Instance, Part, Played
    from warehouse.lineage.registry import Registered
    from warehouse.storage.tables import Warehouse

SPLITS = ("eval", REPORTED_SPLIT)
PolicyArgument = Annotated[str, typer.Argument(help="A checkpoint's id, ITERATION/STAGE, e.g. 0003/merged_policy, or `released`.")]


def compare(
    first: PolicyArgument,
    second: PolicyArgument,
    split: Annotated[str, typer.Option(help=f"{' or '.join(SPLITS)}.")] = REPORTED_SPLIT,
    tasks: Annotated[
        list[str] | None, typer.Option("--tasks", help="Only this task or domain; may be repeated, or separated by commas.")
    ] = None,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate", help="First play those of the profile's instances that either policy has not played, and store the episodes."
        ),
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write an HTML page with the episodes side by side where the two diverge.")] = None,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="With --page: replay episodes whose screens were not stored, to show them.")
    ] = True,
    most: Annotated[int, typer.Option(min=1, help="With --page: show at most this many instances.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Two policies on the same instances: what the second gains, with intervals, wins and losses, by domain and task."""
    place = made_home(home)
    warehouse = warehouse_of(place)
    both = two_policies(warehouse, first, second, split)
    shown = shown_name(warehouse, first, both[0]), shown_name(warehouse, second, both[1])
    if evaluate:
        from pipelines import profiles
        from pipelines.stages.evaluate_missing import evaluate_missing

        settings = profiles.load(*profile_of(place, profile, set_))
        for name, policy in zip(shown, both, strict=True):
            num = evaluate_missing(warehouse, policy, split, settings, console)
            if num and not as_json:
                console.print(f"{name}: {num} episodes played and stored", highlight=False, soft_wrap=True)
    names = [name for each in tasks or [] for name in each.split(",") if name]
    found = compared(warehouse, both, split, names, f"flywheel compare {first} {second} --split {split}")
    if as_json:
        print(json.dumps(plain(found, both, split), indent=2))
    else:
        _print(found, shown, split)
    if page is not None:
        from pipelines.replay.side_by_side import build_page

        written = build_page(warehouse, both, found, split, page, most=most, live=replay)
        if not as_json:
            console.print(f"page: {written}", soft_wrap=True)


def two_policies(warehouse: Warehouse, first: str, second: str, split: str) -> tuple[Registered, Registered]:
    """Raises UnknownId, and ConfigError for one policy twice and a split that is not compared on."""

    if split not in SPLITS:
        raise ConfigError(f"--split {split!r}: {' and '.join(SPLITS)} are compared on")
    both = _policy(warehouse, first), _policy(warehouse, second)
    if both[0].checkpoint_id == both[1].checkpoint_id:
        raise ConfigError(f"{first} and {second} are the same policy, {both[0].checkpoint_id}: name two different ones")
    return both


def _policy(warehouse: Warehouse, name: str) -> Registered:
    """The policy of a name; of `released` as what was released: a merge that is one of its specialists is the merge."""
    from warehouse.lineage import registry
    from warehouse.lineage.release_ledger import maker

    found = registry.named(warehouse, name)
    if name != registry.RELEASED:
        return found
    made = warehouse.read("checkpoints", columns=["iteration", "stage", "checkpoint_id"]).to_pylist()
    iteration, _, stage = maker(made, found.checkpoint_id).partition("/")
    return registry.made_by(warehouse, iteration, stage)


def compared(warehouse: Warehouse, both: tuple[Registered, Registered], split: str, names: Sequence[str], command: str) -> Comparison:
    """From stored episodes, of these tasks and domains, or of all. Raises ConfigError where the two have played nothing in common, with the
    command that plays it."""
    from warehouse.evaluation.comparing import compare as compare_played
    from warehouse.evaluation.comparing import only

    of_first, of_second = (_played(warehouse, policy, split, command) for policy in both)
    kept = only(of_first | of_second, list(names))
    of_first, of_second = ({key: one for key, one in of.items() if key in kept} for of in (of_first, of_second))
    if not of_first.keys() & of_second.keys():
        raise ConfigError(
            f"{_name(both[0])} has played {len(of_first)} of these instances of {split} and {_name(both[1])} {len(of_second)}, none in "
            f"common: `{command} --evaluate` plays what is missing"
        )
    return compare_played(of_first, of_second)


def _played(warehouse: Warehouse, policy: Registered, split: str, command: str) -> dict[Instance, Played]:
    from warehouse.evaluation.comparing import played

    found = played(warehouse, policy.checkpoint_id, split)
    if not found:
        raise ConfigError(
            f"{_name(policy)} has no stored episode on {split}, so there is nothing to compare: `{command} --evaluate` plays and stores "
            f"them; `flywheel eval {policy.checkpoint_id} --split {split}` prints its success alone"
        )
    return found


def _name(policy: Registered) -> str:
    return f"{policy.iteration}/{policy.stage} ({policy.checkpoint_id})"


def shown_name(warehouse: Warehouse, typed: str, policy: Registered) -> str:
    """What was typed, which policy that is, and whose weights it has where its stage made none of its own."""
    from warehouse.lineage import registry

    made, first = f"{policy.iteration}/{policy.stage}", registry.find(warehouse, policy.checkpoint_id)
    of_first = first.stage if first.iteration == policy.iteration else f"{first.iteration}/{first.stage}"
    weights = "" if f"{first.iteration}/{first.stage}" == made else f"the weights of {of_first}"
    name = made if typed == policy.checkpoint_id else typed
    return f"{name} ({', '.join(filter(None, ('' if name == made else made, weights, policy.checkpoint_id)))})"


def _print(found: Comparison, shown: tuple[str, str], split: str) -> None:
    total = found.total.paired
    console.print(f"{shown[1]} against {shown[0]}, {split}", highlight=False, soft_wrap=True)
    sure = "" if total.difference.interval.excludes_zero else ", an interval that includes zero"
    console.print(
        f"{_points(found.total)} points{sure}; {total.num_pairs} instances: {total.candidate_only} won, {total.incumbent_only} lost "
        f"(exact paired test, two-sided p = {total.p_two_sided:.2g})",
        highlight=False,
        soft_wrap=True,
    )
    table = slim_table()
    for column in ("", "first", "second", "gain, points [95 %]", "instances", "won", "lost"):
        table.add_column(column, justify="right" if column else "left", no_wrap=bool(column))
    for domain in found.domains:
        _add_row(table, domain, "[bold]{}[/]")
        for part in found.tasks:
            if part.domain == domain.name:
                _add_row(table, part, "  {}")
    _add_row(table, found.total, "[bold]{}[/]")
    console.print(table)
    if found.num_first_only or found.num_second_only:
        alone = f"{found.num_first_only} instances that only the first has played and {found.num_second_only} that only the second has"
        console.print(f"not counted: {alone}", highlight=False, soft_wrap=True)


def _add_row(table: RichTable, part: Part, style: str) -> None:
    counts = (part.paired.num_pairs, part.paired.candidate_only, part.paired.incumbent_only)
    table.add_row(style.format(escape(part.name)), f"{part.first:.3f}", f"{part.second:.3f}", _points(part), *map(str, counts))


def _points(part: Part) -> str:
    gain = part.paired.difference
    return f"{100 * gain.mean:+.1f} [{100 * gain.interval.low:+.1f}, {100 * gain.interval.high:+.1f}]"


def plain(found: Comparison, both: tuple[Registered, Registered], split: str) -> dict[str, Any]:
    def part(one: Part) -> dict[str, Any]:
        paired, gain = one.paired, one.paired.difference
        return {
            "name": one.name,
            "domain": one.domain,
            "first": one.first,
            "second": one.second,
            "gain": gain.mean,
            "low": gain.interval.low,
            "high": gain.interval.high,
            "num_pairs": paired.num_pairs,
            "num_won": paired.candidate_only,
            "num_lost": paired.incumbent_only,
            "p_two_sided": paired.p_two_sided,
            "p_worse_anytime": paired.p_worse,
        }

    return {
        "first": both[0].checkpoint_id,
        "second": both[1].checkpoint_id,
        "split": split,
        "total": part(found.total),
        "domains": [part(one) for one in found.domains],
        "tasks": [part(one) for one in found.tasks],
        "partings": [asdict(one) for one in found.partings],
        "num_first_only": found.num_first_only,
        "num_second_only": found.num_second_only,
    }
