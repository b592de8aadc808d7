"""What an accelerator makes of the same code: training steps and generation of a randomly initialised vision-language model of the Qwen2-VL
class in bf16, in tokens a second and as a share of the card's peak; and whether it computes what the CPU computes.

    python -m benchmarks.gpu_training --json .bench/gpu_training.json           half a billion parameters, screens of 1280×720, on the GPU
    python -m benchmarks.gpu_training --device cpu --size tiny --steps 8         everything at once on any machine, to see that it runs

Training is models/supervised/fitting.py's loop, generation the embedded engine. Operations are counted by models/training/estimates.py:
forward and backward of every token and patch, recomputation not counted. Vision tensors are made once: the figure is the accelerator's, not
the decoder's of images. The comparison with the CPU trains and asks a tiny model, in float32 and in bf16.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from agent.policy.policy import Message, Prompt, Sampling
from warehouse.core.home import atomic_write

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Qwen2VLForConditionalGeneration

    from models.families.vision import VisionCodec
    from models.training.batching import EncodedSample

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "RTX 4090": 165.0}
"""Dense bf16 with float32 accumulation, from the makers' data sheets; what is not listed needs --peak-tflops."""
WARM_STEPS = 5
ANSWER = "Thought: the button lies at the bottom\nAction: click(point='<point>306 795</point>')"
TOLERANCES = {"float32": 2e-3, "bfloat16": 8e-2}
"""How far losses and log-probabilities may lie from the CPU's float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model and what it is shown."""

    text: dict[str, Any]
    vision: dict[str, Any]
    screen_px: tuple[int, int]
    max_pixels: int
    num_screens: int
    batch_tokens: int


SIZES = {
    "0.5b": Size(
        text={
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
            "initializer_range": 0.02,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
        },
        vision={"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2},
        screen_px=(1280, 720),
        max_pixels=1280 * 28 * 28,
        num_screens=8,
        batch_tokens=11_000,
    ),
    "tiny": Size(
        text={"num_hidden_layers": 2},
        vision={"patch_size": 16, "spatial_merge_size": 1},
        screen_px=(160, 210),
        max_pixels=40 * 16**2,
        num_screens=4,
        batch_tokens=600,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    device: str
    size: str
    num_parameters: int
    steps: int
    loss_first: float
    loss_last: float
    train_tokens_per_s: float
    train_step_s: float
    peak_share: float | None
    """Operations a second over the card's peak; None where that is not known."""
    memory_gib: float | None
    generated_tokens_per_s: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one device computes with the tiny model: the loss at each of a few training steps, and an answer's log-probabilities."""

    losses: list[float]
    logprobs: list[float]


def make_policy(size: Size, seed: int) -> tuple[Qwen2VLForConditionalGeneration, VisionCodec]:
    """The model with random weights, and its codec."""
    import torch
    from transformers import Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from models.families.tiny_vision import tiny_vision_config, vision_tokenizer
    from models.families.vision import PatchReader, VisionCodec

    tokenizer = vision_tokenizer(("Thought", "Action", "button", "lies", "bottom", "point", *(str(n) for n in range(501, 1001))))
    config = tiny_vision_config(tokenizer, **size.text)
    for name, value in {**size.vision, "hidden_size": config.get_text_config().hidden_size}.items():
        setattr(config.vision_config, name, value)
    patch, merge = size.vision["patch_size"], size.vision["spatial_merge_size"]
    processor = Qwen2VLImageProcessorPil(
        patch_size=patch, merge_size=merge, temporal_patch_size=1, min_pixels=(patch * merge) ** 2, max_pixels=size.max_pixels
    )
    torch.manual_seed(seed)
    return Qwen2VLForConditionalGeneration(config).eval(), VisionCodec(tokenizer, PatchReader(processor))


def screens(size: Size) -> dict[str, bytes]:
    """Images of coloured boxes, by name."""
    from PIL import Image, ImageDraw

    found = {}
    for index in range(size.num_screens):
        chance = random.Random(index)
        image = Image.new("RGB", size.screen_px, "white")
        for _ in range(12):
            x, y = (chance.randrange(side) for side in size.screen_px)
            ImageDraw.Draw(image).rectangle((x, y, x + 40, y + 20), fill=tuple(chance.randrange(256) for _ in range(3)))
        file = io.BytesIO()
        image.save(file, "PNG")
        found[f"screen-{index}"] = file.getvalue()
    return found


def chat(name: str) -> tuple[Message, ...]:
    return (
        Message(role="user", content="Click the button that was named."),
        Message(role="user", content="", screenshot_id=name),
        Message(role="assistant", content=ANSWER, loss=1.0),
    )


def encode(codec: VisionCodec, images: dict[str, bytes]) -> tuple[list[EncodedSample], Callable[[Sequence[str]], dict[str, Tensor]]]:
    """A sample for each screen, and what loads it: the vision tensors, made once."""
    from models.training.batching import EncodedSample

    made = {name: codec.vision([name], images) for name in images}
    samples = []
    for name in images:
        ids, weights = codec.encode_tokens(chat(name), images)
        samples.append(EncodedSample(token_ids=ids, loss_weights=weights, screenshot_ids=(name,)))
    return samples, lambda names: made[names[0]]


def train(
    model: Any, codec: VisionCodec, images: dict[str, bytes], *, steps: int, batch_tokens: int, bf16: bool, checkpointing: bool = False
) -> tuple[list[float], list[float], int, int]:
    """The loss and the moment of each step, and the tokens and patches of one step."""
    from models.supervised.config import SupervisedConfig
    from models.supervised.fitting import fit
    from models.training.adapters import prepare_for_training

    samples, pixels = encode(codec, images)
    config = SupervisedConfig(
        steps=steps,
        learning_rate=1e-4,
        warmup_steps=2,
        batch_tokens=batch_tokens,
        save_every=10_000,
        log_every=1,
        bf16=bf16,
        gradient_checkpointing=checkpointing,
    )
    losses: list[float] = []
    moments: list[float] = []

    def note(progress: Any) -> None:
        losses.append(progress.metrics["loss"])
        moments.append(time.perf_counter())

    prepare_for_training(model, config)
    with tempfile.TemporaryDirectory(prefix="flywheel-gpu-") as folder:
        fit(model, samples, config, Path(folder) / "run", note, pixels=pixels)
    longest = max(len(sample.token_ids) for sample in samples)
    num_rows = max(1, batch_tokens // longest)
    return losses, moments, num_rows * longest, num_rows * int(pixels(samples[0].screenshot_ids)["pixel_values"].shape[0])


async def generate(model: Any, codec: VisionCodec, images: dict[str, bytes], *, num_tokens: int, temperature: float) -> tuple[Any, float]:
    """One answer to each screen, all at once, by the embedded engine; the responses and the seconds they took."""
    from models.engine.embedded import EmbeddedEngine

    engine = EmbeddedEngine(model, codec, "checkpoint-0000000000000000")
    try:
        prompts = [
            Prompt(messages=chat(name)[:-1], sampling=Sampling(temperature=temperature, max_new_tokens=num_tokens, seed=row), images=images)
            for row, name in enumerate(images)
        ]
        await engine.act(prompts[:1])
        started = time.perf_counter()
        responses = await engine.act(prompts)
        return responses, time.perf_counter() - started
    finally:
        engine.close()


def throughput(name: str, steps: int, peak_tflops: float | None, checkpointing: bool) -> Throughput:
    """Train, then generate, on the GPU if torch sees one."""
    import torch

    from models.families.shapes import shape_of
    from models.training.estimates import training_flops

    size = SIZES[name]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    title = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    model, codec = make_policy(size, 0)
    images = screens(size)
    model.to(device)  # type: ignore[arg-type]
    losses, moments, num_tokens, num_patches = train(
        model, codec, images, steps=steps, batch_tokens=size.batch_tokens, bf16=True, checkpointing=checkpointing
    )
    step_s = (moments[-1] - moments[WARM_STEPS]) / (len(moments) - 1 - WARM_STEPS)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    peak = peak_tflops or next((value for card, value in PEAK_TFLOPS.items() if card in title), None)
    context = len(codec.encode_tokens(chat("screen-0"), images)[0])
    flops = training_flops(shape_of(model.config.to_dict()), num_tokens, context=context, num_patches=num_patches)
    num_parameters = model.num_parameters()
    answering = model.to(dtype=torch.bfloat16) if device.type == "cuda" else model  # type: ignore[call-arg]
    responses, seconds = asyncio.run(generate(answering, codec, images, num_tokens=64, temperature=1.0))
    return Throughput(
        device=title,
        size=name,
        num_parameters=num_parameters,
        steps=len(losses),
        loss_first=losses[0],
        loss_last=losses[-1],
        train_tokens_per_s=num_tokens / step_s,
        train_step_s=step_s,
        peak_share=flops / step_s / (peak * 1e12) if peak else None,
        memory_gib=memory,
        generated_tokens_per_s=sum(len(response.token_ids) for response in responses) / seconds,
        prompt_tokens=len(responses[0].prompt_token_ids),
    )


def probe(dtype: str) -> Probe:
    """Six steps of the tiny model at `dtype`, and the log-probabilities of one greedy answer before them."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(mode=False)
    torch.backends.cuda.matmul.allow_tf32 = False
    size = SIZES["tiny"]
    model, codec = make_policy(size, 1)
    images = screens(size)
    model.to(device)  # type: ignore[arg-type]
    asked = model if dtype == "float32" else make_policy(size, 1)[0].to(device=device, dtype=torch.bfloat16)  # type: ignore[call-arg]
    responses, _ = asyncio.run(generate(asked, codec, {"screen-0": images["screen-0"]}, num_tokens=4, temperature=0.0))
    losses, *_ = train(model, codec, images, steps=6, batch_tokens=size.batch_tokens, bf16=dtype == "bfloat16")
    return Probe(losses=losses, logprobs=list(responses[0].logprobs))


def cpu_probe() -> Probe:
    """The same in float32 in a process that sees no GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_training", "--probe", "float32"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return Probe(**json.loads(done.stdout.strip().splitlines()[-1]))


def furthest(found: Probe, expected: Probe) -> float:
    """The largest difference of a loss or of the first token's log-probability (later tokens may be others)."""
    pairs = [*zip(found.losses, expected.losses, strict=True), (found.logprobs[0], expected.logprobs[0])]
    return max(abs(mine - theirs) for mine, theirs in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda, and without it nothing")
    parser.add_argument("--size", choices=tuple(SIZES), default="0.5b")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--peak-tflops", type=float, help="the card's dense bf16 peak, where it is not known here")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again instead of keeping them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--probe", choices=tuple(TOLERANCES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "cpu" and arguments.probe is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks
    if arguments.probe:
        print(json.dumps(asdict(probe(arguments.probe))))
        return 0
    if arguments.steps <= WARM_STEPS + 1:
        parser.error(f"--steps {arguments.steps}: the first {WARM_STEPS} are not timed, give more than {WARM_STEPS + 1}")
    import torch

    if arguments.device != "cpu" and not torch.cuda.is_available():
        Console().print("torch sees no GPU here, so nothing is measured: give --device cpu --size tiny to see the benchmark run")
        return int(arguments.device == "cuda")
    reference = cpu_probe()
    differences = {dtype: furthest(probe(dtype), reference) for dtype in TOLERANCES}
    found = throughput(arguments.size, arguments.steps, arguments.peak_tflops, arguments.checkpointing)
    _print(found, differences)
    if arguments.json is not None:
        atomic_write(arguments.json, json.dumps({"throughput": asdict(found), "furthest_from_cpu_float32": differences}).encode())
    return 0 if all(differences[dtype] <= limit for dtype, limit in TOLERANCES.items()) else 1


def _print(found: Throughput, differences: dict[str, float]) -> None:
    table = Table(title=f"{found.num_parameters / 1e6:.1f} M parameters on {found.device}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    share = "unknown peak" if found.peak_share is None else f"{found.peak_share:.1%}"
    rows = {
        "training tokens a second": f"{found.train_tokens_per_s:,.0f}",
        "seconds a step": f"{found.train_step_s:.3f}",
        "share of the peak": share,
        "memory, GiB": "–" if found.memory_gib is None else f"{found.memory_gib:.1f}",
        "loss, first and last step": f"{found.loss_first:.3f}, {found.loss_last:.3f}",
        f"generated tokens a second ({found.prompt_tokens} in a prompt)": f"{found.generated_tokens_per_s:,.0f}",
        **{f"furthest from the CPU in {dtype}": f"{value:.1e} (limit {TOLERANCES[dtype]:.0e})" for dtype, value in differences.items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
