"""Iterations as dynamic partitions, one per iteration; the seed is not a partition. Their keys: assets/iterations/keys.py."""

from __future__ import annotations

import dagster as dg

ITERATIONS = dg.DynamicPartitionsDefinition(name="iteration")
