"""What can be checked of a profile before anything runs and without the policy's weights: tasks and oracles, model and prompts, programs,
GPUs and memory, disk, variables, the policy server (server_check.py), the sandbox servers (sandbox_check.py), the launcher and its hosts
(hosts_check.py), the data. No check leaves anything behind.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import psutil

from assets.settings.profile import Profile
from models.families.shapes import ModelShape
from models.training.adapter_config import AdapterConfig
from pipelines.cli.doctor import check_browser, check_desktop, check_store, check_terminal
from pipelines.plan.hosts_check import check_hosts
from pipelines.plan.plan import Plan, in_bytes
from pipelines.plan.sandbox_check import check_sandboxes
from pipelines.plan.server_check import check_server
from pipelines.stages.context import profile_tasks
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import kind_of
from warehouse.core.checks import Check, Status
from warehouse.core.errors import CheckpointError
from warehouse.core.home import Home
from warehouse.core.stages import is_rl
from warehouse.datasets.mixing import SamplePoolName

TIGHT = 0.85
"""A memory or a disk that is filled beyond this share is warned of."""


def check_tasks(profile: Profile) -> Check:
    tasks = profile_tasks(profile.tasks)
    counts = Counter(task.domain for task in tasks)
    kinds = Counter(kind_of(task) for task in tasks)
    listed = ", ".join(f"{domain} {num}" for domain, num in counts.items())
    found = f"{len(tasks)} ({listed}), {sum(task.held_out for task in tasks)} held out; sessions: {', '.join(kinds)}"
    if empty := [domain for domain in profile.tasks.specialists if not any(t.domain == domain and not t.held_out for t in tasks)]:
        return Check(name="tasks", status="fail", found=found, fix=f"{', '.join(empty)} has no task to train on: drop it from rl_domains")
    return Check(name="tasks", status="ok", found=found)


def check_oracles(profile: Profile) -> Check:
    """Demonstrations and the scripted annotator need them."""
    tasks = [task for task in profile_tasks(profile.tasks) if not task.held_out]
    without = [task.name for task in tasks if not SOURCES[task.source].has_oracle(task)]
    if not without:
        return Check(name="oracles", status="ok", found=f"every one of {len(tasks)} tasks to train on has one")
    found = f"{len(tasks) - len(without)} of {len(tasks)} tasks have one; none: {', '.join(without[:5])}{' …' if len(without) > 5 else ''}"
    fix = "These are neither demonstrated nor annotated: leave them to collection and RL, or drop them from tasks.lists"
    return Check(name="oracles", status="warn", found=found, fix=fix)


def check_model(profile: Profile, shape: ModelShape, source: str) -> Check:
    """The folder is whole and what transformers takes it for; its context holds a prompt and an answer."""
    billions = f"{shape.num_parameters / 1e9:.2f} B" if shape.num_parameters >= 1e8 else f"{shape.num_parameters / 1e6:.2f} M"
    found = f"{shape.model_type}, {billions} parameters, by {source}"
    if profile.policy.source == "checkpoint":
        from models.checkpoints.importing import check_importable, num_parameters

        folder = Path(str(profile.policy.model)).expanduser()
        try:
            check_importable(folder)
            found += f"; {_auto_class(folder)}, {num_parameters(folder):,} parameters in its files"
        except (CheckpointError, ValueError, OSError) as error:
            return Check(name="model", status="fail", found=str(error), fix="Give a folder as save_pretrained writes it")
    agent = profile.agent
    longest = agent.builder().max_tokens + agent.max_new_tokens
    if shape.max_positions and longest > shape.max_positions:
        fix = f"Set agent.max_prompt_tokens to at most {shape.max_positions - agent.max_new_tokens}"
        return Check(
            name="model",
            status="fail",
            found=f"{found}; a prompt and its answer may take {longest:,} of {shape.max_positions:,} positions",
            fix=fix,
        )
    is_chat = agent.builder().grammar.layout == "chat"
    if is_chat and shape.vision is None and not agent.list_elements:
        fix = "--set agent.list_elements=true"
        return Check(name="model", status="warn", found=f"{found}; it cannot see, and gets no elements", fix=fix)
    if not is_chat and shape.vision is not None:
        fix = "Choose a grammar that shows the screen, e.g. --set agent.grammar=uitars15"
        return Check(name="model", status="warn", found=f"{found}; it could see, and {agent.grammar} shows it nothing", fix=fix)
    return Check(name="model", status="ok", found=f"{found}; {longest:,} of {shape.max_positions:,} positions")


def _auto_class(folder: Path) -> str:
    """The class that transformers opens a folder with. Raises ValueError for a kind of model that it does not know."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    import models.families.shift_qwen3  # noqa: F401  registers our own class

    kind = AutoConfig.from_pretrained(folder).model_type
    names = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "shift_qwen3": "ShiftQwen3ForCausalLM"}
    if kind not in names:
        raise ValueError(f"transformers opens a {kind} model neither as text nor as image and text")
    return str(names[kind])


def check_programs(profile: Profile) -> list[Check]:
    """The programs that the sessions of the profile's tasks are made of, each really started once, and what their sources check."""
    tasks = profile_tasks(profile.tasks)
    kinds = {kind_of(task) for task in tasks}
    needed: dict[str, tuple[Callable[[], Check], ...]] = {
        "page": (check_browser,),
        "hybrid": (check_browser,),
        "web": (check_browser,),
        "terminal": (check_terminal,),
        "desktop": (check_desktop,),
    }
    parts = list(dict.fromkeys(part for kind, each in needed.items() if kind in kinds for part in each))
    parts += [check for name in sorted({task.source for task in tasks}) if (check := SOURCES[name].check) is not None]
    return [part() for part in parts]


def check_training(profile: Profile, shape: ModelShape) -> Check:
    """Settings that a trainer would refuse for this kind of policy."""
    sees = shape.vision is not None and profile.agent.builder().grammar.layout == "chat"
    kinds = {"ct": profile.ct, "ct_refresh": profile.ct_refresh, "sft": profile.sft, "sft_refresh": profile.sft_refresh}
    if packed := [name for name, config in kinds.items() if config.packing == "packed" and shape.vision is not None]:
        found = f"{', '.join(packed)}: rows of a model that reads images cannot be packed"
        return Check(name="training", status="fail", found=found, fix=" ".join(f"--set {name}.packing=padded" for name in packed))
    if sees and not profile.rl.screenshots:
        found = "a policy that sees learns from what it saw, and rl keeps no screenshots"
        return Check(name="training", status="fail", found=found, fix="--set rl.screenshots=true")
    adapters = f"adapters of rank {profile.rl.lora_rank}" if profile.rl.lora_rank else "all weights"
    found = f"SFT {profile.sft.packing}, {'bfloat16' if profile.sft.bf16 else 'float32'}; RL by {profile.rl.algorithm}, {adapters}"
    return Check(name="training", status="ok", found=found)


def check_launcher(profile: Profile) -> Check:
    """What training in several processes, by ZeRO or by adapters wants to be installed, and answers by rounded weights."""
    wanted: dict[str, list[str]] = {}
    for name, config in (("ct", profile.ct), ("sft", profile.sft)):
        if config.is_distributed:
            wanted.setdefault("torch", []).append(f"{name} in {config.num_processes} processes by torchrun")
        if config.deepspeed_stage is not None:
            wanted.setdefault("deepspeed", []).append(f"{name} by ZeRO-{config.deepspeed_stage}")
    if profile.rl.num_processes > 1:
        wanted.setdefault("torch", []).append(f"rl in {profile.rl.num_processes} processes")
    kinds: dict[str, AdapterConfig] = {"ct": profile.ct, "sft": profile.sft, "rl": profile.rl}
    for name, adapters in kinds.items():
        if adapters.lora_rank:
            wanted.setdefault("peft", []).append(f"{name} with adapters of rank {adapters.lora_rank}")
    quantisation = profile.engine.settings.quantisation
    if quantisation is not None and profile.engine.kind != "http":
        wanted.setdefault("torchao", []).append(f"answers by {quantisation}")
    if missing := [package for package in wanted if find_spec(package) is None]:
        fix = "pip install 'flywheel[quantised]'" if missing == ["torchao"] else "make setup installs them (torchao: the extra `quantised`)"
        return Check(name="launcher", status="fail", found=f"not installed: {', '.join(missing)}", fix=fix)
    found = ", ".join(use for uses in wanted.values() for use in uses)
    return Check(name="launcher", status="ok", found=found or "every stage trains in one process")


def check_gpus(plan: Plan) -> Check:
    """GPUs that are seen against those that the plan wants, and whether each stage fits into one."""
    machine = plan.machine
    seen, wanted = len(machine.gpu_names), plan.gpus_here
    if not machine.num_gpus:
        is_large = plan.shape.num_parameters > 1e8
        fix = "Training a model of this size on a CPU takes weeks: plan for GPUs with --set plan.gpus=8"
        status: Status = "fail" if is_large else "ok"
        return Check(name="gpus", status=status, found="none: the CPU trains and answers", fix=fix if is_large else "")
    budget_bytes = machine.gpu_memory_bytes * plan.profile.plan.gpu_memory_share
    rows = {stage.stage: max(stage.memory_bytes if stage.num_gpus else 0.0, stage.server_bytes) for stage in (*plan.first, *plan.later)}
    stage, most = max(rows.items(), key=lambda row: row[1])
    found = f"{seen} seen ({', '.join(sorted(set(machine.gpu_names))) or 'none'}), {wanted} wanted; most in {stage}: {in_bytes(most)} of "
    found += in_bytes(machine.gpu_memory_bytes)
    if most > budget_bytes:
        fix = f"{stage} does not fit: train with adapters (lora_rank), in more processes by ZeRO-3, or with fewer tokens at once"
        return Check(name="gpus", status="fail", found=found, fix=fix)
    if seen < wanted:
        fix = f"Run it where {wanted} GPUs are, or set num_processes and plan.server_gpus lower"
        return Check(name="gpus", status="fail", found=found, fix=fix)
    return Check(name="gpus", status="ok" if most < TIGHT * budget_bytes else "warn", found=found)


def check_host_memory(plan: Plan) -> Check:
    """Memory of the machine, where that is what stages run in."""
    free = float(psutil.virtual_memory().available)
    stages = (*plan.seed, *plan.first, *plan.later)
    needs = {stage.stage: stage.num_processes * stage.memory_bytes for stage in stages if not stage.num_gpus}
    specialists = max((size for name, size in needs.items() if is_rl(name)), default=0.0)
    needed = max(plan.at_once * specialists, max(needs.values(), default=0.0))
    found = f"{in_bytes(needed)} at the most, {in_bytes(free)} available"
    return _graded("memory", needed, free, found, "Run fewer stages or sessions at once: --set max_parallel=1 --set sandbox.num_sessions=8")


def check_disk_space(plan: Plan, home: Home, num_iterations: int) -> Check:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free, needed = float(shutil.disk_usage(folder).free), plan.disk_bytes(num_iterations)
    return _graded("disk", needed, free, f"{in_bytes(needed)} for {num_iterations} iterations, {in_bytes(free)} free", "Free some space")


def _graded(name: str, needed: float, free: float, found: str, fix: str) -> Check:
    status: Status = "fail" if needed > free else "warn" if needed > TIGHT * free else "ok"
    return Check(name=name, status=status, found=found, fix="" if status == "ok" else fix)


def check_variables(profile: Profile) -> Check:
    """Tokens come from the environment only. Whether a model of the hub wants one, only the hub knows."""
    http = profile.engine.http
    if http is not None and http.token_env and not os.environ.get(http.token_env):
        fix = f"export {http.token_env}=…, the server's token"
        return Check(name="variables", status="fail", found=f"{http.token_env} is not set", fix=fix)
    if profile.policy.source == "huggingface" and not os.environ.get("HF_TOKEN"):
        fix = "Only models behind a form want it: export HF_TOKEN=…"
        return Check(name="variables", status="warn", found="HF_TOKEN is not set", fix=fix)
    return Check(name="variables", status="ok", found="none is missing")


def check_data(profile: Profile, plan: Plan) -> Check:
    """What the first iteration has to learn from, and how often CT and SFT go over what their mixtures draw from it."""
    there_are = {"tutorial": float(profile.seed_data.tutorials), "demonstration": plan.demonstrated_steps}
    plural = "s" if profile.seed_data.tutorials > 1 else ""
    listed, empty = [f"{profile.seed_data.tutorials:,} tutorial{plural}, {plan.demonstrated_steps:,.0f} demonstrated steps"], []
    mixtures = {"CT": (profile.ct_mixture, "ct_model"), "SFT": (profile.sft_mixture, "sft_model")}
    for kind, (mixture, stage) in mixtures.items():
        tokens = plan.tokens(stage)
        draws = 0.0
        for name, num in there_are.items():
            pool = mixture.sample_pool(cast("SamplePoolName", name))
            if pool is not None:
                most = num * pool.max_repeats if pool.max_repeats is not None else math.inf
                draws += min(num if pool.draws is None else pool.draws, most) if num else 0.0
        if not draws:
            empty.append(kind)
        elif tokens:
            listed.append(f"{kind} goes {tokens / (draws * plan.sample_tokens):.1f} times over {draws:,.0f} samples")
    if empty:
        fix = "Give the mixture a sample pool that is filled in iteration 1: demonstration or tutorial"
        return Check(name="data", status="fail", found=f"{listed[0]}; {' and '.join(empty)} would have nothing to learn from", fix=fix)
    return Check(name="data", status="ok", found="; ".join(listed))


def preflight(profile: Profile, plan: Plan, shape_source: str, home: Home, num_iterations: int) -> list[Check]:
    """Every check, in the order of the table."""
    return [
        check_tasks(profile),
        check_oracles(profile),
        check_data(profile, plan),
        check_model(profile, plan.shape, shape_source),
        check_training(profile, plan.shape),
        check_launcher(profile),
        *check_hosts(profile, home),
        check_gpus(plan),
        check_host_memory(plan),
        check_disk_space(plan, home, num_iterations),
        *((check_store(home.store),) if home.store is not None else ()),
        check_variables(profile),
        check_server(profile, home),
        *_check_runner(profile),
        *_check_sessions(profile),
    ]


def _check_runner(profile: Profile) -> list[Check]:
    """Where stages would run, if not here."""
    if profile.runner.kind != "ray":
        return []
    from pipelines.plan.ray_check import check_job_server

    return [check_job_server(profile)]


def _check_sessions(profile: Profile) -> list[Check]:
    """Where sessions would run."""
    if profile.sandbox.ray is not None:
        from pipelines.plan.ray_check import check_ray

        return [check_ray(profile), *check_programs(profile)]
    return check_sandboxes(profile) if profile.sandbox.servers else check_programs(profile)
