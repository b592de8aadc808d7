"""Iterations as dynamic partitions, one an iteration; the seed is no partition. Their keys: assets/iteration_keys.py."""

from __future__ import annotations

import dagster as dg

ITERATIONS = dg.DynamicPartitionsDefinition(name="iteration")
