"""Importing this registers every task's id with Gymnasium, as Gymnasium has it: `gymnasium.make("sandbox.gym.ids:flywheel/…-v0")`, or
`import sandbox.gym.ids`. The one module that does something when it is imported; it holds nothing else."""

from __future__ import annotations

from sandbox.gym.env import register_envs

register_envs()
