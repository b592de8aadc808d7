"""A warehouse in a temporary folder, and a small planted flywheel in it: two iterations with everything a lineage passes through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.homes import copied
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

on_disk = pytest.mark.parametrize("tables_place", ["disk"], indirect=True)
"""For tests of files of the home."""


class Make:
    """Whole rows of the catalogue's tables; keyword arguments overwrite what matters to a test."""

    @staticmethod
    def messages(text: str = "click Ok", answer: str = "Action click [1]") -> list[dict[str, Any]]:
        return [{"role": "user", "content": text, "loss": 0.0}, {"role": "assistant", "content": answer, "loss": 1.0}]

    @staticmethod
    def task(task_id: str, **rest: Any) -> dict[str, Any]:
        row = {
            "task_id": task_id,
            "source": "miniwob",
            "name": task_id,
            "domain": "pointing",
            "max_steps": 5,
            "held_out": False,
            "version": "1",
        }
        return row | rest

    @staticmethod
    def episode(episode_id: str, **rest: Any) -> dict[str, Any]:
        row = {
            "episode_id": episode_id,
            "purpose": "rollout",
            "task_id": "task-a",
            "task_name": "click-button",
            "domain": "pointing",
            "seed": 1,
            "split": "train",
            "attempt": 0,
            "policy_id": "oracle",
            "temperature": 1.0,
            "instruction": "Click",
            "outcome": "success",
            "reward": 1.0,
            "num_steps": 2,
            "num_retries": 0,
            "error": None,
            "duration_ms": 12.5,
            "environment": "env-1",
        }
        return row | rest

    @classmethod
    def step(cls, episode_id: str, step_index: int, **rest: Any) -> dict[str, Any]:
        row = {
            "episode_id": episode_id,
            "step_index": step_index,
            "policy_id": "oracle",
            "observation": '"Ok" <button> [1]',
            "screenshot_id": f"shot-{step_index}",
            "messages": cls.messages(),
            "response": "Action click [1]",
            "thought": None,
            "action": '{"kind":"click","x_px":1,"y_px":2}',
            "prompt_token_ids": [1, 2],
            "response_token_ids": [3],
            "response_logprobs": [-0.5],
            "reward": 0.0,
            "latency_ms": 5.0,
        }
        return row | rest

    @staticmethod
    def screenshot(screenshot_id: str, data: bytes = b"png") -> dict[str, Any]:
        return {"screenshot_id": screenshot_id, "format": "png", "width_px": 160, "height_px": 210, "data": data}

    @classmethod
    def sample(cls, sample_id: str, **rest: Any) -> dict[str, Any]:
        row = {
            "sample_id": sample_id,
            "origin": "demonstration",
            "domain": "pointing",
            "messages": cls.messages(sample_id),
            "episode_id": None,
            "step_index": None,
            "annotation_id": None,
            "verdict": True,
            "withdrawn": False,
        }
        return row | rest

    @staticmethod
    def verdict(episode_id: str, **rest: Any) -> dict[str, Any]:
        row = {
            "episode_id": episode_id,
            "judge": "environment",
            "judge_version": "1",
            "kind": "verdict",
            "origin": "verifier",
            "score": 1.0,
            "threshold": 0.5,
            "passed": True,
            "reasons": ["solved"],
        }
        return row | rest

    @classmethod
    def annotation(cls, annotation_id: str, episode_id: str, **rest: Any) -> dict[str, Any]:
        row = {
            "annotation_id": annotation_id,
            "episode_id": episode_id,
            "step_index": 1,
            "annotator": "oracle",
            "origin": "scripted",
            "mode": "relabel",
            "decision": "override",
            "proposal": "Action wait",
            "response": "Action click [1]",
            "messages": cls.messages(),
            "withdrawn": False,
        }
        return row | rest

    @staticmethod
    def checkpoint(checkpoint_id: str, **rest: Any) -> dict[str, Any]:
        row = {
            "checkpoint_id": checkpoint_id,
            "path": f"checkpoints/{checkpoint_id}",
            "parents": [],
            "datasets": [],
            "config": "{}",
            "metrics": "{}",
            "note": "",
        }
        return row | rest

    @staticmethod
    def evaluation(checkpoint_id: str, role: str, **rest: Any) -> dict[str, Any]:
        row = {
            "checkpoint_id": checkpoint_id,
            "checkpoint_role": role,
            "task_id": "task-a",
            "task_name": "click-button",
            "domain": "pointing",
            "split": "holdout",
            "num_episodes": 10,
            "num_success": 7,
            "num_crashed": 0,
        }
        return row | rest


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Home(tmp_path / "home"))


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Read only. Iteration 0000 seeds one demonstration; 0001 trains, acts twice, corrects one step; 0002 trains on that correction."""
    result = Warehouse(Home(tmp_path_factory.mktemp("planted")))
    _plant_seed(result)
    _plant_first(result)
    _plant_second(result)
    return result


@pytest.fixture
def own(planted: Warehouse, tmp_path: Path) -> Warehouse:
    """A planted home to change."""
    return copied(planted, tmp_path / "own")


def _dataset(dataset_id: str, kind: str, *samples: str) -> list[dict[str, Any]]:
    same = {"dataset_id": dataset_id, "kind": kind, "component": "demonstration", "weight": 1.0}
    return [same | {"sample_id": sample} for sample in samples]


def _plant_seed(to: Warehouse) -> None:
    to.replace_partition("tasks", [Make.task("task-a"), Make.task("task-b", domain="forms")], iteration="0000", stage="tasks")
    to.add_screenshots([Make.screenshot("shot-0", b"a"), Make.screenshot("shot-1", b"b")])
    seed = {"iteration": "0000", "stage": "seed_demonstrations"}
    to.replace_partition("episodes", [Make.episode("ep-seed", purpose="seed")], **seed)
    to.replace_partition("steps", [Make.step("ep-seed", 0), Make.step("ep-seed", 1)], **seed)
    samples = [Make.sample(f"sft-seed-{i}", episode_id="ep-seed", step_index=i) for i in (0, 1)]
    to.replace_partition("sft_samples", samples, **seed)
    tutorial = [Make.sample(f"ct-{i}", origin="tutorial", verdict=None, domain="general") for i in range(20)]
    to.replace_partition("ct_samples", tutorial, iteration="0000", stage="seed_tutorials")
    to.replace_partition("checkpoints", [Make.checkpoint("ckpt-seed")], iteration="0000", stage="seed_policy")


def _plant_first(to: Warehouse) -> None:
    to.replace_partition("datasets", _dataset("data-ct-1", "ct", *(f"ct-{i}" for i in range(20))), iteration="0001", stage="ct_dataset")
    to.replace_partition("datasets", _dataset("data-sft-1", "sft", "sft-seed-0", "sft-seed-1"), iteration="0001", stage="sft_dataset")
    for stage, row in {
        "ct_model": Make.checkpoint("ckpt-ct-1", parents=["ckpt-seed"], datasets=["data-ct-1"]),
        "sft_model": Make.checkpoint("ckpt-sft-1", parents=["ckpt-ct-1"], datasets=["data-sft-1"]),
        "rl_pointing": Make.checkpoint("ckpt-rlp-1", parents=["ckpt-sft-1"]),
        "rl_forms": Make.checkpoint("ckpt-rlf-1", parents=["ckpt-sft-1"]),
        "merged_policy": Make.checkpoint("ckpt-merged-1", parents=["ckpt-rlp-1", "ckpt-rlf-1"]),
        "released_policy": Make.checkpoint("ckpt-merged-1", parents=["ckpt-rlp-1", "ckpt-rlf-1"], note="does not lose"),
    }.items():
        to.replace_partition("checkpoints", [row], iteration="0001", stage=stage)
    evaluations = [Make.evaluation("ckpt-merged-1", "merged_policy"), Make.evaluation("ckpt-sft-1", "sft_model", num_success=5)]
    to.replace_partition("evaluations", evaluations, iteration="0001", stage="evaluation")
    acted = {"policy_id": "ckpt-merged-1"}
    episodes = [Make.episode("ep-good", **acted), Make.episode("ep-bad", seed=2, outcome="failure", reward=0.0, **acted)]
    to.replace_partition("episodes", episodes, iteration="0001", stage="rollouts")
    steps = [Make.step(episode, i, **acted) for episode in ("ep-good", "ep-bad") for i in (0, 1)]
    to.replace_partition("steps", steps, iteration="0001", stage="rollouts")
    verdicts = [Make.verdict("ep-good"), Make.verdict("ep-bad", score=0.0, passed=False)]
    to.replace_partition("verdicts", verdicts, iteration="0001", stage="verdicts")
    routes = [{"episode_id": "ep-good", "route": "sft", "reason": "V=1"}, {"episode_id": "ep-bad", "route": "ct", "reason": "V=0"}]
    to.replace_partition("routes", routes, iteration="0001", stage="routing")
    to.replace_partition("annotations", [Make.annotation("note-1", "ep-bad")], iteration="0001", stage="annotations")
    corrected = Make.sample("sft-note-1", origin="annotation", episode_id="ep-bad", step_index=1, annotation_id="note-1", verdict=False)
    good = Make.sample("sft-good", origin="rollout", episode_id="ep-good", step_index=0)
    to.replace_partition("sft_samples", [corrected, good], iteration="0001", stage="routing")


def _plant_second(to: Warehouse) -> None:
    rows = _dataset("data-sft-2", "sft", "sft-seed-0", "sft-seed-1", "sft-note-1", "sft-good")
    to.replace_partition("datasets", rows, iteration="0002", stage="sft_dataset")
    passed = Make.checkpoint("ckpt-merged-1", note="CT runs every second iteration")
    to.replace_partition("checkpoints", [passed], iteration="0002", stage="ct_model")
    trained = Make.checkpoint("ckpt-sft-2", parents=["ckpt-merged-1"], datasets=["data-sft-2"])
    to.replace_partition("checkpoints", [trained], iteration="0002", stage="sft_model")
    to.replace_partition("checkpoints", [trained | {"note": "one parent"}], iteration="0002", stage="released_policy")
    to.replace_partition("evaluations", [Make.evaluation("ckpt-sft-2", "sft_model", num_success=9)], iteration="0002", stage="evaluation")
