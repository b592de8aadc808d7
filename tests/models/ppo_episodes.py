"""A tiny policy, and episodes of random tokens as it might have sampled them, for the tests of reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from models.families.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from models.rl.updates.buffer import Trajectory, TrajectoryStep

VOCABULARY = 40
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32}


def tiny_policy(*, num_layers: int = 2, vocabulary: int = VOCABULARY) -> ShiftQwen3ForCausalLM:
    """Random weights, ready to be evaluated. Ids below 3 are special."""
    config = tiny_config(vocabulary, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_hidden_layers=num_layers, **SIZES)
    made = ShiftQwen3ForCausalLM(config)
    initialise(made, seed=0)
    return made.eval()


def logprobs(model: ShiftQwen3ForCausalLM, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
    """Of the response's tokens: one sequence alone, by the plain forward pass."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    rows = torch.log_softmax(logits / temperature, -1)[len(prompt) - 1 : -1]
    return tuple(rows.gather(1, torch.tensor(list(response))[:, None])[:, 0].tolist())


def random_trajectories(model: ShiftQwen3ForCausalLM, count: int, *, seed: int = 0, temperature: float = 1.0) -> list[Trajectory]:
    """Episodes of one to three steps of random tokens with the model's log-probabilities, of three tasks in turn; every other one is
    rewarded."""
    rng = np.random.default_rng(seed)
    items = []
    for index in range(count):
        steps = []
        for _ in range(rng.integers(1, 4)):
            prompt = tuple(int(t) for t in rng.integers(3, VOCABULARY, size=rng.integers(2, 12)))
            response = tuple(int(t) for t in rng.integers(3, VOCABULARY, size=rng.integers(1, 6)))
            sampled = logprobs(model, prompt, response, temperature)
            steps.append(TrajectoryStep(prompt_ids=prompt, response_ids=response, logprobs=sampled, reward=0.0))
        reward = float(index % 2)
        steps[-1] = replace(steps[-1], reward=reward)
        items.append(
            Trajectory(
                episode_id=f"episode-{index}",
                task_name=f"task-{index % 3}",
                steps=tuple(steps),
                reward=reward,
                is_truncated=False,
                is_success=bool(reward),
            )
        )
    return items


def per_token(items: Sequence[Trajectory], values: Sequence[float]) -> list[np.ndarray]:
    """The same advantage on all tokens of an episode."""
    return [np.full(item.num_response_tokens, value) for item, value in zip(items, values, strict=True)]
