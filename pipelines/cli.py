"""The command `flywheel`. Each command is a thin call of what does the work; heavy imports happen inside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pipelines.policy_command import policy
from pipelines.sandbox_command import sandbox
from pipelines.tasks_command import tasks
from warehouse.errors import ConfigError, FlywheelError, StorageFull
from warehouse.home import Home, is_full_disk

if TYPE_CHECKING:
    from warehouse.tables import Warehouse

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="The data flywheel for agents that operate graphical interfaces.",
    pretty_exceptions_enable=False,
)
app.add_typer(sandbox, name="sandbox")
app.add_typer(policy, name="policy")
app.command()(tasks)
imports = typer.Typer(no_args_is_help=True, help="Bring data of your own into the warehouse.")
app.add_typer(imports, name="import")
console = Console()

HomeOption = Annotated[Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="Where everything lives \\[default: .flywheel].")]
ProfileOption = Annotated[
    str, typer.Option("--profile", envvar="FLYWHEEL_PROFILE", help="A profile's name (quickstart, smoke) or the path of a YAML file.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change one setting, e.g. --set seed=1 --set annotation.enabled=false.")]
AsOfOption = Annotated[str | None, typer.Option("--as-of", help="See the tables as they were after this iteration, e.g. 0002.")]


@app.command()
def run(
    iterations: Annotated[int, typer.Option(min=1, help="Go on until so many iterations are complete in this home.")] = 3,
    profile: ProfileOption = "quickstart",
    set_: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing: check the profile, print what each stage takes of time, memory, disk.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Turn the wheel: launch iterations, show them live, end with success by stage and an HTML report."""
    if dry_run:
        from pipelines.plan.dry_run import dry_run as plan_run

        sys.exit(plan_run(_home(home), profile, _overrides(set_), iterations, console))
    from pipelines.instance import open_instance
    from pipelines.report.build import build_report
    from pipelines.run import turn_until
    from pipelines.status import read_status, success_table

    place = _home(home)
    turn_until(iterations, place, profile, _overrides(set_), console)
    warehouse = _warehouse(place)
    with open_instance(place) as instance:
        console.print(success_table(read_status(warehouse, instance)))
    report = build_report(warehouse, place, place.reports / "index.html")
    console.print(f"report: {report}")


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="Port of the Dagster UI on 127.0.0.1.")] = 3000,
    profile: ProfileOption = "quickstart",
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Start Dagster, and the Prefect server it needs, on loopback."""
    from pipelines.ui import serve

    sys.exit(serve(_home(home), port, profile, _overrides(set_), console))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
    home: HomeOption = None,
) -> None:
    """Iterations, stages, artefact ids, success with counts and intervals."""
    from pipelines.instance import open_instance
    from pipelines.status import print_status, read_status

    place = _made_home(home)
    with open_instance(place) as instance:
        found = read_status(_warehouse(place), instance)
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        print_status(found, console)


@app.command("eval")
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint id, ITERATION/STAGE such as 0002/merged_policy, or a checkpoint's folder.")],
    split: Annotated[str, typer.Option(help="eval or holdout.")] = "eval",
    per_task: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 15,
    step_budgets: Annotated[
        str | None, typer.Option(help="Report success by growing step budgets: 5,10,20,40 steps, or 0.5x,1x,2x,4x of each task's own.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="With --step-budgets: write the curve.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="With --step-budgets: write the figures.")] = None,
    profile: ProfileOption = "quickstart",
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Greedy success of any checkpoint, per task, without storing it as a stage."""
    from pipelines.evaluate import evaluate_budgets, evaluate_checkpoint

    warehouse = _warehouse(_home(home))
    if step_budgets is None:
        evaluate_checkpoint(warehouse, checkpoint, split, per_task, profile, _overrides(set_), console)
    else:
        evaluate_budgets(
            warehouse, checkpoint, split, per_task, step_budgets, profile, _overrides(set_), console, svg=svg, as_json=json_
        )


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help='SQL over the tables, e.g. "from episodes limit 5".')],
    as_of: AsOfOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    home: HomeOption = None,
) -> None:
    """Query every table with DuckDB, now or as of an iteration."""
    from pipelines.query_command import run_query

    run_query(_warehouse(_made_home(home)), query, as_of, as_json, console)


@app.command()
def lineage(
    identity: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A checkpoint, episode, sample, dataset, task or screenshot id, ITERATION/STAGE of a checkpoint, or a task's name.",
        ),
    ],
    direction: Annotated[str, typer.Option(help="up: what it was made from; down: what was made from it; both.")] = "up",
    depth: Annotated[int | None, typer.Option(min=1, help="How many generations \\[default: all].")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a drawing.")] = None,
    mermaid: Annotated[Path | None, typer.Option(help="Write Mermaid text.")] = None,
    home: HomeOption = None,
) -> None:
    """From a checkpoint to each sample, episode, step and task behind it, or forward again."""
    from pipelines.query_command import show_lineage

    show_lineage(_warehouse(_made_home(home)), identity, direction, depth, svg, mermaid, console)


@app.command()
def export(
    output: Annotated[Path, typer.Argument(help="Folder or file to write.")],
    format_: Annotated[str, typer.Option("--format", help="trl, llama-factory, sharegpt, parquet or duckdb.")] = "trl",
    dataset: Annotated[str, typer.Option(help="sft, ct, or a dataset id; for parquet also all: every table.")] = "sft",
    as_of: AsOfOption = None,
    home: HomeOption = None,
) -> None:
    """Write samples for TRL, LLaMA-Factory or ShareGPT readers or as Parquet, or every table as one DuckDB file."""
    from pipelines.query_command import export_data

    export_data(_warehouse(_made_home(home)), output, format_, dataset, as_of, console)


@app.command()
def replay(
    episode: Annotated[str, typer.Argument(help="An episode's id, or the beginning of one that is unambiguous.")],
    html: Annotated[Path | None, typer.Option(help="Write a page with thoughts, actions and screens.")] = None,
    webp: Annotated[Path | None, typer.Option(help="Write an animated WebP.")] = None,
    mp4: Annotated[Path | None, typer.Option(help="Write an MP4, where ffmpeg is installed.")] = None,
    run_: Annotated[bool, typer.Option("--run/--no-run", help="Replay it; else only write what was stored.")] = True,
    url: Annotated[str | None, typer.Option(help="On a session of this sandbox server \\[default: on one of our own].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
    home: HomeOption = None,
) -> None:
    """Do a stored episode's actions again on a live session and verify its reward; show it as a page or a film.

    Exit status: 0 when reward and pixels are as recorded (or no screens were kept), 3 when pixels differ, 4 when the reward does.
    """
    from pipelines.replay.command import replay_episode

    warehouse = _warehouse(_made_home(home))
    sys.exit(replay_episode(warehouse, episode, console, live=run_, html=html, webp=webp, mp4=mp4, url=url, as_json=as_json))


@imports.callback()
def _imports() -> None:
    """Keeps `general` a command of its own while it is the only one."""


@imports.command("general")
def import_general(
    file: Annotated[Path, typer.Argument(help="JSON lines or Parquet of conversations.")],
    name: Annotated[str | None, typer.Option(help="Replaces what was imported under it \\[default: the file's].")] = None,
    home: HomeOption = None,
) -> None:
    """Import general chat and reasoning data, which CT and SFT mix in (docs/supervised.md)."""
    from pipelines.import_command import import_general_data
    from warehouse.tables import Warehouse

    import_general_data(Warehouse(_made_home(home)), file, name, console)


@app.command()
def withdraw(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Samples or annotations, by id or the beginning of one that is unambiguous.")
    ] = None,
    iteration: Annotated[
        str | None, typer.Option(help="The first iteration that --as-of shows without them \\[default: the newest].")
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Then erase all that was ever withdrawn from the disk, in every version of its table.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Purge without asking.")] = False,
    home: HomeOption = None,
) -> None:
    """Take samples or annotations back: no dataset holds them from now on, nor what an annotation had corrected.

    What they were stays in the older versions of the tables until it is purged. Checkpoints that have learned from them stay as they are:
    `flywheel lineage ID --direction down` names them. Neither can be undone.
    """
    from pipelines.query_command import withdraw_rows

    def ask(num_rows: int) -> None:
        if not yes:
            typer.confirm(f"Withdrawn rows to erase for good: {num_rows}. Go on?", abort=True)

    withdraw_rows(_warehouse(_made_home(home)), ids or [], iteration, console, ask_to_purge=ask if purge else None)


@app.command()
def merge(
    parents: Annotated[list[str], typer.Argument(help="Checkpoint ids, ITERATION/STAGE, or folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write: new, empty, or a checkpoint to replace.")],
    method: Annotated[
        str, typer.Option(help="linear, slerp, task_arithmetic, ties, dare_linear or dare_ties (docs/merging.md).")
    ] = "linear",
    weights: Annotated[
        str | None, typer.Option(help="One a parent, comma-separated; sum 1 for linear and slerp \\[default: equal, sum 1].")
    ] = None,
    base: Annotated[str | None, typer.Option(help="What the parents were trained from: task_arithmetic, ties and dare need it.")] = None,
    density: Annotated[float, typer.Option(help="ties, dare: share of each parent's changes that is kept.")] = 0.5,
    scale: Annotated[float, typer.Option(help="With a base: factor on the merged changes.")] = 1.0,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="With a base: divide by the weights \\[default: ties yes, others no].")
    ] = None,
    seed: Annotated[int, typer.Option(help="dare: of the random drop.")] = 0,
    fused: Annotated[bool, typer.Option("--fused", help="linear: round as mergekit does on a CPU, bit for bit.")] = False,
    any_ancestry: Annotated[
        bool, typer.Option("--any-ancestry", help="Take checkpoints of unknown origin: folders without a card.json of ours.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="\\[default: one a core, up to 4].")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and write nothing.")] = False,
    home: HomeOption = None,
) -> None:
    """Merge checkpoints into one, out of core: safetensors of any model, a few MB of memory, no GPU.

    flywheel merge A B -o OUT --weights 0.3,0.7

    flywheel merge A B C --method ties --density 0.5 --base SFT -o OUT
    """
    from pipelines.merge_command import merge_checkpoints, merge_config

    config = merge_config(method=method, density=density, scale=scale, normalize=normalize, seed=seed, fused=fused)

    def find(name: str) -> Path:
        from pipelines.query_command import checkpoint_folder

        return checkpoint_folder(_warehouse(_home(home)), name)

    merge_checkpoints(
        find, parents, output, weights, config, base, console, check_ancestry=not any_ancestry, num_threads=threads, dry_run=dry_run
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
    from pipelines.report.build import build_iteration, build_report, build_run

    place = _made_home(home)
    warehouse, index = _warehouse(place), output or place.reports / "index.html"
    if run_ is not None:
        written = build_run(warehouse, run_, index.parent)
    elif iteration is not None:
        written = build_iteration(warehouse, iteration.zfill(4), index.parent)
    else:
        written = build_report(warehouse, place, index)
    console.print(f"report: {written}")


@app.command()
def doctor(home: HomeOption = None) -> None:
    """Check every part this machine needs, and say how to mend what is missing."""
    from pipelines.doctor import run_doctor

    sys.exit(run_doctor(console, _home(home)))


def _warehouse(home: Home) -> Warehouse:
    """Reading tables takes half a second to import: only for the commands that do."""
    from warehouse.tables import Warehouse

    return Warehouse(home)


def _home(path: Path | None) -> Home:
    return Home(path.absolute()) if path is not None else Home.from_env()


def _made_home(path: Path | None) -> Home:
    """For commands that only look at what is there."""
    home = _home(path)
    home.check_exists()
    return home


def _overrides(items: list[str] | None) -> dict[str, Any]:
    from pipelines.profiles import parse_value

    overrides = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item!r} is not KEY=VALUE, e.g. --set rl.rounds=4")
        overrides[key] = parse_value(value, f"the value of --set {item!r}")
    return overrides


def main() -> None:
    """Entry point: errors made on purpose are printed without a traceback; exit status 1."""
    try:
        app()
    except FlywheelError as error:
        _fail(error)
    except Exception as error:
        if not is_full_disk(error):
            raise
        _fail(StorageFull(f"the disk is full: {error}. Free some space and give the same command again; what is finished is kept"))


def _fail(error: FlywheelError) -> None:
    Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
