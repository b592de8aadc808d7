"""What a screen reader would find on a page, by the browser's own accessibility tree."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page

CONTROLS = {
    "button",
    "link",
    "textbox",
    "combobox",
    "checkbox",
    "radio",
    "slider",
    "spinbutton",
    "searchbox",
    "switch",
    "tab",
    "menuitem",
    "option",
    "treeitem",
    "listbox",
    "menu",
    "dialog",
    "image",
    "img",
    "meter",
    "progressbar",
    "tablist",
    "tree",
    "navigation",
    "region",
    "log",
}


async def _nodes(page: Page) -> list[dict[str, Any]]:
    session = await page.context.new_cdp_session(page)
    try:
        answer = await session.send("Accessibility.getFullAXTree")
    finally:
        await session.detach()
    return [node for node in answer["nodes"] if not node.get("ignored")]


async def unnamed(page: Page) -> list[str]:
    """Controls and landmarks without a name. Pictures that only decorate are not in the tree."""
    return [str(node["role"]["value"]) for node in await _nodes(page) if node["role"]["value"] in CONTROLS and not _name(node)]


async def all_names(page: Page, *roles: str) -> list[str]:
    return [_name(node) for node in await _nodes(page) if node["role"]["value"] in roles]


def _name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", "")).strip()
