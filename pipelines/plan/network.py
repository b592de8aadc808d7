"""Bytes that a stage sends between machines, both ways: steps of sandbox servers, prompts and answers of policy servers, weights on their
way to these, gradients between training hosts. Nothing between processes of one machine, and no object store: what stays on the disk is
sent there once.

Gradients by ring collectives (Patarasuk and Yuan, 2009): an all-reduce of S bytes over N processes has each send 2 (N - 1) / N S. ZeRO-0 to
2 send as much, ZeRO-3 half as much again (Rajbhandari et al., 2020, section 7). Processes are numbered host by host, so each of H hosts
sends that much once to the next.
"""

from __future__ import annotations

import math

from assets.settings.profile import Profile
from models.families.shapes import ModelShape
from models.http.config import Send
from models.rl.config import PpoConfig
from models.training import estimates
from pipelines.plan.workload import Work

SCREEN_BYTES_PER_PX = 0.2
"""A PNG of a MiniWoB page: 6.9 kB for 160 by 210."""
SANDBOX_STEP_BYTES = 2800.0
"""A step of a sandbox server without its screen: action and elements of a MiniWoB page, headers, the episode's lease. Measured, as what
follows, with our servers (benchmarks/plan_accuracy.py)."""
REQUEST_BYTES = 900.0
"""A request of a policy server and its answer, without their tokens."""
PROMPT_TOKEN_BYTES: dict[Send, float] = {"messages": 11.0, "token_ids": 9.2}
"""Of a token of the prompt, sent and returned."""
ANSWER_TOKEN_BYTES: dict[Send, float] = {"messages": 98.0, "token_ids": 64.5}
"""Of a token of the answer, with its text where that is sent, its id, log-probability and version."""
BASE64 = 4 / 3


def network_parts(profile: Profile, shape: ModelShape, work: Work) -> dict[str, float]:
    """Bytes of each kind that has any."""
    found = {
        "sandboxes": _sandbox_bytes(profile, work),
        "answers": _answer_bytes(profile, work),
        "weights": _weights_bytes(profile, shape, work),
        "gradients": _gradient_bytes(profile, shape, work),
    }
    return {name: size for name, size in found.items() if size}


def num_handed_on(config: PpoConfig, work: Work) -> int:
    """How often an RL run hands weights to the policy servers."""
    batch = config.min_batch_episodes if config.streaming and config.min_batch_episodes else work.num_episodes / config.rounds
    return math.ceil(work.num_episodes / batch)


def _acts(work: Work) -> bool:
    return work.kind in ("acting", "rl") and work.stage != "judgements"


def _screen_bytes(profile: Profile) -> float:
    width, height = profile.plan.screen_px
    return width * height * SCREEN_BYTES_PER_PX


def _sandbox_bytes(profile: Profile, work: Work) -> float:
    """With nodes of a Ray cluster prompts and answers pass instead of observations; they are of about this size."""
    if not _acts(work) or not (profile.sandbox.servers or profile.sandbox.ray):
        return 0.0
    return work.num_steps * (SANDBOX_STEP_BYTES + (_screen_bytes(profile) if work.keeps_screens else 0.0))


def _answer_bytes(profile: Profile, work: Work) -> float:
    choice = profile.engine.http
    if choice is None or not work.response_tokens:
        return 0.0
    pictures = min(profile.agent.max_screenshots, work.num_steps / max(1, work.num_episodes)) if work.image_tokens else 0.0
    text = answer_bytes(choice.send, work.prompt_tokens - work.image_tokens, work.response_tokens)
    return work.num_steps * (text + pictures * BASE64 * _screen_bytes(profile))


def answer_bytes(send: Send, prompt_tokens: float, response_tokens: float) -> float:
    """Of one request and its answer."""
    return REQUEST_BYTES + prompt_tokens * PROMPT_TOKEN_BYTES[send] + response_tokens * ANSWER_TOKEN_BYTES[send]


def _weights_bytes(profile: Profile, shape: ModelShape, work: Work) -> float:
    """Every policy that acts, to each server, in bfloat16; an adapter's weights count as all of them."""
    choice = profile.engine.http
    if choice is None or not work.response_tokens or not _acts(work):
        return 0.0
    times = num_handed_on(profile.rl, work) if work.kind == "rl" else work.num_policies
    return times * (1 + len(choice.replicas)) * estimates.checkpoint_bytes(shape)


def _gradient_bytes(profile: Profile, shape: ModelShape, work: Work) -> float:
    rl, hosts = profile.rl, len(profile.training.hosts)
    if work.training is not None:
        config, trained = work.training, estimates.policy_parameters(shape, work.training)
        size = trained * (2 if config.bf16 and config.deepspeed_stage is not None else 4)
        return config.steps * ring_bytes(size, config.num_processes, hosts, zero_stage=config.deepspeed_stage or 0)
    if work.kind != "rl":
        return 0.0
    updates = math.ceil(work.num_episodes / rl.minibatch_episodes)
    learned = rl.epochs * estimates.policy_parameters(shape, rl)
    learned += rl.critic_epochs * estimates.critic_parameters(shape, rl) if rl.algorithm == "ppo" else 0
    return updates * ring_bytes(4.0 * learned, rl.num_processes, hosts, zero_stage=rl.zero_stage)


def ring_bytes(size: float, num_processes: int, num_hosts: int, *, zero_stage: int) -> float:
    """Between hosts, for gradients of `size` bytes once."""
    used = min(num_processes, num_hosts)
    return used * (3 if zero_stage == 3 else 2) * (num_processes - 1) / num_processes * size if used > 1 else 0.0
