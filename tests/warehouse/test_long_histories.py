"""What is kept so that the work is that of the newest iteration says the same as the tables, also after they have changed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from warehouse.core.errors import CorruptTable, UnknownId, UnknownTable
from warehouse.datasets.withdrawal import withdraw
from warehouse.lineage.walk import trace, trace_back
from warehouse.reporting.iteration_summaries import FORM, summaries
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files import listing_notes
from warehouse.storage.files.id_index import IdIndex
from warehouse.storage.files.table_files import Listing
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.screenshots.stored import pictures
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

COUNTED = ("episodes", "steps", "annotations", "ct_samples", "sft_samples")


def in_full(warehouse: Warehouse, query: str) -> list[tuple[Any, ...]]:
    with connect(warehouse, lineage="from lineage" in query) as con:
        return con.execute(query).fetchall()


def assert_reports_what_is_stored(warehouse: Warehouse) -> None:
    reported = summaries(warehouse)
    routes = {(iteration, route): num for iteration, of in reported.items() for route, num in of.routes.items()}
    assert routes == {(i, r): n for i, r, n in in_full(warehouse, "select iteration, route, count(*) from routes group by all")}
    sizes = {(i, m.stage, m.dataset_id, m.kind): m.num for i, of in reported.items() for m in of.members}
    stored = in_full(warehouse, "select iteration, stage, dataset_id, kind, count(*) from datasets group by all")
    assert sizes == {tuple(row[:4]): row[4] for row in stored}
    decisions = {(i, d): n for i, of in reported.items() for d, n in of.decisions.items()}
    stored = in_full(warehouse, "select iteration, decision, count(*) from annotations where not withdrawn group by all")
    assert decisions == {(i, d): n for i, d, n in stored}
    (played,) = in_full(warehouse, "select count(*), coalesce(sum(num_steps), 0) from episodes")
    assert (sum(of.num_episodes for of in reported.values()), sum(of.num_steps for of in reported.values())) == played
    made = {(i, m.stage, m.checkpoint_id) for i, of in reported.items() for m in of.checkpoints}
    assert made == set(in_full(warehouse, "select iteration, stage, checkpoint_id from checkpoints"))
    learned = {(i, of_run.checkpoint_id): of_run.num for i, of in reported.items() for of_run in of.learned}
    stored = in_full(
        warehouse,
        "select child_id, count(distinct parent_id) from lineage where child_kind = 'checkpoint' and parent_kind = 'episode' group by all",
    )
    assert {c: n for (_, c), n in learned.items()} == dict(stored)
    listing = Listing(warehouse, COUNTED)
    for table in COUNTED:
        assert listing.num_rows(table) == dict(in_full(warehouse, f"select iteration, count(*) from {table} group by 1")), table


@pytest.mark.usefixtures("tables_place")
def test_summaries_tell_what_the_tables_do(own: Warehouse) -> None:
    assert_reports_what_is_stored(own)
    assert_reports_what_is_stored(own)


def test_a_summary_is_made_again_when_its_rows_change_and_no_other_is(own: Warehouse, make: Any) -> None:
    summaries(own)
    files = {path.name: path for path in (own.home.root / "cache" / "iterations").iterdir()}
    before = {name: path.stat().st_ino for name, path in files.items()}
    own.replace_partition("routes", [{"episode_id": "ep-1", "route": "ct", "reason": "V=0"}], iteration="0002", stage="routing")
    assert_reports_what_is_stored(own)
    assert {name for name, path in files.items() if path.stat().st_ino != before[name]} == {"0002.json"}
    files["0001.json"].write_text("{torn")
    assert_reports_what_is_stored(own)


def test_what_was_withdrawn_later_no_longer_counts(own: Warehouse) -> None:
    before = {iteration: of.decisions for iteration, of in summaries(own).items()}
    seed = own.home.root / "cache" / "iterations" / "0000.json"
    made = seed.stat().st_ino
    ids = [id_ for (id_,) in in_full(own, "select annotation_id from annotations where iteration = '0001'")]
    withdraw(own, "annotations", set(ids), iteration="0002")
    assert before["0001"] and not summaries(own)["0001"].decisions
    assert seed.stat().st_ino == made, "of what nothing was taken back the figures stand"
    assert_reports_what_is_stored(own)


def test_a_part_of_the_iterations_shows_their_rows_as_the_whole_does(own: Warehouse) -> None:
    ids = [id_ for (id_,) in in_full(own, "select sample_id from sft_samples where iteration = '0000'")]
    withdraw(own, "sft_samples", set(ids[:1]), iteration="0002")
    with connect(own, tables=COUNTED, iterations=["0000", "0001"]) as con, connect(own) as whole:
        for table in COUNTED:
            query = f"select * from {table} where iteration in ('0000', '0001') order by all"
            assert con.sql(query).to_arrow_table() == whole.sql(query).to_arrow_table(), table
        assert con.execute("select count(*) from sft_samples where withdrawn and iteration = '0000'").fetchall() == [(1,)]
        assert con.execute("select count(*) from sft_samples where iteration = '0002' and not withdrawn").fetchall() == [(0,)]


@pytest.mark.usefixtures("tables_place")
def test_files_are_found_by_the_ids_they_hold(own: Warehouse) -> None:
    for _ in range(2):  # made, then read
        index = IdIndex(own, "episodes")
        for id_, iteration, stage in in_full(own, "select episode_id, iteration, stage from episodes"):
            assert (iteration, stage) in {(file.iteration, file.stage) for file in index.files_with([id_])}
        assert index.files_with(["nothing has this id"]) == [] == index.files_with([])
    for path in (own.home.root / "cache" / "ids" / "episodes").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    assert IdIndex(own, "episodes").files_with([id_]), "notes that are damaged are taken again"


def test_an_index_grows_with_its_table_and_forgets_what_was_replaced(own: Warehouse, make: Any) -> None:
    IdIndex(own, "episodes")
    own.replace_partition("episodes", [make.episode("new-1")], iteration="0003", stage="rollouts")
    assert [file.iteration for file in IdIndex(own, "episodes").files_with(["new-1"])] == ["0003"]
    own.replace_partition("episodes", [make.episode("new-2")], iteration="0003", stage="rollouts")
    index = IdIndex(own, "episodes")
    assert index.files_with(["new-1"]) == [] and len(index.files_with(["new-2"])) == 1


@pytest.mark.usefixtures("tables_place")
def test_pictures_are_read_by_id(warehouse: Warehouse, make: Any) -> None:
    assert pictures(warehouse, ["a"]) == {}
    for name in "abc":
        warehouse.add_screenshots([make.screenshot(name, data=name.encode())])
    found = pictures(warehouse, ["a", "c", "x"])
    assert {name: picture.data for name, picture in found.items()} == {"a": b"a", "c": b"c"}


def test_a_walk_back_reads_less_and_finds_the_same(own: Warehouse) -> None:
    withdraw(own, "sft_samples", {"sft-seed-0", "sft-note-1"}, iteration="0002")
    kinds = ("dataset", "sft_sample", "annotation", "episode", "screenshot")
    with connect(own, lineage=True) as con:
        starts = con.execute(f"select kind, max(id) from lineage_nodes where kind in {kinds} group by kind").fetchall()
        assert len(starts) == len(kinds)
        names = [*(id_ for _, id_ in starts), "0002/released_policy"]
        for name, depth in [*((name, None) for name in names), (names[-1], 2)]:
            expected = asdict(trace(con, name, direction="up", depth=depth))
            assert asdict(trace_back(own, name, depth=depth)) == expected, name


@pytest.mark.slow
def test_what_is_not_an_id_is_looked_for_everywhere(own: Warehouse) -> None:
    with connect(own, lineage=True) as con:
        (verdict,) = con.execute("select id from lineage_nodes where kind = 'verdict' limit 1").fetchone() or ("",)
        (step,) = con.execute("select id from lineage_nodes where kind = 'step' limit 1").fetchone() or ("",)
        for name in (verdict, step, "ckpt-merged"):
            try:
                expected = asdict(trace(con, name, direction="up"))
            except UnknownId as error:
                with pytest.raises(UnknownId) as raised:
                    trace_back(own, name)
                assert str(raised.value) == str(error)
                continue
            assert asdict(trace_back(own, name)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("command", ["lineage", "report"])
def test_what_a_command_has_no_use_for_is_not_imported(command: str, own: Warehouse) -> None:
    """pandas, and what else is heavy, would be most of the time that the command takes."""
    program = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); from pipelines.cli.app import main; main()"
    )
    words = {"lineage": ["0002/released_policy"], "report": []}[command]
    for _ in range(2):  # what is kept beside the tables is made, then read
        asked = [sys.executable, "-c", program, command, *words, "--home", str(own.home.root)]
        ran = subprocess.run(asked, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0 and ("ckpt" in ran.stdout or "report:" in ran.stdout), ran.stderr
    heavy = {"pandas", "pyarrow.dataset", "dagster", "sqlalchemy", "asyncio", "torch", "assets", "models", "sandbox", "annotation"}
    if command == "lineage":
        heavy |= {"jinja2", "agent"}
    assert "duckdb" in ran.stderr.split() and heavy & set(ran.stderr.split()) == set()


@pytest.mark.slow
def test_duckdb_reads_the_files_as_arrow_does(own: Warehouse, make: Any) -> None:
    ids = [id_ for (id_,) in in_full(own, "select sample_id from sft_samples where iteration = '0000'")]
    withdraw(own, "sft_samples", set(ids[:1]), iteration="0002")
    for chosen in (None, ["0001"], ["0007"]):
        with connect(own, tables=TABLES, iterations=chosen, natively=True) as con, connect(own, tables=TABLES, iterations=chosen) as arrow:
            for table in TABLES:
                query = f"select * from {table} order by all"
                assert con.sql(query).to_arrow_table() == arrow.sql(query).to_arrow_table(), table
                assert con.execute(f"describe {table}").fetchall() == arrow.execute(f"describe {table}").fetchall(), table
    (file, *_) = own.listed("routes")[1]
    path = own.folder("routes") / file.path
    path.write_bytes(path.read_bytes()[:-8] + b"12345678")
    with pytest.raises(CorruptTable, match=path.name), connect(fresh(own), tables=["routes"], natively=True) as con:
        con.execute("select * from routes")
    with pytest.raises(UnknownTable, match="newest"), connect(own, tables=["routes"], as_of="0001", natively=True):
        pass


@pytest.mark.usefixtures("tables_place")
def test_files_are_listed_as_they_are_after_every_commit(own: Warehouse, make: Any) -> None:
    """Also by who has listed them before, and from notes that are damaged."""

    def stored() -> list[str]:
        delta = own.delta("episodes")
        return sorted(str(Path(path).relative_to(own.folder("episodes"))) for path in delta.file_uris()) if delta is not None else []

    for number in range(3):
        assert [file.path for file in own.listed("episodes")[1]] == stored() == [file.path for file in fresh(own).listed("episodes")[1]]
        own.replace_partition("episodes", [make.episode(f"new-{number}")], iteration="0003", stage="rollouts")
    (notes,) = (own.home.root / "cache" / "files").glob("episodes.notes")
    for damaged in (b"", notes.read_bytes().replace(b"iteration=0001", b"iteration=0002")):
        notes.write_bytes(damaged)
        version, files = fresh(own).listed("episodes")
        assert [file.path for file in files] == stored() and version == own.version("episodes")


def test_notes_of_files_by_another_release_are_taken_again(own: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(listing_notes, "_NOTED", ["path", "num_rows"])
        wanted = fresh(own).listed("episodes")
        listing_notes.note_files(own.home, "episodes", TableLog(own.home, "episodes").commits.link(wanted[0]), wanted[1])
    assert fresh(own).listed("episodes") == wanted


def test_notes_of_files_hide_no_damage_of_the_log(own: Warehouse) -> None:
    own.listed("routes")
    newest = max((own.folder("routes") / "_delta_log").glob("*.json"))
    kept = newest.read_bytes()
    for damaged in (None, b"", kept.replace(b"a", b"b", 1)):
        newest.unlink() if damaged is None else newest.write_bytes(damaged)
        with pytest.raises(CorruptTable, match=newest.name):
            fresh(own).listed("routes")
    newest.write_bytes(kept)
    assert fresh(own).listed("routes") == own.listed("routes")


def fresh(warehouse: Warehouse) -> Warehouse:
    return Warehouse(warehouse.home)


def test_an_old_form_of_a_summary_is_not_believed(own: Warehouse) -> None:
    summaries(own)
    path = Path(own.home.root / "cache" / "iterations" / "0001.json")
    path.write_text(path.read_text().replace(f'"inputs":"{FORM}-', '"inputs":"0-').replace('"sft":1', '"sft":9'))
    assert_reports_what_is_stored(own)


def test_no_scan_waits_for_the_interpreter_that_waits_for_it(warehouse: Warehouse, make: Any) -> None:
    """DuckDB begins a scan while it holds the interpreter; a file that Arrow opened through Python then waited for ever, now and then."""
    for number in range(1, 13):
        warehouse.replace_partition("episodes", [make.episode(f"e{number}")], iteration=f"{number:04d}", stage="rollouts")
    few = warehouse.dataset("episodes", iterations=["0001"])
    for dataset in (few, warehouse.dataset("episodes"), warehouse.stored_dataset("episodes")):
        assert dataset.filesystem.type_name == "subtree"
    with connect(warehouse, tables=["episodes"]) as con:
        for _ in range(20):
            assert con.execute("select count(*) from episodes e join episodes using (episode_id)").fetchall() == [(12,)]
