"""What an annotation server allows. How it is started is serve.py's and the command line's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class WebSettings(BaseModel):
    """Limits of one server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: Annotated[int, Field(ge=1024, description="largest request, where a route says nothing else")] = 256 * 1024
    body_timeout_s: Annotated[float, Field(gt=0, description="longest silence in the middle of a request's body")] = 30.0
    requests_per_s: Annotated[float, Field(gt=0, description="of one login, or of one address without, in the long run")] = 50.0
    burst: Annotated[int, Field(ge=1, description="requests at once before that counts")] = 300
    idle_s: Annotated[float, Field(gt=0, description="a browser's login ends so long after its last request")] = 4 * 3600.0
    longest_s: Annotated[float, Field(gt=0, description="a browser's login ends so long after it began")] = 16 * 3600.0
    free_failures: Annotated[
        int, Field(ge=1, description="failed logins of one name from one address or browser before each further one has to wait longer")
    ] = 8
    first_wait_s: Annotated[float, Field(gt=0, description="the first such wait; each is twice the one before")] = 15.0
    longest_wait_s: Annotated[float, Field(gt=0, description="the longest")] = 900.0
    failures_by_name: Annotated[
        int, Field(ge=1, description="failed logins of one name from anywhere, within the window; holds where it never came from")
    ] = 200
    window_s: Annotated[float, Field(gt=0, description="the window of failures_by_name")] = 900.0
    max_unfinished_bytes: Annotated[int, Field(ge=1024**2, description="of one person's uploads that are not complete")] = 8 * 1024**3
    max_unfinished: Annotated[int, Field(ge=1, description="how many such uploads one person may have")] = 64
    max_pixels_a_day: Annotated[int, Field(ge=1, description="of pictures in one person's recordings that are decoded")] = 64 * 10**9
    unfinished_days: Annotated[float, Field(gt=0, description="an upload that nobody goes on with is dropped after so many days")] = 7.0
    behind_proxy: Annotated[
        bool, Field(description="a proxy of one's own on this machine ends TLS: believe its X-Forwarded-For and -Proto, and nobody else's")
    ] = False
