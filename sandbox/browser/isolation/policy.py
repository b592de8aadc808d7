"""What a page may reach: pure decisions about addresses, for one page's files and for a web session's network, and how addresses are
printed. Nothing is connected here.

The same decision is made twice for every request of a web session: where the browser asks whether it may (sandbox/browser/cdp/page.py,
sandbox/browser/window/tabs.py) and, for good, where the connection would be made (proxy.py).
"""

from __future__ import annotations

import ipaddress
import mimetypes
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sandbox.tasks.page_task import Site, WebSettings

POLICY_VERSION = "1"
"""Part of a web session's environment: what a page may do decides what episodes show."""

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_INDEX = "index.html"

_RESTRICTED_PORTS = frozenset(
    {
        1,
        7,
        9,
        11,
        13,
        15,
        17,
        19,
        20,
        21,
        22,
        23,
        25,
        37,
        42,
        43,
        53,
        69,
        77,
        79,
        87,
        95,
        101,
        102,
        103,
        104,
        109,
        110,
        111,
        113,
        115,
        117,
        119,
        123,
        135,
        137,
        139,
        143,
        161,
        179,
        389,
        427,
        465,
        512,
        513,
        514,
        515,
        526,
        530,
        531,
        532,
        540,
        548,
        554,
        556,
        563,
        587,
        601,
        636,
        989,
        990,
        993,
        995,
        1719,
        1720,
        1723,
        2049,
        3659,
        4045,
        4190,
        5060,
        5061,
        6000,
        6566,
        6665,
        6666,
        6667,
        6668,
        6669,
        6679,
        6697,
        10080,
    }
)
"""Ports that Chromium opens no page on (its net/base/port_util.cc): it would load nothing, and never say so."""


class Way(StrEnum):
    """Where a request goes."""

    SITE = "site"
    TERMINAL = "terminal"
    OUTSIDE = "outside"
    NAMED = "named"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A static file, or why there is none."""

    status: int
    content_type: str
    body: bytes


class NetworkPolicy:
    """The decisions of one web session."""

    def __init__(self, web: WebSettings, *, has_terminal: bool) -> None:
        self._has_terminal = has_terminal
        self._network = web.network
        self._allowed = tuple(entry.lower() for entry in web.allowed_hosts)
        self._named = frozenset(entry.lower() for entry in web.named)
        self._sites: dict[str, Site] = {site.host.lower(): site for site in web.sites}

    def way(self, host: str, port: int) -> Way:
        """Where a request to a host name or address goes. That a name leads to this machine shows only when it is resolved: see
        `is_public`."""
        host = host.strip("[]").rstrip(".").lower()
        if port in _RESTRICTED_PORTS:
            return Way.REFUSED
        if host in self._sites:
            return Way.SITE
        if f"{host}:{port}" in self._named:
            return Way.NAMED
        if is_this_machine(host):
            return Way.TERMINAL if self._has_terminal else Way.REFUSED
        if self._network == "open" or (self._network == "allowed" and self._is_listed(host, port)):
            return Way.OUTSIDE
        return Way.REFUSED

    def way_of_url(self, url: str) -> Way:
        """The same for an address; REFUSED for one without a host or of another scheme than http, https, ws and wss."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return Way.REFUSED
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            return Way.REFUSED
        return self.way(parts.hostname, port or _DEFAULT_PORTS[parts.scheme])

    def _is_listed(self, host: str, port: int) -> bool:
        return any(fnmatchcase(host, entry) or fnmatchcase(f"{host}:{port}", entry) for entry in self._allowed)

    def site_answer(self, url: str) -> Answer:
        """The file of a site that an address names: index.html for a folder, 404 for what is not there or lies outside."""
        parts = urlsplit(url)
        return file_answer(self._sites[(parts.hostname or "").rstrip(".").lower()].folder, parts.path)


def file_answer(folder: Path, address_path: str) -> Answer:
    """The file below a folder that an address's path names, as `site_answer` gives it."""
    folder = folder.resolve()
    try:
        path = (folder / unquote(address_path).lstrip("/")).resolve()
        path = path / _INDEX if path.is_dir() else path
        if not path.resolve().is_relative_to(folder) or not path.is_file():
            raise FileNotFoundError(path)
        body = path.read_bytes()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return Answer(status=404, content_type="text/plain; charset=utf-8", body=b"There is no such page.")
    content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if content_type.startswith("text/") or content_type in {"application/javascript", "application/json", "image/svg+xml"}:
        content_type += "; charset=utf-8"
    return Answer(status=200, content_type=content_type, body=body)


def is_this_machine(host: str) -> bool:
    """Names and addresses that mean the machine itself, in every way they can be written; in a web session that is the terminal."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and (address.is_loopback or address.is_unspecified)


def is_public(address: str) -> bool:
    """Whether a resolved address may be connected to: never this machine, a private network, or a cloud's metadata service."""
    parsed = _address(address)
    return parsed is not None and parsed.is_global and not parsed.is_multicast


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        return parsed.ipv4_mapped or parsed.sixtofour or parsed
    return parsed


def is_below(url: str, root: Path) -> bool:
    """Whether a page whose files lie below `root` may load an address: those files, and what it carries in itself."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.scheme in {"data", "blob"}:
        return True
    path = unquote(parts.path)
    return parts.scheme == "file" and not parts.netloc and ".." not in path.split("/") and path.startswith(root.as_posix() + "/")


def relative_urls(text: str, root: Path) -> str:
    """An address, or a text with addresses, as it is recorded and said: files by their path from `root`, so that it is the same on every
    machine and names none of its folders."""
    if "file:" not in text:
        return text
    for height, folder in enumerate([root, *root.parents[:-1]]):
        text = text.replace(folder.as_uri() + "/", "../" * height)
    return text
