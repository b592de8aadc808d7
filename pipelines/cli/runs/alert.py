"""`flywheel alert`: a test alert through every channel. What is sent automatically, and when, is
pipelines/orchestration/alerts/sensors.py's.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from pipelines.cli.options import console
from warehouse.core.errors import ConfigError

TRIED = "flywheel: alerts arrive here"


def alert(text: Annotated[str, typer.Argument(help="What to send.")] = TRIED) -> None:
    """Send a word to the webhook and by e-mail, as alerts are sent, to see that it arrives. Exit status 1 where a channel did not take it.

    FLYWHEEL_ALERT_WEBHOOK=https://… flywheel alert
    """
    from pipelines.orchestration.alerts.channels import EMAIL_VARIABLE, REFUSALS, WEBHOOK_VARIABLE, Alert, channels

    through = channels()
    if not through:
        raise ConfigError(f"no channel is configured: set {WEBHOOK_VARIABLE} or {EMAIL_VARIABLE} (docs/environment.md)")
    said = Alert(kind="test", about=str(time.time()), text=text, url="")
    is_sent = True
    for channel in through:
        try:
            channel.send(said)
            console.print(f"{channel.name}: sent", highlight=False)
        except REFUSALS as error:
            is_sent = False
            console.print(f"{channel.name}: {type(error).__name__}: {error}", highlight=False, markup=False, soft_wrap=True)
    if not is_sent:
        raise typer.Exit(1)
