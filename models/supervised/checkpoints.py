"""What a killed supervised run resumes from: trainer checkpoints that are known to be whole, and whose run they belong to.

The Trainer writes a checkpoint file by file in place. Its last file here is `complete`, with the size of every other file: a folder without
it, or whose files are of other sizes, was cut off and is never resumed from.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from warehouse.core.errors import CheckpointError
from warehouse.core.home import atomic_write

RUN_ID_FILE = "run_id"
"""Says which run a run folder is of: the id of all that its weights depend on."""
COMPLETE_FILE = "complete"
UNIVERSAL_FOLDER, UNIVERSAL_FILE = "universal", "latest_universal"
"""DeepSpeed's name of the file that names the folder."""
LAST_WORDS = 2000


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


def readable_by(folder: Path, num_processes: int) -> None:
    """Let so many processes go on from a trainer checkpoint of DeepSpeed's, which is in one piece for each process that wrote it: where
    their number is another one, its pieces are put into files for each parameter beside them (DeepSpeed's universal checkpoint). The
    pieces are read one after the other; nothing is gathered. Raises CheckpointError where that fails."""
    pieces = list(folder.glob("global_step*/*_optim_states.pt"))
    if not pieces or len(pieces) == num_processes or (folder / UNIVERSAL_FILE).exists():
        return
    target = folder / UNIVERSAL_FOLDER
    shutil.rmtree(target, ignore_errors=True)
    workers = ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *workers, "--inject_missing_state"]
    places = ["--input_folder", str(pieces[0].parent), "--output_folder", str(target)]
    done = subprocess.run([*command, *places], capture_output=True, text=True, check=False, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    if done.returncode:
        raise CheckpointError(
            f"{folder}, written by {len(pieces)} processes, cannot be read by {num_processes}: set num_processes to {len(pieces)}, or "
            f"delete the folder; {done.stderr[-LAST_WORDS:]}"
        )
    atomic_write(folder / UNIVERSAL_FILE, UNIVERSAL_FOLDER.encode())


def is_universal(folder: Path) -> bool:
    return (folder / UNIVERSAL_FILE).exists()


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
    found = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    later = (COMPLETE_FILE, UNIVERSAL_FILE, f"{UNIVERSAL_FOLDER}/")
    return {name: size for name, size in found.items() if not name.startswith(later)}
