"""What all pages share, put around what each is alone: the head, the bar's place, the announcer. A page's own part is the file of its name
in pages/; errors are shown in the same style. Only our own files and what is escaped here get into a page.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from string import Template

FOLDER = Path(__file__).with_name("pages")
TEMPLATES = ("shell.html", "bar.html", "problem.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`name`: of its file, of the module that it runs and of its body's class."""

    name: str
    title: str
    role: str | None = "annotator"
    """Who may see it; None: everybody, without a login."""
    style: str | None = "lists.css"
    """Besides base.css."""
    skip_to: str = "main"
    skip: str = "Skip to the content"

    @property
    def file(self) -> str:
        return f"{self.name}.html"


def page_text(page: Page) -> str:
    """Raises FileNotFoundError where the page is not installed."""
    own = _read(page.file)
    if page.role is not None:
        own = _filled("bar.html", skip_to=page.skip_to, skip=page.skip, content=own)
    script = f'<script type="module" src="/pages/{page.name}.js"></script>'
    return _shell(page.title, page.name, own, style=page.style, script=script)


def problem_text(title: str, detail: str) -> str:
    """A page that says what went wrong, with the way back. `detail` may hold anything."""
    escaped = {"title": html.escape(title), "detail": html.escape(detail)}
    return _shell(escaped["title"], "problem", _filled("problem.html", **escaped))


def _shell(title: str, name: str, content: str, *, style: str | None = None, script: str = "") -> str:
    styles = "\n".join(f'<link rel="stylesheet" href="/pages/{sheet}">' for sheet in ("base.css", style) if sheet)
    return _filled("shell.html", title=title, name=name, styles=styles, script=script, content=content)


def _filled(template: str, **parts: str) -> str:
    return Template(_read(template)).substitute({name: part.rstrip("\n") for name, part in parts.items()})


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
