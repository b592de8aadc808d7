"""What a plan begins from: the machine that it is for, and the shape of the policy, read without its weights."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from assets.settings.profile import Profile
from models.families.registry import read_config
from models.families.shapes import KNOWN_CONFIGS, ModelShape, shape_of
from pipelines.plan.plan import GIB, Machine
from warehouse.core.errors import CheckpointError

COMMAND_TIMEOUT_S = 15.0


def see_machine(profile: Profile) -> Machine:
    """This machine, or the one that the profile's plan is for: what its `plan` says goes before what is seen."""
    names, sizes = _gpus()
    plan = profile.plan
    memory = plan.gpu_memory_gib * GIB if plan.gpu_memory_gib is not None else min(sizes, default=80.0 * GIB)
    return Machine(
        num_cores=os.cpu_count() or 1,
        num_gpus=len(names) if plan.gpus is None else plan.gpus,
        gpu_memory_bytes=memory,
        gpu_names=tuple(names),
    )


def _gpus() -> tuple[list[str], list[float]]:
    """Names and bytes of memory, by the driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], []
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
        rows = [line.rsplit(",", 1) for line in ran.stdout.strip().splitlines()]
        return [name.strip() for name, _ in rows], [float(size) * 1024**2 for _, size in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return [], []


def policy_shape(profile: Profile) -> tuple[ModelShape, str]:
    """The shape of the policy that the profile begins with, and where it was read. Raises CheckpointError."""
    policy = profile.policy
    if policy.source == "quickstart":
        from assets.seed_data.vocabulary import words
        from models.families.shift_qwen3 import tiny_config
        from models.families.tokenizer import build_tokenizer

        tokenizer = build_tokenizer(words(*profile.seed_data.curricula))
        config = tiny_config(len(tokenizer), pad_token_id=0, bos_token_id=0, eos_token_id=0, num_shifted_tokens=policy.token_shift)
        return shape_of(config.to_dict()), "the quickstart's configuration"
    if policy.is_random:
        from assets.seed_data.vocabulary import words
        from models.families.tiny_vision import page_vision_config

        shape = shape_of(page_vision_config(words(*profile.seed_data.curricula), policy.source).to_dict())
        return shape, f"the {policy.source} configuration"
    name = str(policy.model)
    if policy.source == "checkpoint":
        return shape_of(read_config(Path(name).expanduser())), f"{name}/config.json"
    if name in KNOWN_CONFIGS:
        return shape_of(KNOWN_CONFIGS[name]), f"what {name} is known to be (models/families/shapes.py)"
    return shape_of(read_config(_fetched_config(name, policy.revision))), f"config.json of {name}"


def _fetched_config(name: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision)).parent
    except Exception as error:  # the hub's client raises errors of several libraries
        raise CheckpointError(
            f"the configuration of {name!r} could not be read from the hub ({error}): check the name, the network and HF_TOKEN"
        ) from error
