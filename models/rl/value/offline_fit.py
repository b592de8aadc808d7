"""The result of value pretraining before a run, as the run's folder keeps it. No torch: forgetting episodes reads it, too."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PRETRAINED, FIT_FILE = "critic", "offline_fit.json"
"""In the folder of a run: the critic that it begins with, and what that was fitted to."""


class OfflineFit(BaseModel):
    """What pretraining came to, on held-out episodes: `value_loss` and `explained_variance` of the epoch that was kept (0: the critic as it
    came), `initial_loss` of saying 0. `episode_ids` are those it was fitted to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episode_ids: tuple[str, ...] = ()
    num_held_out: int = 0
    epochs: int = 0
    best_epoch: int = 0
    initial_loss: float = 0.0
    value_loss: float = 0.0
    explained_variance: float = 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """As they are logged with the first round."""
        return {
            "offline_episodes": float(len(self.episode_ids)),
            "offline_held_out": float(self.num_held_out),
            "offline_epochs": float(self.epochs),
            "offline_value_loss_initial": self.initial_loss,
            "offline_value_loss": self.value_loss,
            "offline_explained_variance": self.explained_variance,
        }
