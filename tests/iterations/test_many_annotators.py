"""Fifty simulated annotators at once on one server with real sandboxes and a policy that the flywheel has trained, on either database; the
server is killed in the middle and restarted. `python -m benchmarks.annotators` does the same for longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from annotation.storage.database import default_url
from benchmarks.annotators import Load, measured, reported
from benchmarks.common import postgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LOAD = Load(num_annotators=50, num_sessions=16, num_decisions=5, seconds=600)
NO_FAULT = {"409 OutOfDate", "410 AssignmentLost"}
"""Refusals that are none: the first try was carried out though its answer was lost, so the second decides on something old; and a lease of
somebody who gave no sign of life ran out."""


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """None: the home's own."""
    if request.param == "sqlite":
        yield None
        return
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    with postgres.a_postgres() as socket:
        yield postgres.new_database(socket, "annotators")


def test_nothing_is_lost_doubled_or_shared_when_the_server_is_killed(
    finished_home: Any, copy_of: Callable[..., Any], database_url: str | None
) -> None:
    workspace = copy_of(finished_home)
    result = measured(LOAD, workspace.home, database_url or default_url(workspace.home), environment=workspace.environment)
    Console(width=160).print(reported(result))
    assert result.num_decisions >= 50 * 5 and result.num_finished >= 50, "everybody has worked to the end, over the kill"
    assert result.away_s > 0 and result.num_sent_again > 0, "the server was away while people were at work"
    assert result.num_probes >= 100 and result.seen_by_others == []
    assert (result.num_lost, result.num_doubled, result.num_leases_of_two) == (0, 0, 0)
    assert set(result.errors) <= NO_FAULT, result.errors
    assert workspace.left_after(15) == []
