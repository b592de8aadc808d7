"""Where what is known of each step lies while episodes are judged: in a temporary table of DuckDB where they are few, else in Parquet
files, those of one part of the episodes in a folder, so that a part is read without the others and memory is bounded whatever the size.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import duckdb

from warehouse.patterns import quoted


class Spool:
    """Facts of the episodes numbered 0 … num_new - 1, by parts of `part_episodes`, and of earlier ones, which are only compared with.

    For each name that was kept there is the view `all_<name>`, and inside `parts` the view `<name>` of one part's new episodes.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, folder: Path, num_new: int, part_episodes: int) -> None:
        self._con, self._part_episodes = con, part_episodes
        self._firsts = range(0, num_new, part_episodes)
        self._root = folder
        self._folder: Path | None = None
        self._names: list[str] = []

    def __enter__(self) -> Spool:
        if len(self._firsts) > 1:
            self._folder = Path(tempfile.mkdtemp(prefix="quality-", dir=self._root))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, name: str, query: str) -> None:
        """Keep the rows of a query with the columns `n` and `is_new`."""
        folder = self._folder / name if self._folder else None
        if folder is not None:
            part = f"case when is_new then n // {self._part_episodes} else -1 end"
            self._con.execute(
                f"copy (select *, {part} as part from ({query})) to {quoted(str(folder))} "
                "(format parquet, partition_by (part), compression uncompressed, dictionary_size_limit 1)"
            )
        if folder is not None and folder.is_dir():
            self._con.execute(f"create or replace temp view all_{name} as {_files(folder / '*')}")
        else:
            self._con.execute(f"create or replace temp table kept_{name} as {query}")
            self._con.execute(f"create or replace temp view all_{name} as from kept_{name}")
        self._names.append(name)

    def parts(self) -> Iterator[int]:
        """Number each part's first episode; meanwhile the views hold that part, and `part` its rows of `episodes_to_judge`."""
        for first in self._firsts:
            among = f"is_new and n >= {first} and n < {first + self._part_episodes}"
            self._con.execute(f"create or replace temp view part as from episodes_to_judge where {among}")
            for name in self._names:
                folder = self._folder / name / f"part={first // self._part_episodes}" if self._folder else None
                rows = f"from all_{name} where {among}" if folder is None or not folder.is_dir() else _files(folder)
                self._con.execute(f"create or replace temp view {name} as {rows}")
            yield first


def _files(folder: Path) -> str:
    return f"from read_parquet({quoted(str(folder / '*.parquet'))}, hive_partitioning = false)"
