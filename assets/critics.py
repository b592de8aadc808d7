"""What the critic of an RL stage starts from: the one that an earlier iteration left, and stored episodes of earlier iterations."""

from collections.abc import Mapping
from typing import Any

from models.rl.config import PpoConfig
from warehouse.core.stages import SEED_ITERATION, critic_stage, is_rl
from warehouse.lineage.taints import taints
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


def critic_start(warehouse: Warehouse, iteration: str, name: str, config: PpoConfig) -> Mapping[str, Any]:
    """Of an RlRequest, what its critic begins with; nothing in a first iteration, and without a critic."""
    if config.algorithm != "ppo":
        return {}
    critic_id = critic_before(warehouse, iteration, name) if config.carry_critic else None
    return {"critic_id": critic_id, "stored": stored_before(warehouse, iteration) if config.offline_episodes else ()}


def critic_before(warehouse: Warehouse, iteration: str, name: str) -> str | None:
    """The newest critic of a domain from before an iteration that has not learned from what was forgotten since."""
    query = "select checkpoint_id from checkpoints where stage = ? and iteration < ? order by iteration desc"
    with connect(warehouse, tables=["checkpoints"]) as con:
        found = [id_ for (id_,) in con.execute(query, [critic_stage(name), iteration]).fetchall()]
    tainted = taints(warehouse) if found else {}
    return next((id_ for id_ in found if id_ not in tainted), None)


def stored_before(warehouse: Warehouse, iteration: str) -> tuple[str, ...]:
    """ITERATION/STAGE of what policies played on training instances before an iteration: rollouts and the episodes of RL."""
    places = {(file.iteration, file.stage) for file in warehouse.listed("episodes")[1]}
    wanted = (place for place in places if SEED_ITERATION < place[0] < iteration and (place[1] == "rollouts" or is_rl(place[1])))
    return tuple(f"{of}/{stage}" for of, stage in sorted(wanted))
