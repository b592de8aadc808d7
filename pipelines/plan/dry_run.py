"""`flywheel run --dry-run`: checks a profile and prints its plan. Starts nothing but what a check looks at."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from pipelines import profiles
from pipelines.cli.terminal import fits, slim_table
from pipelines.plan.commands import stage_commands
from pipelines.plan.cost import all_nodes, cost, cost_rests_on, held_cost, stage_costs
from pipelines.plan.givens import policy_shape, see_machine
from pipelines.plan.plan import Plan, StagePlan, in_bytes
from pipelines.plan.planner import make_plan
from pipelines.plan.preflight import preflight
from pipelines.plan.workload import Measured, measure
from warehouse.core.checks import Check, Status
from warehouse.core.home import Home
from warehouse.core.stages import SEED_ITERATION, is_rl
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

FIRST_ITERATION = "0001"
SHOWN_PARTS_FROM = 1e8
"""Parameters above which it matters what memory is made of."""
_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def dry_run(
    home: Home, profile_name: str, overrides: Mapping[str, Any], num_iterations: int, console: Console, *, as_json: bool = False
) -> int:
    """Print checks and plan; returns the exit status: 1 where a check failed. Raises ConfigError for a profile that is not valid,
    CheckpointError for a policy whose shape cannot be read."""
    profile = profiles.load(profile_name, overrides)
    shape, source = policy_shape(profile)
    plan = make_plan(profile, shape, see_machine(profile), _measured(home))
    checks = preflight(profile, plan, source, home, num_iterations)
    failed = list(dict.fromkeys(check.name for check in checks if check.status == "fail"))
    if as_json:
        print(json.dumps(_as_json(plan, checks, home, num_iterations), indent=2))
        return 1 if failed else 0
    console.print(_checks_table(profile.name, checks))
    print_stages(plan, "seed", plan.seed, console)
    print_stages(plan, "iteration 1", plan.first, console)
    for line in _memory_parts(plan):
        console.print(f"  {line}", highlight=False, style="dim")
    if num_iterations > 1:
        console.print(f"[italic]a later iteration: {in_time(plan.elapsed(plan.later))}[/]{_differences(plan)}", highlight=False)
    console.print(_in_all(plan, num_iterations), highlight=False)
    for line in rests_on(plan):
        console.print(f"  {line}", highlight=False, style="dim")
    _print_commands(plan, home, console)
    console.print(f"[bold red]It cannot run like this yet[/]: fix {', '.join(failed)} first." if failed else "It can run here.")
    return 1 if failed else 0


def _as_json(plan: Plan, checks: Sequence[Check], home: Home, num_iterations: int) -> dict[str, Any]:
    """Seconds and bytes; `later` is an iteration after the first. Costs are null without prices; commands are those of the seed and the
    first iteration."""
    has_prices = bool(plan.profile.plan.prices)
    parts = {name: getattr(plan, name) for name in ("seed", "first", "later")}
    return {
        "profile": plan.profile.name,
        "iterations": num_iterations,
        "can_run": all(check.status != "fail" for check in checks),
        "seconds": plan.seconds(num_iterations),
        "disk_bytes": plan.disk_bytes(num_iterations),
        "gpus": plan.gpus_needed,
        "network_bytes": plan.network_bytes(num_iterations),
        "nodes": all_nodes(plan),
        "cost": cost(plan, num_iterations) if has_prices else None,
        "cost_held": held_cost(plan, num_iterations) if has_prices else None,
        "costs": {name: stage_costs(plan, stages) for name, stages in parts.items()} if has_prices else None,
        "commands": _commands(plan, home),
        "checks": [asdict(check) for check in checks],
        "stages": {name: [asdict(stage) for stage in stages] for name, stages in parts.items()},
        "rests_on": rests_on(plan),
    }


def _commands(plan: Plan, home: Home) -> dict[str, list[str]]:
    """By stage, of the seed and the first iteration."""
    numbered = ((SEED_ITERATION, plan.seed), (FIRST_ITERATION, plan.first))
    return {stage.stage: stage_commands(plan.profile, home, number, stage) for number, stages in numbered for stage in stages}


def _print_commands(plan: Plan, home: Home, console: Console) -> None:
    console.print("\n[bold]Commands[/] that the seed and iteration 1 submit; later iterations the same with their number", highlight=False)
    for stage, commands in _commands(plan, home).items():
        for command in commands or ["none: within the run's own process"]:
            console.print(f"[dim]{stage}:[/] {escape(command)}", soft_wrap=True, highlight=False)
    console.print()


def _measured(home: Home) -> Measured:
    if not home.has_tables:
        return Measured(steps={})
    with connect(Warehouse(home)) as con:
        return measure(con)


def _checks_table(name: str, checks: Sequence[Check]) -> RichTable:
    table = RichTable("part", "", "found", title=f"profile {name}: checks", title_justify="left")
    for check in checks:
        fix = f"\n[dim]→ {escape(check.fix)}[/]" if check.fix else ""
        table.add_row(check.name, f"[{_STYLES[check.status]}]{check.status}[/]", escape(check.found) + fix)
    return table


def print_stages(plan: Plan, title: str, stages: Sequence[StagePlan], console: Console) -> None:
    """A line a stage; two in a narrow terminal, with the work below the name."""
    heading = f"{title}: {in_time(plan.elapsed(stages))}"
    wide = _stages_table(plan, stages, RichTable(title=heading, title_justify="left"), is_narrow=False)
    console.print(wide if fits(wide, console) else _stages_table(plan, stages, slim_table(heading), is_narrow=True))
    console.print()


def _stages_table(plan: Plan, stages: Sequence[StagePlan], table: RichTable, *, is_narrow: bool) -> RichTable:
    """Columns that say the same of every stage are left out."""
    on_gpus = bool(plan.machine.num_gpus)
    columns: dict[str, Callable[[StagePlan], str]] = {
        "processes": lambda stage: str(stage.num_processes),
        "GPUs": lambda stage: f"{stage.num_gpus or ''}",
        "tokens": lambda stage: _short(stage.tokens) if stage.tokens else "",
        "GPU memory" if on_gpus else "memory": lambda stage: "" if on_gpus and not stage.num_gpus else in_bytes(stage.memory_bytes),
        "server's": lambda stage: in_bytes(stage.server_bytes) if stage.server_bytes else "",
        "disk": lambda stage: in_bytes(stage.disk_bytes) if stage.disk_bytes >= 1 else "",
        "network": lambda stage: in_bytes(stage.network_bytes) if stage.network_bytes else "",
        "time": lambda stage: in_time(stage.seconds),
        "cost": lambda stage: in_money(costs[stage.stage]),
    }
    every, costs = (*plan.seed, *plan.first), stage_costs(plan, stages)
    if not any(stage.network_bytes for stage in every):
        del columns["network"]
    if not plan.profile.plan.prices:
        del columns["cost"]
    if not on_gpus:
        del columns["GPUs"]
    if not plan.profile.plan.server_gpus:
        del columns["server's"]
    if all(stage.num_processes == 1 or stage.num_processes == stage.num_gpus for stage in every):
        del columns["processes"]
    if is_narrow:
        table.add_column("stage and its work")
    else:
        table.add_column("stage", no_wrap=True)
        table.add_column("work", no_wrap=True)
    for heading in columns:
        table.add_column(heading.replace(" ", "\n") if is_narrow else heading, justify="right", no_wrap=True)
    for stage in stages:
        below = Group(stage.stage, Padding(stage.amount, (0, 0, 0, 2), style="dim"))
        head = (below,) if is_narrow else (stage.stage, stage.amount)
        table.add_row(*head, *(text(stage) for text in columns.values()))
    return table


def _memory_parts(plan: Plan) -> list[str]:
    """What training's memory is made of, where it matters: of supervised stages, and of the specialist that needs most."""
    if plan.shape.num_parameters < SHOWN_PARTS_FROM:
        return []
    specialists = [stage for stage in plan.first if is_rl(stage.stage)]
    shown = [stage for stage in plan.first if stage.memory_parts and stage not in specialists]
    shown += [max(specialists, key=lambda stage: stage.memory_bytes)] if specialists else []
    return [f"{stage.stage}: {stage.memory_parts}" for stage in shown]


def _differences(plan: Plan) -> str:
    """Which stages of a later iteration are not as in the first."""
    first = {stage.stage: stage for stage in plan.first}
    text = [f"{stage.stage} {stage.amount}, {in_time(stage.seconds)}" for stage in plan.later if stage != first.get(stage.stage)]
    text += [f"no {name}" for name in first.keys() - {stage.stage for stage in plan.later}]
    return f" ({'; '.join(text)}; the rest as in iteration 1)" if text else ", as the first"


def _in_all(plan: Plan, num_iterations: int) -> str:
    gpus = f", {plan.gpus_needed} GPUs" if plan.machine.num_gpus else ""
    num = len(plan.profile.tasks.specialists)
    together = f"{min(num, plan.at_once)} specialists at once" if plan.at_once > 1 else "one specialist after another"
    at_once = f"; {together}" if num > 1 else ""
    disk = in_bytes(plan.disk_bytes(num_iterations))
    network = f", {in_bytes(sent)} over the network" if (sent := plan.network_bytes(num_iterations)) else ""
    paid = ""
    if plan.profile.plan.prices:
        used, whole = in_money(cost(plan, num_iterations)), in_money(held_cost(plan, num_iterations))
        paid = f" Cost: {used}, or {whole} where every machine is paid for the whole time."
    needed = f"{in_time(plan.seconds(num_iterations))}{gpus}, {disk} of disk{network}{at_once}"
    return f"[bold]In all[/], {num_iterations} iterations: {needed}.{paid}"


def rests_on(plan: Plan) -> list[str]:
    """What the estimates were made from, in sentences."""
    settings, measured = plan.profile.plan, plan.measured
    if measured.steps:
        domains = ", ".join(f"{domain} {steps:.1f}" for domain, steps in measured.steps.items())
        lines = [
            f"Lengths are those of {measured.num_episodes:,} episodes of this home (steps: {domains}; prompt {measured.prompt_tokens:.0f} "
            f"tokens, answer {measured.response_tokens:.0f})."
        ]
    else:
        lines = [
            f"Lengths are assumed, since this home has no episodes: {settings.steps_share:.0%} of each task's step limit, and the tokens "
            "of plan.standing_tokens and plan.response_tokens."
        ]
    if plan.machine.num_gpus:
        prompts = f" and {settings.generation_mfu:.0%} in reading prompts" if plan.answers_on_gpus else ""
        lines.append(
            f"Speed is a GPU's data sheet, {settings.gpu_peak_tflops:g} TFLOP/s and {settings.gpu_bandwidth_gb_s:g} GB/s, at "
            f"{settings.training_mfu:.0%} of the peak in training{prompts}; none of it was measured here, and nothing is saved by prefix "
            "caches."
        )
    else:
        lines.append(f"Training is as fast as on two quiet cores: {settings.cpu_training_gflops:g} GFLOP/s.")
    if not plan.answers_on_gpus:
        lines.append(
            f"Answers are as fast as on two quiet cores: {settings.cpu_prefill_gflops:g} GFLOP/s in reading prompts, "
            f"{settings.cpu_decode_gflops:g} in writing."
        )
    lines.append(
        f"A step of a session takes {settings.env_latency_s:g} s and {1000 * settings.env_cpu_s:.0f} ms of CPU, "
        f"{plan.profile.sandbox.num_sessions} sessions at once. Memory is estimated by models/training/estimates.py, with a tenth "
        "for fragments."
    )
    if any(stage.num_processes > 1 for stage in (*plan.first, *plan.later)):
        lines.append("So many processes train so many times as fast: what they lose by waiting for one another is not reckoned.")
    return [*lines, *cost_rests_on(plan)]


def in_time(seconds: float) -> str:
    """48 s, 12 min, 3.4 h, 2.1 days."""
    for size, unit in ((86_400, "days"), (3600, "h"), (90, "min")):
        if seconds >= size * (1.5 if unit == "days" else 1):
            return f"{seconds / (60 if unit == 'min' else size):.{0 if unit == 'min' else 1}f} {unit}"
    return f"{seconds:.0f} s"


def in_money(amount: float) -> str:
    """1,234.50, 0.0031: in whatever the prices are in."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.2g}"


def _short(number: float) -> str:
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
