"""`models.supervised.process` that logs every gathering of weights that lie in pieces: the newest trainer checkpoint of that moment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from models.supervised import process
from models.supervised.checkpoints import trainer_checkpoints
from models.training.zero import prepare_deepspeed

LOG_FILE = "gathers.txt"


def main(run_folder: Path) -> int:
    prepare_deepspeed()
    from deepspeed import zero

    gather: Any = zero.GatheredParameters.__enter__

    def logged(context: Any) -> Any:
        with (run_folder / LOG_FILE).open("a") as log:
            log.write(f"{[folder.name for folder in trainer_checkpoints(run_folder)][-1:]}\n")
        return gather(context)

    zero.GatheredParameters.__enter__ = logged
    return process.main(run_folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
