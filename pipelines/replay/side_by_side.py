"""A page that puts the episodes of two policies side by side where they part: the figures of the comparison, then instances that one of
the two solves alone, from the step on at which they do something else. How it looks is side_by_side.html; it works without the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from agent.episode.replay import RecordedEpisode, Replay, load_episode, replay
from pipelines.replay.page import Frame, frames_of, write_page
from sandbox.pool.pool import SessionPool
from warehouse.core.errors import FlywheelError
from warehouse.evaluation.comparing import Comparison, Parting
from warehouse.lineage.registry import Registered
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

MOST_PAIRS = 6
"""Of the steps of an instance, from where the two part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One instance. `pairs` are the frames of both from where they part, None where one of them had ended; `notes` say of each why its
    screens are not there, or are not the recorded ones."""

    parting: Parting
    episodes: tuple[RecordedEpisode, RecordedEpisode]
    notes: tuple[str, str]
    num_alike: int
    pairs: tuple[tuple[Frame | None, Frame | None], ...]
    num_hidden: int


def build_page(
    warehouse: Warehouse, both: tuple[Registered, Registered], found: Comparison, split: str, output: Path, *, most: int, live: bool
) -> Path:
    """Write the page; returns `output`. `most` instances are shown, the lost ones first and of different tasks where there are any. `live`:
    episodes without screens are replayed on a session of our own."""
    partings = _chosen(found.partings, most)
    with connect(warehouse) as con:
        episodes = [tuple(load_episode(con, id_) for id_ in (one.first_episode, one.second_episode)) for one in partings]
    replays = asyncio.run(_replays([one for pair in episodes for one in pair if _has_no_screens(one)])) if live else {}
    return write_page(
        "side_by_side.html",
        output,
        names=tuple(f"{one.iteration}/{one.stage}" for one in both),
        ids=tuple(one.checkpoint_id for one in both),
        split=split,
        found=found,
        parts=(*found.tasks, *(found.domains if len(found.domains) > 1 else ()), found.total),
        shown=[_shown(one, (first, second), replays) for one, (first, second) in zip(partings, episodes, strict=True)],
    )


def _chosen(partings: Sequence[Parting], most: int) -> list[Parting]:
    """Lost before won, and before a second instance of a task one of each other."""
    seen: dict[tuple[bool, str], int] = {}
    ranked = []
    for one in partings:
        key = one.second_solves, one.task
        seen[key] = seen.get(key, 0) + 1
        ranked.append((one.second_solves, seen[key], one.domain, one.task, one.seed))
    order = sorted(range(len(partings)), key=ranked.__getitem__)
    return [partings[place] for place in order[:most]]


def _has_no_screens(episode: RecordedEpisode) -> bool:
    return bool(episode.steps) and all(step.screenshot is None for step in episode.steps)


async def _replays(episodes: Sequence[RecordedEpisode]) -> dict[str, Replay | str]:
    """By episode: its replay, or why there is none."""
    found: dict[str, Replay | str] = {}
    if not episodes:
        return found
    async with SessionPool(size=1) as pool:
        for episode in episodes:
            try:
                async with pool.lease(episode.task, screenshots=True) as session:
                    found[episode.episode_id] = await replay(episode, session)
            except FlywheelError as error:
                found[episode.episode_id] = f"not replayed: {error}"
    return found


def _shown(parting: Parting, episodes: tuple[RecordedEpisode, RecordedEpisode], replays: dict[str, Replay | str]) -> Shown:
    found = [replays.get(one.episode_id) for one in episodes]
    frames = [frames_of(one, each if isinstance(each, Replay) else None) for one, each in zip(episodes, found, strict=True)]
    alike = num_alike(*episodes)
    pairs = list(zip_longest(*(each[alike:] for each in frames)))
    return Shown(
        parting=parting,
        episodes=episodes,
        notes=(_note(found[0]), _note(found[1])),
        num_alike=alike,
        pairs=tuple((left, right) for left, right in pairs[:MOST_PAIRS]),
        num_hidden=max(0, len(pairs) - MOST_PAIRS),
    )


def num_alike(first: RecordedEpisode, second: RecordedEpisode) -> int:
    """So many steps at the beginning saw and did the same."""
    num = 0
    for left, right in zip(first.steps, second.steps, strict=False):
        if (left.observation, left.actions) != (right.observation, right.actions):
            break
        num += 1
    return num


def _note(found: Replay | str | None) -> str:
    if isinstance(found, str):
        return found
    return "" if found is None or found.same_reward else "its replay ended otherwise than the recording"
