"""`flywheel verify` and `flywheel doctor --repair` on homes that were damaged by hand."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer import Abort

from assets.stages.requests import StageResult
from pipelines.cli.data.verify import repair_alone, verify
from pipelines.orchestration.work.finished_work import commits_of, iterations_to_repeat
from pipelines.orchestration.work.folder import RESULT, work_folder
from tests.warehouse.conftest import Make
from warehouse.core.errors import CorruptTable
from warehouse.core.home import Home, atomic_write
from warehouse.core.identity import bytes_id
from warehouse.reporting.screens import check_screenshot
from warehouse.storage import tables
from warehouse.storage.catalogue import VERDICT_STAGE
from warehouse.storage.files.data_files import RESTORE
from warehouse.storage.log import table_log
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.sql import query
from warehouse.storage.tables import Warehouse


def route(name: str) -> dict[str, Any]:
    return {"episode_id": name, "route": "ct", "reason": "V=0"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Seven commits by stages of three iterations, a checkpoint of the log at the fourth; each stage has its result."""
    monkeypatch.setattr(table_log, "COMMITS_PER_CHECKPOINT", 4)
    monkeypatch.setattr(tables, "COMMITS_PER_CHECKPOINT", 4)
    warehouse = Warehouse(Home(tmp_path))
    for number in range(1, 8):
        place = {"iteration": f"{(number + 2) // 3:04d}", "stage": f"stage_{number}"}
        versions = {"routes": warehouse.replace_partition("routes", [route(f"ep-{number}")], **place)}
        result = StageResult(table_versions=versions, commits=commits_of(warehouse, versions))
        atomic_write(work_folder(warehouse.home, **place) / RESULT, result.model_dump_json().encode())
    data = b"a picture"
    row = {"screenshot_id": bytes_id("screen", data), "format": "png", "width_px": 1, "height_px": 1, "data": data}
    warehouse.add_screenshots([row])
    return warehouse.home


def routed(home: Home) -> list[str]:
    return sorted(Warehouse(home).read("routes").column("episode_id").to_pylist())


def verified(home: Home, *, all_versions: bool = False) -> tuple[int, str]:
    said = io.StringIO()
    status = verify(Warehouse(home), Console(file=said, width=400), all_versions=all_versions, as_json=False)
    return status, said.getvalue()


def repaired(home: Home) -> tuple[int, str]:
    said = io.StringIO()
    return repair_alone(Warehouse(home), Console(file=said, width=400), lambda question: None), said.getvalue()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def log_file(version: int) -> Callable[[Home], Path]:
    return lambda home: TableLog(home, "routes").file(version)


def data_file(home: Home) -> Path:
    return next(home.tables.glob("routes/iteration=0002/stage=stage_5/*.parquet"))


def checkpoint_file(home: Home) -> Path:
    return TableLog(home, "routes").checkpoint(4)


def chain_file(home: Home) -> Path:
    return home.chain / "routes.commits"


ALL = [f"ep-{number}" for number in range(1, 8)]
CASES: dict[str, tuple[Callable[[Home], Path], Callable[[Path], Any], list[str], list[str]]] = {
    # what is damaged, how, which rows are there after the repair, which stages are worked again
    "older log flipped": (log_file(2), flip, ALL, []),
    "older log gone": (log_file(2), Path.unlink, ALL, []),
    "newest log gone": (log_file(7), Path.unlink, ALL[:6], ["0003/stage_7"]),
    "middle log emptied": (log_file(6), lambda path: path.write_bytes(b""), [*ALL[:5], ALL[6]], ["0002/stage_6"]),
    "middle log gone": (log_file(5), Path.unlink, [*ALL[:4], *ALL[5:]], ["0002/stage_5"]),
    "data flipped": (data_file, flip, [*ALL[:4], *ALL[5:]], ["0002/stage_5"]),
    "data gone": (data_file, Path.unlink, [*ALL[:4], *ALL[5:]], ["0002/stage_5"]),
    "checkpoint flipped": (checkpoint_file, flip, ALL, []),
    "chain flipped": (chain_file, flip, ALL, []),
    "chain gone": (lambda home: home.chain, shutil.rmtree, ALL, []),
    "table gone": (lambda home: home.tables / "routes", shutil.rmtree, [], [f"{(n + 2) // 3:04d}/stage_{n}" for n in range(1, 8)]),
}


def test_a_sound_home_has_nothing_to_repair(home: Home) -> None:
    assert verified(home) == (0, "everything that was committed is there and as it was written\n") == verified(home, all_versions=True)
    assert repaired(home) == (0, "every table can be read\n") and not list(home.set_aside.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_damage_is_found_reported_and_repaired(home: Home, case: str) -> None:
    where, harm, rows, again = CASES[case]
    path = where(home)
    harm(path)
    status, said = verified(home)
    assert status == 1 and ("routes" in said), said
    status, said = repaired(home)
    assert status == 0, said
    assert routed(home) == rows and query.run(Warehouse(home), "FROM routes").num_rows == len(rows)
    Warehouse(home).history("routes")
    reported = sorted(line.split()[4] for line in said.splitlines() if line.endswith("works it again"))
    assert reported == again and iterations_to_repeat(home) == sorted({place[:4] for place in again})
    kept = {f"{path.parent.parent.name}/{path.parent.name}" for path in home.work.glob(f"*/*/{RESULT}")}
    assert kept == {f"{(n + 2) // 3:04d}/stage_{n}" for n in range(1, 8)} - set(again)
    Warehouse(home).replace_partition("routes", [route("ep-8")], iteration="0003", stage="stage_8")
    assert routed(home) == sorted([*rows, "ep-8"])


def test_who_makes_lost_rows_again_is_reported(home: Home) -> None:
    """Stages of an iteration take people's work in again; what a person said by command is only in the table."""
    for stage in (VERDICT_STAGE, "withdrawn", "human_annotations", "recordings"):
        Warehouse(home).append_partition("routes", [route(f"of {stage}")], iteration="0001", stage=stage)
        flip(next(home.tables.glob(f"routes/iteration=0001/stage={stage}/*.parquet")))
    status, said = repaired(home)
    assert status == 0
    reported = {
        line.split()[4].removeprefix("0001/").rstrip(":"): "by hand" if "give that command again" in line else "by a run"
        for line in said.splitlines()
        if line.startswith("rows or")
    }
    assert reported == {VERDICT_STAGE: "by hand", "withdrawn": "by hand", "human_annotations": "by a run", "recordings": "by a run"}


@pytest.mark.parametrize("stage", ["withdrawn", VERDICT_STAGE, "import_x", "stage_1", None])
def test_a_damaged_data_file_sends_to_what_helps(home: Home, stage: str | None) -> None:
    """Pictures are of no partition, and what a person or an import made no stage makes again."""
    table = "screenshots" if stage is None else "routes"
    if stage not in ("stage_1", None):
        Warehouse(home).append_partition("routes", [route("by hand")], iteration="0001", stage=stage)
    flip(next((home.tables / table).glob("*.parquet" if stage is None else f"iteration=0001/stage={stage}/*.parquet")))
    with pytest.raises(CorruptTable, match="`flywheel doctor --repair` takes it out of the table and says what has to run again"):
        Warehouse(home).read(table)
    status, said = verified(home)
    assert status == 1 and RESTORE in said and "stage of that partition" not in said
    status, said = repaired(home)
    assert status == 0 and Warehouse(home).read(table).num_rows == (0 if stage is None else 6 if stage == "stage_1" else 7)
    assert stage is None or f"of 0001/{stage} are lost" in said


def test_nothing_is_moved_without_a_yes(home: Home) -> None:
    log_file(7)(home).write_bytes(b"")

    def no(question: str) -> None:
        raise Abort

    with pytest.raises(Abort):
        repair_alone(Warehouse(home), Console(file=io.StringIO()), no)
    with pytest.raises(CorruptTable, match="doctor --repair"):
        routed(home)


def test_files_of_older_versions_are_looked_at_when_asked(home: Home) -> None:
    (path,) = home.tables.glob("routes/iteration=0001/stage=stage_1/*.parquet")
    Warehouse(home).replace_partition("routes", [route("new")], iteration="0001", stage="stage_1")
    flip(path)
    assert verified(home)[0] == 0
    status, said = verified(home, all_versions=True)
    assert status == 1 and path.name in said


def test_a_picture_is_what_its_id_says(home: Home) -> None:
    row = {"screenshot_id": bytes_id("screen", b"one"), "format": "png", "width_px": 1, "height_px": 1, "data": b"another"}
    Warehouse(home).add_screenshots([row])
    status, said = verified(home)
    assert status == 1 and f"picture {row['screenshot_id']} is not what its id says" in said
    with pytest.raises(CorruptTable, match="is not what its id says"):
        check_screenshot(str(row["screenshot_id"]), b"another")


def test_stages_whose_pictures_are_lost_are_worked_again(home: Home) -> None:
    warehouse = Warehouse(home)
    ids = [bytes_id("screen", data) for data in (b"one", b"two")]
    warehouse.add_screenshots([Make.screenshot(name, data) for name, data in zip(ids, (b"one", b"two"), strict=True)])
    for stage, shown in (("stage_1", ids[0]), ("recordings", ids[1]), ("stage_2", None)):
        warehouse.replace_partition("steps", [Make.step(f"ep-{stage}", 0, screenshot_id=shown)], iteration="0001", stage=stage)
    sample = Make.sample("sft-1", messages=[{"role": "user", "content": "see", "screenshot_id": ids[1], "loss": 0.0}])
    warehouse.replace_partition("sft_samples", [sample], iteration="0000", stage="import_x")
    assert verified(home)[0] == 0
    for path in home.tables.glob("screenshots/*.parquet"):
        path.unlink()
    status, said = repaired(home)
    reported = {line.split()[4].rstrip(":,") for line in said.splitlines() if line.startswith("rows or pictures of")}
    assert status == 0 and reported == {"0001/stage_1", "0001/recordings", "0000/import_x"}, said
    assert iterations_to_repeat(home) == ["0001"] and not (work_folder(home, "0001", "stage_1") / RESULT).exists()
    status, said = verified(home)
    assert status == 1 and "lacks 1 of the pictures that rows of 0001/stage_1 show" in said
    assert verified(home)[1].count("lacks 1 of the pictures") == 3
