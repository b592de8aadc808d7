"""Keys of assets that are not simply the name of what they make."""

from __future__ import annotations

import dagster as dg

ITERATION_OUTPUT = dg.AssetKey("iteration_output")
"""Closes an iteration; its metadata draws how iterations hang together."""


def rl_asset_key(name: str) -> dg.AssetKey:
    """The RL specialist of a domain, or a policy trained jointly: then `name` is `joint_name` of its domains."""
    return dg.AssetKey(["rl_model", name])
