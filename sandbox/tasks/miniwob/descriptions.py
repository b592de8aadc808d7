"""A line on each page of MiniWoB++, from the package itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources


def of_page(page: str) -> str:
    description = _descriptions().get(page, "")
    variant = re.match(r"\[([\w-]+)\]\s+", description)  # "[choose-date] Removed animation.", of another that may be a variant itself
    return description if variant is None else f"{of_page(variant[1])} {description[variant.end() :]}"


@cache
def _descriptions() -> Mapping[str, str]:
    """By page. The package says what its pages are in the docstrings of its environments, which are read and not imported: importing them
    would start Selenium's part of it."""
    tree = ast.parse((resources.files("miniwob") / "envs" / "miniwob_envs.py").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        page = next((_text(part.value) for part in node.body if isinstance(part, ast.Assign) and _target(part) == "subdomain"), "")
        _, heading, rest = (ast.get_docstring(node) or "").partition("## Description\n")
        if page and heading:
            found[page] = rest.strip().partition("\n\n")[0]
    return found


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _target(node: ast.Assign) -> str:
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
