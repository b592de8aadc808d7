"""What an RL stage's critic begins with, by what the home holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.critics import critic_start
from models.rl.config import PpoConfig
from tests.warehouse.judging import episode_row
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.lineage.descent import Learned
from warehouse.lineage.taints import add_taints
from warehouse.storage.tables import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Home(tmp_path))


def test_an_rl_stage_begins_with_the_newest_critic_and_with_what_policies_played_before(warehouse: Warehouse) -> None:
    config = PpoConfig()
    assert critic_start(warehouse, "0001", "forms", config) == {"critic_id": None, "stored": ()}
    for iteration, stage in (("0000", "seed_demonstrations"), ("0001", "rollouts"), ("0001", "evaluation"), ("0002", "rl_forms")):
        row = {name: value for name, value in episode_row(f"e-{stage}").items() if name not in ("iteration", "stage")}
        warehouse.replace_partition("episodes", [row], iteration=iteration, stage=stage)
    for iteration in ("0001", "0002"):
        folder = warehouse.home.checkpoints / iteration
        registry.register(warehouse, iteration=iteration, stage="critic_forms", checkpoint_id=f"critic-{iteration}", folder=folder)
    assert critic_start(warehouse, "0003", "forms", config) == {"critic_id": "critic-0002", "stored": ("0001/rollouts", "0002/rl_forms")}
    assert critic_start(warehouse, "0002", "forms", config) == {"critic_id": "critic-0001", "stored": ("0001/rollouts",)}
    off = config.model_copy(update={"carry_critic": False, "offline_episodes": 0})
    assert critic_start(warehouse, "0003", "forms", off) == {"critic_id": None, "stored": ()}
    assert critic_start(warehouse, "0003", "forms", config.model_copy(update={"algorithm": "reinforce"})) == {}
    # One that has learned from what was forgotten is not carried on.
    add_taints(warehouse, "forget-1", [Learned("critic-0002", "0002/critic_forms", 0, 1)])
    assert critic_start(warehouse, "0003", "forms", config)["critic_id"] == "critic-0001"
