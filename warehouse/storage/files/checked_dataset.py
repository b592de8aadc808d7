"""Arrow datasets whose files are checked as they are first scanned. Apart from data_files.py because `pyarrow.dataset` brings pandas along,
half a second that not every command needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
from deltalake import DeltaTable

from warehouse.storage.files.data_files import CheckFiles
from warehouse.storage.partitions import DataFile


class CheckedDataset(pads.FileSystemDataset):
    """A dataset of a folder's files, each checked when it is first scanned. Arrow reads them by itself: behind a file system of Python its
    threads wait for the interpreter, which waits for them where DuckDB has begun a scan."""

    @classmethod
    def of(cls, folder: Path, dataset: pads.Dataset, check: CheckFiles) -> CheckedDataset:
        """The same as `dataset`, whose files are below `folder`; `check` is called with those that are to be scanned."""
        made = cls(list(dataset.get_fragments()), dataset.schema, dataset.format, dataset.filesystem)
        made.folder, made.check = folder, check
        return made

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> pads.Scanner:
        """As Arrow's own. Raises CorruptTable for a file that has changed, FileNotFoundError."""
        self.check([self.folder / fragment.path for fragment in self.get_fragments(filter=filter)])
        return super().scanner(columns=columns, filter=filter, **options)


def of_delta(folder: Path, delta: DeltaTable, check: CheckFiles, **options: Any) -> CheckedDataset:
    """Of all the files of a Delta table in `folder`, or as the options of its `to_pyarrow_dataset` say."""
    return CheckedDataset.of(folder, delta.to_pyarrow_dataset(filesystem=_local_files(folder), **options), check)


def of_files(folder: Path, files: Sequence[DataFile], schema: pa.Schema, check: CheckFiles) -> pads.Dataset:
    """Of some files, as a table of that schema."""
    if not files:
        return pads.dataset(schema.empty_table())
    system, form = _local_files(folder), pads.ParquetFileFormat()
    fragments = [form.make_fragment(unquote(file.path), filesystem=system, partition_expression=file.expression) for file in files]
    return CheckedDataset.of(folder, pads.FileSystemDataset(fragments, schema, form, system), check)


def _local_files(folder: Path) -> pafs.FileSystem:
    """The files below a folder, by Arrow's own file system, which reads twice as fast as Delta's bridge to it."""
    return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
