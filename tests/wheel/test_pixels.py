"""The pixel path is real: from random weights to a policy that clicks what it sees, through the trainer, the engine and the episode loop
that everything else uses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.pixels import TASK, Recipe, demonstrate, measure
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Split


@pytest.mark.slow
def test_the_prompt_says_no_more_than_the_task(tmp_path: Path) -> None:
    """The instruction and a screenshot: no element, no point, and of the colours at most the one that the page itself writes out."""
    episodes = asyncio.run(demonstrate(load_tasks()[TASK], 3))
    assert len(episodes) == 3
    for episode in episodes:
        opening, screen = episode.steps[0].messages
        assert opening.content == episode.instruction and opening.screenshot_id is None
        assert screen.content == "" and episode.screenshots[str(screen.screenshot_id)].startswith(b"\x89PNG")
        assert episode.request.task.split(episode.request.seed) is Split.TRAIN


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_tiny_vision_language_model_learns_to_click_by_looking(tmp_path: Path) -> None:
    """Chance is one box of four, and what the same policy falls to with another screenshot before its eyes. In 37 of 100 instances the
    sentence names the colour, and the boxes have to be seen; in the others a swatch of ten pixels has to be seen too."""
    result = measure(Recipe(), tmp_path)
    assert result.num_parameters < 1_500_000
    assert result.success_with_another_screenshot < 0.35 < result.interval.low
