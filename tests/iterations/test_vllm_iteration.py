"""An iteration with vLLM as its policy server: one server, started on a tiny Qwen3, answers whenever a checkpoint acts in it, each
time with that checkpoint's weights. vLLM is in a venv of its own (benchmarks/common/vllm_server.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assets.seed_data.vocabulary import words
from benchmarks.common.tiny_qwen3 import tiny_qwen3_policy
from benchmarks.common.vllm_server import vllm_server
from models.checkpoints.checkpoint import save
from models.families.registry import load_policy
from pipelines import profiles
from tests.iterations.conftest import ITERATION_TIMEOUT_S, PROFILE, Workspace
from tests.iterations.test_faults import assert_nothing_lost
from warehouse.lineage import registry

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
OPTIONS = ("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--max-model-len", "2048")
SIZES = (
    *("ct.steps=100", "sft.steps=300", "agent.max_new_tokens=24"),  # solves a third of `pointing`, so that RL has something to learn from
    *("evaluation.eval_per_task=2", "evaluation.holdout_per_task=2"),
    *("collection.instances_per_task=3", "annotation.instances_per_task=2", "merge.instances_per_task=2"),
)
ACTED = (
    "select distinct stage, policy_id from steps where len(response_token_ids) > 0 and policy_id in (select checkpoint_id from checkpoints)"
)
ANSWERS = (
    "select temperature, prompt_token_ids, response_token_ids, response_logprobs from steps join episodes "
    "using (iteration, stage, episode_id) where stage = ? and steps.policy_id = ? and len(response_token_ids) > 0 "
    "order by episode_id, step_index limit 20"
)
VERSIONS = "select distinct unnest(response_versions) from steps where stage = 'rl_pointing' order by all"
CLOSE = 1e-3
"""Of log-probabilities by vLLM and by transformers, as in tests/models/test_vllm.py."""


@pytest.fixture
def finished(vllm_python: Path, new_workspace: Callable[..., Workspace]) -> Workspace:
    """A home with one iteration on one vLLM."""
    workspace = new_workspace()
    profile, start, scratch = profiles.load(PROFILE), workspace.base / "start", workspace.base / "vllm"
    model, codec = tiny_qwen3_policy(words(*profile.seed_data.curricula), profile.seed, initializer_range=0.02)
    save(start, model, codec, stage="start", iteration="0000", config={})
    scratch.mkdir()
    with vllm_server(vllm_python, start, scratch, *OPTIONS, environment={"VLLM_SERVER_DEV_MODE": "1"}, start_s=900.0) as server:
        changes = settings(server.url, start, workspace.base / "exchange")
        ran = workspace.flywheel("run", "--iterations", "1", *changes, timeout_s=2 * ITERATION_TIMEOUT_S)
    if ran.returncode:
        (log,) = scratch.glob("vllm-*.log")
        pytest.fail(f"{ran.stdout}{ran.stderr}\nThe end of vLLM's log:\n{log.read_text(errors='replace')[-6000:]}")
    return workspace


def settings(url: str, start: Path, exchange: Path) -> list[str]:
    policy = ("policy.source=checkpoint", f"policy.model={start}", "max_parallel=1")
    engine = ("kind=http", f"http.base_url={url}", "http.send=token_ids", "http.weights=disk", f"http.exchange={exchange}")
    chosen = [*policy, *(f"engine.{each}" for each in engine), *SIZES]
    return [argument for change in chosen for argument in ("--set", change)]


def test_an_iteration_is_answered_by_one_vllm_with_the_weights_of_each_stage(finished: Workspace) -> None:
    assert_nothing_lost(finished, set())
    made = dict(finished.sql("select stage, checkpoint_id from checkpoints where iteration = '0001' and kind = 'model'"))
    assert made["rl_pointing"] != made["sft_model"], "it learned"
    acted, released = set(finished.sql(ACTED)), made["released_policy"]
    assert {("rl_pointing", made["sft_model"]), *((stage, released) for stage in ("evaluation", "rollouts", "annotations"))} <= acted
    assert len({policy for _, policy in acted}) >= 2
    for stage, policy in sorted(acted):
        model = load_policy(registry.find(finished.warehouse, policy).folder)
        for temperature, prompt, response, logprobs in finished.sql(ANSWERS, stage, policy):
            assert logprobs == pytest.approx(logprobs_of(model, prompt, response, temperature or 1.0), abs=CLOSE), (stage, policy)
    assert finished.sql(VERSIONS) == [(0,), (1,)], "the second round was answered by what the first had learned"
    mismatch = finished.sql("select value from training_metrics where stage = 'rl_pointing' and metric = 'mismatch_kl'")
    assert len(mismatch) == 2 and max(mismatch)[0] < 1e-6, "RL learned from answers of its own weights"


def logprobs_of(model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float) -> list[float]:
    """What a model gives for the tokens of an answer."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
