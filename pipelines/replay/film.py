"""A replayed or stored episode as a film: its screens with the actions drawn on them and the thoughts below. Animated WebP by Pillow, MP4
by ffmpeg where there is one.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from agent.episode.replay import RecordedEpisode, Replay
from pipelines.replay.marks import Mark
from pipelines.replay.page import Frame, frames_of
from warehouse.core.errors import ConfigError
from warehouse.core.home import atomic_write
from warehouse.storage.screenshots import pictures

FRAME_MS, LAST_FRAME_MS = 1200, 2500
LEAST_WIDTH, MOST_WIDTH = 480, 1280
CAPTION_LINES, FONT_PX = 4, 15
MARK, HALO, BACK, TEXT, QUIET = (224, 36, 94), (255, 255, 255), (26, 29, 39), (231, 234, 243), (152, 161, 183)
FFMPEG = (
    "-y",
    "-f",
    "image2pipe",
    "-framerate",
    "1",
    "-i",
    "-",
    "-vf",
    "fps=12",
    "-c:v",
    "libx264",
    "-pix_fmt",
    "yuv420p",
    "-movflags",
    "+faststart",
    "-f",
    "mp4",
)
FFMPEG_TIMEOUT_S = 300


def write_webp(episode: RecordedEpisode, replayed: Replay | None, output: Path) -> Path:
    """Write an animated WebP, whole or not at all; returns `output`. Raises ConfigError where there is no screen to show."""
    pictures = _pictures(episode, replayed)
    data = io.BytesIO()
    durations = [FRAME_MS] * (len(pictures) - 1) + [LAST_FRAME_MS]
    pictures[0].save(data, "WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=80, method=4)
    atomic_write(output, data.getvalue())
    return output


def write_mp4(episode: RecordedEpisode, replayed: Replay | None, output: Path) -> Path:
    """Write an MP4, a second a step; returns `output`. Raises ConfigError where there is no screen to show, or no ffmpeg."""
    program = shutil.which("ffmpeg")
    if program is None:
        raise ConfigError("an MP4 needs ffmpeg, which is not installed: `apt-get install ffmpeg`, or write a film with --webp")
    frames = io.BytesIO()
    for picture in _pictures(episode, replayed):
        picture.save(frames, "PNG")
    aside = output.with_name(f".{output.name}.tmp")
    try:
        made = subprocess.run([program, *FFMPEG, str(aside)], input=frames.getvalue(), capture_output=True, timeout=FFMPEG_TIMEOUT_S)
        if made.returncode:
            raise ConfigError(f"ffmpeg could not write {output}: {made.stderr.decode(errors='replace')[-400:]}")
        aside.replace(output)
    finally:
        aside.unlink(missing_ok=True)
    return output


def _pictures(episode: RecordedEpisode, replayed: Replay | None) -> list[Image.Image]:
    """Frames of one size; even numbers of pixels, as video wants."""
    frames = [frame for frame in frames_of(episode, replayed) if frame.screen is not None]
    if not frames:
        advice = "replay it (without --no-run) and there may be some" if replayed is None else "write a page with --html"
        raise ConfigError(f"{episode.episode_id} has no screenshots to make a film of: {advice}.")
    screens = [pictures.decoded(frame.screen) for frame in frames if frame.screen is not None]
    width, height = max(screen.width for screen in screens), max(screen.height for screen in screens)
    scale = min(max(LEAST_WIDTH / width, 1.0), MOST_WIDTH / width)
    return [_picture(frame, screen, (width, height), scale, replayed) for frame, screen in zip(frames, screens, strict=True)]


def _picture(frame: Frame, screen: Image.Image, size: tuple[int, int], scale: float, replayed: Replay | None) -> Image.Image:
    width, height = (int(part * scale) // 2 * 2 for part in size)
    caption_px = (CAPTION_LINES * (FONT_PX + 6) + 14) // 2 * 2
    picture = Image.new("RGB", (width, height + caption_px), BACK)
    picture.paste(screen.resize((int(screen.width * scale), int(screen.height * scale)), Image.Resampling.LANCZOS))
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(FONT_PX)
    for mark in frame.marks:
        _draw_mark(draw, mark, scale)
    title, text = _caption(frame, replayed)
    draw.text((12, height + 7), title, font=font, fill=QUIET)
    lines = wrap(text, max(20, int(width / (FONT_PX * 0.56))))[: CAPTION_LINES - 1]
    for number, line in enumerate(lines, start=1):
        draw.text((12, height + 7 + number * (FONT_PX + 6)), line, font=font, fill=TEXT)
    return picture


def _draw_mark(draw: ImageDraw.ImageDraw, mark: Mark, scale: float) -> None:
    if mark.point is None:
        return
    x, y = (part * scale for part in mark.point)
    ends = [(x, y)]
    if mark.to_point is not None:
        to = tuple(part * scale for part in mark.to_point)
        ends.append((to[0], to[1]))
        for colour, width in ((HALO, 6), (MARK, 3)):
            draw.line([(x, y), (to[0], to[1])], fill=colour, width=width)
    for number, (end_x, end_y) in enumerate(ends):
        radius = 13 if number == 0 else 6
        draw.ellipse((end_x - radius - 1, end_y - radius - 1, end_x + radius + 1, end_y + radius + 1), outline=HALO, width=5)
        draw.ellipse((end_x - radius, end_y - radius, end_x + radius, end_y + radius), outline=MARK, width=3)
    draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=MARK)


def _caption(frame: Frame, replayed: Replay | None) -> tuple[str, str]:
    if frame.step is None:
        success = replayed is not None and replayed.verdict.success
        return "after the last action", "success" if success else "no success"
    title = f"{frame.step.step_index + 1}   {_labels(frame.marks)}"
    return title, frame.step.thought or ""


def _labels(marks: Sequence[Mark]) -> str:
    return ", ".join(mark.label for mark in marks)
