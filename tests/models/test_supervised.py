"""Supervised training: it learns, repeats itself to the bit, resumes to the bit after a kill, and names what is wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.policy.policy import Message
from models.checkpoints.checkpoint import Card, load_tokenizer, read_card, save
from models.families.registry import load_policy
from models.supervised.checkpoints import COMPLETE_FILE
from models.supervised.config import SupervisedConfig
from models.supervised.early_stop import is_held_out
from models.supervised.fitting import fit
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.batching import EncodedSample, tensors
from models.training.forward import weighted_loss
from models.training.metrics import MetricLog, Progress, read_metrics
from warehouse.core.errors import CheckpointError, ConfigError, StorageFull, TrainingDiverged

CONFIG = SupervisedConfig(steps=24, warmup_steps=4, batch_tokens=256, save_every=5, log_every=2)


def samples(num: int = 60) -> list[TrainingSample]:
    """Say again the word that was asked for."""
    rng = random.Random(0)
    made = []
    for _ in range(num):
        word = rng.choice(("Ok", "Submit", "zK9", "see", "then"))
        messages = (Message(role="user", content=f'Find "{word}" then hello', loss=1.0), Message(role="assistant", content=word, loss=1.0))
        made.append(TrainingSample(messages=messages, weight=rng.choice((1.0, 2.0))))
    return made


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_learns_and_says_so(seed_checkpoint: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    config = CONFIG.model_copy(update={"steps": 60})
    card = train_supervised(
        config,
        samples(),
        init=seed_checkpoint,
        output=tmp_path / "sft",
        stage="sft_model",
        iteration="0001",
        datasets=("dataset-1",),
        on_progress=seen.append,
    )
    assert card == read_card(tmp_path / "sft")
    assert card.parents == (read_card(seed_checkpoint).checkpoint_id,)
    assert card.config == config.model_dump(mode="json")
    assert [progress.step for progress in seen] == list(range(2, 61, 2))
    assert seen[-1].metrics["loss"] < 0.2 * seen[0].metrics["loss"]
    assert seen[-1].metrics["learning_rate"] < 1e-4 < seen[2].metrics["learning_rate"]
    assert read_metrics(tmp_path / "sft.run") == seen
    assert any(path.name.startswith("events.out.tfevents") for path in (tmp_path / "sft.run").iterdir())
    assert not list((tmp_path / "sft.run").glob("checkpoint-*")), "nothing to resume is left behind"


@pytest.mark.slow
def test_the_same_run_gives_the_same_weights_and_another_seed_does_not(seed_checkpoint: Path, tmp_path: Path) -> None:
    def run(name: str, seed: int) -> bytes:
        config = CONFIG.model_copy(update={"seed": seed, "steps": 10})
        train_supervised(config, samples(), init=seed_checkpoint, output=tmp_path / name, stage="ct_model", iteration="0001")
        return weights_of(tmp_path / name)

    assert run("one", 0) == run("again", 0) != run("other", 1)


@pytest.mark.slow
@pytest.mark.parametrize("packing", [pytest.param("padded", marks=pytest.mark.long), "packed"])
def test_bfloat16_gives_nearly_the_same_loss(tmp_path: Path, make_model: Callable[..., Any], packing: str) -> None:
    losses = []
    for bf16 in (False, True):
        model, tokenizer = make_model()
        config = CONFIG.model_copy(update={"steps": 3, "packing": packing, "bf16": bf16})
        losses.append(fit(model, encode_samples(tokenizer, samples(), 0.0, max_tokens=2048), config, tmp_path / str(bf16))["loss"])
        assert model.dtype == torch.float32
    assert losses[1] != losses[0] and losses[1] == pytest.approx(losses[0], rel=0.01)


class Stop(Exception):
    """What a test raises in place of a kill."""


def unmark(folder: Path) -> None:
    (folder / COMPLETE_FILE).unlink()


def cut_off(folder: Path) -> None:
    with (folder / "optimizer.pt").open("r+b") as file:
        file.truncate(1000)


@pytest.mark.parametrize(
    ("changes", "spoil"),
    [
        pytest.param({}, unmark, marks=pytest.mark.slow),
        ({"packing": "packed", "eval_fraction": 0.2, "eval_every": 4, "early_stop_patience": 9}, cut_off),
    ],
)
@pytest.mark.slow
def test_resumes_to_the_bit_and_never_from_half_a_checkpoint(
    seed_checkpoint: Path, tmp_path: Path, changes: dict[str, Any], spoil: Callable[[Path], None]
) -> None:
    common: dict[str, Any] = {"init": seed_checkpoint, "stage": "ct_model", "iteration": "0001"}
    config = CONFIG.model_copy(update=changes)
    whole = train_supervised(config, samples(), output=tmp_path / "whole", **common)

    def stop(progress: Progress) -> None:
        if progress.step == 18:
            raise Stop

    with pytest.raises(Stop):
        train_supervised(config, samples(), output=tmp_path / "cut", on_progress=stop, **common)
    spoil(tmp_path / "cut.run" / "checkpoint-15")
    resumed = train_supervised(config, samples(), output=tmp_path / "cut", **common)
    assert resumed.metrics["resumed_from_step"] == 10
    assert resumed.checkpoint_id == whole.checkpoint_id
    assert weights_of(tmp_path / "cut") == weights_of(tmp_path / "whole")
    assert read_metrics(tmp_path / "cut.run") == read_metrics(tmp_path / "whole.run"), "every step is reported once"


@pytest.mark.parametrize(
    "changed", ["config", pytest.param("samples", marks=pytest.mark.slow), pytest.param("init", marks=pytest.mark.long)]
)
def test_what_another_run_left_is_not_gone_on_with(
    seed_checkpoint: Path, tmp_path: Path, make_model: Callable[..., Any], changed: str
) -> None:
    save(tmp_path / "other", *make_model(seed=1), stage="seed_policy", iteration="0000")
    config = CONFIG.model_copy(update={"steps": 6, "save_every": 2})
    cut: dict[str, Any] = {"config": config, "samples": samples(), "init": seed_checkpoint}
    asked = cut | {
        changed: {"config": config.model_copy(update={"seed": 1}), "samples": samples()[1:], "init": tmp_path / "other"}[changed]
    }

    def stop(progress: Progress) -> None:
        if progress.step == 4:
            raise Stop

    def run(name: str, given: dict[str, Any], **more: Any) -> Card:
        place = {"init": given["init"], "output": tmp_path / name, "stage": "ct_model", "iteration": "0001"}
        return train_supervised(given["config"], given["samples"], **place, **more)

    with pytest.raises(Stop):
        run("cut", cut, on_progress=stop)
    after = run("cut", asked)
    assert after.metrics["resumed_from_step"] == 0
    assert after.checkpoint_id == run("whole", asked).checkpoint_id
    assert read_metrics(tmp_path / "cut.run") == read_metrics(tmp_path / "whole.run")


@pytest.mark.slow
def test_the_last_step_is_logged_whatever_the_interval(seed_checkpoint: Path, tmp_path: Path) -> None:
    for log_every, logged in ((25, [4]), (3, [3, 4]), (2, [2, 4])):
        config = CONFIG.model_copy(update={"steps": 4, "log_every": log_every})
        name = f"every-{log_every}"
        card = train_supervised(config, samples(), init=seed_checkpoint, output=tmp_path / name, stage="sft_model", iteration="0001")
        points = read_metrics(tmp_path / f"{name}.run")
        assert [point.step for point in points] == logged
        assert card.metrics["loss"] == pytest.approx(sum(point.metrics["loss"] for point in points) / len(points))


KILLED_CONFIG = CONFIG.model_copy(update={"steps": 120, "save_every": 7})
KILLED = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
spec = spec_from_file_location("body", sys.argv[1])
body = module_from_spec(spec)
spec.loader.exec_module(body)
body.torch.set_num_threads(1)
init, output = map(Path, sys.argv[2:])
body.train_supervised(body.KILLED_CONFIG, body.samples(), init=init, output=output, stage="ct_model", iteration="0001")
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_killed_at_random_moments_ends_in_the_same_weights(seed_checkpoint: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"init": seed_checkpoint, "stage": "ct_model", "iteration": "0001"}
    whole = train_supervised(KILLED_CONFIG, samples(), output=tmp_path / "whole", **common)
    output, run_folder, moments, kills = tmp_path / "cut", tmp_path / "cut.run", random.Random(0), 0
    command = [sys.executable, "-c", KILLED, __file__, str(seed_checkpoint), str(output)]
    while not output.exists():
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONPATH": "."})
        num_lines = len(read_metrics(run_folder))
        while kills < 3 and process.poll() is None and len(read_metrics(run_folder)) <= num_lines:
            time.sleep(0.02)  # until it trains
        time.sleep(moments.uniform(0.0, 0.7))
        if kills < 3 and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills
    assert read_card(output).checkpoint_id == whole.checkpoint_id
    once, cut = read_metrics(tmp_path / "whole.run"), read_metrics(run_folder)
    assert [(point.step, point.metrics["grad_norm"]) for point in cut] == [(point.step, point.metrics["grad_norm"]) for point in once]
    # The Trainer logs the mean loss since the last line, and counts again where it resumes between two lines.
    assert sum(one != other for one, other in zip(once, cut, strict=True)) <= kills


def test_a_loss_that_is_not_a_number_stops_the_run(seed_checkpoint: Path, tmp_path: Path, make_model: Callable[..., Any]) -> None:
    config = CONFIG.model_copy(update={"learning_rate": 1.0, "max_grad_norm": 1e30, "warmup_steps": 0, "steps": 200})
    model, tokenizer = make_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("inf"))
    save(tmp_path / "broken", model, tokenizer, stage="seed_policy", iteration="0000")
    with pytest.raises(TrainingDiverged, match=r"nan at step 1 of 200 with learning rate .* so is that of each .* the weights diverged"):
        train_supervised(config, samples(), init=tmp_path / "broken", output=tmp_path / "out", stage="ct_model", iteration="0001")
    assert not (tmp_path / "out").exists()


def test_a_gradient_that_is_not_a_number_stops_the_run_before_its_step(tmp_path: Path, make_model: Callable[..., Any]) -> None:
    """Also at the last step, after which no loss would tell."""
    model, tokenizer = make_model()
    with torch.no_grad():  # attended values are huge and count nothing: the loss is a number, the gradient of what leaves them out is not
        model.model.layers[0].self_attn.v_proj.weight.mul_(1e30)
        model.model.layers[0].self_attn.o_proj.weight.zero_()
    save(tmp_path / "huge", model, tokenizer, stage="seed_policy", iteration="0000")
    config = CONFIG.model_copy(update={"steps": 1})
    with pytest.raises(TrainingDiverged, match=r"the gradient norm is (inf|nan) at step 1 of 1, though the loss is finite"):
        train_supervised(config, samples(), init=tmp_path / "huge", output=tmp_path / "out", stage="ct_model", iteration="0001")
    assert not (tmp_path / "out").exists()


def test_a_sample_that_breaks_the_loss_is_named(tmp_path: Path, make_model: Callable[..., Any]) -> None:
    model, tokenizer = make_model()
    encoded = encode_samples(tokenizer, samples(), 0.0, max_tokens=2048)
    encoded.append(EncodedSample(token_ids=[5, 6, 7], loss_weights=[0.0, 0.0, float("inf")], sample_id="sample-bad", weight=20.0))
    with pytest.raises(TrainingDiverged, match=r"\d of its \d+ samples have such a loss alone \(sample-bad\): check them"):
        fit(model, encoded, CONFIG.model_copy(update={"packing": "packed"}), tmp_path)


@pytest.mark.slow
def test_a_sample_longer_than_the_context_is_left_out_counted_and_reported(
    seed_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    messages = (Message(role="user", content="hello " * 3000), Message(role="assistant", content="Ok", loss=1.0))
    config = CONFIG.model_copy(update={"steps": 2})
    card = train_supervised(
        config,
        [*samples(), TrainingSample(messages=messages, sample_id="sample-long")],
        init=seed_checkpoint,
        output=tmp_path / "out",
        stage="ct_model",
        iteration="0001",
    )
    assert card.metrics["samples_too_long"] == 1 and card.metrics["samples"] == len(samples())
    assert "1 of 61 samples are longer than 2048 tokens and left out: sample-long (3004 tokens)" in caplog.text


@pytest.mark.slow
def test_a_full_disk_is_called_so_and_the_run_goes_on_where_it_was(seed_checkpoint: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"init": seed_checkpoint, "output": tmp_path / "out", "stage": "ct_model", "iteration": "0001"}

    def fill(progress: Progress) -> None:
        if progress.step == 8:
            folder = tmp_path / "out.run" / "checkpoint-10"
            folder.mkdir()
            (folder / "trainer_state.json").symlink_to("/dev/full")

    with pytest.raises(StorageFull, match=r"no room for .*: the disk of .* has .* left, 256.0 MiB are wanted"):
        train_supervised(CONFIG, samples(), on_progress=fill, **common)
    assert not (tmp_path / "out").exists()
    assert train_supervised(CONFIG, samples(), **common).metrics["resumed_from_step"] == 5


@pytest.mark.slow
def test_stops_early_and_keeps_the_best_weights(seed_checkpoint: Path, tmp_path: Path) -> None:
    rng, words = random.Random(0), ("Ok", "Submit", "see", "then", "hello", "Find")
    noise = [
        TrainingSample(
            messages=(
                Message(role="user", content=" ".join(rng.choices(words, k=6))),
                Message(role="assistant", content=rng.choice(words), loss=1.0),
            )
        )
        for _ in range(40)
    ]
    config = CONFIG.model_copy(
        update={"steps": 200, "eval_fraction": 0.3, "eval_every": 5, "early_stop_patience": 2, "log_every": 50, "save_every": 100}
    )
    card = train_supervised(config, noise, init=seed_checkpoint, output=tmp_path / "out", stage="sft_model", iteration="0001")
    curve = {point.step: point.metrics["eval_loss"] for point in read_metrics(tmp_path / "out.run") if "eval_loss" in point.metrics}
    best = min(curve, key=lambda step: curve[step])
    assert card.metrics["eval_best_step"] == best and card.metrics["steps"] == max(curve) == best + 10 < 200
    chosen = encode_samples(load_tokenizer(seed_checkpoint), noise, 0.0, max_tokens=2048)
    held_out = [sample for sample in chosen if is_held_out(sample, 0.3)]
    with torch.no_grad():
        kept = float(weighted_loss(load_policy(tmp_path / "out"), tensors(held_out, 0)))
    assert kept == pytest.approx(curve[best], abs=1e-5)


def test_nothing_to_learn_and_no_checkpoint_are_reported(seed_checkpoint: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"output": tmp_path / "out", "stage": "ct_model", "iteration": "0001"}
    silent = TrainingSample(messages=(Message(role="user", content="hello"), Message(role="assistant", content="Ok")))
    with pytest.raises(ConfigError, match="none of the 1 samples"):
        train_supervised(CONFIG, [silent], init=seed_checkpoint, **common)
    with pytest.raises(CheckpointError):
        train_supervised(CONFIG, samples(), init=tmp_path / "nowhere", **common)


def test_the_loss_is_the_weighted_mean_over_tokens(seed_checkpoint: Path) -> None:
    model = load_policy(seed_checkpoint)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, model.config.pad_token_id, model.config.pad_token_id]])
    weights = torch.tensor([[0.0, 0.5, 0.0, 1.0], [0.0, 2.0, 0.0, 0.0]])
    logprobs = model(ids).logits.log_softmax(dim=-1)
    expected = -(0.5 * logprobs[0, 0, 6] + 1.0 * logprobs[0, 2, 8] + 2.0 * logprobs[1, 0, 10]) / 3.5
    batch = {"input_ids": ids[:, :-1], "targets": ids[:, 1:], "loss_weights": weights[:, 1:]}
    torch.testing.assert_close(weighted_loss(model, batch), expected)


def test_metrics_leave_out_a_line_that_was_cut_off(tmp_path: Path) -> None:
    log = MetricLog(tmp_path)
    for step in (1, 2, 3):
        log.write(Progress(step=step, num_steps=3, metrics={"loss": 1.0 / step}))
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "num_')
    assert [progress.step for progress in read_metrics(tmp_path)] == [1, 2, 3]
    MetricLog(tmp_path, resume_step=2).close()
    assert [progress.step for progress in read_metrics(tmp_path)] == [1, 2]
