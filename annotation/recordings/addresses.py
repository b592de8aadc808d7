"""Where private things may be sent: to another machine sealed, or to this one."""

from __future__ import annotations

import httpx

from sandbox.http.serving import is_loopback
from warehouse.core.errors import ConfigError


def is_here(url: str) -> bool:
    """Whether an address is this machine's. Raises ConfigError for one that is neither that nor sealed (https)."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is not an address: {error}.") from error
    found = is_loopback(parsed.host)
    if not parsed.host or parsed.scheme not in ("https", "http") or (parsed.scheme == "http" and not found):
        raise ConfigError(f"{url!r}: what is recorded goes to another machine by https:// alone; http:// is for one on this machine.")
    return found
