"""A small hand for drawing: shapes and text as one SVG file, in colours that follow the reader's light or dark page. Knows no table.

The drawing stands alone (no script, no font file, no address), so that a report, a Dagster page and a browser show it as it is.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from html import escape

COLOURS = ("blue", "teal", "amber", "violet", "rose", "grey", "cyan", "olive", "brown")
"""Names of the series colours, in the order of use; legible on both pages, and apart for the colour-blind when next to each other."""

_LIGHT = {
    "ink": "#1b2130",
    "muted": "#5c6577",
    "grid": "#e3e7ef",
    "panel": "#ffffff",
    "blue": "#2f6fdf",
    "teal": "#0e8f83",
    "amber": "#c47a00",
    "violet": "#7a4fd6",
    "rose": "#d0305f",
    "grey": "#8790a2",
    "cyan": "#12a0cf",
    "olive": "#76912b",
    "brown": "#7d4a26",
}
_DARK = {
    "ink": "#e8ebf2",
    "muted": "#9aa4b8",
    "grid": "#2c3444",
    "panel": "#161b26",
    "blue": "#6fa4ff",
    "teal": "#3fc6b5",
    "amber": "#f0b050",
    "violet": "#b79cff",
    "rose": "#ff7d9f",
    "grey": "#7f899c",
    "cyan": "#5cc8ee",
    "olive": "#b3cc66",
    "brown": "#c08a64",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


STYLE = (
    f"svg.fw{{{_variables(_LIGHT)}font:12px/1.2 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;font-variant-numeric:tabular-nums}}"
    f"@media(prefers-color-scheme:dark){{svg.fw{{{_variables(_DARK)}}}}}"
    "svg.fw text{fill:var(--ink)}svg.fw text.muted{fill:var(--muted)}svg.fw text.small{font-size:11px}svg.fw text.strong{font-weight:600}"
    "svg.fw text.halo{paint-order:stroke;stroke:var(--panel);stroke-width:4px;stroke-linejoin:round}"
    "svg.fw .grid{stroke:var(--grid);stroke-width:1}"
    "svg.fw .page{fill:var(--panel)}svg.fw .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    + "".join(
        f"svg.fw .{name}{{fill:var(--{name});stroke:var(--{name})}}svg.fw .line.{name},svg.fw .hollow.{name}{{fill:var(--panel)}}"
        f"svg.fw .line.{name}{{fill:none}}svg.fw .flow.{name}{{stroke:none;opacity:.32}}svg.fw .bar.{name}{{stroke:none}}"
        for name in COLOURS
    )
)


class Drawing:
    """Marks on a page of fixed size, in pixels, origin top left. Texts are escaped here."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._marks: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self._marks.append(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{style}"/>')

    def polyline(self, points: Iterable[tuple[float, float]], style: str) -> None:
        self._marks.append(f'<polyline points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in points)}" class="line {style}"/>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, *, radius: float = 0, hint: str = "") -> None:
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(0.0, width))}" height="{_n(max(0.0, height))}" rx="{_n(radius)}"'
        self._marks.append(f'<rect {size} class="{style}">{_hint(hint)}</rect>')

    def circle(self, x: float, y: float, radius: float, style: str, hint: str = "") -> None:
        self._marks.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{style}">{_hint(hint)}</circle>')

    def path(self, data: str, style: str, hint: str = "") -> None:
        self._marks.append(f'<path d="{data}" class="{style}">{_hint(hint)}</path>')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        self._marks.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>')

    def image(self, x: float, y: float, width: float, height: float, data: bytes, form: str) -> None:
        """An image file of a web format (png, jpeg, webp), carried inside."""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._marks.append(f'<image {place} href="data:image/{form};base64,{base64.b64encode(data).decode()}"/>')

    def render(self, *, alone: bool = True) -> str:
        """The SVG file; one that does not stand alone leaves its style to the page around it, which says STYLE once."""
        style = f"<style>{STYLE}</style>" if alone else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fw" viewBox="0 0 {_n(self.width)} {_n(self.height)}" '
            f'width="{_n(self.width)}" height="{_n(self.height)}" role="img" aria-label="{escape(self.title)}">'
            f"<title>{escape(self.title)}</title>{style}"
            f'<rect width="100%" height="100%" class="page" rx="6"/>{"".join(self._marks)}</svg>'
        )


class Axis:
    """Values to pixels along one direction."""

    def __init__(self, low: float, high: float, start_px: float, end_px: float) -> None:
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start_px, self.end_px = low, high, start_px, end_px

    def px(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, num: int = 5) -> list[float]:
        """About `num` round values inside the axis."""
        step = _round_step((self.high - self.low) / max(1, num - 1))
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(raw: float) -> float:
    power = 10 ** math.floor(math.log10(raw))
    return float(next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999) * power)


def short(value: float) -> str:
    """A number in as few characters as say enough: 0.854, 12, 3.2e-05, 16k."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f}k"
    if size < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.3g}" if size < 1000 else f"{value:.0f}"


def legend(drawing: Drawing, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    """(colour style, label) in one row."""
    for style, label in entries:
        drawing.circle(x + 5, y - 4, 4.5, style)
        drawing.text(x + 15, y, label, "small muted")
        x += 30 + 6.2 * len(label)


def as_markdown(svg: str, title: str = "picture") -> str:
    """An SVG as a Markdown image that carries its own data: what Dagster shows as a picture in a materialization's metadata."""
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _hint(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
