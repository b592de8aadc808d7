"""`flywheel verdict`: a person's verdict on an episode, as a row of `verdicts` that overrides every other judge. Append-only: a
person who changes their mind says so again, and the newest counts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import HomeOption, console, home_of, made_home, warehouse_of
from warehouse.core.errors import ConfigError
from warehouse.storage.catalogue import VERDICT_STAGE

if TYPE_CHECKING:
    from warehouse.storage.tables import Warehouse

JUDGE = "human"


def verdict(
    episode: Annotated[str, typer.Argument(help="The episode, by id or an unambiguous prefix of it.")],
    is_good: Annotated[bool, typer.Option("--good/--bad", help="Whether the task was solved.")],
    reason: Annotated[list[str] | None, typer.Option("--reason", help="Why (required: judges learn from it); may be repeated.")] = None,
    person: Annotated[str | None, typer.Option("--by", help="Who says so; kept with the reasons.")] = None,
    home: HomeOption = None,
) -> None:
    """Say whether an episode solved its task. In the next routing this overrides the verifier and every judge."""
    from pipelines.orchestration.reported_changes import reported

    made_home(home)
    warehouse = warehouse_of(home_of(home))
    with reported(warehouse, "flywheel verdict", console):
        found, version = add_human_verdict(warehouse, episode, is_good=is_good, reasons=reason or [], person=person)
    word = "good" if is_good else "bad"
    console.print(
        f"{found['episode_id']} ({found['task_name']}, seed {found['seed']}) is {word}, says a person: verdicts version {version}. "
        f"{_what_follows(warehouse, found)}",
        soft_wrap=True,
    )


def add_human_verdict(
    warehouse: Warehouse, episode: str, *, is_good: bool, reasons: list[str], person: str | None = None
) -> tuple[dict[str, Any], int]:
    """Add a person's verdict on an episode; returns the episode's row and the version of `verdicts`. Raises UnknownId for an id that names
    no episode or several, ConfigError for a verdict without a reason."""
    if not any(reason.strip() for reason in reasons):
        raise ConfigError("a person's verdict needs a reason, e.g. --reason 'the message went to the wrong person': judges learn from it")
    found = _episode(warehouse, episode)
    said = [reason.strip() for reason in reasons if reason.strip()]
    row = {
        "episode_id": found["episode_id"],
        "judge": JUDGE,
        "judge_version": datetime.now(UTC).isoformat(timespec="microseconds"),
        "kind": "verdict",
        "origin": "human",
        "score": float(is_good),
        "threshold": 0.5,
        "passed": is_good,
        "reasons": said if person is None else [*said, f"by {person}"],
        "cost_tokens": None,
        "cost_ms": None,
    }
    return found, warehouse.append_partition("verdicts", [row], iteration=found["iteration"], stage=VERDICT_STAGE)


def _what_follows(warehouse: Warehouse, found: dict[str, Any]) -> str:
    """What has to be done for the verdict to be heard: only episodes that were routed can be routed again."""
    from warehouse.storage.sql.query import connect

    with connect(warehouse) as con:
        episode = {"id": found["episode_id"]}
        if con.execute("select 1 from routes where episode_id = $id limit 1", episode).fetchone():
            return (
                f"Its route of iteration {int(found['iteration'])} stands until that is routed again: "
                f"flywheel reroute --iteration {found['iteration']}"
            )
        stands = "select sample_id from {}_samples where episode_id = $id and not withdrawn order by 1"
        samples = [row[0] for kind in ("sft", "ct") for row in con.execute(stands.format(kind), episode).fetchall()]
    if not samples:
        return "It has no route and no sample: judges alone learn from the verdict"
    return (
        f"It was never routed, as demonstrations and imports are not: its {len(samples)} samples stay as they are until they are "
        f"withdrawn: flywheel withdraw {' '.join(samples[:3])}{' …' if len(samples) > 3 else ''}"
    )


def _episode(warehouse: Warehouse, name: str) -> dict[str, Any]:
    """The first row of the episode that an id or its beginning means."""
    from warehouse.routing.explain import resolve_episode
    from warehouse.storage.sql.query import connect

    with connect(warehouse) as con:
        params = {"id": resolve_episode(con, name)}
        query = "select episode_id, iteration, task_name, seed from episodes where episode_id = $id order by iteration, stage limit 1"
        rows: list[dict[str, Any]] = con.sql(query, params=params).to_arrow_table().to_pylist()
    return rows[0]
