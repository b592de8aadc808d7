"""docs/rl.md says of settings and metrics what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from models.ppo.config import PpoConfig

PAGE = (Path(__file__).parents[2] / "docs" / "rl.md").read_text(encoding="utf-8")


def test_every_setting_on_the_page_exists_and_has_that_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    defaults = PpoConfig().model_dump(mode="json")
    assert len(rows) > 20
    assert {name: json.loads(value) for name, value in rows} == {name: defaults[name] for name, _ in rows}


def test_every_metric_that_an_update_logs_is_on_the_page() -> None:
    sources = [Path(__file__).parents[2] / "models" / "ppo" / f"{name}.py" for name in ("metrics", "weighting", "tally")]
    logged = {name for path in sources for name in re.findall(r'(?<!== )"([a-z_]+)"(?:\] =|:)', path.read_text(encoding="utf-8"))}
    algorithms = {"ppo", "reinforce", "grpo", "rejection"}
    assert logged >= {"kl", "lambda_policy", "group_zero_std", "think_tokens_per_step", "exploded_kl"}
    assert {name for name in logged - algorithms if f"`{name}`" not in PAGE} == set()
