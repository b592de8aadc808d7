"""The executor of a run that works in a home: Dagster's multiprocess one, behind the lock that keeps two such runs apart.

The run's profile is checked before its first step, and decides how many steps run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from dagster import multiprocess_executor
from dagster._config import process_config
from dagster._core.definitions.executor_definition import _core_multiprocess_executor_creation
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.execution.step_dependency_config import StepDependencyConfig

from assets.stages.stage_assets import CONCURRENCY_POOL
from pipelines.orchestration.runs import step_server
from pipelines.orchestration.runs.iteration_lock import IterationLock, lock_path
from warehouse.core.errors import IterationLocked
from warehouse.core.home import Home

START_METHOD = {"forkserver": {"preload_modules": [step_server.PRELOAD]}}
LAUNCH_TAG = "flywheel/launch"
"""On a run of pipelines/orchestration/runs/process.py: by which the starter of that process finds it."""
LAUNCHED_TAG = "flywheel/launched_at"
"""On the same run: when that process began, in Unix seconds. Its imports come before what Dagster counts."""
HANDOVER_S = 20.0
"""To the queue a run is over a moment before its process, which holds the lock, is gone."""
_HELD: list[IterationLock] = []
"""Keeps the lock alive as long as the process of the run."""


@dg.executor(
    name="one_run_at_a_time",
    config_schema=multiprocess_executor.config_schema.as_field(),
    requirements=multiprocess_executor.get_requirements({}),
)
def home_executor(init_context: dg.InitExecutorContext) -> dg.Executor:
    """Steps in processes of their own; at most one run works in a FLYWHEEL_HOME. A run that has no step of the home's concurrency
    pool, one of another project that shares these definitions, is Dagster's plain multiprocess one. Raises IterationLocked."""
    if not _works_in_home(init_context.job.get_definition()):
        return _multiprocess(init_context.executor_config)
    home = Home.from_env()
    lock = IterationLock(home, lock_path(home))
    if not lock.acquire(timeout_s=HANDOVER_S):
        raise IterationLocked(f"process {lock.holder()} is running an iteration in {home.root}; wait for it, or end it and launch again")
    _HELD.append(lock)
    step_server.start()
    return HomeExecutor({"start_method": START_METHOD, **_given(init_context.executor_config)})


class HomeExecutor(dg.Executor):
    """As many steps at once as the profile of the run says, which is checked before the first one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._unchecked = _multiprocess(config)

    @property
    def retries(self) -> RetryMode:
        return self._unchecked.retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        return self._unchecked.step_dependency_config

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        """Raises ConfigError for a profile that no step could work under."""
        from pipelines.orchestration.runs import profile as run_profile  # who only asks for the lock need not wait for what profiles import

        profile = run_profile.of_run(plan_context.dagster_run.run_config)
        yield from _multiprocess({"max_concurrent": profile.max_parallel, **self._config}).execute(plan_context, execution_plan)


def _multiprocess(config: Mapping[str, Any]) -> dg.Executor:
    filled = process_config(multiprocess_executor.config_schema.config_type, dict(config))
    return _core_multiprocess_executor_creation(filled.value or {})


def _works_in_home(job: dg.JobDefinition) -> bool:
    return any(isinstance(node, dg.OpDefinition) and node.pool == CONCURRENCY_POOL for node in job.all_node_defs)


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a launcher set on purpose: Dagster fills the rest with its own defaults."""
    defaults: dict[str, tuple[Any, ...]] = {"max_concurrent": (None, 0), "start_method": ({"spawn": {}},)}
    return {name: value for name, value in config.items() if value not in defaults.get(name, ())}
