"""Supervised training in processes of its own, by data parallelism and by DeepSpeed's ZeRO: the same losses as in one process, exact resume
after a kill, an ordinary checkpoint, no process left behind. Two real processes each, so most of it is long."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from agent.policy.policy import Message
from models.checkpoints.checkpoint import Card, read_card, save, verify
from models.families.registry import load_policy
from models.supervised import distributed
from models.supervised.config import SupervisedConfig
from models.supervised.distributed import with_adapters
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from models.training.adapters import ADAPTER_FOLDER, prepare_for_training
from models.training.batching import EncodedSample, PlannedBatches, plan_batches, share_out
from models.training.forward import weighted_loss
from models.training.launcher import Launch
from models.training.metrics import Progress, read_metrics
from tests.models import logged_gathers
from warehouse.core.errors import ModelError, ProcessLost, TrainingDiverged

CONFIG = SupervisedConfig(steps=12, warmup_steps=2, batch_tokens=256, save_every=5, log_every=1)
TOLERANCE = 6e-6
"""Of a step's loss, two processes against one: what summing in another order was measured to do (float32)."""
STAGES = [None, 0, 1, 2, 3]


def samples() -> list[TrainingSample]:
    rng = random.Random(0)
    made = []
    for _ in range(60):
        word = rng.choice(("Ok", "Submit", "zK9", "see", "then"))
        content = f'Find "{word}" then hello ' * rng.choice((1, 2, 5))
        made.append(TrainingSample(messages=(Message(role="user", content=content), Message(role="assistant", content=word, loss=1.0))))
    return made


def test_shares_add_up_to_the_batch_in_loss_and_gradient(make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    generator = torch.Generator().manual_seed(0)
    encoded = [
        EncodedSample(token_ids=torch.randint(5, 90, (length,), generator=generator).tolist(), loss_weights=[0.0] + [0.5] * (length - 1))
        for length in (3, 30, 12, 9, 21)
    ]
    lengths = [len(sample.token_ids) for sample in encoded]
    plan = [*plan_batches(lengths, [1.0] * 5, batch_tokens=80, steps=3, seed=0, packing="packed"), [1]]

    def gradients(num_ranks: int, step: int) -> tuple[float, list[torch.Tensor]]:
        model.zero_grad()
        total = 0.0
        for rank in range(num_ranks):
            batches = PlannedBatches(encoded, plan, tokenizer.pad_token_id, packing="packed", rank=rank, num_ranks=num_ranks)
            loss = weighted_loss(model, batches[step], num_ranks=num_ranks) / num_ranks
            loss.backward()
            total += loss.item()
        return total, [parameter.grad.clone() for parameter in model.parameters()]

    for step in range(len(plan)):  # the last has one sample: a process without a share takes part all the same
        loss, expected = gradients(1, step)
        shared_loss, shared = gradients(2, step)
        assert shared_loss == pytest.approx(loss, abs=1e-6)
        for one, other in zip(expected, shared, strict=True):
            torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)
    assert sorted(row for share in share_out(range(5), lengths, 3) for row in share) == [0, 1, 2, 3, 4]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValidationError, match="use stage 1 or higher"):
        SupervisedConfig(bf16=True, deepspeed_stage=0)
    with pytest.raises(ValidationError, match="set eval_fraction"):
        SupervisedConfig(early_stop_patience=3)


@pytest.fixture(scope="module")
def alone(seed_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("alone") / "end"
    train_supervised(CONFIG, samples(), init=seed_checkpoint, output=output, stage="sft_model", iteration="0001")
    return output


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", STAGES)
def test_two_processes_learn_what_one_does(stage: int | None, alone: Path, seed_checkpoint: Path, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"num_processes": 2, "deepspeed_stage": stage})
    seen: list[int] = []
    card = train_supervised(
        config,
        samples(),
        init=seed_checkpoint,
        output=tmp_path / "end",
        stage="sft_model",
        iteration="0001",
        on_progress=lambda progress: seen.append(progress.step),
    )
    losses = [[point.metrics["loss"] for point in read_metrics(path.with_name("end.run"))] for path in (alone, tmp_path / "end")]
    assert losses[1] == pytest.approx(losses[0], abs=TOLERANCE, rel=0)
    assert seen == list(range(1, 13))
    assert verify(tmp_path / "end") == card
    assert sorted(card.files) == sorted(read_card(alone).files), "an ordinary checkpoint: nothing of DeepSpeed's is in it"
    ours, theirs = (load_policy(folder).state_dict() for folder in (alone, tmp_path / "end"))
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, atol=2e-5, rtol=0)
    assert card.files["config.json"] == read_card(alone).files["config.json"]
    assert not list((tmp_path / "end.run").glob("checkpoint-*"))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [1, 3])
def test_one_process_of_zero_learns_packed_rows_in_bfloat16(stage: int, seed_checkpoint: Path, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"steps": 40, "deepspeed_stage": stage, "bf16": True, "packing": "packed"})
    train_supervised(config, samples(), init=seed_checkpoint, output=tmp_path / "end", stage="sft_model", iteration="0001")
    losses = [point.metrics["loss"] for point in read_metrics(tmp_path / "end.run")]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert load_policy(tmp_path / "end").dtype == torch.float32


@pytest.mark.long
@pytest.mark.timeout(300)
def test_adapters_in_pieces_are_what_one_process_learns(seed_checkpoint: Path, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"lora_rank": 2})
    for name, changes in (("one", {}), ("two", {"num_processes": 2, "deepspeed_stage": 3})):
        place: dict[str, Any] = {"init": seed_checkpoint, "output": tmp_path / name, "stage": "sft_model", "iteration": "0001"}
        train_supervised(config.model_copy(update=changes), samples(), **place)
    for folder in (Path(), Path(ADAPTER_FOLDER)):
        theirs, ours = (tensors_of(tmp_path / name / folder) for name in ("two", "one"))
        assert theirs.keys() == ours.keys()
        for name, weight in ours.items():
            torch.testing.assert_close(theirs[name], weight, atol=2e-5, rtol=0)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_weights_in_pieces_are_gathered_once_when_all_is_learned(
    alone: Path, seed_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainer checkpoints are written before the last step, and one with it."""
    monkeypatch.setattr(distributed, "Launch", lambda _, *args, **options: Launch(logged_gathers.__name__, *args, **options))
    config = CONFIG.model_copy(update={"num_processes": 2, "deepspeed_stage": 3})
    train_supervised(config, samples(), init=seed_checkpoint, output=tmp_path / "end", stage="sft_model", iteration="0001")
    gathers = (tmp_path / "end.run" / logged_gathers.LOG_FILE).read_text().splitlines()
    num_tensors = len(dict(load_policy(alone).named_parameters()))
    at_start = gathers.count("[]")
    assert 0 < at_start <= 2 * (num_tensors + 1), "what is read is in pieces from the first on; once more for what is not in the file"
    assert gathers[at_start:] == ["['checkpoint-12']"] * 2 * num_tensors, "tensor by tensor, by both processes"


KILLED = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
spec = spec_from_file_location("body", sys.argv[1])
body = module_from_spec(spec)
spec.loader.exec_module(body)
held_out = {"eval_fraction": 0.2, "eval_every": 6, "early_stop_patience": 9}
config = body.CONFIG.model_copy(update={"steps": 40, "num_processes": 2, "deepspeed_stage": int(sys.argv[2]), **held_out})
init, output = map(Path, sys.argv[3:])
body.train_supervised(config, body.samples(), init=init, output=output, stage="ct_model", iteration="0001")
"""


def processes_of(run_folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        is_alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if is_alive and "models.supervised.process" in (process.info["cmdline"] or []) and str(run_folder) in process.info["cmdline"]:
            found.append(process)
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [1, 3])
def test_a_killed_run_leaves_no_process_and_ends_in_the_same_weights(stage: int, seed_checkpoint: Path, tmp_path: Path) -> None:
    def command(name: str) -> list[str]:
        return [sys.executable, "-c", KILLED, __file__, str(stage), str(seed_checkpoint), str(tmp_path / name)]

    place: dict[str, Any] = {"cwd": Path(__file__).parents[2], "env": {**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1"}}
    subprocess.run(command("whole"), check=True, **place)
    run_folder = tmp_path / "cut.run"
    process = subprocess.Popen(command("cut"), **place)
    while len(read_metrics(run_folder)) < 13 and process.poll() is None:
        time.sleep(0.02)  # until two checkpoints are behind it
    assert processes_of(run_folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while processes_of(run_folder):
        time.sleep(0.05)  # the test's timeout says when that is too long
    subprocess.run(command("cut"), check=True, **place)
    resumed = read_card(tmp_path / "cut")
    assert resumed.metrics["resumed_from_step"] >= 10
    assert resumed.checkpoint_id == read_card(tmp_path / "whole").checkpoint_id
    assert read_metrics(run_folder) == read_metrics(tmp_path / "whole.run"), "every step is reported once"


class Stopped(Exception):
    pass


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("stage", "first", "then"), [(None, 2, 1), (None, 2, 3), (0, 2, 1), (1, 2, 3), (2, 2, 1), (3, 2, 1), (3, 2, 3)])
def test_another_number_of_processes_goes_on(
    stage: int | None, first: int, then: int, alone: Path, seed_checkpoint: Path, tmp_path: Path
) -> None:
    """It is stopped at step 8, behind the checkpoint of step 5; that of step 10 may be there by then."""

    def stop(progress: Progress) -> None:
        if progress.step == 8:
            raise Stopped

    def train(num: int, **options: Any) -> Card:
        config = CONFIG.model_copy(update={"num_processes": num, "deepspeed_stage": stage})
        place: dict[str, Any] = {"init": seed_checkpoint, "output": tmp_path / "end", "stage": "sft_model", "iteration": "0001"}
        return train_supervised(config, samples(), **place, **options)

    with pytest.raises(Stopped):
        train(first, on_progress=stop)
    if stage is not None:
        assert not list(tmp_path.glob("end.run/checkpoint-*/*.safetensors")), "the weights are in the pieces"
    assert train(then).metrics["resumed_from_step"] in (5, 10)
    losses = [[point.metrics["loss"] for point in read_metrics(path.with_name("end.run"))] for path in (alone, tmp_path / "end")]
    assert losses[1] == pytest.approx(losses[0], abs=TOLERANCE, rel=0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_processes_end_with_the_agent_that_started_them(seed_checkpoint: Path, tmp_path: Path) -> None:
    """It may be the one that is killed, as for want of memory: the run ends, and nothing of it goes on beside its repetition."""
    config = CONFIG.model_copy(update={"steps": 4000, "num_processes": 2})
    place: dict[str, Any] = {"init": seed_checkpoint, "output": tmp_path / "cut", "stage": "ct_model", "iteration": "0001"}
    with ThreadPoolExecutor(1) as launcher:
        run = launcher.submit(train_supervised, config, samples(), **place)
        while len(read_metrics(tmp_path / "cut.run")) < 2 and not run.done():
            time.sleep(0.02)
        assert processes_of(tmp_path / "cut.run")
        (agent,) = (child for child in psutil.Process().children() if "models.training.node" in child.cmdline())
        agent.kill()
        with pytest.raises(ProcessLost, match=r"host 127\.0\.0\.1 ended with status -9"):
            run.result()
    while processes_of(tmp_path / "cut.run"):
        time.sleep(0.05)  # the test's timeout says when that is too long


def test_adapters_that_come_back_under_other_names_are_not_passed_over(seed_checkpoint: Path, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"lora_rank": 2, "num_processes": 2})
    model = load_policy(seed_checkpoint)
    prepare_for_training(model, config)
    learned = {name: tensor + 1 if "lora_" in name else tensor for name, tensor in model.state_dict().items()}
    save_file({name: tensor.clone() for name, tensor in learned.items()}, tmp_path / "model.safetensors")
    back = with_adapters(seed_checkpoint, config, tmp_path).state_dict()
    assert all(torch.equal(back[name], tensor) for name, tensor in learned.items())
    save_file({f"module.{name}": tensor.clone() for name, tensor in learned.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"names are unknown \(module\."):
        with_adapters(seed_checkpoint, config, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_went_wrong_in_a_process_is_reported_in_its_own_words(tmp_path: Path, make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("inf"))
    save(tmp_path / "broken", model, tokenizer, stage="seed_policy", iteration="0000")
    config = CONFIG.model_copy(update={"num_processes": 2})
    with pytest.raises(TrainingDiverged, match="nan at step 1 of 12"):
        train_supervised(config, samples(), init=tmp_path / "broken", output=tmp_path / "out", stage="ct_model", iteration="0001")
    assert not processes_of(tmp_path / "out.run")
