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
@pytest.mark.ci
@pytest.mark.timeout(2400)
def test_a_tiny_vision_language_model_learns_to_click_by_looking(tmp_path: Path) -> None:
    """A policy that does not look does as well with another instance's screenshot before its eyes: about one box of four. Of 400 instances
    the difference of two such shares has a standard deviation of sqrt(2 · 0.25 · 0.75 / 400) = 0.031, so that it passes 0.1 by chance once
    in 1500 trainings. One that looks reaches half of them with its own screenshot and a quarter with another's (benchmarks/README.md), and
    misses 0.1 by 5 standard deviations. `eval` has 58 instances, too few to tell the two apart; so these are instances of train that come
    after those that were demonstrated."""
    result = measure(Recipe(split=Split.TRAIN, num_episodes=400), tmp_path)
    print(result)
    assert result.num_parameters < 1_500_000
    assert result.success - result.success_with_another_screenshot > 0.1
