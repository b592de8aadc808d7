"""What Ray costs: a step and an episode on a node of a Ray cluster, beside a sandbox server over plain HTTP and sessions of this process,
with the same episodes on each, one after the other; how long a stage waits for Ray; and how long a lost node holds a collection up.

    python -m benchmarks.ray_overhead [--episodes 40] [--repeats 3] [--hosts]

`--hosts`: recovery after `kill -9` of a host (network namespaces; needs root). Everything runs on this machine: processors are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.episode.episode import EpisodeRequest
from agent.policy.policy import Prompt, Response
from assets.profile import ActingSettings, RaySettings, SandboxSettings, TaskSettings
from benchmarks.common.ray_nodes import ray_nodes
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import StageCollector, open_collector
from sandbox.server.running import running_server
from sandbox.tasks.task import Split

TASKS = TaskSettings(lists=("miniwob:smoke",), domains=("forms",))


class Waiting:
    """Waits at every step and never ends an episode, which so has all its steps."""

    policy_id = "policy-waiting"
    is_continuous = True

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return [
            Response(text="Action wait", prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.1,), policy_id=self.policy_id) for _ in prompts
        ]
