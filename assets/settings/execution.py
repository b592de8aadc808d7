"""Where the work of an iteration runs: its stages (RunnerSettings), and the live sessions of those that act (SandboxSettings)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.server.address import ServerAddress

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
OF_OWN_SESSIONS = ("session", "num_workers", "num_browsers")
"""Settings of the sandbox that say nothing where servers run the sessions."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RaySettings(_Settings):
    """Episodes on the nodes of a Ray cluster, one worker with sessions of its own on each (docs/cluster.md)."""

    address: str = Field(
        "auto",
        pattern=r"^(auto|local|[^\s:/]+:\d+)$",
        description="HOST:PORT of the cluster's head as `ray start` prints it; auto: the cluster that this machine is a node of "
        "(RAY_ADDRESS); local: one that Ray starts on this machine for the stage",
    )
    workers: Positive | None = Field(None, description="nodes that are used at once, at most; null: every node that has the resources")
    cpus: Annotated[float, Field(gt=0, description="processors that a worker takes of its node; null: sandbox.num_workers")] | None = None
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="other resources that a node must have, as `ray start --resources` gave them, e.g. {sandbox: 1}"
    )
    lost_after_s: Annotated[
        float, Field(ge=2, description="a node that answers nothing for so long is given up: its episodes run again elsewhere")
    ] = 20.0
    wait_s: Annotated[
        float, Field(gt=0, description="so long a stage waits for a node while it has none, e.g. for the autoscaler's first; then it fails")
    ] = 300.0
    min_free_disk_mib: Annotated[
        float,
        Field(
            ge=0,
            description="free space of a node's temporary folder below which it gets no episodes; below a quarter, those under way run "
            "again elsewhere; 0: not looked at",
        ),
    ] = 256.0


class RunnerSettings(_Settings):
    """Where stages run: `runner: local` or `runner: ray` is short for the kind alone."""

    kind: Literal["local", "ray"] = Field(
        "local",
        description="local: a process beside Dagster; ray: a job of a Ray cluster whose nodes share the home's folder (docs/cluster.md)",
    )
    address: str | None = Field(
        None,
        pattern=r"^https?://",
        description="of the cluster's job server, e.g. http://head:8265; null: RAY_API_SERVER_ADDRESS, or the cluster on this machine",
    )
    cpus: Annotated[float, Field(ge=0, description="processors that a job takes of its node; 0: it runs on the head")] = 0.0
    gpus: Annotated[float, Field(ge=0, description="GPUs that a job takes of its node")] = 0.0
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="other resources that its node must have, e.g. {trainer: 1}"
    )

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class SandboxSettings(_Settings):
    """How live sessions are run, in every stage that acts: in processes of the stage, or on sandbox servers."""

    servers: tuple[ServerAddress, ...] = Field(
        (),
        description="addresses of sandbox servers, e.g. [http://10.0.0.2:8421], or {url: …, token_env: VARIABLE}: every stage that acts "
        "leases there (docs/cluster.md); none: the stage has sessions of its own",
    )
    session: Literal["auto", "beginframe", "plain", "playwright"] = Field(
        "auto", description="kind of browser session; auto: beginframe (pixels that repeat) where the browser has it, else plain"
    )
    num_workers: Positive = Field(1, description="processes that drive sessions, in each stage; more come with the waiting line up to this")
    num_browsers: Positive = Field(1, description="browsers in each of them")
    num_sessions: Positive = Field(24, description="episodes that run at once, in all of them")
    episode_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            description="wall clock that all decisions of one episode may take, else its outcome is `timeout`; an episode that has "
            "not ended after twice that is an infrastructure failure",
        ),
    ] = 120.0
    max_retries: Count = Field(2, description="infrastructure retries before an episode is recorded as crashed")
    fixed_batch: bool = Field(False, description="act on one prompt at a time: bit-exact whatever else runs, about five times slower")
    ray: RaySettings | None = Field(
        None, description="run the episodes on a Ray cluster; the settings of workers, browsers and sessions then hold for each node"
    )

    @model_validator(mode="after")
    def _servers_have_their_own(self) -> SandboxSettings:
        if not self.servers:
            return self
        if self.ray is not None:
            raise ValueError(
                "sandbox.ray is set, and sandbox.servers are named: episodes run on the cluster's nodes with their own sessions, or in the "
                "stage with those of the servers. Leave out one"
            )
        urls = [server.url for server in self.servers]
        if twice := sorted({url for url in urls if urls.count(url) > 1}):
            raise ValueError(f"sandbox.servers names {twice[0]} twice: name each server once")
        for name in OF_OWN_SESSIONS:
            if (value := getattr(self, name)) != (default := type(self).model_fields[name].default):
                raise ValueError(
                    f"sandbox.{name} is {value!r}, and sandbox.servers are named: it says how sessions of the stage's own are run, and "
                    f"each server says that for itself (flywheel sandbox serve). Leave it out, or set it to {default!r}"
                )
        return self
