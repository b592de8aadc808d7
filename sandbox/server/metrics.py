"""What a sandbox server counts, for Prometheus. Each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, is_dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.server.lease import ENDS

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STEP_EDGES_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counters that the server's parts write; gauges are read when they are asked for."""

    def __init__(self, session_pool: SessionPoolProtocol) -> None:
        self.registry = CollectorRegistry()
        self.created = Counter("flywheel_sessions_created", "Leases granted.", registry=self.registry)
        self.ended = Counter("flywheel_sessions_ended", "Leases ended, by reason.", ("reason",), registry=self.registry)
        for reason in ENDS:
            self.ended.labels(reason=reason)
        self.refused = Counter("flywheel_unauthorized", "Requests without a valid token.", registry=self.registry)
        self.step_s = Histogram(
            "flywheel_step_seconds",
            "Time of a step in its session, by kind of session.",
            ("kind",),
            buckets=STEP_EDGES_S,
            registry=self.registry,
        )
        self.reset_s = Histogram(
            "flywheel_reset_seconds",
            "Time of a reset in its session, by kind of session.",
            ("kind",),
            buckets=STEP_EDGES_S,
            registry=self.registry,
        )
        self.failures = Counter("flywheel_call_failures", "Calls that the sandbox failed, by error.", ("error",), registry=self.registry)
        self.registry.register(_PoolStats(session_pool))

    def watch(self, name: str, meaning: str, value: Callable[[], int]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, meaning, registry=self.registry).set_function(lambda: float(value()))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _PoolStats(Collector):
    """The numbers of the pool's own statistics, where it keeps any."""

    def __init__(self, session_pool: SessionPoolProtocol) -> None:
        self._session_pool = session_pool

    def collect(self) -> Iterable[Metric]:
        read: Callable[[], Any] | None = getattr(self._session_pool, "stats", None)
        stats = read() if read is not None else None
        if stats is not None and is_dataclass(stats) and not isinstance(stats, type):
            for name, value in asdict(stats).items():
                if isinstance(value, int | float):
                    yield GaugeMetricFamily(f"flywheel_pool_{name}", f"{name} of the pool's statistics.", value=float(value))
