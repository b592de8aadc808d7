"""Policy servers that an engine has for itself: processes of this machine that answer with one checkpoint, and end with the engine."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from models.engine.settings import EngineSettings
from models.http.config import HttpEngineConfig
from models.server.process import ServerJob, ServerProcess
from models.server.settings import ServerSettings
from warehouse.core.errors import EngineUnreachable

AT_ONCE = 4096
"""Requests: they wait in the server's engine, as they would in this process."""
LONGEST = 2**20
"""Tokens of an answer: the engine's context is the limit."""
TIMEOUT_S = 3600.0


class OwnServers:
    """Started for one engine; nobody else has their token. Close them."""

    def __init__(self, servers: Sequence[ServerProcess], config: HttpEngineConfig, token: str) -> None:
        self._servers, self.config, self.token = servers, config, token

    @classmethod
    def start(
        cls, folder: Path, *, dtype: str, device: str, settings: EngineSettings, num: int = 1, exchange: Path | None = None
    ) -> OwnServers:
        """Servers of a checkpoint, once all of them answer. `exchange`: the folder of a learner's weights, which is emptied first. With
        the device cuda:N they are on that GPU and those that follow. Raises CheckpointError, ModelError, EngineUnreachable."""
        from models.families.registry import is_vision

        if exchange is not None:
            shutil.rmtree(exchange, ignore_errors=True)
            exchange.mkdir(parents=True)
        token = secrets.token_urlsafe(32)
        limits = ServerSettings(
            max_concurrency=AT_ONCE,
            max_waiting=AT_ONCE,
            max_tokens=LONGEST,
            weight_roots=() if exchange is None else (exchange,),
            grace_s=1.0,
        )
        servers = [
            ServerProcess(ServerJob(folder=folder, dtype=dtype, device=each, engine=settings, limits=limits, token=token))
            for each in devices_of(device, num)
        ]
        try:
            first, *others = [server.address() for server in servers]
            config = HttpEngineConfig(
                base_url=first,
                replicas=tuple(others),
                server="flywheel",
                send="messages" if is_vision(folder) else "token_ids",
                max_concurrency=AT_ONCE,
                timeout_s=TIMEOUT_S,
                retries=2,
                exchange=None if exchange is None else str(exchange),
                weights="disk",
            )
            return cls(servers, config, token)
        except BaseException:
            _close(servers)
            raise

    @property
    def pids(self) -> list[int | None]:
        return [server.pid for server in self._servers]

    def check(self) -> None:
        """Raises EngineUnreachable where one has ended."""
        ended = [f"{url} {why}" for url, server in zip(self._urls, self._servers, strict=True) if (why := server.why_ended()) is not None]
        if ended:
            raise EngineUnreachable(
                f"the policy server of this stage, {' and '.join(ended)}: run the stage again, which starts another and goes on from what "
                "is kept. Where the machine has too little memory, set engine.settings.max_rows and running_mib lower"
            )

    @property
    def _urls(self) -> tuple[str, ...]:
        return (self.config.base_url, *self.config.replicas)

    def close(self) -> None:
        """End them. May be called twice."""
        _close(self._servers)
        if self.config.exchange is not None:
            shutil.rmtree(self.config.exchange, ignore_errors=True)


def devices_of(device: str, num: int) -> list[str]:
    """Where each of several servers runs."""
    numbered = re.fullmatch(r"cuda:(\d+)", device)
    return [device if numbered is None else f"cuda:{int(numbered[1]) + index}" for index in range(num)]


def _close(servers: Sequence[ServerProcess]) -> None:
    for server in servers:
        server.close()
