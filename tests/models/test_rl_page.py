"""docs/rl.md and docs/streaming.md say of settings and metrics what the code says, and every setting says what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from pydantic import BaseModel

from models.rl.config import PpoConfig
from models.rl.state import Counters
from models.supervised.config import SupervisedConfig

ROOT = Path(__file__).parents[2]
PAGE, STREAMING = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("rl", "streaming"))


def test_every_setting_on_the_page_exists_and_has_that_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    defaults = PpoConfig().model_dump(mode="json")
    assert len(rows) > 20
    assert {name: json.loads(value) for name, value in rows} == {name: defaults[name] for name, _ in rows}


@pytest.mark.parametrize("config", [PpoConfig, SupervisedConfig])
def test_every_setting_is_described(config: type[BaseModel]) -> None:
    assert [name for name, field in config.model_fields.items() if not field.description] == []


def logged(modules: Iterable[str]) -> set[str]:
    """Names that modules of models/rl put into a dict, but what is not a metric: algorithms, counters, fields of others."""
    sources = [(ROOT / "models" / "rl" / f"{name}.py").read_text(encoding="utf-8") for name in modules]
    found = {name for source in sources for name in re.findall(r'(?<!== )"([a-z_]+)"(?:\] =|:)', source)}
    return found - {"ppo", "reinforce", "grpo", "rejection", "policy", "critic", "screenshots", "gigpo", "attempt", *Counters.model_fields}


def test_every_metric_of_episodes_and_updates_is_on_the_page() -> None:
    names = logged(["metrics", "updates/weighting", "updates/counters"])
    assert names >= {"kl", "lambda_policy", "group_zero_std", "think_tokens_per_step", "exploded_kl", "staleness_mean"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_every_metric_of_time_and_queues_is_on_a_page() -> None:
    names = logged(["trainer", "clocks", "rollouts/pool"])
    assert names >= {"wait_s", "update_s", "queue_waiting", "lease_busy_share", "left_out_steps"}
    assert {name for name in names if f"`{name}`" not in PAGE + STREAMING} == set()
