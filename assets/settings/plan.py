"""Assumptions of a plan (`flywheel run --dry-run`) that it cannot read from anywhere else: the machine's speed and the weight of the work.
They do not change what a run does.

Defaults of the CPU are measured on two cores (benchmarks/plan_accuracy.py measures them again); those of the GPU are an H100 SXM's data
sheet and common shares of its peak, which were not measured here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
NodeKind = Literal["head", "trainer", "sandbox", "policy"]


class PlanSettings(BaseModel):
    """The machine and the work that a plan is reckoned for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The machine
    gpus: Annotated[int | None, Field(ge=0, description="GPUs of the machine; null: those that are seen here")] = None
    server_gpus: Annotated[int, Field(ge=0, description="of these, held by the policy server of an http engine")] = 0
    gpu_memory_gib: Annotated[float | None, Field(gt=0, description="memory of each; null: of those seen here, else 80")] = None
    gpu_peak_tflops: Annotated[Positive, Field(description="dense bfloat16 peak of each (H100 SXM: 989)")] = 989.0
    gpu_bandwidth_gb_s: Annotated[Positive, Field(description="memory bandwidth of each (H100 SXM: 3350)")] = 3350.0
    gpu_memory_share: Annotated[Share, Field(description="of its memory that may be filled")] = 0.92
    training_mfu: Annotated[Share, Field(description="share of the peak while training; PaLM reports 0.46, Llama 3 0.38 to 0.43")] = 0.35
    generation_mfu: Annotated[Share, Field(description="share of the peak while reading prompts")] = 0.4
    exchange_gb_s: Annotated[Positive, Field(description="a learner's weights on their way to a policy server, by the disk")] = 1.0
    cpu_training_gflops: Annotated[Positive, Field(description="of one training process on the CPU, forward and backward")] = 60.0
    cpu_prefill_gflops: Annotated[Positive, Field(description="of the embedded engine on the CPU, reading prompts")] = 20.0
    cpu_decode_gflops: Annotated[Positive, Field(description="of the embedded engine on the CPU, writing answers")] = 3.5

    prices: Annotated[
        dict[NodeKind, Annotated[float, Field(ge=0)]],
        Field(
            description="of one machine and hour, in any currency, for what each stage costs; head: the one with Dagster and the stages; "
            "trainer: each further host of training, or the node of a stage that is a Ray job; sandbox: each sandbox server or Ray node "
            "with episodes; policy: each policy server. A kind without a price is left out of the cost, and named"
        ),
    ] = {}

    # The work
    env_latency_s: Annotated[float, Field(ge=0, description="one step of one session, from action to observation, when it is alone")] = 0.03
    env_cpu_s: Annotated[float, Field(ge=0, description="CPU seconds that a step costs this machine; 0: sessions run elsewhere")] = 0.025
    driver_cpu_s: Annotated[float, Field(ge=0, description="CPU seconds that a step costs the player: prompts, parsing, rows")] = 0.006
    screenshot_cpu_s: Annotated[float, Field(ge=0, description="and a step whose screen is kept, on top")] = 0.03
    screen_px: Annotated[tuple[int, int], Field(description="width and height of a screenshot; MiniWoB's page is 160 by 210")] = (160, 210)
    steps_share: Annotated[Share, Field(description="an episode's share of its task's step limit, where none was measured")] = 0.5
    standing_tokens: Annotated[
        int | None,
        Field(ge=0, description="tokens of a prompt beside its history and pictures, where none was measured; null: 65 compact, 900 chat"),
    ] = None
    response_tokens: Annotated[
        int | None, Field(ge=1, description="tokens of an answer, where none was measured; null: 13 compact, 120 chat")
    ] = None
    process_gib: Annotated[float, Field(ge=0, description="memory of a process before it holds a model, torch loaded")] = 0.6
    session_gib: Annotated[float, Field(ge=0, description="memory of one session on this machine; 0 where sessions run elsewhere")] = 0.03
    stage_overhead_s: Annotated[float, Field(ge=0, description="what every stage costs before it works")] = 3.0
    collection_overhead_s: Annotated[float, Field(ge=0, description="what a Prefect flow costs on top")] = 22.0
