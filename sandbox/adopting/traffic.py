"""What a window has asked of a site, for verifiers, and the fields that a request carries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from playwright.async_api import Error, Request

READS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(slots=True)
class Sent:
    """One request of the page to the site."""

    method: str
    path: str
    fields: dict[str, str]
    status: int = 0
    """0 until it is answered."""


@dataclass(slots=True)
class Traffic:
    """What a window has asked for."""

    sent: list[Sent] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Addresses of other origins that were refused."""
    writes: list[str] = field(default_factory=list)
    """Requests that would have written and were refused: method and path."""


def fields_of(request: Request) -> dict[str, str]:
    """Of the query, and of a form that was sent."""
    found = dict(parse_qsl(urlsplit(request.url).query, keep_blank_values=True))
    body = None if request.method in READS else _body(request)
    kind = request.headers.get("content-type", "")
    if body and "urlencoded" in kind:
        found |= dict(parse_qsl(body, keep_blank_values=True))
    elif body and "multipart" in kind:
        found |= _parts(body)
    elif body and "json" in kind:
        found |= _of_json(body)
    return found


def _body(request: Request) -> str | None:
    try:
        data = request.post_data_buffer
    except Error:
        return None
    return data.decode("utf-8", "replace") if data else None


def _parts(body: str) -> dict[str, str]:
    """Text fields of a multipart form."""
    boundary = body.split("\r\n", 1)[0]
    found: dict[str, str] = {}
    if not boundary:
        return found
    for part in body.split(boundary)[1:-1]:
        head, _, value = part.strip("\r\n").partition("\r\n\r\n")
        name = head.partition('name="')[2].partition('"')[0]
        if name and "filename=" not in head:
            found[name] = value
    return found


def _of_json(body: str) -> dict[str, str]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(each) for name, each in value.items() if isinstance(each, str | int | float)} if isinstance(value, dict) else {}
