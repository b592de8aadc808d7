"""Memory, floating-point operations and time of training and generation, as formulas with their sources. Pure arithmetic on shapes
(models/families/shapes.py); no torch, no measuring. What a run needs of these is pipelines/plan/planner.py's business.

Sources: ZeRO, arXiv 1910.02054; activation recomputation, 2205.05198; scaling laws, 2001.08361; PaLM, 2204.02311; PagedAttention,
2309.06180. Bytes are bytes, operations count a multiply-add as two.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.families.shapes import ModelShape
from models.training.adapter_config import AdapterConfig

MIXED = (2, 2, 12)
"""Bytes a parameter of half-precision weights, half-precision gradients, and of a float32 copy with Adam's two moments (ZeRO, section
3.1: K = 12)."""
MIXED_FLOAT32_GRADIENTS = (2, 4, 12)
"""As DeepSpeed 0.19 keeps them: gradients are averaged in float32. 18 bytes in all, as in its own estimate_zero3_model_states_mem_needs."""
FLOAT32 = (4, 4, 8)
"""All in float32: no second copy of the weights."""
FLOAT32_IN_ZERO = (4, 4, 12)
"""The same by DeepSpeed at stage 1 and up: what a process steps is a copy of its part of the weights."""
FRAGMENTATION = 1.1
"""Allocated by the caching allocator over what is in use, for rounding and fragments; an assumption, not a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes that one process needs while it trains."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    gathered: float
    """whole parameters of the layer at work, which ZeRO-3 gathers from everyone."""

    @property
    def total(self) -> float:
        return (self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.gathered) * FRAGMENTATION


def model_states(
    num_trained: float,
    *,
    stage: int,
    num_processes: int,
    num_frozen: float = 0,
    bytes_each: tuple[int, int, int] = MIXED,
    frozen_bytes: int = 2,
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer state in each of N processes (ZeRO, section 5 and figure 1).

    Stage 0 keeps all of the three everywhere, 1 shares the optimizer's state out, 2 the gradients too, 3 the weights too. Frozen
    parameters (LoRA's base) have weights only. Raises ValueError for another stage.
    """
    if not 0 <= stage <= 3:
        raise ValueError(f"ZeRO stage {stage}: must be 0, 1, 2 or 3")
    weights, gradients, optimizer = bytes_each
    share = 1 / num_processes
    return (
        (weights * num_trained + frozen_bytes * num_frozen) * (share if stage >= 3 else 1),
        gradients * num_trained * (share if stage >= 2 else 1),
        optimizer * num_trained * (share if stage >= 1 else 1),
    )


def activation_bytes(shape: ModelShape, num_tokens: float, *, checkpointing: bool, bytes_each: int = 2, num_patches: float = 0) -> float:
    """Bytes that a forward pass over `num_tokens` tokens of text (pictures' included) leaves for the backward pass.

    A layer keeps what goes into both norms, what they normalise and what goes into both blocks (6 h), queries, keys, values and
    attention's result, and four vectors of the gated MLP's width. That is 2205.05198's equation 2 for this kind of layer, without its s²
    terms, which fused attention never stores, and without dropout. With checkpointing every layer keeps its input alone and one layer at
    a time is computed again (its section 5).
    """

    def of_stack(tokens: float, width: int, inner: int, projections: int, layers: int) -> float:
        layer = tokens * bytes_each * (6 * width + projections + 4 * inner)
        return layer + layers * tokens * width * bytes_each if checkpointing else layers * layer

    projections = 2 * shape.num_heads * shape.head_dim + 2 * shape.num_kv_heads * shape.head_dim
    total = of_stack(num_tokens, shape.hidden_size, shape.intermediate_size, projections, shape.num_layers)
    if shape.vision is not None and num_patches:
        tower = shape.vision
        total += of_stack(num_patches, tower.hidden_size, tower.intermediate_size, 4 * tower.hidden_size, tower.num_layers)
    return total


def logits_bytes(shape: ModelShape, num_tokens: float, *, bytes_each: int = 2) -> float:
    """Bytes of the logits of the tokens that are learned, as they come out, in float32, and the latter's gradient."""
    return num_tokens * shape.vocab_size * (bytes_each + 8)


def training_memory(
    shape: ModelShape,
    *,
    stage: int,
    num_processes: int,
    num_tokens: float,
    num_learned: float,
    checkpointing: bool,
    bytes_each: tuple[int, int, int] = MIXED,
    compute_bytes: int = 2,
    num_trained: float | None = None,
    frozen_bytes: int = 2,
    num_patches: float = 0,
) -> TrainingMemory:
    """What one process needs for a step on `num_tokens` tokens at once, `num_learned` of them with a loss.

    `num_trained` is the trained part (LoRA); the rest is frozen. `compute_bytes` is the width of activations. Under ZeRO-3 the largest
    piece is held whole twice: the one at work and the next, which is fetched meanwhile.
    """
    trained = shape.num_parameters if num_trained is None else num_trained
    weights, gradients, optimizer = model_states(
        trained,
        num_frozen=shape.num_parameters - trained,
        stage=stage,
        num_processes=num_processes,
        bytes_each=bytes_each,
        frozen_bytes=frozen_bytes,
    )
    largest = max(shape.layer_parameters, shape.vocab_size * shape.hidden_size)
    return TrainingMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activation_bytes(shape, num_tokens, checkpointing=checkpointing, bytes_each=compute_bytes, num_patches=num_patches),
        logits=logits_bytes(shape, num_learned, bytes_each=compute_bytes),
        gathered=2 * largest * bytes_each[0] if stage == 3 and num_processes > 1 else 0.0,
    )


def lora_parameters(shape: ModelShape, rank: int, targets: tuple[str, ...]) -> int:
    """Parameters of low-rank updates B A of the named layers of every decoder layer: rank x (inputs + outputs) each (LoRA, 2106.09685,
    section 4.1). Names that the decoder does not have are left out; a vision tower's layers of the same name are not counted."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sides = {
        "q_proj": hidden + queries,
        "k_proj": hidden + keys,
        "v_proj": hidden + keys,
        "o_proj": queries + hidden,
        "gate_proj": hidden + inner,
        "up_proj": hidden + inner,
        "down_proj": inner + hidden,
    }
    return shape.num_layers * rank * sum(sides.get(name, 0) for name in targets)


def policy_parameters(shape: ModelShape, config: AdapterConfig) -> int:
    """Parameters that training by `config` gives a gradient."""
    if config.lora_rank:
        return lora_parameters(shape, config.lora_rank, config.lora_targets)
    return shape.num_parameters if config.train_vision else shape.text_parameters


def critic_parameters(shape: ModelShape, config: AdapterConfig) -> int:
    """The same of a critic (models/rl/value/critic.py): it trains what the policy trains, without the output head where that is a matrix of
    its own, and a value head. What the policy has frozen it shares."""
    output_head = 0 if shape.is_tied or config.lora_rank else shape.vocab_size * shape.hidden_size
    return policy_parameters(shape, config) - output_head + shape.hidden_size + 1


def kv_cache_bytes(shape: ModelShape, num_tokens: float, *, bytes_each: int = 2) -> float:
    """Bytes of keys and values of `num_tokens` tokens in all layers (PagedAttention, section 3: 800 KB a token for OPT-13B)."""
    return num_tokens * shape.kv_size * bytes_each


def training_flops(
    shape: ModelShape, num_tokens: float, *, context: float, num_patches: float = 0, checkpointing: bool = False, trained_share: float = 1.0
) -> float:
    """Operations of forward and backward passes over `num_tokens` tokens in sequences of `context`: 6 N + 12 L h s a token (2001.08361,
    section 2.1; PaLM, appendix B). Attention is causal, which halves its part. With checkpointing the forward pass is done twice: 8 N.
    Frozen weights have no gradient of their own, one of the backward pass's two thirds."""
    passes = 2 + trained_share + (1 if checkpointing else 0)
    return passes * forward_flops(shape, num_tokens, context=context, num_patches=num_patches)


def forward_flops(shape: ModelShape, num_tokens: float, *, context: float, num_patches: float = 0) -> float:
    """Operations of a forward pass: 2 N a token, and 2 L d s for causal attention over sequences of `context` tokens; the vision tower's
    2 N a patch."""
    attention = 2 * shape.num_layers * shape.num_heads * shape.head_dim * context
    text = num_tokens * (2 * shape.matmul_parameters + attention)
    return text + (2 * shape.vision.num_parameters * num_patches if shape.vision is not None else 0.0)


def compute_seconds(flops: float, *, peak_flops: float, utilisation: float, num_devices: int = 1) -> float:
    """Time of so many operations at a share of the peak (MFU, PaLM appendix B)."""
    return flops / (peak_flops * utilisation * num_devices)


def decode_step_seconds(
    shape: ModelShape, *, batch: float, context: float, bandwidth: float, peak_flops: float, utilisation: float, bytes_each: int = 2
) -> float:
    """Time of one token for each of `batch` sequences on one device: whichever is longer, reading the weights and all key/value caches
    once from memory (`bandwidth`, bytes a second) or the operations (the roofline of batched decoding)."""
    read = shape.text_parameters * bytes_each + kv_cache_bytes(shape, batch * context, bytes_each=bytes_each)
    flops = batch * (2 * shape.matmul_parameters + 4 * shape.num_layers * shape.num_heads * shape.head_dim * context)
    return max(read / bandwidth, compute_seconds(flops, peak_flops=peak_flops, utilisation=utilisation))


def checkpoint_bytes(shape: ModelShape, *, bytes_each: int = 2) -> float:
    """Weights on disk."""
    return float(shape.num_parameters * bytes_each)


def resume_bytes(num_trained: float, *, bytes_each: tuple[int, int, int] = MIXED) -> float:
    """What a killed run resumes from: the weights and the optimizer's state."""
    return num_trained * (bytes_each[0] + bytes_each[2])
