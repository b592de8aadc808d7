"""Screens what people did and wrote before it is stored, since no filter of a later iteration sees it: for personal data, and for
the scripts of its letters where some are asked for. What counts as either is warehouse/quality/personal_data.py's; what is withheld is kept
aside by the importers.
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb

from pipelines.importing.rows import Rows, ScreeningSettings
from warehouse.quality.personal_data import kinds_in, script_fraction

REASONS_SHOWN = 3


class Screening:
    """Of one import."""

    def __init__(self, settings: ScreeningSettings) -> None:
        """Raises ConfigError for a script that Unicode does not know."""
        self._settings = settings
        self._con = duckdb.connect()
        script_fraction(self._con, [], settings.scripts)

    def reason(self, rows: Rows) -> str | None:
        """Why a record's rows are withheld. It names places and kinds, never the data."""
        if not self._settings.keep_personal_data:
            found = list(dict.fromkeys(f"{kind} in {place}" for place, _, text in _texts(rows) for kind in kinds_in(text)))
            if found:
                more = f", and {len(found) - REASONS_SHOWN} more" if len(found) > REASONS_SHOWN else ""
                return f"holds personal data: {', '.join(found[:REASONS_SHOWN])}{more}"
        said = [text for _, is_said, text in _texts(rows) if is_said]
        share = script_fraction(self._con, said, self._settings.scripts)
        if share < self._settings.min_script_fraction:
            return f"is in another script: {share:.0%} of its letters are {' or '.join(self._settings.scripts)}"
        return None


def _texts(rows: Rows) -> Iterator[tuple[str, bool, str]]:
    """(where it stands, whether the person said it, text). Of trajectories, screens, answers and verdicts: prompts hold nothing else."""
    for episode in rows.of.get("episodes", ()):
        yield "its instruction", True, episode["instruction"]
    for step in rows.of.get("steps", ()):
        yield f"the screen of step {step['step_index']}", False, step["observation"]
        yield f"the answer of step {step['step_index']}", True, step["response"]
    for verdict in rows.of.get("verdicts", ()):
        yield "the reasons of its verdict", False, "\n".join(verdict["reasons"])
    for table in ("sft_samples", "ct_samples"):
        for sample in rows.of.get(table, ()):
            for index, message in enumerate(sample["messages"] if sample["episode_id"] is None else ()):
                yield f"message {index}", message["role"] != "system", message["content"]
