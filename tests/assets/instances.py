"""Dagster's instance for a test that materializes something: to make the tables of an ephemeral one takes a quarter of such a test."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import dagster as dg


@contextmanager
def emptied_instance() -> Iterator[dg.DagsterInstance]:
    """The ephemeral instance of this process, without runs, events and partitions of earlier tests; the history of checks stays."""
    instance = _instance()
    instance.wipe()
    yield instance


@cache
def _instance() -> dg.DagsterInstance:
    made = dg.DagsterInstance.ephemeral()
    atexit.register(made.dispose)
    return made
