"""What a gateway allows. How it is started is the command line's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class GatewaySettings(BaseModel):
    """Limits of one gateway."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_running: Annotated[int, Field(ge=1, description="calls of one project under way at once; more are turned away with 429")] = 256
    max_body_mib: Annotated[int, Field(ge=1, description="largest request")] = 64
    max_image_pixels: Annotated[int, Field(ge=1, description="pictures of one request together, in pixels")] = 33_177_600
    timeout_s: Annotated[float, Field(gt=0, description="longest that the upstream may be silent")] = 300.0
    keep_personal_data: Annotated[bool, Field(description="store texts in which personal data is found, too")] = False
    candidate_share: Annotated[float, Field(ge=0, le=1, description="share of the episodes that the candidate answers")] = 0.0
    allowed_hosts: Annotated[
        tuple[str, ...], Field(description="host names that it answers for, beside loopback names and IP addresses")
    ] = ()
    episode_header: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9-]+$", description="a header of the client's own that names the episode, as X-Flywheel-Episode does"),
    ] = None
    grace_s: Annotated[float, Field(ge=0, description="how long calls under way may take to end at shutdown")] = 30.0
