"""`flywheel blame`: which sources, episodes and samples a regression is most likely due to. The work is pipelines/stages/blame.py's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from pipelines.cli.options import HomeOption, ProfileOption, SetOption, console, made_home, profile_of, warehouse_of
from pipelines.cli.terminal import counted, slim_table

if TYPE_CHECKING:
    from pipelines.stages.blame import BlameReport, PairedGain
    from warehouse.lineage.blame import BlamedEpisode, BlamedSource


def blame(
    policy: Annotated[str, typer.Argument(help="A checkpoint's id, ITERATION/STAGE, e.g. 0004/merged_policy, or `released`.")],
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="Only this task or domain; may be repeated, or separated by commas.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The policy that it is worse than \\[default: the release that entered its iteration].")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="The training stage to look into, e.g. ct_model \\[default: the last that trained on SFT data].")
    ] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Look also at instances that neither policy solves but the oracle does.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Train the stage again without the most blamed group and play both on the same instances.")
    ] = False,
    without: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="With --check: leave this out, as DIMENSION=NAME, or `episodes` for those that are named."),
    ] = None,
    play: Annotated[bool, typer.Option("--play/--no-play", help="With --check: play episodes; else compare log-odds alone.")] = True,
    points: Annotated[
        int,
        typer.Option(
            min=1, max=16, help="Points on the stage's way from its first to its last weights at which gradients are taken; 1: half way."
        ),
    ] = 1,
    most: Annotated[int, typer.Option(min=1, help="Show at most this many sources and episodes.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
    set_: SetOption = None,
    home: HomeOption = None,
) -> None:
    """Which judge, annotator, campaign, import or task list, and which episodes, made a policy worse than the one before it.

    From lineage and from gradients: how far each sample that the stage read moved the answers by which instances of `eval`
    were lost. A source is blamed for what it did beyond what others would have done in its place; above zero it did harm.
    Nothing is changed: the commands that take the named ones out are printed.
    """
    from models.supervised.influence import InfluenceConfig
    from pipelines import profiles
    from pipelines.stages.blame import Asked, find_blame
    from warehouse.core.errors import ConfigError

    if without is not None and not check:
        raise ConfigError(f"--without {without} says what the check leaves out: give --check too")
    place = made_home(home)
    settings = profiles.load(*profile_of(place, profile, set_))
    asked = Asked(
        policy=policy,
        against=against,
        tasks=tuple(name for each in tasks or [] for name in each.split(",") if name),
        stage=stage,
        with_oracle=oracle,
        check=check,
        without=without,
        plays=play,
    )
    config = InfluenceConfig(points=points, seed=settings.seed)
    found = find_blame(warehouse_of(place), asked, settings, config, Console(stderr=True) if as_json else console)
    if as_json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
    else:
        _print(found, most)


def _print(found: BlameReport, most: int) -> None:
    from warehouse.lineage.blame import LEAST_LOST

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    say(f"{found.policy} against {found.predecessor}, {found.split}: {_points(found.success)}")
    lost = ", ".join(f"{escape(task)} {num}" for task, num in found.lost_by_task.items())
    say(f"asked about {counted(found.num_lost, 'lost instance')}: {lost}")
    more = f"; not looked into: {', '.join(found.other_stages)}" if found.other_stages else ""
    result = found.blame
    say(f"training: {found.stage} on {found.dataset}, {result.num_scored:,} of {result.num_read:,} samples that it read scored{more}")
    if found.num_withdrawn:
        say(f"{counted(found.num_withdrawn, 'sample')} that it read were withdrawn since: when it read the others is approximate")
    _print_sources(found, most)
    named = result.named
    if named:
        _print_episodes(named[:most])
        if len(named) > most:
            say(f"and {len(named) - most} more: --most {len(named)}, or --json, shows all")
    elif found.num_lost < LEAST_LOST:
        say(f"fewer than {LEAST_LOST} lost instances: what they say may be chance, so nothing is named; --oracle may ask about more")
    else:
        say("no episode stands out")
    for one in found.withdrawals:
        say(f"take out {one.what} ({counted(len(one.sample_ids), 'sample')}):\n  {escape(one.command)}")
    if not found.withdrawals:
        say("nothing is blamed beyond doubt, so nothing is named to withdraw")
    if found.check is None:
        if found.withdrawals:
            say("not proved: --check trains the stage again without the most blamed group and plays both")
        return
    checked = found.check
    say(f"check, without {escape(checked.without)} ({counted(checked.num_left_out, 'sample')}):")
    say(f"  log-odds of the answers that lost: {checked.log_odds_with:+.2f} nats with, {checked.log_odds_without:+.2f} without")
    if checked.success is not None:
        say(f"  the stage without it against the stage as it was, {found.split}: {_points(checked.success)}")


def _print_sources(found: BlameReport, most: int) -> None:
    table = slim_table()
    for column in ("source", "blame, nats [95 %]", "read", "samples", "episodes", "named (p)"):
        table.add_column(column, justify="left" if column == "source" else "right", no_wrap=column != "source")
    for one in found.blame.sources[:most]:
        style = "bold red" if one.is_sure else "none"
        table.add_row(
            f"[{style}]{escape(one.key)}[/]",
            _nats(one),
            f"{100 * one.share_of_draws:.1f} %",
            str(one.num_samples),
            str(one.num_episodes),
            f"{one.num_named} ({one.p_named:.2g})" if one.num_episodes else "",
        )
    console.print(table)


def _print_episodes(named: list[BlamedEpisode]) -> None:
    table = slim_table()
    for column in ("stands out", "task", "blame, nats [95 %]", "sources", "worst sample"):
        table.add_column(column, justify="right" if column.startswith("blame") else "left", overflow="fold")
    for one in named:
        table.add_row(
            escape(one.episode_id or "a sample of no episode"),
            escape(f"{one.task} {one.seed}" if one.task else ""),
            _nats(one),
            escape(", ".join(f"{way}={name}" for way, name in one.sources.items())),
            next(iter(one.samples)),
        )
    console.print(table)


def _nats(one: BlamedSource | BlamedEpisode) -> str:
    return f"{one.blame:+.2g} \\[{one.low:+.2g}, {one.high:+.2g}]"


def _points(gain: PairedGain) -> str:
    interval = f"\\[{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    return f"{100 * gain.gain:+.1f} {interval} points, {gain.num_pairs} instances, {gain.num_won} won, {gain.num_lost} lost"
