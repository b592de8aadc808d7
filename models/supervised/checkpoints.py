"""What a killed supervised run resumes from: trainer checkpoints that are known to be whole, and whose run they belong to.

The Trainer writes a checkpoint file by file in place. Its last file here is `complete`, with the size of every other file: a folder without
it, or whose files are of other sizes, was cut off and is never resumed from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from warehouse.core.home import atomic_write

RUN_ID_FILE = "run_id"
"""Says which run a run folder is of: the id of all that its weights depend on."""
COMPLETE_FILE = "complete"


def clear_unless_of(run_folder: Path, run_id: str, *, keep: str) -> None:
    """Leave what a killed start of this very run wrote; what another run left in its place goes, lest its weights are taken for ours. The
    folder `keep` of the run folder is this start's own."""
    owner = run_folder / RUN_ID_FILE
    if owner.exists() and owner.read_text() == run_id:
        return
    owner.unlink(missing_ok=True)
    for left in run_folder.iterdir() if run_folder.exists() else ():
        if left.is_dir() and left.name != keep:
            shutil.rmtree(left)
        elif not left.is_dir():
            left.unlink()
    atomic_write(owner, run_id.encode())


def mark_complete(folder: Path) -> None:
    """Say that every file of a trainer checkpoint is written."""
    atomic_write(folder / COMPLETE_FILE, json.dumps(_sizes(folder), sort_keys=True).encode())


def trainer_checkpoints(run_folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(run_folder.glob("checkpoint-*"), key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name.rsplit("-", 1)[1])


def last_complete(run_folder: Path) -> Path | None:
    """The newest whole trainer checkpoint; those that were cut off are removed."""
    complete = []
    for folder in trainer_checkpoints(run_folder):
        if _is_complete(folder):
            complete.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # the other processes of the run do the same
    return complete[-1] if complete else None


def _is_complete(folder: Path) -> bool:
    try:
        expected = json.loads((folder / COMPLETE_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return bool(expected == _sizes(folder))


def _sizes(folder: Path) -> dict[str, int]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE_FILE)
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}
