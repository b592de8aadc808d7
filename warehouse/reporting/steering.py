"""Who steered each round of a run with a critic: critic or baseline, between what bounds lambda lay, how much of returns was explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warehouse.reporting.run_charts import Points


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRound:
    """`explained` and the verdict are the critic's on the round's episodes before it was fitted to them."""

    number: int
    who: str
    lambda_low: float
    lambda_high: float
    explained: float

    @property
    def lambdas(self) -> str:
        """Empty where no critic steered: a baseline has none."""
        return f"{self.lambda_low:.2f} to {self.lambda_high:.2f}" if self.who == "critic" else ""


def steered_rounds(curves: Mapping[str, Points]) -> list[SteeredRound]:
    """Of a run's curves (run_charts.run_curves); none of an algorithm without a critic."""
    of_round = {name: dict(points) for name, points in curves.items()}
    found = []
    for number, by_critic in of_round.get("critic_steers", {}).items():
        of = {name: values[number] for name, values in of_round.items() if number in values}
        learned = of.get("baseline_steers", of.get("updates", 0.0))  # runs of before name no baseline
        who = "critic" if by_critic else "baseline" if learned else "nobody"
        low, high = of.get("lambda_policy_min", 0.0), of.get("lambda_policy_max", 0.0)
        explained = of.get("explained_variance", 0.0)
        found.append(SteeredRound(number=number, who=who, lambda_low=low, lambda_high=high, explained=explained))
    return found


def steering_table(rounds: Sequence[SteeredRound]) -> str:
    """As Markdown."""
    lines = [f"| {each.number} | {each.who} | {each.lambdas} | {each.explained:.2f} |" for each in rounds]
    return "\n".join(["| round | steered by | λ | explained variance |", "|---|---|---|---|", *lines])
