"""The critic as a checkpoint of its own: what it trains, in safetensors, with a card. A run begins from the one before and leaves one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError

from models.checkpoints import checkpoint
from models.rl.config import PpoConfig
from models.rl.state import load_weights, save_weights
from models.rl.value.critic import Critic
from warehouse.core.errors import CheckpointError

CRITIC_FILE = "critic.safetensors"


def save_critic(
    folder: Path, critic: Critic, config: PpoConfig, *, stage: str, iteration: str, parents: tuple[str, ...], metrics: Mapping[str, float]
) -> checkpoint.Card:
    """Write a critic; of one with frozen weights the others alone, since the frozen are the policy's. Raises StorageFull."""
    return checkpoint.write(
        folder,
        lambda aside: save_weights(critic, aside / CRITIC_FILE),
        stage=stage,
        iteration=iteration,
        parents=parents,
        config=config.model_dump(mode="json"),
        metrics=metrics,
        kind="critic",
    )


def load_critic(folder: Path, critic: Critic) -> checkpoint.Card:
    """Fill a critic of the same shape. Raises CheckpointError for a folder that is not whole, or of another model."""
    card = checkpoint.verify(folder)
    try:
        load_weights(critic, folder / CRITIC_FILE)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"the critic {card.checkpoint_id} in {folder} does not fit the policy ({str(error)[:300]}): it was trained with another model "
            "or other adapters. Set rl.carry_critic to false for one iteration, so that a new critic is made"
        ) from error
    return card
