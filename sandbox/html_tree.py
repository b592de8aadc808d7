"""HTML as a tree of elements, however broken it is. Pages are data: no script is run, nothing is fetched."""

from __future__ import annotations

from typing import Any

from lxml import etree


def html_tree(text: str) -> Any | None:
    """The root element of a page, without comments; None where the page is empty. What is nested in more than 2048 elements is left out:
    reading takes the longer the deeper a page is."""
    parser = etree.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        return etree.fromstring(text.encode(errors="replace"), parser)
    except etree.XMLSyntaxError:
        return None
