"""Counters of a policy server for Prometheus; each server has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

MEDIA_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"flywheel_policy_{name}", meaning, labels, registry=self.registry)

        def histogram(name: str, meaning: str) -> Histogram:
            return Histogram(f"flywheel_policy_{name}", meaning, buckets=SECONDS, registry=self.registry)

        self.requests = counter("requests", "Requests by route and HTTP status; 499: the client went away.", "route", "status")
        self.refused = counter("refused", "Requests without the token.")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts that were answered.")
        self.tokens = counter("tokens", "Tokens written.")
        self.weight_updates = counter("weight_updates", "Weights loaded.")
        self.first_token_s = histogram("first_token_seconds", "From the beginning of an answer to its first token.")
        self.answer_s = histogram("answer_seconds", "From the beginning of an answer to its end.")

    def watch(self, name: str, meaning: str, value: Callable[[], int]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"flywheel_policy_{name}", meaning, registry=self.registry).set_function(lambda: float(value()))

    def render(self) -> bytes:
        return generate_latest(self.registry)
