"""Iterations: their keys and partitions, which of them are open, and the handoff from one to the next."""
