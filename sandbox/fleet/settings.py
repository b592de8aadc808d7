"""FleetSettings: the settings of a fleet and its workers. They cross a process, so it is a frozen model."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.browser.page_session import Limits
from sandbox.pool.slots import RecyclePolicy
from sandbox.tasks.page_task import PageTasks
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import ConfigError

Seconds = Annotated[float, Field(gt=0)]


class FleetSettings(BaseModel):
    """How many workers, when they come and go, and what runs in each. Times are wall-clock seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["auto", "beginframe", "plain", "playwright"] = Field("auto", description="kind of browser session")
    min_workers: Annotated[int, Field(ge=0, description="processes kept even when nobody asks")] = 1
    max_workers: Annotated[int, Field(ge=1, description="processes at most; the default is one a core")] = Field(
        default_factory=lambda: os.cpu_count() or 1
    )
    sessions_per_worker: Annotated[int, Field(ge=1)] = 4
    browsers_per_worker: Annotated[int, Field(ge=1)] = 1
    max_at_once: dict[SessionKind, int] = Field(default_factory=dict, description="sessions of a kind in the whole fleet, at most")
    page_sources: str = Field("sandbox.tasks.sources:page_tasks", description="module:function that gives the sources that live in pages")

    grow_after_s: Seconds = Field(0.5, description="a lease that has waited so long brings more workers, up to max_workers")
    shrink_after_s: Seconds = Field(60.0, description="a worker unused for so long is ended, down to min_workers")
    lease_ttl_s: Seconds = Field(900.0, description="a leased session that its user did not touch for so long is taken back")
    call_limit_s: Seconds = Field(1800.0, description="a leased session with a call under way for so long hangs, and is taken back")
    idle_s: Seconds = Field(300.0, description="a free session unused for so long is closed, and then a browser without sessions")

    heartbeat_s: Seconds = Field(5.0, description="between two questions whether a worker, or a browser of it, still answers")
    hung_after_s: Seconds = Field(30.0, description="a worker or browser that answers nothing for so long is killed and replaced")
    lonely_after_s: Seconds = Field(600.0, description="a worker that hears nothing of its manager for so long ends by itself")
    start_limit_s: Seconds = Field(60.0, description="a worker that is not ready by then has failed")

    ready_limit_s: Seconds = Field(30.0, description="a reset may take so long")
    step_limit_s: Seconds = Field(30.0, description="a step may take so long")

    recycle_resets: Annotated[int, Field(ge=1, description="a browser is replaced after so many resets")] = 1000
    recycle_age_s: Seconds = Field(3600.0, description="a browser is replaced at this age")
    recycle_memory_mib: float | None = Field(None, description="a browser is replaced above this; default: by its number of sessions")
    recycle_worker_leases: Annotated[int, Field(ge=1, description="a worker is replaced after so many leases")] = 20_000
    recycle_worker_age_s: Seconds = Field(4 * 3600.0, description="a worker is replaced at this age")
    recycle_worker_memory_mib: float = Field(1024.0, gt=0, description="a worker is replaced above this, its browsers not counted")

    @model_validator(mode="after")
    def _fits(self) -> FleetSettings:
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers is {self.min_workers}, more than max_workers, {self.max_workers}: lower one or raise the other")
        if self.browsers_per_worker > self.sessions_per_worker:
            raise ValueError(
                f"browsers_per_worker is {self.browsers_per_worker}, more than sessions_per_worker, {self.sessions_per_worker}: "
                "a browser without a session is useless"
            )
        if self.call_limit_s <= max(self.ready_limit_s, self.step_limit_s):
            raise ValueError(
                f"call_limit_s is {self.call_limit_s:g}, expected more than ready_limit_s, {self.ready_limit_s:g}, and step_limit_s, "
                f"{self.step_limit_s:g}: it is for calls that these do not end"
            )
        return self

    def page_tasks(self) -> PageTasks:
        """Raises ConfigError where `page_sources` names nothing."""
        module, _, function = self.page_sources.partition(":")
        try:
            return cast(PageTasks, getattr(import_module(module), function)())
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"page_sources is {self.page_sources!r}, expected module:function that gives PageTasks: {error}") from error

    def limits(self) -> Limits:
        return Limits(ready_s=self.ready_limit_s, step_s=self.step_limit_s)

    def recycle(self) -> RecyclePolicy:
        """Of the browsers in a worker."""
        return RecyclePolicy(
            recycle_resets=self.recycle_resets,
            recycle_age_s=self.recycle_age_s,
            recycle_memory_mib=self.recycle_memory_mib,
            idle_s=self.idle_s,
            heartbeat_s=self.heartbeat_s,
            hung_after_s=self.hung_after_s,
        )
