"""Alerts: a failed run (a broken gate among them), a regression, a release that is held, a home in which nothing has closed for too long;
to a webhook and by e-mail.

They are off until an address is configured, by variables, since addresses hold secrets: FLYWHEEL_ALERT_WEBHOOK takes a JSON object whose
`text` says it all, as Slack's incoming webhooks and their like read it; FLYWHEEL_ALERT_EMAIL is
`smtp[s]://[USER:PASSWORD@]HOST[:PORT]?from=ADDRESS&to=ADDRESS`.

An alert is written into the home before it is sent, and stays until every channel has taken it: one that is down gets it later, once.
"""

from __future__ import annotations

import json
import os
import smtplib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write
from warehouse.core.identity import content_id

WEBHOOK_VARIABLE, EMAIL_VARIABLE = "FLYWHEEL_ALERT_WEBHOOK", "FLYWHEEL_ALERT_EMAIL"
TIMEOUT_S = 10.0
REFUSALS = (OSError, httpx.HTTPError, smtplib.SMTPException)
"""What a channel raises that does not take an alert."""
KEPT_SENT = 200
"""Alerts that are kept after they were sent, so that none is sent twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """`kind` is run_failed, regression, release_held or late; `about` distinguishes two of a kind; each is sent once."""

    kind: str
    about: str
    text: str
    url: str

    @property
    def alert_id(self) -> str:
        return content_id("alert", [self.kind, self.about])


class Webhook:
    """Takes an alert as JSON by POST."""

    name = "webhook"

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(f"{WEBHOOK_VARIABLE} is not an http or https address; set it to one, or unset it")
        self._url = url

    def send(self, alert: Alert) -> None:
        """Raises httpx.HTTPError for no answer, and for one that is not a success."""
        body = {"text": f"{alert.text}\n{alert.url}".strip(), "kind": alert.kind, "about": alert.about, "url": alert.url}
        httpx.post(self._url, json=body, timeout=TIMEOUT_S).raise_for_status()


class Email:
    """Sends an alert by SMTP: `smtps` encrypted from the start, `smtp` from STARTTLS on where the server offers it."""

    name = "e-mail"

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        given = parse_qs(parts.query)
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname or not given.get("from") or not given.get("to"):
            raise ConfigError(
                f"{EMAIL_VARIABLE} is not smtp[s]://[USER:PASSWORD@]HOST[:PORT]?from=ADDRESS&to=ADDRESS; set it so, or unset it"
            )
        self._parts, self._sender, self._receivers = parts, given["from"][0], given["to"]

    def send(self, alert: Alert) -> None:
        """Raises OSError, smtplib.SMTPException."""
        message = EmailMessage()
        message["Subject"] = f"flywheel: {alert.kind.replace('_', ' ')}"
        message["From"], message["To"] = self._sender, ", ".join(self._receivers)
        message.set_content(f"{alert.text}\n\n{alert.url}\n")
        parts = self._parts
        kind = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
        with kind(str(parts.hostname), parts.port or (465 if parts.scheme == "smtps" else 25), timeout=TIMEOUT_S) as server:
            if parts.scheme == "smtp" and server.has_extn("starttls"):
                server.starttls()
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)


def channels(environment: Mapping[str, str] = os.environ) -> list[Webhook | Email]:
    """Those that are configured. Raises ConfigError for an address that is none."""
    found: list[Webhook | Email] = []
    if webhook := environment.get(WEBHOOK_VARIABLE):
        found.append(Webhook(webhook))
    if email := environment.get(EMAIL_VARIABLE):
        found.append(Email(email))
    return found


_KEYS = {"kind", "about", "text", "url", "sent", "at"}
"""Of an alert's file."""


def _folder(home: Home) -> Path:
    return home.root / "alerts"


def post(home: Home, alert: Alert) -> None:
    """Keep an alert until it is sent; one that was posted before is not posted again."""
    path = _folder(home) / f"{alert.alert_id}.json"
    if not path.exists():
        kept = {"kind": alert.kind, "about": alert.about, "text": alert.text, "url": alert.url, "sent": [], "at": time.time()}
        atomic_write(path, json.dumps(kept, ensure_ascii=False, indent=1).encode())


def deliver(home: Home, through: list[Webhook | Email]) -> tuple[int, list[str]]:
    """Send what every channel lacks, oldest first; how many were sent, and why others could not be. Each stays until it is."""
    num_sent, problems = 0, _set_damaged_aside(home)
    for path, kept in _kept(home):
        alert = Alert(**{name: kept[name] for name in ("kind", "about", "text", "url")})
        for channel in through:
            if channel.name in kept["sent"]:
                continue
            try:
                channel.send(alert)
            except REFUSALS as error:
                problems.append(f"{channel.name}: {type(error).__name__}: {error}")
                continue
            kept["sent"].append(channel.name)
            num_sent += 1
            atomic_write(path, json.dumps(kept, ensure_ascii=False, indent=1).encode())
    _forget_old(home, {channel.name for channel in through})
    return num_sent, problems


def _kept(home: Home) -> list[tuple[Path, dict[str, Any]]]:
    """Oldest first."""
    found = [(path, json.loads(path.read_text())) for path in _folder(home).glob("*.json")]
    return sorted(found, key=lambda each: each[1]["at"])


def _set_damaged_aside(home: Home) -> list[str]:
    """Rename files that a disk has damaged, so that each is reported once; returns the report."""
    problems = []
    for path in _folder(home).glob("*.json"):
        try:
            is_whole = json.loads(path.read_text()).keys() >= _KEYS
        except (ValueError, AttributeError):
            is_whole = False
        if not is_whole:
            path.rename(aside := path.with_suffix(".damaged"))
            problems.append(f"an alert was not sent, its file is damaged: {aside}. What happened is in Dagster's runs and ticks")
    return problems


def _forget_old(home: Home, names: set[str]) -> None:
    done = [path for path, kept in _kept(home) if names <= set(kept["sent"])]
    for path in done[:-KEPT_SENT]:
        path.unlink()
