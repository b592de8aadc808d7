"""`flywheel annotate campaign …`: what people are asked to annotate."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.markup import escape

from pipelines.cli.annotate.options import DatabaseOption, opened, server_of
from pipelines.cli.options import HomeOption, console, home_of
from pipelines.cli.terminal import print_rows
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from annotation.service.campaigns.campaigns import CampaignChange, Campaigns, Seen
    from annotation.storage.database import Database
    from warehouse.core.home import Home

B = TypeVar("B", bound=BaseModel)
campaign = typer.Typer(no_args_is_help=True, help="Campaigns: what is annotated, by whom, how often.")
CampaignArgument = Annotated[str, typer.Argument(help="Name or id of the campaign.")]
CHANGEABLE = ("policy", "target_count", "double_share", "priority", "members", "guidelines")


@campaign.command()
def create(
    name: Annotated[str, typer.Argument(help="What people call it; each name once.")],
    tasks: Annotated[list[str], typer.Option("--tasks", help="source, source:group, source/name, or pool; may be repeated.")],
    target: Annotated[int, typer.Option(help="Annotated episodes wanted, second copies not counted.")] = 100,
    double: Annotated[float, typer.Option(help="Share of the instances that two people annotate.")] = 0.1,
    priority: Annotated[int, typer.Option(help="Of several campaigns the higher one is asked for first.")] = 0,
    mode: Annotated[
        str, typer.Option(help="intervene: what people decide is carried out; relabel: the policy's choice is, theirs is its label.")
    ] = "intervene",
    policy: Annotated[str, typer.Option(help="newest (release, whenever an episode begins), or a checkpoint's id.")] = "newest",
    candidates: Annotated[int, typer.Option(help="Proposals at each step.")] = 3,
    temperature: Annotated[float, typer.Option(help="Of the proposals beside the policy's own choice.")] = 1.0,
    lease: Annotated[float, typer.Option(help="Seconds after the last sign of life when an assignment goes on to somebody else.")] = 300.0,
    member: Annotated[list[str] | None, typer.Option("--member", help="Who works on it; may be repeated \\[default: everyone].")] = None,
    guidelines: Annotated[Path | None, typer.Option(help="A text file with instructions for annotators.")] = None,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Begin a campaign. What it asks for is chosen as people work: train instances of the tasks, more where the policy is weak."""
    from annotation.service.campaigns.campaigns import CampaignSpec

    spec = _checked(
        CampaignSpec,
        name=name,
        tasks=tuple(tasks),
        target_count=target,
        double_share=double,
        priority=priority,
        mode=mode,
        policy=policy,
        num_candidates=candidates,
        temperature=temperature,
        lease_s=lease,
        members=tuple(member or ()),
        guidelines=_text_of(guidelines) if guidelines is not None else "",
    )
    place = home_of(home)
    with opened(place, database) as found:
        made = asyncio.run(_campaigns(found, place).create(spec, by=None))
    console.print(f"campaign {made.campaign_id}: {escape(made.name)}", highlight=False)
    _say_where(place, database)


@campaign.command("list")
def list_campaigns(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, database: DatabaseOption = None, home: HomeOption = None
) -> None:
    """All campaigns, and how far they are: what was rejected or withdrawn is not among the finished."""
    place = home_of(home)
    with opened(place, database) as found:
        campaigns = asyncio.run(_campaigns(found, place).list())
    if as_json:
        typer.echo(json.dumps([_plain(seen) for seen in campaigns], indent=2))
        return
    if not campaigns:
        console.print("no campaign yet: `flywheel annotate campaign create NAME --tasks miniwob:quickstart` makes one")
        return
    print_rows([_row(seen) for seen in campaigns], console)
    if (server := server_of(place, database)) is not None:
        console.print(f"the same as a page: {server.address}/campaigns", highlight=False, soft_wrap=True)


def _row(seen: Seen) -> dict[str, str]:
    one, far = seen.campaign, seen.progress
    return {
        "campaign": one.name,
        "state": one.state,
        "tasks": ", ".join(one.tasks),
        "policy": one.policy,
        "finished": f"{far.num_finished}/{one.target_count}",
        "twice": f"{far.num_second_finished}/{far.num_second_wanted}",
        "priority": str(one.priority),
        "at work": str(far.num_leased),
        "flagged": str(far.num_flagged),
        "members": ", ".join(seen.members) or "everyone",
    }


def _plain(seen: Seen) -> dict[str, Any]:
    one = seen.campaign
    return {
        "campaign_id": one.campaign_id,
        "name": one.name,
        "state": one.state,
        "mode": one.mode,
        "tasks": one.tasks,
        "policy": one.policy,
        "target_count": one.target_count,
        "double_share": one.double_share,
        "priority": one.priority,
        "members": seen.members,
        "progress": asdict(seen.progress),
    }


@campaign.command()
def change(
    name: CampaignArgument,
    policy: Annotated[str | None, typer.Option(help="newest, or a checkpoint's id; what is under way ends with its own.")] = None,
    target: Annotated[int | None, typer.Option(help="Annotated episodes wanted, second copies not counted.")] = None,
    double: Annotated[float | None, typer.Option(help="Share of the instances that two people annotate, of what nobody has begun.")] = None,
    priority: Annotated[int | None, typer.Option(help="Of several campaigns the higher one is asked for first.")] = None,
    member: Annotated[list[str] | None, typer.Option("--member", help="Who works on it from now on; may be repeated.")] = None,
    everyone: Annotated[bool, typer.Option("--everyone", help="Everyone works on it from now on.")] = False,
    guidelines: Annotated[Path | None, typer.Option(help="A text file with instructions for annotators.")] = None,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Change a campaign while people work on it. What is not named stays; a server that runs goes by it at once."""
    from annotation.service.campaigns.campaigns import CampaignChange

    if member and everyone:
        raise ConfigError("--member and --everyone exclude one another: name who works on it, or let everyone")
    wanted = {
        "policy": policy,
        "target_count": target,
        "double_share": double,
        "priority": priority,
        "members": () if everyone else tuple(member) if member else None,
        "guidelines": _text_of(guidelines) if guidelines is not None else None,
    }
    if all(value is None for value in wanted.values()):
        raise ConfigError("nothing to change: give --policy, --target, --double, --priority, --member, --everyone or --guidelines")
    before, after = _change(name, _checked(CampaignChange, **wanted), database, home)
    lines = [_describe_change(key, before[key], after[key]) for key in CHANGEABLE if before[key] != after[key]]
    console.print(f"{escape(after['name'])}: {escape(', '.join(lines)) or 'is so already'}", highlight=False, soft_wrap=True)


def _describe_change(key: str, before: Any, after: Any) -> str:
    """What became of one of the things that may change."""
    if key == "guidelines":
        return "guidelines changed"
    words = [", ".join(value) or "everyone" if key == "members" else str(value) for value in (before, after)]
    return f"{key.replace('_', ' ')} {' → '.join(words)}"


@campaign.command()
def pause(name: CampaignArgument, database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Hand out nothing more of it; what people are at they may finish."""
    _set_state(name, "paused", database, home)


@campaign.command()
def resume(name: CampaignArgument, database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Hand it out again."""
    _set_state(name, "active", database, home)


@campaign.command()
def end(name: CampaignArgument, database: DatabaseOption = None, home: HomeOption = None) -> None:
    """Close it: annotators see it no more."""
    _set_state(name, "ended", database, home)


def _set_state(name: str, state: str, database: str | None, home: Path | None) -> None:
    from annotation.service.campaigns.campaigns import CampaignChange

    _change(name, _checked(CampaignChange, state=state), database, home)


def _change(name: str, change: CampaignChange, database: str | None, home: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the campaign was, and is."""
    from annotation.storage import campaigns

    place = home_of(home)
    with opened(place, database) as found:
        with found.read() as session:
            campaign_id = campaigns.named(session, name).campaign_id

        async def work() -> tuple[Seen, Seen]:
            known = _campaigns(found, place)
            before = await _seen(known, campaign_id)
            await known.change(campaign_id, change, by=None)
            return before, await _seen(known, campaign_id)

        before, after = (_plain(seen) | {"guidelines": seen.campaign.guidelines} for seen in asyncio.run(work()))
    return before, after


async def _seen(known: Campaigns, campaign_id: str) -> Seen:
    return next(seen for seen in await known.list() if seen.campaign.campaign_id == campaign_id)


def _checked(kind: type[B], **values: Any) -> B:
    """Raises ConfigError."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"invalid campaign: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error


def _say_where(home: Home, database: str | None) -> None:
    """Where people find it."""
    server = server_of(home, database)
    lines = f"people find it at {server.address}" if server is not None else "people find it once `flywheel annotate serve` runs"
    console.print(lines, highlight=False, soft_wrap=True)


def _campaigns(database: Database, home: Home) -> Campaigns:
    from annotation.service.campaigns.campaigns import Campaigns
    from annotation.service.campaigns.task_priorities import TaskPriorityReader
    from pipelines.annotation_server.policy_source import RegisteredPolicies

    return Campaigns(database, TaskPriorityReader(home), RegisteredPolicies(home))


def _text_of(path: Path) -> Any:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--guidelines {path} cannot be read: {error}") from error
