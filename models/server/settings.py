"""What a policy server allows: how much at once, how long, and from where it loads weights. How it is started is serve.py's and the
command line's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class ServerSettings(BaseModel):
    """Limits of one server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_name: Annotated[str, Field(min_length=1, description="what clients call the policy, whichever weights answer")] = "policy"
    max_concurrency: Annotated[int, Field(ge=1, description="answers under way at once")] = 64
    max_waiting: Annotated[int, Field(ge=0, description="requests that may wait for their turn; more are turned away with 429")] = 512
    max_tokens: Annotated[int, Field(ge=1, description="longest answer that may be asked for")] = 4096
    default_max_tokens: Annotated[int, Field(ge=1, description="longest answer where a request names no limit")] = 256
    max_body_mib: Annotated[int, Field(ge=1, description="largest request")] = 64
    max_image_pixels: Annotated[int, Field(ge=1, description="pictures of one request together, in pixels")] = 33_177_600
    weight_roots: Annotated[tuple[Path, ...], Field(description="weights are loaded from below these folders only; empty: never")] = ()
    allowed_hosts: Annotated[
        tuple[str, ...], Field(description="host names that it answers for, beside loopback names and IP addresses")
    ] = ()
    grace_s: Annotated[float, Field(ge=0, description="how long answers under way may take to end at shutdown")] = 30.0
