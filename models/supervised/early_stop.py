"""Held-out samples and the decision when to stop: which samples are held out, what the curve of their loss says. No model, no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from models.training.batching import EncodedSample
from warehouse.core.identity import stable_fraction

CURVE_FILE = "held_out.json"
"""In a trainer checkpoint: the curve so far."""


def is_held_out(sample: EncodedSample, fraction: float) -> bool:
    """Whether a sample is measured on instead of trained on. A hash of its tokens alone decides: it keeps its side in every run, and equal
    ones are never on both."""
    return fraction > 0 and stable_fraction([int(token) for token in sample.token_ids]) < fraction


@dataclass(slots=True, kw_only=True)
class HeldOutCurve:
    """The lowest held-out loss so far, and how many have come since."""

    best_loss: float | None = None
    best_step: int | None = None
    num_since_best: int = 0

    def add(self, step: int, loss: float) -> bool:
        """Whether this one is the lowest."""
        if self.best_loss is None or loss < self.best_loss:
            self.best_loss, self.best_step, self.num_since_best = loss, step, 0
            return True
        self.num_since_best += 1
        return False

    def is_over(self, patience: int | None) -> bool:
        return patience is not None and self.num_since_best >= patience

    def metrics(self, num_samples: int) -> dict[str, float]:
        if self.best_step is None or self.best_loss is None:
            return {}
        return {"eval_loss": self.best_loss, "eval_best_step": float(self.best_step), "eval_samples": float(num_samples)}

    def save(self, folder: Path) -> None:
        (folder / CURVE_FILE).write_text(json.dumps(asdict(self), allow_nan=False))


def load_curve(folder: Path | None) -> HeldOutCurve:
    """As a trainer checkpoint left it; empty without one."""
    if folder is None or not (folder / CURVE_FILE).exists():
        return HeldOutCurve()
    return HeldOutCurve(**json.loads((folder / CURVE_FILE).read_text()))
