"""`flywheel replay`: replays a stored episode on a live session, verifies its reward once more, and shows it in the terminal, on a page
or in a film. The replay itself is agent/episode/replay.py.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from agent.episode.replay import RecordedEpisode, Replay, StepCheck, load_episode, replay
from pipelines.cli.terminal import counted
from warehouse.core.errors import ConfigError
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SAME, PIXELS_DIFFER, REWARD_DIFFERS = 0, 3, 4
"""Exit statuses. Of an episode whose reward differs, pixels are not spoken of."""


def replay_episode(
    warehouse: Warehouse,
    identity: str,
    console: Console,
    *,
    live: bool = True,
    html: Path | None = None,
    webp: Path | None = None,
    mp4: Path | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> int:
    """Replay (unless not `live`), say how it went, write what was asked for; the exit status. `url`: on a session of that server.

    Raises UnknownId, ConfigError and SandboxErrors.
    """
    if not live and html is None and webp is None and mp4 is None:
        raise ConfigError("nothing to do: without a replay, say what to write with --html, --webp or --mp4")
    with connect(warehouse) as con:
        episode = load_episode(con, identity)
    replayed = asyncio.run(_replayed(episode, url)) if live else None
    if replayed is not None:
        _say(replayed, console, as_json)
    written = _write(episode, replayed, html, webp, mp4)
    if not as_json:
        for path in written:
            console.print(f"written: {path}", soft_wrap=True)
    if replayed is None or (replayed.same_reward and replayed.same_pixels is not False):
        return SAME
    return PIXELS_DIFFER if replayed.same_reward else REWARD_DIFFERS


async def _replayed(episode: RecordedEpisode, url: str | None) -> Replay:
    async with _pool(url) as pool, pool.lease(episode.task, screenshots=True) as session:
        return await replay(episode, session)


def _pool(url: str | None) -> AbstractAsyncContextManager[Any]:
    if url is not None:
        from sandbox.server.client import SandboxClient

        return SandboxClient(url)
    from sandbox.pool.pool import SessionPool

    return SessionPool(size=1)


def _write(episode: RecordedEpisode, replayed: Replay | None, html: Path | None, webp: Path | None, mp4: Path | None) -> list[Path]:
    from pipelines.replay.film import write_mp4, write_webp
    from pipelines.replay.page import build_page

    writers = ((html, build_page), (webp, write_webp), (mp4, write_mp4))
    return [write(episode, replayed, path) for path, write in writers if path is not None]


def _say(replayed: Replay, console: Console, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_summary(replayed)))
        return
    episode = replayed.episode
    what = f"seed {episode.seed}, {counted(len(episode.steps), 'step')}, {episode.outcome.value}: {episode.episode_id}"
    console.print(f"[bold]{escape(episode.task.name)}[/] {what}", soft_wrap=True)
    console.print(f"reward: {_reward(replayed)}")
    console.print(f"pixels: {_pixels(replayed)}")
    console.print(f"elements and output: {'as recorded at every step' if replayed.same_text else '[red]not as recorded[/]'}")
    if (first := replayed.first_difference) is not None:
        console.print(f"first difference: before step {first.step_index + 1} of {len(episode.steps)}, {_difference(first)}")
    if not replayed.is_whole:
        console.print(f"[red]the session ended the episode after {len(replayed.steps)} of {len(episode.steps)} steps[/]")
    if not replayed.same_environment:
        console.print(f"[yellow]recorded in[/] {escape(episode.environment)}", soft_wrap=True)
        console.print(f"[yellow]replayed in[/] {escape(replayed.environment)}", soft_wrap=True)


def _summary(replayed: Replay) -> dict[str, Any]:
    first = replayed.first_difference
    return {
        "episode_id": replayed.episode.episode_id,
        "task": replayed.episode.task.name,
        "seed": replayed.episode.seed,
        "num_steps": len(replayed.episode.steps),
        "num_replayed": len(replayed.steps),
        "same_reward": replayed.same_reward,
        "recorded_reward": replayed.episode.reward,
        "reward": replayed.reward,
        "success": replayed.verdict.success,
        "same_pixels": replayed.same_pixels,
        "same_text": replayed.same_text,
        "first_difference": None if first is None else first.step_index,
        "same_environment": replayed.same_environment,
        "environment": replayed.environment,
    }


def _reward(replayed: Replay) -> str:
    if replayed.same_reward:
        return f"{replayed.reward:g}, [green]as recorded[/]"
    return f"{replayed.reward:g}, [red]but {replayed.episode.reward} was recorded[/]"


def _pixels(replayed: Replay) -> str:
    if replayed.same_pixels is None:
        return "no screens were kept to compare with"
    num = sum(step.same_pixels is not None for step in replayed.steps)
    return f"[green]identical at all {num} screens[/]" if replayed.same_pixels else "[red]not as recorded[/]"


def _difference(first: StepCheck) -> str:
    parts = []
    if first.same_pixels is False:
        difference = first.difference
        if difference is None:
            parts.append("the screen")
        else:
            parts.append(f"{difference.num_pixels} of {difference.num_of} pixels, in the box {difference.box_px}")
    if not first.same_text:
        parts.append("elements or output")
    if not first.same_reward:
        parts.append("what the step paid")
    return " and ".join(parts)
