"""`flywheel explain` and `flywheel reroute`: why an episode went where it went, and where all would go under other rules. The work is
warehouse/routing/explain.py's and warehouse/routing/reroute.py's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.cli.options import HomeOption, ProfileOption, SetOption, console, made_home, overrides, profile_of, warehouse_of
from pipelines.cli.terminal import fits, slim_table
from warehouse.core.errors import ConfigError, IterationLocked

if TYPE_CHECKING:
    from warehouse.routing.explain import Explanation
    from warehouse.routing.reroute import Rerouted
    from warehouse.routing.routes import RoutingConfig

MOVES_SHOWN = 5
RULE_FIELDS = ("threshold", "effect", "precedence")


def explain(
    episode: Annotated[str, typer.Argument(help="An episode's id, or an unambiguous prefix of it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Why an episode went to SFT, to CT or nowhere: every verdict and rule, what would change the route, and who learned from it."""
    from pipelines.profiles import load
    from warehouse.routing.explain import connect_to_explain
    from warehouse.routing.explain import explain as explained

    place = made_home(home)
    rules = load(*profile_of(place, profile, set_)).routing
    with connect_to_explain(warehouse_of(place), episode) as con:
        found = explained(con, episode, rules)
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        _print_explanation(found)


def reroute(
    iteration: Annotated[list[str] | None, typer.Option(help="Only this iteration, e.g. 0002; may be repeated \\[default: all].")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A rule: JUDGE.threshold=0.5, JUDGE.effect=demote (decide, withhold) or JUDGE.precedence=2."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing: show what would move.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
    home: HomeOption = None,
) -> None:
    """Route history again from its stored verdicts, under the profile's rules and --set, and show what moves.

    Makes new versions of routes, ct_samples and sft_samples; the old ones stay readable, and datasets that exist stay as they are.
    The rules of later iterations are the profile's: put there what you keep (routing.rules).
    """
    from agent.grammars.compact import read_elements
    from pipelines.profiles import load
    from warehouse.routing.reroute import reroute as route_again
    from warehouse.routing.reroute import routed_iterations

    place = made_home(home)
    settings, warehouse = load(*profile_of(place, profile, None)), warehouse_of(place)
    rules = with_rules(settings.routing, set_ or [])
    wanted = [key.zfill(4) for key in iteration] if iteration else routed_iterations(warehouse)
    if not wanted:
        raise ConfigError(f"nothing was routed yet in {place.root}: run one iteration with `flywheel run`")
    if dry_run:
        results = route_again(warehouse, rules, wanted, settings.failure_mining, dry_run=True)
    else:
        from pipelines.orchestration.reported_changes import reported
        from pipelines.orchestration.runs.iteration_lock import IterationLock, lock_path
        from warehouse.core.locks import LOOKED_AT_S

        lock = IterationLock(place, lock_path(place))
        if not lock.acquire(timeout_s=LOOKED_AT_S):
            raise IterationLocked(
                f"process {lock.holder()} is running an iteration in {place.root}: reroute when it has ended, or --dry-run"
            )
        try:
            with reported(warehouse, "flywheel reroute", console):
                results = route_again(warehouse, rules, wanted, settings.failure_mining, read_elements=read_elements)
        finally:
            lock.release()
    if as_json:
        print(json.dumps([_as_json(result) for result in results], indent=2))
    else:
        for result in results:
            _print_rerouted(result, dry_run)


def with_rules(config: RoutingConfig, items: list[str]) -> RoutingConfig:
    """The rules with JUDGE.FIELD=VALUE items put over them. Raises ConfigError."""
    from pydantic import ValidationError

    from warehouse.routing.routes import RoutingConfig, Rule

    rules: dict[str, dict[str, Any]] = {judge: rule.model_dump() for judge, rule in config.effective_rules.items()}
    for key, value in overrides(items).items():
        judge, _, field = key.removeprefix("routing.rules.").rpartition(".")
        if not judge or field not in RULE_FIELDS:
            raise ConfigError(f"--set {key}: give JUDGE.{', JUDGE.'.join(RULE_FIELDS)}, e.g. --set loop.threshold=0.5")
        rules.setdefault(judge, {})[field] = value
    try:
        return RoutingConfig(rules={judge: Rule.model_validate(rule) for judge, rule in rules.items()})
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"--set: {problem['loc'][-1]} = {problem['input']!r}: {problem['msg']}") from error


def _print_explanation(found: Explanation) -> None:
    reward = "none" if found.reward is None else f"{found.reward:g}"
    console.print(f"[bold]{found.episode_id}[/]  {escape(found.task)} ({found.domain}), seed {found.seed}, {found.split} split")
    console.print(f"iteration {found.iteration}, {found.purpose}, outcome {found.outcome}, reward {reward}")
    console.print(f"[bold]route: {found.route or 'none'}[/]  {escape(found.reason)}", soft_wrap=True)
    if (found.stored_route, found.stored_reason) != (found.route, found.reason):
        stored = "not routed" if found.stored_route is None else f"{found.stored_route}  {found.stored_reason}"
        console.print(f"stored: {escape(stored)}; the line above is what the rules given say now", soft_wrap=True)
    wide, slim = (_judgements(found, table) for table in (RichTable(), slim_table()))
    console.print(wide if fits(wide, console) else slim)
    console.print("rule: its effect and its precedence; the lowest precedence is asked first (docs/routing.md)", soft_wrap=True)
    for change in found.changes:
        console.print(f"{change.judge} at a threshold of {change.threshold:.6g} → {change.route}: {escape(change.reason)}", soft_wrap=True)
    if not found.changes:
        console.print("no single threshold would change the route")
    for use in found.uses:
        state = ", withdrawn" if use.withdrawn else ""
        where = f"in {', '.join(use.datasets)}" if use.datasets else "in no dataset yet"
        if use.left_out is not None:
            where += f", since {use.left_out}" if not use.datasets else f"; in no later one, since {use.left_out}"
        learned = f"; learned by {', '.join(use.checkpoints)}" if use.checkpoints else ""
        console.print(f"{use.table} {use.sample_id} step {use.step_index} ({use.origin}{state}): {escape(where)}{learned}", soft_wrap=True)
    if not found.uses:
        console.print("no sample was cut from it")
    note = "all that it was made from, and what was made from it"
    console.print(f"flywheel lineage {found.episode_id} --direction both   {note}", highlight=False, soft_wrap=True)


def _judgements(found: Explanation, table: RichTable) -> RichTable:
    """A row a verdict, in the order in which they are asked."""
    for heading in ("judge", "rule", "score", "threshold", "", "why"):
        min_width = len("contamination v1") if heading == "judge" else None
        table.add_column(heading, no_wrap=heading in ("rule", "score"), overflow="fold", min_width=min_width)
    for judgement in found.judgements:
        threshold = f"{judgement.threshold:.4g}" + (
            "" if judgement.threshold == judgement.stored_threshold else f" (stored {judgement.stored_threshold:.4g})"
        )
        word = "abstains" if judgement.abstains else "passed" if judgement.passed else "failed"
        table.add_row(
            f"{judgement.judge} v{_version(judgement.judge_version)}",
            f"{judgement.effect} {judgement.precedence}",
            f"{judgement.score:.4g}",
            threshold,
            f"[bold]{word}, decided[/]" if judgement.decided else word,
            escape("; ".join(judgement.reasons)),
        )
    return table


def _version(of: str) -> str:
    """A person's is the moment of the word: to the minute is enough to read."""
    return of[:16].replace("T", " ") if of[10:11] == "T" else of


def _print_rerouted(result: Rerouted, dry_run: bool) -> None:
    what = f"{len(result.moves)} of {result.num_episodes} episodes move" if result.num_episodes else "its corrections follow"
    console.print(f"[bold]iteration {result.iteration}[/]: {what}")
    for (before, after, label), num in sorted(result.counts.items()):
        moved = [move for move in result.moves if (move.before, move.after) == (before, after)]
        shown = ", ".join(move.episode_id for move in moved[:MOVES_SHOWN]) + (" …" if len(moved) > MOVES_SHOWN else "")
        console.print(f"  {before} → {after} ({label}): {num}  {shown}", soft_wrap=True)
    for table, (joined, left) in sorted(result.samples.items()):
        console.print(f"  {table}: {joined} joined, {left} left")
    if dry_run:
        console.print("  nothing was written")
    elif result.versions:
        console.print("  written: " + ", ".join(f"{table} version {version}" for table, version in sorted(result.versions.items())))


def _as_json(result: Rerouted) -> dict[str, Any]:
    moves = [{"episode_id": m.episode_id, "before": m.before, "after": m.after, "reason": m.reason} for m in result.moves]
    samples = {table: {"joined": joined, "left": left} for table, (joined, left) in result.samples.items()}
    return {"iteration": result.iteration, "episodes": result.num_episodes, "moves": moves, "versions": result.versions, "samples": samples}
