"""The command `flywheel`. Each command is a thin call of what does the work; heavy imports happen inside. What is not in this file is
imported when it, or the list of all, is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main
from rich.console import Console
from rich.markup import escape

from pipelines.cli.options import HomeOption, ProfileOption, SetOption, command_in, console, home_of, made_home, profile_of, warehouse_of
from warehouse.core.errors import ConfigError, FlywheelError
from warehouse.core.home import Home
from warehouse.core.machine import check_address_space, refusal

FIRST = ("run", "ui", "status", "eval")
"""In the list of all, before the others."""
COMMANDS = {
    **dict.fromkeys(("sql", "lineage"), "pipelines.cli.data.tables"),
    **dict.fromkeys(("explain", "reroute"), "pipelines.cli.data.explain"),
    "verdict": "pipelines.cli.data.verdict",
    **dict.fromkeys(("export", "replay", "withdraw", "restore"), "pipelines.cli.data.tables"),
    "forget": "pipelines.cli.data.forget",
    "adopt": "pipelines.cli.tasks.adopt",
    "compare": "pipelines.cli.policies.compare",
    "alert": "pipelines.cli.runs.alert",
    "blame": "pipelines.cli.policies.blame",
    "merge": "pipelines.cli.policies.merge",
    **dict.fromkeys(("init", "check"), "pipelines.cli.plugins"),
}
"""`flywheel NAME` → the module that has a function of that name."""
GROUPS = {
    "sandbox": "pipelines.cli.tasks.sandbox:sandbox",
    "plan": "pipelines.cli.runs.plan:plan",
    "policy": "pipelines.cli.policies.policy:policy",
    "gateway": "pipelines.cli.policies.gateway:gateway",
    "release": "pipelines.cli.policies.release:release",
    "import": "pipelines.cli.data.imports:imports",
    "tasks": "pipelines.cli.tasks.tasks:tasks",
    "annotate": "pipelines.cli.annotate.commands:annotate",
    "record": "pipelines.cli.record.commands:record",
    "store": "pipelines.cli.data.store:store",
}
"""`flywheel NAME …` → where its commands are."""


class _Commands(typer.core.TyperGroup):
    """The commands of this file, of others, and the groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys((*FIRST, *COMMANDS, *super().list_commands(ctx), *GROUPS)))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        elsewhere = (*COMMANDS, *GROUPS)
        if cmd_name in elsewhere:
            wanted: tuple[str, ...] = (cmd_name,)
        else:
            wanted = elsewhere if cmd_name not in self.commands else ()  # of a wrong name: what is like it
        for name in wanted:
            if name not in self.commands:
                self.commands[name] = _group(name) if name in GROUPS else _command(name)
        return super().get_command(ctx, cmd_name)


def _group(name: str) -> Any:
    module, _, attribute = GROUPS[name].partition(":")
    group = typer.main.get_group(getattr(import_module(module), attribute))
    group.name = name
    return group


def _command(name: str) -> Any:
    alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
    alone.command(name)(getattr(import_module(COMMANDS[name]), name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="The data flywheel for agents that operate graphical interfaces.",
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    iterations: Annotated[int, typer.Option(min=1, help="Run until this many iterations are complete in this home.")] = 3,
    profile: ProfileOption = None,
    set_: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing: check the profile, print the time, memory and disk that each stage takes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the plan as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Run iterations: show them live, end with success by stage and an HTML report. Resumes what was interrupted."""
    if dry_run:
        from pipelines.plan.dry_run import dry_run as plan_run

        place = home_of(home)
        sys.exit(plan_run(place, *profile_of(place, profile, set_), iterations, console, as_json=as_json))
    if as_json:
        raise ConfigError("--json goes with --dry-run: `flywheel status --json` reports what a run made")
    from pipelines.cli.runs.run import run_until
    from pipelines.cli.runs.status import lineage_hint, read_status, success_table
    from pipelines.reporting.build import build_report

    place = home_of(home)
    run_until(iterations, place, *profile_of(place, profile, set_), console)
    warehouse = warehouse_of(place)
    found = read_status(warehouse)
    console.print(success_table(found))
    report = build_report(warehouse, place, place.reports / "index.html")
    console.print(f"report: {report}", soft_wrap=True)
    shown = f"{command_in(place.root, 'flywheel status')}   what each stage made"
    for line in filter(None, (shown, lineage_hint(found))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="Port of the Dagster UI on 127.0.0.1.")] = 3000,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Start Dagster, and the Prefect server it needs, on loopback."""
    from pipelines.cli.runs.ui import serve

    place = home_of(home)
    sys.exit(serve(place, port, *profile_of(place, profile, set_), console))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every iteration, not only the newest ten.")] = False,
    home: HomeOption = None,
) -> None:
    """Iterations, stages, artefact ids, success with counts and intervals."""
    from pipelines.cli.runs.status import print_status, read_status

    found = read_status(warehouse_of(made_home(home)))
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        print_status(found, console, show_all=show_all)


@app.command("eval")
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint id, ITERATION/STAGE, `released`, or any Hugging Face model's folder.")],
    split: Annotated[str, typer.Option(help="eval, holdout, or report with --for-release.")] = "eval",
    per_task: Annotated[int, typer.Option(min=1, help="Episodes per task, fewer where it has fewer different instances.")] = 15,
    for_release: Annotated[
        str | None, typer.Option(help="With --split report: the release whose figures these are. The look is recorded in the home.")
    ] = None,
    step_budgets: Annotated[
        str | None, typer.Option(help="Report success by growing step budgets: 5,10,20,40 steps, or 0.5x,1x,2x,4x of each task's own.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="With --step-budgets: write the curve.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Greedy success of any checkpoint, per task, without storing it as a stage."""
    from pipelines.stages.evaluate_checkpoint import evaluate_budgets, evaluate_checkpoint

    place = home_of(home)
    warehouse, settings = warehouse_of(place), profile_of(place, profile, set_)
    if step_budgets is None:
        if svg is not None:
            raise ConfigError("--svg draws success by step budget: give --step-budgets too, e.g. --step-budgets 0.5x,1x,2x")
        evaluate_checkpoint(warehouse, checkpoint, split, per_task, *settings, console, as_json=json_, release=for_release)
    else:
        evaluate_budgets(
            warehouse, checkpoint, split, per_task, step_budgets, *settings, console, svg=svg, as_json=json_, release=for_release
        )


@app.command()
def report(
    iteration: Annotated[str | None, typer.Argument(help="Write this iteration's pages only, e.g. 0002 \\[default: everything].")] = None,
    run_: Annotated[str | None, typer.Option("--run", help="Write the page of one training run only, e.g. 0002/rl_forms.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file; further pages lie beside it \\[default: reports/index.html].")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Write the HTML report: what each iteration gained, every training run's curves, tasks and episodes, routing, sample trajectories."""
    from pipelines.reporting.build import build_iteration, build_report, build_run

    place = made_home(home)
    warehouse, index = warehouse_of(place), output or place.reports / "index.html"
    if run_ is not None:
        written = build_run(warehouse, run_, index.parent)
    elif iteration is not None:
        written = build_iteration(warehouse, iteration.zfill(4), index.parent)
    else:
        written = build_report(warehouse, place, index)
    console.print(f"report: {written}")


@app.command()
def verify(
    all_versions: Annotated[bool, typer.Option("--all-versions", help="Also files that only older versions of a table have.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is damaged as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Read all tables, pictures and checkpoints, and compare every byte with what was committed. Exit status 1 where something differs."""
    from pipelines.cli.data.verify import verify as verify_home

    sys.exit(verify_home(warehouse_of(made_home(home)), console, all_versions=all_versions, as_json=as_json))


@app.command()
def doctor(
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair tables that cannot be read: damaged commits are moved aside, nothing is deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False,
    home: HomeOption = None,
) -> None:
    """Check every part this machine needs, and say how to fix what is missing."""
    if repair:
        from pipelines.cli.data.verify import repair_alone

        def ask(question: str) -> None:
            if not yes:
                typer.confirm(question, abort=True)

        sys.exit(repair_alone(warehouse_of(made_home(home)), console, ask))
    from pipelines.cli.doctor import run_doctor

    sys.exit(run_doctor(console, home_of(home)))


def main() -> None:
    """Entry point: errors made on purpose are printed without a traceback; exit status 1."""
    try:
        check_address_space()
        app()
    except FlywheelError as error:
        _fail(error)
    except Exception as error:
        found = refusal(error, Home.from_env().root)
        if found is None:
            raise
        _fail(found)


def _fail(error: FlywheelError) -> None:
    Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
    sys.exit(1)
