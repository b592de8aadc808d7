"""Finished runs: second opinions, agreement between people, and the figures of quality."""
