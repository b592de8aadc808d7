"""What `flywheel import general` does: conversations of a file into the warehouse, with a terminal in front."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from warehouse.general_data import import_general
from warehouse.tables import Warehouse


def import_general_data(warehouse: Warehouse, path: Path, name: str | None, console: Console) -> None:
    """Import, and say what was left out. `name` defaults to the file's. Raises ConfigError for a file that holds no conversations."""
    chosen = name or re.sub(r"[^a-z0-9_]+", "_", path.stem.lower())
    done = import_general(warehouse, path, name=chosen)
    console.print(
        f"{done.num_added} of {done.num_read} conversations are general data {escape(chosen)} now; left out: {done.num_duplicates} that "
        f"were there already, {done.num_without_answer} without an answer. A mixture draws them by `general: {{}}` and `general_share`."
    )
