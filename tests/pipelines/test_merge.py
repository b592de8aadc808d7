"""`flywheel merge` as a process and in this one: what it says, refuses, and leaves behind; `flywheel eval --step-budgets`' arguments."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from agent.episode.episode import EpisodeRequest
from models.checkpoints import checkpoint
from pipelines.stages.merge_checkpoints import merge_checkpoints, merge_config, parse_weights
from pipelines.stages.step_budgets import parse_budgets
from sandbox.tasks.task import Task
from tests.models.merge_helpers import read_all, write_parent
from warehouse.core.errors import ConfigError, MergeError

WIDE = 120
FLYWHEEL = (sys.executable, "-m", "pipelines.cli", "merge")


@pytest.fixture
def family(tmp_path: Path) -> tuple[Path, list[Path]]:
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(50, 40, generator=generator).bfloat16()}
    root = write_parent(tmp_path / "base", base, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    moved = [{"w": (base["w"].float() + 0.1 * torch.randn(50, 40, generator=generator)).bfloat16()} for _ in range(2)]
    return root, [write_parent(tmp_path / f"p{k}", tensors, parents=(mother,)) for k, tensors in enumerate(moved)]


def no_warehouse(name: str) -> Path:
    raise AssertionError(f"{name} is a folder and needs no warehouse")


def said(console: Console) -> str:
    return " ".join(console.export_text().split())


def test_a_merge_is_announced_and_made(tmp_path: Path, family: tuple[Path, list[Path]]) -> None:
    base, parents = family
    console = Console(record=True, width=WIDE)
    names, output = [str(parent) for parent in parents], tmp_path / "out"
    config = merge_config(method="ties", density=0.4)
    merge_checkpoints(no_warehouse, names, output, "1,2", config, str(base), console, dry_run=True)
    assert "nothing was written" in said(console) and not output.exists()
    merge_checkpoints(no_warehouse, names, output, "1,2", config, str(base), console)
    card = checkpoint.verify(output)
    text = said(console)
    assert card.config["density"] == 0.4 and card.checkpoint_id in text and "1 tensors, BF16" in text and "density 0.4" in text
    merge_checkpoints(no_warehouse, names, output, None, merge_config(), None, console)
    ids = [checkpoint.read_card(parent).checkpoint_id for parent in parents]
    assert checkpoint.verify(output).config["weights"] == dict.fromkeys(ids, 0.5)


def test_what_must_not_be_replaced_is_not(tmp_path: Path, family: tuple[Path, list[Path]]) -> None:
    base, parents = family
    names, console = [str(parent) for parent in parents], Console(record=True, width=WIDE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for output, words in (
        (tmp_path / "mine", "not a checkpoint"),
        (parents[0], "one of the checkpoints"),
        (base, "one of the checkpoints"),
    ):
        with pytest.raises(MergeError, match=words):
            merge_checkpoints(no_warehouse, names, output, None, merge_config(method="ties"), str(base), console)
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_flags_that_are_wrong_are_named() -> None:
    with pytest.raises(ConfigError, match=r"--method 'soup': .*'linear'"):
        merge_config(method="soup")
    with pytest.raises(ConfigError, match=r"--density 0\.0"):
        merge_config(density=0.0)
    with pytest.raises(ConfigError, match="--weights 'half,half'"):
        parse_weights("half,half", 2)
    wrong = {"5,many": "'many' is neither", "0x,1x": "'0x' is neither", "2.5": "neither", "5,5": "twice", "5,2x": "mixes"}
    for text, words in wrong.items():
        with pytest.raises(ConfigError, match=words):
            parse_budgets(text)


def test_a_budget_takes_the_place_of_the_tasks_own() -> None:
    task = Task(source="miniwob", name="click-button", domain="pointing", max_steps=6)
    request = EpisodeRequest(purpose="evaluation", task=task, seed=3, policy_id="p")
    assert [budget.of(request).task.max_steps for budget in parse_budgets("2x,0.05x,1x")] == [1, 6, 12]
    assert [budget.of(request).task.max_steps for budget in parse_budgets("20,5")] == [5, 20]
    assert parse_budgets("1x")[0].of(request) == request


@pytest.mark.long
def test_a_merge_that_is_asked_to_end_leaves_nothing_half(tmp_path: Path) -> None:
    tensors = {f"w{k}": torch.randn(2000, 2000) for k in range(8)}
    parents = []
    for k in range(2):
        moved = {name: tensor + k for name, tensor in tensors.items()}
        parents.append(write_parent(tmp_path / f"p{k}", moved))
    output = tmp_path / "out"
    process = subprocess.Popen([*FLYWHEEL, *map(str, parents), "-o", str(output), "--threads", "1"])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out*/*.safetensors")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert not list(tmp_path.glob(".out*"))
    if output.exists():  # it was faster than the signal
        assert checkpoint.verify(output) and read_all(output).keys() == tensors.keys()
    else:
        assert process.returncode == 128 + signal.SIGTERM
