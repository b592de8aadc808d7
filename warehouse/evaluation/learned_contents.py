"""First screens and instructions of the training episodes of each iteration, 64-bit hashes of each. novelty.py compares evaluations with
them.

An iteration's notes cover its own rows only. They are cached as a file beside the tables, with the digest of the data files that they were
made from: notes of other files are made again. Deleting them loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt

from warehouse.storage.files.notes import notes_folder, read_notes, write_notes
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

FOLDER = "learned"
FORM = 1
"""Increases when notes of the same rows change in content."""
EPISODES = ("episodes",)
EPISODES_AND_TEXT = ("episodes", "steps")

FIRST_SCREENS = {
    False: "select *, coalesce(instruction, '') as asked, content_id as screen from episodes",
    True: """select e.*, coalesce(e.instruction, '') as asked, coalesce(e.instruction, '') || chr(10) || f.observation as screen
        from episodes e left join (select iteration, episode_id, any_value(observation) as observation from steps where step_index = 0
                                   group by all) f using (iteration, episode_id)""",
}
"""By whether screens are identified by their stored text: every episode with its instruction and what identifies its first screen."""
_LEARNED = """
select iteration, md5_number_lower(asked) as asked, md5_number_lower(screen) as screen from ({episodes})
where outcome <> 'crashed' and purpose <> 'evaluation' and split = 'train' and iteration in ({iterations})
"""
_WITHOUT_CONTENT = """
select distinct iteration from episodes where iteration in ({iterations}) and content_id is null and num_steps > 0
    and outcome <> 'crashed' and not (purpose <> 'evaluation' and policy_id = 'human')
"""
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedContents:
    """Hashes (DuckDB's md5_number_lower), each once an iteration."""

    instructions: Hashes
    screens: Hashes
    by_text: bool
    """Screens are known by their stored text: there are episodes without `content_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notes:
    instructions: Hashes
    screens: Hashes
    lacks_contents: bool


def learned_contents(warehouse: Warehouse, iteration: str, listing: Listing | None = None) -> LearnedContents:
    """Of every episode that was played to learn from up to that iteration. `listing`: of `episodes` at least, where the caller has one."""
    listing = listing or Listing(warehouse, EPISODES)
    notes = _notes(warehouse, iteration, listing, by_text=False)
    by_text = any(each.lacks_contents for each in notes)
    if by_text:
        notes = _notes(warehouse, iteration, Listing(warehouse, EPISODES_AND_TEXT), by_text=True)
    instructions, screens = ([getattr(each, name) for each in notes] for name in ("instructions", "screens"))
    return LearnedContents(instructions=_together(instructions), screens=_together(screens), by_text=by_text)


def _notes(warehouse: Warehouse, last: str, listing: Listing, *, by_text: bool) -> list[_Notes]:
    digests = listing.digests(EPISODES_AND_TEXT if by_text else EPISODES)
    digests = {iteration: f"{FORM}-{digest}" for iteration, digest in sorted(digests.items()) if iteration <= last}
    folder = notes_folder(warehouse.home, FOLDER)
    paths = {iteration: folder / f"{iteration}{'-text' if by_text else ''}.notes" for iteration in digests}
    found = {iteration: _read(paths[iteration], digest) for iteration, digest in digests.items()}
    missing = [iteration for iteration, each in found.items() if each is None]
    made = _make(warehouse, missing, by_text=by_text) if missing else {}
    for iteration, fresh in made.items():
        write_notes(paths[iteration], _packed(fresh, digests[iteration]))
    return [each or made[iteration] for iteration, each in found.items()]


def _make(warehouse: Warehouse, iterations: Collection[str], *, by_text: bool) -> dict[str, _Notes]:
    """All that are missing, each table read once."""
    named = ", ".join(f"'{iteration}'" for iteration in iterations)
    with connect(warehouse, tables=EPISODES_AND_TEXT if by_text else EPISODES, iterations=iterations, natively=True) as con:
        lacking = {iteration for (iteration,) in con.execute(_WITHOUT_CONTENT.format(iterations=named)).fetchall()}
        con.execute("create temp table learned as " + _LEARNED.format(episodes=FIRST_SCREENS[by_text], iterations=named))
        return {
            iteration: _Notes(
                instructions=_distinct(con, "asked", iteration),
                screens=_distinct(con, "screen", iteration),
                lacks_contents=iteration in lacking,
            )
            for iteration in iterations
        }


def _distinct(con: duckdb.DuckDBPyConnection, column: str, iteration: str) -> Hashes:
    query = f"select distinct {column} from learned where iteration = $iteration and {column} is not null order by {column}"
    found: Hashes = con.execute(query, {"iteration": iteration}).fetchnumpy()[column]
    return found


def _read(path: Path, inputs: str) -> _Notes | None:
    """None where there are none, or they are damaged, or of other rows."""
    stored = read_notes(path)
    if stored is None:
        return None
    head, _, hashes = stored.partition(b"\n")
    header = json.loads(head)
    if header["inputs"] != inputs:
        return None
    instructions, screens = np.split(np.frombuffer(hashes, "<u8"), [header["num_instructions"]])
    return _Notes(instructions=instructions, screens=screens, lacks_contents=header["lacks_contents"])


def _packed(notes: _Notes, inputs: str) -> bytes:
    """A line of JSON, the hashes."""
    header = {"inputs": inputs, "lacks_contents": notes.lacks_contents, "num_instructions": len(notes.instructions)}
    return b"\n".join([json.dumps(header).encode(), np.concatenate([notes.instructions, notes.screens]).astype("<u8").tobytes()])


def _together(parts: list[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)
