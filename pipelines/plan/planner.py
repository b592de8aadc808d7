"""Makes the plan of a profile before anything runs: formulas of models/training/estimates.py and the work that workload.py counts meet the
machine. Each estimate says what it rests on.
"""

from __future__ import annotations

import math

from assets.settings.profile import Profile
from models.families.shapes import ModelShape
from models.supervised.config import SupervisedConfig
from models.training import estimates
from models.training.adapter_config import AdapterConfig
from models.training.estimates import TrainingMemory
from pipelines.plan.cost import nodes_of
from pipelines.plan.network import SCREEN_BYTES_PER_PX, network_parts, num_handed_on
from pipelines.plan.plan import GIB, Machine, Plan, StagePlan, answers_on_gpus, gpus_of_servers, in_bytes
from pipelines.plan.workload import Measured, Work, Workload

STEP_BYTES = 500
"""A row of `steps`, compressed."""


def make_plan(profile: Profile, shape: ModelShape, machine: Machine, measured: Measured) -> Plan:
    """The plan of a seed, a first iteration and a later one."""
    workload, planner = Workload(profile, shape, measured), Planner(profile, shape, machine)
    seed = workload.seed()
    return Plan(
        profile=profile,
        shape=shape,
        machine=machine,
        measured=measured,
        seed=tuple(map(planner.stage, seed)),
        first=tuple(map(planner.stage, workload.iteration(1))),
        later=tuple(map(planner.stage, workload.iteration(1 + profile.ct_every))),
        demonstrated_steps=sum(work.num_steps for work in seed),
        sample_tokens=workload.sample_tokens,
    )


class Planner:
    """The estimates of single stages, for a profile on a machine."""

    def __init__(self, profile: Profile, shape: ModelShape, machine: Machine) -> None:
        self._profile, self._shape, self._machine, self._plan = profile, shape, machine, profile.plan
        self._is_remote = profile.engine.kind == "http"
        self._trains_on_gpus = machine.num_gpus > 0
        self._answers_on_gpus = answers_on_gpus(profile, machine)
        self._own_gpus = gpus_of_servers(profile, machine)

    def stage(self, work: Work) -> StagePlan:
        if work.kind == "supervised":
            return self._supervised(work)
        if work.kind == "rl":
            return self._rl(work)
        if work.kind == "acting":
            return self._acting(work)
        makes_weights = work.stage in ("seed_policy", "merged_policy")
        return self._row(work, seconds=0.0, memory=self._plan.process_gib * GIB, disk=self._weights_bytes() if makes_weights else 0.0)

    def _supervised(self, work: Work) -> StagePlan:
        shape, config = self._shape, work.training or SupervisedConfig()
        sample = work.prompt_tokens + work.response_tokens
        learned = 1.0 if config.prompt_loss_weight else work.response_tokens / (work.prompt_tokens + work.response_tokens)
        patches = self._patches(work.image_tokens)
        memory = self._training_memory(
            config,
            tokens=config.batch_tokens / config.num_processes,
            learned=learned,
            stage=config.deepspeed_stage or 0,
            processes=config.num_processes,
            is_half=config.bf16,
            image_share=work.image_tokens / work.training_tokens,
        )
        trained = estimates.policy_parameters(self._shape, config)
        flops = estimates.training_flops(
            shape,
            work.training_tokens,
            context=sample,
            num_patches=patches,
            checkpointing=config.gradient_checkpointing,
            trained_share=trained / shape.num_parameters,
        )
        return self._row(
            work,
            seconds=self._training_seconds(flops, config.num_processes),
            memory=memory.total + self._host_bytes(self._trains_on_gpus),
            parts=_parts(memory),
            processes=config.num_processes,
            gpus=config.num_processes if self._trains_on_gpus else 0,
            disk=self._weights_bytes(),
            passing=2 * estimates.resume_bytes(trained, bytes_each=_states(config, config.deepspeed_stage or 0, is_half=config.bf16)),
        )

    def _rl(self, work: Work) -> StagePlan:
        """Collecting, then learning. Streamed on a server with GPUs of its own, the two go on side by side. Memory is that of the process
        which leads: it alone hands weights on, and has the embedded engine; every other one has the same beside that."""
        profile, config = self._profile, self._profile.rl
        learned = work.response_tokens / (work.prompt_tokens + work.response_tokens)
        image_share = work.image_tokens / (work.prompt_tokens + work.response_tokens)
        memory = self._training_memory(
            config,
            tokens=max(config.microbatch_tokens, work.prompt_tokens + work.response_tokens),
            learned=learned,
            stage=config.zero_stage,
            processes=config.num_processes,
            is_half=_is_half(config),
            image_share=image_share,
        )
        trained = estimates.policy_parameters(self._shape, config)
        has_critic = config.algorithm == "ppo"
        critic = self._critic_bytes(work, memory, image_share) if has_critic else 0.0
        reference = estimates.checkpoint_bytes(self._shape, bytes_each=4) if config.kl_coefficient and not config.lora_rank else 0.0
        resumed = trained + (estimates.critic_parameters(self._shape, config) if has_critic else 0)
        handed = max(0.0, self._merged_bytes() - memory.activations - memory.logits) if config.lora_rank else 0.0
        beside = critic + handed + reference
        answering = self._generation_bytes(work, bytes_each=2 if _is_half(config) else 4)
        is_beside = not self._is_remote and not self._own_gpus and self._answers_on_gpus == self._trains_on_gpus
        generating = answering if is_beside else 0.0
        update = self.update_seconds(work)
        cores = max(1.0, self._machine.num_cores / profile.max_parallel)
        collect = self._collect_seconds(work, cores=cores)
        return self._row(
            work,
            seconds=max(collect, update) if config.streaming and (self._is_remote or self._own_gpus) else collect + update,
            memory=memory.total + beside * estimates.FRAGMENTATION + generating + self._host_bytes(self._trains_on_gpus),
            parts=_parts(memory, critic=critic, merged=handed, reference=reference, engine=generating),
            processes=config.num_processes,
            gpus=config.num_processes + self._own_gpus if self._trains_on_gpus else 0,
            disk=self._weights_bytes() + self._rows_bytes(work),
            passing=estimates.resume_bytes(resumed, bytes_each=estimates.FLOAT32),
            server=answering if self._own_gpus else self._server_bytes(work),
        )

    def update_seconds(self, work: Work) -> float:
        """Learning, of a whole RL run."""
        return self._training_seconds(self._update_flops(work), self._profile.rl.num_processes) + self._exchange_seconds(work)

    def answer_seconds(self, work: Work, sessions: int) -> tuple[float, float]:
        """(seconds of one answer where `sessions` ask at once, seconds that each takes of whatever answers)."""
        if not self._answers_on_gpus:
            seconds = self._cpu_answer_seconds(work)
            return seconds, seconds
        gpus = max(1, self._plan.server_gpus) if self._is_remote else max(1, self._own_gpus)
        return self._gpu_answer_seconds(work, float(sessions), gpus)

    def _exchange_seconds(self, work: Work) -> float:
        """A server reads each update's weights from the disk, in bfloat16."""
        if self._profile.engine.kind == "embedded":
            return 0.0
        return num_handed_on(self._profile.rl, work) * estimates.checkpoint_bytes(self._shape) / (1e9 * self._plan.exchange_gb_s)

    def _merged_bytes(self) -> float:
        """Weights with the adapters added in, as they are handed on between updates, when no activations are kept."""
        return estimates.checkpoint_bytes(self._shape, bytes_each=2 if _is_half(self._profile.rl) else 4)

    def _critic_bytes(self, work: Work, policy: TrainingMemory, image_share: float) -> float:
        """What the critic trains, in float32 with an optimizer of its own; what is frozen is the policy's. Its passes come after the
        policy's, so of their activations only what goes beyond the policy's counts."""
        config = self._profile.rl
        states = estimates.model_states(
            estimates.critic_parameters(self._shape, config),
            stage=config.zero_stage,
            num_processes=config.num_processes,
            bytes_each=estimates.FLOAT32_IN_ZERO if config.zero_stage else estimates.FLOAT32,
        )
        tokens = max(config.critic_minibatch_tokens, work.prompt_tokens + work.response_tokens)
        activations = estimates.activation_bytes(
            self._shape,
            tokens,
            checkpointing=config.gradient_checkpointing,
            bytes_each=2 if _is_half(config) else 4,
            num_patches=self._patches(tokens * image_share),
        )
        return sum(states) + max(0.0, activations - policy.activations - policy.logits)

    def _update_flops(self, work: Work) -> float:
        """Of all the updates of a run: the policy's epochs and the critic's, what is recomputed without a gradient, and replay."""
        config, shape = self._profile.rl, self._shape
        context = work.prompt_tokens + work.response_tokens
        patches = self._patches(work.image_tokens * work.num_steps)
        one_pass = estimates.forward_flops(shape, work.training_tokens, context=context, num_patches=patches)
        share = estimates.policy_parameters(self._shape, config) / shape.num_parameters
        full = 2 + share + (1 if config.gradient_checkpointing else 0)
        passes = config.epochs * full
        passes += config.critic_epochs * full + 1 if config.algorithm == "ppo" else 0
        passes += (config.off_policy != "none") + bool(config.kl_coefficient)
        updates = config.epochs * math.ceil(work.num_episodes / config.minibatch_episodes)
        replayed = updates * (config.replay_sft + config.replay_ct) * context if config.replay_weight else 0.0
        replay = estimates.training_flops(
            shape,
            replayed,
            context=context,
            num_patches=patches * replayed / max(1.0, work.training_tokens),
            checkpointing=config.gradient_checkpointing,
            trained_share=share,
        )
        return passes * one_pass + replay

    def _acting(self, work: Work) -> StagePlan:
        answers = work.response_tokens > 0
        is_here = answers and not self._is_remote
        on_gpu = is_here and self._answers_on_gpus
        generating = self._generation_bytes(work, bytes_each=2 if self._profile.engine.dtype == "bfloat16" else 4) if is_here else 0.0
        overhead = self._plan.collection_overhead_s if work.with_flow else 0.0
        disk = self._rows_bytes(work) + (self._weights_bytes() if work.stage == "merged_policy" else 0.0)
        return self._row(
            work,
            seconds=overhead + self._collect_seconds(work, cores=float(self._machine.num_cores)),
            memory=generating + self._host_bytes(on_gpu, sessions=True),
            disk=disk,
            gpus=max(1, self._own_gpus) if on_gpu else 0,
            server=self._server_bytes(work) if answers else 0.0,
        )

    def _collect_seconds(self, work: Work, *, cores: float) -> float:
        """Episodes x steps x latency / concurrency, and never less than what CPU and GPUs need for all the steps."""
        plan, sessions = self._plan, float(self._profile.sandbox.num_sessions)
        cpu_s = plan.env_cpu_s + (plan.screenshot_cpu_s if work.keeps_screens else 0.0)
        workers = min(cores, float(self._profile.sandbox.num_workers))
        of_cpu = 0.0 if self._profile.sandbox.servers else cpu_s / workers  # what other machines work costs none of this one's
        env = max(plan.env_latency_s / sessions, of_cpu)
        if not self._answers_on_gpus:
            answers = plan.driver_cpu_s + self._cpu_answer_seconds(work)
            return work.num_steps * (max(env, answers) if cores >= 2 else env + answers)
        alone, throughput = self.answer_seconds(work, self._profile.sandbox.num_sessions)
        return work.num_steps * max((plan.env_latency_s + alone) / sessions, env, plan.driver_cpu_s, throughput)

    def _cpu_answer_seconds(self, work: Work) -> float:
        decode = estimates.forward_flops(self._shape, work.response_tokens, context=work.prompt_tokens)
        return self._prefill_flops(work) / (1e9 * self._plan.cpu_prefill_gflops) + decode / (1e9 * self._plan.cpu_decode_gflops)

    def _prefill_flops(self, work: Work) -> float:
        tokens = work.prompt_tokens
        return estimates.forward_flops(self._shape, tokens, context=tokens, num_patches=self._patches(work.image_tokens))

    def _gpu_answer_seconds(self, work: Work, sessions: float, gpus: int) -> tuple[float, float]:
        """(seconds of an answer that is one of `sessions`, seconds of GPU time that each answer costs all of them together). Nothing is
        taken from a prefix cache."""
        if not work.response_tokens:
            return 0.0, 0.0
        shape, plan = self._shape, self._plan
        peak = plan.gpu_peak_tflops * 1e12
        prefill = estimates.compute_seconds(self._prefill_flops(work), peak_flops=peak, utilisation=plan.generation_mfu)
        batch = max(1.0, sessions / gpus)
        token = estimates.decode_step_seconds(
            shape,
            batch=batch,
            context=work.prompt_tokens,
            bandwidth=plan.gpu_bandwidth_gb_s * 1e9,
            peak_flops=peak,
            utilisation=plan.generation_mfu,
        )
        return prefill + work.response_tokens * token, (prefill + work.response_tokens * token / batch) / gpus

    def _training_seconds(self, flops: float, processes: int) -> float:
        plan = self._plan
        if self._trains_on_gpus:
            peak = plan.gpu_peak_tflops * 1e12
            return estimates.compute_seconds(flops, peak_flops=peak, utilisation=plan.training_mfu, num_devices=processes)
        return flops / (1e9 * plan.cpu_training_gflops * min(processes, self._machine.num_cores))

    def _training_memory(
        self, config: AdapterConfig, *, tokens: float, learned: float, stage: int, processes: int, is_half: bool, image_share: float
    ) -> TrainingMemory:
        return estimates.training_memory(
            self._shape,
            stage=stage,
            num_processes=processes,
            num_tokens=tokens,
            num_learned=tokens * learned,
            checkpointing=config.gradient_checkpointing,
            bytes_each=_states(config, stage, is_half=is_half),
            compute_bytes=2 if is_half else 4,
            num_trained=estimates.policy_parameters(self._shape, config),
            frozen_bytes=2 if config.lora_base_dtype == "bfloat16" else 4,
            num_patches=self._patches(tokens * image_share),
        )

    def _generation_bytes(self, work: Work, *, bytes_each: int = 4) -> float:
        """The embedded engine: a copy of the weights and the caches of all sessions. Of servers that a stage starts all that share the
        memory, each with weights and, on the CPU, a process of its own."""
        context, choice = work.prompt_tokens + work.response_tokens, self._profile.engine
        cached = self._profile.sandbox.num_sessions * context
        num = 1 if self._own_gpus else choice.replicas
        cache = estimates.kv_cache_bytes(self._shape, cached / (self._own_gpus or 1), bytes_each=bytes_each)
        process = self._host_bytes(self._answers_on_gpus) if choice.kind == "served" else 0.0
        return num * (self._shape.num_parameters * bytes_each + process) + cache

    def _server_bytes(self, work: Work) -> float:
        """Of each of the server's GPUs, in bfloat16, every one with all the weights: answers of all sessions at once."""
        if not self._is_remote or not self._plan.server_gpus:
            return 0.0
        shape, context = self._shape, work.prompt_tokens + work.response_tokens
        cache = estimates.kv_cache_bytes(shape, self._profile.sandbox.num_sessions / self._plan.server_gpus * context)
        return estimates.checkpoint_bytes(shape) + cache

    def _host_bytes(self, on_gpu: bool, *, sessions: bool = False) -> float:
        """Of the process itself; nothing where the memory that is planned is a GPU's."""
        if on_gpu:
            return 0.0
        num_here = self._profile.sandbox.num_sessions if sessions and not self._profile.sandbox.servers else 0
        return GIB * (self._plan.process_gib + self._plan.session_gib * num_here)

    def _weights_bytes(self) -> float:
        is_half = self._profile.sft.bf16 or self._profile.policy.dtype in ("bfloat16", "float16")
        return estimates.checkpoint_bytes(self._shape, bytes_each=2 if is_half else 4)

    def _rows_bytes(self, work: Work) -> float:
        width, height = self._plan.screen_px
        screens = work.num_steps * width * height * SCREEN_BYTES_PER_PX if work.keeps_screens else 0.0
        return screens + work.num_steps * STEP_BYTES

    def _patches(self, image_tokens: float) -> float:
        return image_tokens * self._shape.vision.merge**2 if self._shape.vision else 0.0

    def _row(
        self,
        work: Work,
        *,
        seconds: float,
        memory: float,
        parts: str = "",
        processes: int = 1,
        gpus: int = 0,
        disk: float = 0.0,
        passing: float = 0.0,
        server: float = 0.0,
    ) -> StagePlan:
        tokens = work.training_tokens or work.num_steps * (work.prompt_tokens + work.response_tokens)
        return StagePlan(
            stage=work.stage,
            amount=work.amount,
            num_processes=processes,
            num_gpus=gpus,
            tokens=tokens,
            memory_bytes=memory,
            memory_parts=parts,
            server_bytes=server,
            disk_bytes=disk,
            network_parts=network_parts(self._profile, self._shape, work),
            nodes=nodes_of(self._profile, work, processes),
            passing_bytes=passing,
            seconds=seconds + (0.0 if work.kind == "small" else self._plan.stage_overhead_s),
        )


def _states(config: AdapterConfig, stage: int, *, is_half: bool) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimizer state of a trained parameter: DeepSpeed in bfloat16 keeps a float32 copy; all else is
    float32 throughout, where bfloat16 is only computed in."""
    in_deepspeed = isinstance(config, SupervisedConfig) and config.deepspeed_stage is not None
    if is_half and in_deepspeed and not config.lora_rank:
        return estimates.MIXED_FLOAT32_GRADIENTS
    return estimates.FLOAT32_IN_ZERO if stage else estimates.FLOAT32


def _is_half(config: AdapterConfig) -> bool:
    """Whether weights that are frozen under adapters, and so what is computed with them, are bfloat16."""
    return bool(config.lora_rank) and config.lora_base_dtype == "bfloat16"


def _parts(memory: TrainingMemory, **more: float) -> str:
    named = {
        "weights": memory.weights + memory.gathered,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "logits": memory.logits,
        **more,
    }
    return " + ".join(f"{name} {in_bytes(size)}" for name, size in named.items() if size)
