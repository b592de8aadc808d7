"""`flywheel release …`: which policy is live, what became of each candidate, and a person's decisions on them. What each does is
warehouse/lineage/releases.py's.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from pipelines.cli.options import HomeOption, console, made_home, warehouse_of

if TYPE_CHECKING:
    from warehouse.lineage.release_ledger import Entry
    from warehouse.lineage.releases import Change

release = typer.Typer(no_args_is_help=True, help="Releases: which policy is live; promote, hold and roll back.")
RefArgument = Annotated[str, typer.Argument(metavar="POLICY", help="A checkpoint's id, or ITERATION/STAGE, e.g. 0003/merged_policy.")]
ByOption = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides; kept with the change.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the change.")]
SeenOption = Annotated[
    int | None,
    typer.Option(
        "--seen",
        metavar="NUMBER",
        help="Refuse if there is a later change than this one; `list` shows its number \\[default: the last one now].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@release.command("list")
def list_(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Every candidate with its state, the newest first: live, held, refused, superseded, rolled back."""
    from warehouse.lineage.release_ledger import read_ledger
    from warehouse.lineage.releases import releases
    from warehouse.lineage.taints import taints

    warehouse = warehouse_of(made_home(home))
    found, ledger, why = releases(warehouse), read_ledger(warehouse), taints(warehouse)
    if as_json:
        rows = [{**asdict(one), "tainted": why.get(one.checkpoint_id)} for one in found]
        print(json.dumps({"live": ledger.live_id, "changes": ledger.number, "releases": rows}, indent=2))
        return
    if not found:
        console.print("no iteration has made a candidate yet; `flywheel run` starts the first", soft_wrap=True)
        return
    console.print(f"Releases, after change {ledger.number}", highlight=False)
    for one in found:
        style = {"live": "bold green", "held": "bold yellow"}.get(one.state, "bold")
        name = f"{one.release}   [dim]{one.checkpoint_id}[/]"
        console.print(f"  [{style}]{one.state.replace('_', ' '):<12}[/] {name}", highlight=False, soft_wrap=True)
        if one.checkpoint_id in why:
            console.print(Padding(f"[bold red]tainted[/]: {escape(why[one.checkpoint_id])}", (0, 0, 0, 15)), highlight=False)
        if one.last is not None:
            console.print(Padding(f"[dim]{escape(_when(one.last))}{escape(one.last.reason)}[/]", (0, 0, 0, 15)), highlight=False)
    if any(one.state == "held" for one in found):
        hint = "held: `flywheel compare released POLICY` shows what it gains, `flywheel release promote POLICY` makes it live"
        console.print(hint, highlight=False, soft_wrap=True)


@release.command()
def show(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="A checkpoint's id, ITERATION/STAGE, or `released` for what is live.")],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Every decision on one policy, with the figures behind it."""
    from warehouse.lineage import registry
    from warehouse.lineage.release_ledger import read_ledger
    from warehouse.lineage.taints import taints

    warehouse = warehouse_of(made_home(home))
    found, ledger = registry.named(warehouse, policy), read_ledger(warehouse)
    id_ = found.checkpoint_id
    entries, why = ledger.of(id_), taints(warehouse).get(id_)
    if as_json:
        changes = [asdict(entry) for entry in entries]
        print(json.dumps({"checkpoint_id": id_, "state": ledger.state(id_), "tainted": why, "changes": changes}, indent=2))
        return
    console.print(f"{found.iteration}/{found.stage} ({id_}) is {ledger.state(id_).replace('_', ' ')}", highlight=False, soft_wrap=True)
    if why is not None:
        console.print(f"  [bold red]tainted[/]: {escape(why)}", highlight=False, soft_wrap=True)
    for entry in entries:
        console.print(f"  {entry.state.replace('_', ' ')}: {escape(_when(entry))}{escape(entry.reason)}", highlight=False, soft_wrap=True)
        if entry.compared_with is not None:
            console.print(f"    {_figures(entry)}", highlight=False, soft_wrap=True)
    console.print(f"flywheel lineage {id_}   what it was made from", highlight=False, soft_wrap=True)


@release.command()
def promote(
    policy: RefArgument, by: ByOption, reason: ReasonOption, seen: SeenOption = None, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Make a policy live, whatever the gate decided: the next stage, episode or server uses it."""
    from pipelines.orchestration.reported_changes import reported
    from warehouse.lineage.releases import promote as change

    warehouse = warehouse_of(made_home(home))
    with reported(warehouse, "flywheel release promote", console):
        changed = change(warehouse, policy, by=by, reason=reason, seen=seen)
    _print_change(changed, as_json)


@release.command()
def hold(
    policy: RefArgument, by: ByOption, reason: ReasonOption, seen: SeenOption = None, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Keep a candidate from being released until a person promotes it; iterations go on with the live release."""
    from pipelines.orchestration.reported_changes import reported
    from warehouse.lineage.releases import hold as change

    warehouse = warehouse_of(made_home(home))
    with reported(warehouse, "flywheel release hold", console):
        changed = change(warehouse, policy, by=by, reason=reason, seen=seen)
    _print_change(changed, as_json)


@release.command()
def rollback(
    by: ByOption,
    reason: ReasonOption,
    policy: Annotated[
        str | None, typer.Argument(metavar="[POLICY]", help="The release to go back to \\[default: the one that was live before].")
    ] = None,
    seen: SeenOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Go back to an earlier release. The gate does not release the one taken back again; a person may."""
    from pipelines.orchestration.reported_changes import reported
    from warehouse.lineage.releases import rollback as change

    warehouse = warehouse_of(made_home(home))
    with reported(warehouse, "flywheel release rollback", console):
        changed = change(warehouse, policy, by=by, reason=reason, seen=seen)
    _print_change(changed, as_json)


def _print_change(change: Change, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(change), indent=2))
        return
    names = f"{change.release} ({change.policy.checkpoint_id})"
    if change.before == change.state:
        console.print(f"change {change.number}: {names} is {change.state} already; nothing changed", highlight=False, soft_wrap=True)
        return
    said = f"change {change.number}: {names} was {change.before.replace('_', ' ')} and is {change.state}"
    if change.state == "live":
        instead = f", in place of {change.live_before}" if change.live_before is not None else ""
        said += f"{instead}. The next stage of an iteration, the next episode of an annotation server and the next `policy serve` use it"
    elif change.live_id is not None:
        said += f"; {change.live_id} stays live"
    console.print(said, highlight=False, soft_wrap=True)


def _plain(change: Change) -> dict[str, Any]:
    return {
        "number": change.number,
        "checkpoint_id": change.policy.checkpoint_id,
        "release": change.release,
        "before": change.before,
        "state": change.state,
        "live": change.live_id,
        "live_before": change.live_before,
    }


def _when(entry: Entry) -> str:
    number = f"change {entry.number}, {entry.decided_at[:16].replace('T', ' ')}" if entry.number else "before releases were recorded"
    return f"{number}, {entry.decided_by}: " if entry.is_persons else f"{number}: "  # a rule's reason says which it is


def _figures(entry: Entry) -> str:
    return (
        f"{entry.gain:+.3f} [{entry.gain_low:+.3f}, {entry.gain_high:+.3f}] against {entry.compared_with} on {entry.num_pairs} instances "
        f"of eval: {entry.num_won} won, {entry.num_lost} lost, anytime-valid p of being worse {entry.p_worse:.3f}"
    )
