"""A replayed or stored episode as one HTML file: thoughts, actions drawn on the screens, the verdict. Works without the network, without
scripts too, and whatever a model wrote is text in it. How it looks is replay.html. Also what side_by_side.py shares with it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from agent.episode.replay import RecordedEpisode, RecordedStep, Replay, StepCheck, picture_size
from pipelines.replay.marks import Mark, details_of, mark_of
from warehouse.core.home import atomic_write

TEMPLATES = Path(__file__).parent
CHARACTER_PX = 5.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What one step shows. `screen` is the picture before the step's actions; the last frame has no step."""

    step: RecordedStep | None
    check: StepCheck | None
    screen: bytes | None
    is_recorded: bool
    """The picture is of the recording, else of the replay."""
    marks: tuple[Mark, ...]


def frames_of(episode: RecordedEpisode, replayed: Replay | None) -> list[Frame]:
    """A frame for each step, and one for the last screen where a replay has seen it."""
    checks = {check.step_index: check for check in replayed.steps} if replayed is not None else {}
    frames = []
    for step in episode.steps:
        check = checks.get(step.step_index)
        frames.append(
            Frame(
                step=step,
                check=check,
                screen=step.screenshot if step.screenshot is not None else check.screenshot if check is not None else None,
                is_recorded=step.screenshot is not None,
                marks=tuple(mark_of(action) for action in step.actions),
            )
        )
    if replayed is not None and replayed.last_screenshot is not None:
        frames.append(Frame(step=None, check=None, screen=replayed.last_screenshot, is_recorded=False, marks=()))
    return frames


def build_page(episode: RecordedEpisode, replayed: Replay | None, output: Path) -> Path:
    """Write the page, whole or not at all; returns `output`."""
    return write_page("replay.html", output, episode=episode, replayed=replayed, frames=frames_of(episode, replayed))


def page_of(episode: RecordedEpisode, replayed: Replay | None = None) -> str:
    """The page, as HTML."""
    return rendered("replay.html", episode=episode, replayed=replayed, frames=frames_of(episode, replayed))


def write_page(template: str, output: Path, **what: Any) -> Path:
    """Write a page of one of the templates here, whole or not at all; returns `output`."""
    atomic_write(output, rendered(template, **what).encode())
    return output


def rendered(template: str, **what: Any) -> str:
    """A page of one of the templates here. It holds all that it shows. Nothing may be loaded, and nothing may run or style but what is in
    the template itself, by its digest."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    helpers = {"details_of": details_of, "picture": _picture, "size": picture_size, "placed": _placed}
    page = environment.get_template(template).render(**helpers, **what, policy=_POLICY)
    return page.replace(_POLICY, _policy(page), 1)


_POLICY = "content-security-policy"
"""Stands in the page until it is known what is in it."""


def _policy(page: str) -> str:
    def digest(tag: str) -> str:
        inner = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()

    styles, scripts = digest("style"), digest("script")
    return f"default-src 'none'; img-src data:; style-src 'sha256-{styles}'; script-src 'sha256-{scripts}'; base-uri 'none'"


def _picture(screen: bytes) -> str:
    form = "png" if screen[:4] == b"\x89PNG" else "webp" if screen[:4] == b"RIFF" else "jpeg"
    return f"data:image/{form};base64,{base64.b64encode(screen).decode()}"


def _placed(marks: Sequence[Mark], screen: bytes) -> list[dict[str, float | str]]:
    """Labels with their place: beside the point, else at the lower edge, one above the other, inside the screen."""
    width, height = picture_size(screen)
    scale = max(width, height) / 480
    placed: list[dict[str, float | str]] = []
    for number, mark in enumerate(marks):
        length = min((len(mark.label) * CHARACTER_PX + 10) * scale, width - 2)
        x, y = mark.point or (4 * scale, height - (20 + 18 * number) * scale)
        placed.append(
            {
                "label": mark.label,
                "x": max(1.0, min(x + (10 * scale if mark.point else 0), width - length - 1)),
                "y": max(1.0, min(y + (8 * scale if mark.point else 0), height - 16 * scale)),
                "length": length,
                "scale": scale,
            }
        )
    return placed
