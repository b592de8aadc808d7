"""Value pretraining before a run: the critic is fitted to the Monte-Carlo returns of stored episodes until it no longer improves on others.

UI-TARS-2 (arXiv 2509.02544) pretrains it on episodes of a fixed policy until loss and explained variance have converged, VC-PPO (arXiv
2503.01491) for a number of steps. Here the episodes are those that a home has stored, of the policy that enters an iteration and of all
iterations before, and convergence is measured on instances that the critic is not fitted to. What it learns in the rounds of a run is
learner.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from agent.episode.episode import Episode
from models.checkpoints import checkpoint
from models.rl.config import PpoConfig
from models.rl.updates.advantages import Floats, explained_variance
from models.rl.updates.buffer import Trajectory
from models.rl.value.critic import predict
from models.rl.value.learner import ValueLearner, held_apart
from models.rl.value.offline_fit import OfflineFit
from models.training.adapters import trained_parameters
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id, stable_seed

LEAST_HELD_OUT = 8
"""With fewer held-out episodes it cannot be measured whether a critic improves: then it is not fitted before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSource:
    """Where a run's critic comes from and where it goes. `parent` is the folder of the critic before; `episodes` yields stored ones, of
    training instances only, and is called once; `episodes_name` says which, for the name of the run. `output` becomes a checkpoint."""

    stage: str
    output: Path
    parent: Path | None = None
    episodes: Callable[[], Iterable[Episode]] = tuple
    episodes_name: str = ""

    @property
    def identity(self) -> str:
        parent = None if self.parent is None else checkpoint.read_card(self.parent).checkpoint_id
        return content_id("critic_source", [parent, self.episodes_name])


def refuse_reported(episodes: Iterable[Episode]) -> list[Episode]:
    """The episodes; raises ConfigError for one of an instance that is evaluated on: nothing may learn from these."""
    found = list(episodes)
    for episode in found:
        if episode.request.task.held_out or episode.request.split is not Split.TRAIN:
            raise ConfigError(
                f"episode {episode.episode_id} is of split {episode.request.split} or of a held-out task: the critic learns from training "
                "instances only"
            )
    return found


def fit_offline(
    values: ValueLearner, trajectories: Sequence[Trajectory], config: PpoConfig, on_epoch: Callable[[int, float], None] = lambda *_: None
) -> OfflineFit | None:
    """Fit the critic to returns of stored episodes until `offline_patience` epochs have not lowered the loss on held-out ones, and keep the
    best epoch's weights, those it came with included. The optimizer is one of its own: the run's begins fresh. None where there are too few
    episodes. `on_epoch(epoch, held-out loss)`. Raises TrainingDiverged."""
    fitted, checked = held_apart(trajectories, config.gate_holdout)
    if not fitted or len(checked) < LEAST_HELD_OUT:
        return None
    own = ValueLearner(values.critic, config, pad_id=values.pad_id)  # of this process alone: the others have not joined yet
    returns = own.estimate(trajectories).returns
    held_out = [trajectories[i] for i in checked]
    wanted = np.concatenate([returns[i] for i in checked])
    generator = np.random.default_rng(stable_seed("offline_critic", config.seed))

    def estimates() -> Floats:
        return np.concatenate(predict(values.critic, held_out, level=config.level, batching=values.batching))

    best, best_values = 0, estimates()
    best_loss, kept = _loss(best_values, wanted), _copied(values)
    epoch = 0
    while epoch < config.offline_max_epochs and epoch - best < config.offline_patience:
        epoch += 1
        own.fit_chosen(trajectories, returns, fitted, generator)
        found = estimates()
        loss = _loss(found, wanted)
        on_epoch(epoch, loss)
        if loss < best_loss:
            best, best_values, best_loss, kept = epoch, found, loss, _copied(values)
    _restore(values, kept)
    return OfflineFit(
        episode_ids=tuple(trajectories[i].episode_id for i in fitted),
        num_held_out=len(checked),
        epochs=epoch,
        best_epoch=best,
        initial_loss=float(np.mean(wanted**2)),
        value_loss=best_loss,
        explained_variance=explained_variance(best_values, wanted),
    )


def _loss(values: Floats, returns: Floats) -> float:
    return float(np.mean((values - returns) ** 2))


def _copied(values: ValueLearner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained_parameters(values.critic)]


@torch.no_grad()
def _restore(values: ValueLearner, kept: Sequence[torch.Tensor]) -> None:
    for parameter, value in zip(trained_parameters(values.critic), kept, strict=True):
        parameter.copy_(value)
