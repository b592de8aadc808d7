"""Names of an iteration's stages: what one of reinforcement learning is called, in which order they come, how people say them.

A stage is the name of a table's partition, of a checkpoint's folder and, in an evaluation, of the policy's role.
"""

from __future__ import annotations

from collections.abc import Sequence

SEED_ITERATION = "0000"
"""What comes before the first iteration."""
ERASED = "erased"
"""Name of the task of an erased episode. No task may be called so: routing withholds what is."""
IMPORTED_STAGE, GENERAL_STAGE, MANUALS_STAGE = IMPORT_STAGES = "imported_", "general_", "manuals_"
"""How stages of the seed begin that an import made: of demonstrations, of general data, of manuals."""
SPECIALIST = "specialist"
"""Method of a merge's candidate that is a specialist as it is, where the corner of the method's simplex is another policy."""
_RL, _JOINT, _CRITIC = "rl_", "rl_joint_", "critic_"
_ORDER = (
    "seed_policy",
    "ct_dataset",
    "sft_dataset",
    "ct_model",
    "sft_model",
    _RL,
    _JOINT,
    _CRITIC,
    "merged_policy",
    "released_policy",
    "orm_dataset",
    "orm_model",
)
_SAID = {
    "seed_policy": "random",
    "ct_model": "CT",
    "sft_model": "SFT",
    "merged_policy": "merged",
    "released_policy": "released",
    "orm_model": "ORM",
}


def rl_stage(name: str) -> str:
    """The stage that trains a domain's specialist, or a policy jointly: then `name` is `joint_name` of its domains."""
    return _RL + name


def critic_stage(name: str) -> str:
    """Under which the stage `rl_stage(name)` registers its critic."""
    return _CRITIC + name


def rl_stage_of(stage: str) -> str:
    """The stage of reinforcement learning that registers checkpoints under `stage`; every other stage is its own."""
    return _RL + stage.removeprefix(_CRITIC) if stage.startswith(_CRITIC) else stage


def joint_name(domains: Sequence[str]) -> str:
    """What stands in place of a domain for a policy that is trained on several jointly."""
    return "_".join(("joint", *domains))


def is_rl(stage: str) -> bool:
    """Whether it is a stage of reinforcement learning, of a specialist or joint."""
    return stage.startswith(_RL)


def domain_of(stage: str) -> str | None:
    """The domain of a specialist's stage; None for every other, joint ones too."""
    return stage.removeprefix(_RL) if is_rl(stage) and not stage.startswith(_JOINT) else None


def rank(stage: str) -> tuple[int, str]:
    """A key that sorts stages as an iteration makes them: specialists before joint policies, what is not a stage of ours last."""
    kind = next((kind for kind in (_JOINT, _RL, _CRITIC) if stage.startswith(kind)), stage)
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER)), stage


def role_name(stage: str) -> str:
    """`SFT`, `RL pointing`, `merged`: a stage as people call it."""
    if stage.startswith(_CRITIC):
        return f"critic {stage.removeprefix(_CRITIC).replace('_', ' ')}"
    return _SAID.get(stage) or (f"RL {stage.removeprefix(_RL).replace('_', ' ')}" if is_rl(stage) else stage)
