"""What processes learn that share out by ZeRO what they train: what one learns, before and after a state that another number of them
wrote. The processes are forks of this one, on gloo; whole runs, and `kill -9`, are test_rl_processes.py's.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from models.checkpoints.checkpoint import save
from models.families.registry import load_policy, policy_without_weights
from models.rl.config import PpoConfig
from models.rl.distributed.process_group import ProcessGroup
from models.rl.state import Counters, load_optimizers, load_state, save_optimizers, save_state
from models.rl.value.learner import Gate
from models.training.zero import gathered, is_shared_out, prepare_deepspeed
from tests.models.ppo_episodes import per_token
from tests.models.test_rl_together import BATCHES, SETTINGS, Part, assert_same, broken, parts
from tests.models.vision_models import VISION_MODELS
from warehouse.core.errors import CheckpointError

TOLERANCE = 5e-6
"""Between weights: another order of adding differs by 1e-7 after two rounds that move weights by up to 2e-2."""


def at_once(size: int, settings: dict[str, Any], work: Callable[[Part], None]) -> None:
    """Do it in so many processes, each with its part of a group."""
    prepare_deepspeed()
    import deepspeed  # noqa: F401  once, before it is needed several times

    store, pids = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                _as_rank(rank, size, settings, store.port, work)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * size


def _as_rank(rank: int, size: int, settings: dict[str, Any], port: int, work: Callable[[Part], None]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # DeepSpeed's own
    group = ProcessGroup(rank, size, timedelta(seconds=60))
    part = Part(group, PpoConfig.model_validate(SETTINGS | settings))
    if size > 1:
        group.join(TCPStore("127.0.0.1", port, is_master=False), "127.0.0.1", on_gpu=False)
    work(part)
    group.leave()


def modules(part: Part) -> dict[str, torch.nn.Module]:
    return {"policy": part.policy.model} | ({"critic": part.critic} if part.critic else {})


def optimizers(part: Part) -> dict[str, Any]:
    return {"policy": part.policy.optimizer} | ({"critic": part.values.optimizer} if part.values else {})


def has_the_same_tensors(folder: Path) -> None:
    model, bare = load_policy(folder), policy_without_weights(folder)
    assert all(parameter.is_meta for parameter in bare.parameters())
    named, theirs = list(model.named_parameters()), list(bare.named_parameters())
    for (name, parameter), (other, empty) in zip(named, theirs, strict=True):
        assert (name, parameter.shape, parameter.dtype) == (other, empty.shape, empty.dtype)
    for (name, buffer), (other, computed) in zip(model.named_buffers(), bare.named_buffers(), strict=True):
        assert name == other and torch.equal(buffer, computed), name
    assert not bare.training and list(bare.state_dict()) == list(model.state_dict())


def test_a_policy_that_waits_for_its_weights_is_the_same_but_for_them(seed_checkpoint: Path, tmp_path: Path) -> None:
    has_the_same_tensors(seed_checkpoint)
    for name, make in VISION_MODELS.items():
        save(tmp_path / name, *make(), stage="seed_policy", iteration="0000")
        has_the_same_tensors(tmp_path / name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_read_in_pieces_is_what_is_stored(seed_checkpoint: Path, tmp_path: Path) -> None:
    """As CT and SFT read it, also where a family stores its weights under other names."""
    folders = {"seed": seed_checkpoint} | {name: tmp_path / name for name in VISION_MODELS}
    for name, make in VISION_MODELS.items():
        save(folders[name], *make(), stage="seed_policy", iteration="0000")
    stored = {name: load_policy(folder).state_dict() for name, folder in folders.items()}

    def read(part: Part) -> None:
        import deepspeed
        from transformers.integrations import HfDeepSpeedConfig

        deepspeed.init_distributed(dist_init_required=False)
        os.environ["LOCAL_RANK"] = "0"
        settings = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1})
        for name, folder in folders.items():
            model = load_policy(folder)
            assert settings.is_zero3() and all(is_shared_out(parameter) for parameter in model.parameters())
            with gathered(list(model.parameters())):
                assert_same(model.state_dict(), stored[name])

    at_once(2, {}, read)


def share_out(part: Part) -> None:
    if part.group.size > 1 and part.config.zero_stage:
        part.policy.share_out()
        if part.values is not None:
            part.values.share_out()


def whole_weights(part: Part) -> dict[str, Tensor]:
    with gathered([parameter for module in modules(part).values() for parameter in module.parameters()]):
        return {name: tensor.detach().clone() for name, tensor in part.weights().items()}


def resumed(part: Part, state: Path) -> None:
    counters = load_state(state, modules(part), {})
    part.policy.num_updates = counters.num_updates
    if part.values is not None:
        part.values.gate = counters.gate
    share_out(part)
    load_optimizers(state, optimizers(part))


def write_weights(part: Part, file: Path) -> None:
    """By the leader, of what all have to take part in."""
    weights = whole_weights(part)
    if part.group.is_leader:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, file)


def saved(part: Part, folder: Path) -> None:
    """A state, of which each writes its part at the same time: the leader in the end, as `save_parts` has it wait for the others."""
    others = folder / "others"
    others.mkdir(exist_ok=True, parents=True)
    if not part.group.is_leader:
        save_optimizers(others, optimizers(part))
    part.group.sum([0.0])

    def take_parts(aside: Path) -> None:
        for file in others.iterdir():
            file.rename(aside / file.name)

    if part.group.is_leader:
        gate = part.values.gate if part.values else Gate()
        counters = Counters(round_index=1, num_updates=part.policy.num_updates, gate=gate)
        save_state(folder / "state", counters, modules(part), optimizers(part), take_parts)
    part.group.sum([0.0])


def learned_alone(**settings: Any) -> dict[str, Tensor]:
    (alone,) = parts(1, **settings)
    for index, items in enumerate(BATCHES, start=1):
        alone.learn(index, items)
    return alone.weights()


CASES = [
    pytest.param(2, {"zero_stage": 2}, marks=pytest.mark.slow, id="gradients"),
    pytest.param(2, {"zero_stage": 3}, marks=pytest.mark.slow, id="everything"),
    pytest.param(2, {"zero_stage": 1}, marks=pytest.mark.long, id="state"),
    pytest.param(3, {"zero_stage": 3, "lora_rank": 2, "kl_coefficient": 0.1}, marks=pytest.mark.long, id="adapters"),
    pytest.param(3, {"zero_stage": 2, "minibatch_episodes": 1, "level": "step", "epochs": 1}, marks=pytest.mark.long, id="lonely"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("size", "settings"), CASES)
def test_what_is_shared_out_learns_what_one_does_and_resumes_to_the_bit(size: int, settings: dict[str, Any], tmp_path: Path) -> None:
    def learn(part: Part) -> None:
        share_out(part)
        is_whole = part.config.zero_stage < 3
        assert all(is_whole or is_shared_out(parameter) for module in modules(part).values() for parameter in module.parameters())
        part.learn(1, BATCHES[0])
        saved(part, tmp_path)
        part.learn(2, BATCHES[1])
        write_weights(part, tmp_path / "learned.safetensors")

    def go_on(part: Part) -> None:
        resumed(part, tmp_path / "state")
        part.learn(2, BATCHES[1])
        write_weights(part, tmp_path / "again.safetensors")

    at_once(size, settings, learn)
    learned = load_file(tmp_path / "learned.safetensors")
    assert_same(learned, learned_alone(**settings), atol=TOLERANCE)
    at_once(size, settings, go_on)
    assert_same(load_file(tmp_path / "again.safetensors"), learned)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_state_is_read_by_any_number_of_processes_at_any_stage(tmp_path: Path) -> None:
    def first(part: Part) -> None:
        share_out(part)
        part.learn(1, BATCHES[0])
        saved(part, tmp_path)

    at_once(3, {"zero_stage": 3}, first)
    expected = learned_alone()
    for size, stage in ((1, 0), (2, 0), (2, 2), (2, 3), (3, 1)):
        file = tmp_path / f"{size}-{stage}.safetensors"

        def go_on(part: Part, file: Path = file) -> None:
            resumed(part, tmp_path / "state")
            part.learn(2, BATCHES[1])
            write_weights(part, file)

        at_once(size, {"zero_stage": stage}, go_on)
        assert_same(load_file(file), expected, atol=TOLERANCE)
    (lost,) = tmp_path.glob("state/round-*/critic.optimizer-1-of-3.safetensors")
    lost.unlink()
    with pytest.raises(CheckpointError, match="parts of the optimizer are missing"):
        load_state(tmp_path / "state", modules(parts(1)[0]), {})


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [2, 3])
def test_what_explodes_is_undone_and_what_is_no_number_is_left_out(stage: int) -> None:
    exploding = {"learning_rate": 0.3, "warmup_steps": 1, "explosive_kl": 1.0, "max_kl": 100.0, "on_explosion": "roll_back"}

    def undo(part: Part) -> None:
        share_out(part)
        before = whole_weights(part)
        found = part.learn(1, BATCHES[0])
        assert (found["exploded"], found["rolled_back"], found["updates"]) == (1.0, 1.0, 0)
        assert_same(whole_weights(part), before)

    def leave_out(part: Part) -> None:
        share_out(part)
        items = broken()
        found = part.policy.update(items, per_token(items, [1.0, -1.0] * 4), np.random.default_rng(0))
        assert (found["skipped_minibatches"], found["updates"]) == (1, 1)

    at_once(2, {"zero_stage": stage, "algorithm": "reinforce", **exploding}, undo)
    skipping = {"off_policy": "none", "on_non_finite": "skip", "epochs": 1}
    at_once(2, {"zero_stage": stage, "algorithm": "reinforce", **skipping}, leave_out)
