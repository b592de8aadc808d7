"""What a sandbox server allows: how many sessions, for whom, for how long. How it is started is serve.py's and the command line's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ServerSettings(BaseModel):
    """Limits of one server. A client is the holder of a token; its name is the token's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_sessions: Annotated[int, Field(ge=1, description="sessions on lease at once, of all clients")] = 64
    max_sessions_per_client: Annotated[int, Field(ge=1, description="sessions on lease at once, of one client")] = 64
    max_waiting: Annotated[int, Field(ge=0, description="requests for a session that may wait at once; more are turned away")] = 512
    max_wait_s: Annotated[float, Field(ge=0, description="longest wait for a session, then 503 with Retry-After")] = 30.0
    ttl_s: Annotated[float, Field(gt=0, description="a lease ends so long after its last sign of life; it may ask for another")] = 60.0
    max_ttl_s: Annotated[float, Field(gt=0, description="longest that a lease may ask for")] = 600.0
    max_lifetime_s: Annotated[float, Field(gt=0, description="a lease ends this long after its beginning, alive or not")] = 7200.0
    oracles: Annotated[
        bool, Field(description="clients may see the oracle's hint and the verifier's reasons: never where a policy is evaluated")
    ] = False
    allowed_hosts: Annotated[tuple[str, ...], Field(description="host names it answers for beside loopback names and addresses")] = ()
    min_free_disk_mib: Annotated[
        float, Field(ge=0, description="free space of the temporary folder below which no session is granted; below a quarter, calls fail")
    ] = 256.0
    max_request_s: Annotated[float, Field(gt=0, description="longest that the body of a request may take to arrive")] = 60.0
    max_body_mib: Annotated[int, Field(ge=1, description="largest request")] = 16

    @model_validator(mode="after")
    def _ttl_is_allowed(self) -> ServerSettings:
        if self.ttl_s > self.max_ttl_s:
            raise ValueError(f"ttl_s {self.ttl_s:g} is above max_ttl_s {self.max_ttl_s:g}")
        return self
