"""The report on a generator's supply: what it counts, what it compares, and what a person reads of it. The generators are other tests'."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from sandbox.actions import Click, Finished, ToolCall, TypeText
from sandbox.session import Element, Observation
from sandbox.tasks.prove import Attempt
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.supply import Facts
from sandbox.tasks.supply_page import figures, page, samples, summary_rows, to_json
from sandbox.tasks.supply_report import MAX_REFUSED, NO_INSTANCE, Supplied, Supply, duplicates_of, gather, in_words
from sandbox.tasks.task import Split, Task
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, TaskError

LETTERS, NUMBERS = (Task(source="planted", name=name, domain="planted", max_steps=5) for name in ("letters", "numbers"))
HELD_OUT = Task(source="planted", name="held", domain="planted", max_steps=5, held_out=True)


def facts_of(task: Task, seed: int) -> Facts:
    if task is NUMBERS and seed % 7 == 3:
        raise TaskError("no number left")
    return Facts(
        instruction=f"Find {task.name} {seed} in the third drawer of the cabinet beside the old oak door of room number {seed}.",
        content={"family": task.name, "seed": seed, "answer": f"a{seed}"},
        difficulty=(seed % 10) / 10,
        provenance={"corpus": "drawers", "drawer": f"d{seed % 3}"},
        dropped={"too plain": 1} if seed % 2 else {},
    )


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A source whose instances are known, registered as anybody's is."""
    module: Any = ModuleType("planted_source")
    module.facts = facts_of
    module.SOURCE = TaskSource(
        name="planted",
        kind="terminal",
        load_tasks=lambda group=None: {},
        instance=lambda task, seed: None,
        facts=lambda task, seed: module.facts(task, seed),
    )
    monkeypatch.setitem(sys.modules, "planted_source", module)
    monkeypatch.setenv(SOURCES.variable, "planted_source:SOURCE")
    return module


def proved(each: Supplied, *, success: bool = True) -> Supplied:
    proof = Attempt(seed=each.seed, is_success=success, num_steps=3, reason="" if success else "nothing was found")
    return Supplied(
        task=each.task,
        seed=each.seed,
        split=each.split,
        facts=each.facts,
        made_ms=each.made_ms,
        proof=proof,
        played_s=0.5,
        actions=("click link 'Next'", "finish"),
    )


def test_families_and_splits_take_turns_and_what_was_dropped_is_counted() -> None:
    supply = gather([LETTERS, NUMBERS, HELD_OUT], 24)
    assert {name: len(group) for name, group in supply.by_family.items()} == {"letters": 8, "numbers": 8, "held": 8}
    for task in (LETTERS, NUMBERS):
        assert [each.split for each in supply.by_family[task.name]] == [*Split, *Split]
    assert {each.split for each in supply.by_family["held"]} == {Split.EVAL, Split.HOLDOUT, Split.REPORT}
    assert all(each.task.split(each.seed) is each.split for each in supply.instances)
    assert supply.dropped["too plain"] == sum(each.seed % 2 for each in supply.instances)
    assert supply.num_candidates == 24 + sum(supply.dropped.values())
    assert supply.yield_ == pytest.approx(24 / supply.num_candidates)
    assert [each.facts.content_id for each in gather([LETTERS, NUMBERS, HELD_OUT], 24).instances] == [
        each.facts.content_id for each in supply.instances
    ]


def test_seeds_without_an_instance_are_counted_and_passed_over() -> None:
    supply = gather([NUMBERS], 40)
    passed = [seed for seed in range(max(each.seed for each in supply.instances if each.split is Split.TRAIN)) if seed % 7 == 3]
    assert supply.dropped[NO_INSTANCE] >= len([seed for seed in passed if NUMBERS.split(seed) is Split.TRAIN])
    assert all(each.seed % 7 != 3 for each in supply.instances)


def test_a_source_that_tells_nothing_and_a_family_that_gives_nothing_are_refused(planted: Any) -> None:
    with pytest.raises(ConfigError, match="does not say what its instances are"):
        gather([next(iter(SOURCES["miniwob"].load_tasks().values()))], 1)

    def nothing(task: Task, seed: int) -> Facts:
        raise TaskError("the well is dry")

    planted.facts = nothing
    with pytest.raises(ConfigError, match=f"nothing for {MAX_REFUSED} seeds of train on end; the last said: the well is dry"):
        gather([LETTERS], 1)


def test_duplicates_are_distinguished_within_splits_across_them_and_in_words() -> None:
    first, second, third = gather([LETTERS], 3).instances
    again = Supplied(task=LETTERS, seed=99, split=first.split, facts=first.facts, made_ms=1.0)
    leaked = Supplied(task=LETTERS, seed=98, split=Split.HOLDOUT, facts=first.facts, made_ms=1.0)
    clean, dirty = duplicates_of([first, second, third]), duplicates_of([first, second, third, again, leaked])
    assert (clean.within_splits, clean.across_splits, clean.same_instructions) == (0, 0, 0)
    assert (dirty.within_splits, dirty.across_splits, dirty.same_instructions) == (1, 1, 2)
    assert dirty.near_instructions >= 2


def test_figures_and_page_tell_what_was_measured() -> None:
    supply = gather([LETTERS, NUMBERS], 60)
    played = Supply(
        instances=tuple(proved(each, success=at != 5) for at, each in enumerate(supply.instances)), dropped=supply.dropped, proving_s=12.0
    )
    reported = figures(played)
    assert (reported["proved"], reported["solved"], reported["episode_s_mean"], reported["oracle_steps_mean"]) == (60, 59, 0.5, 3.0)
    assert sum(reported["difficulty"].values()) == 60 and reported["provenance"]["corpus"] == {"drawers": 60}
    rows = dict(summary_rows(played))
    assert rows["solved by the oracle"].startswith("59 of 60 (98.3%)") and "0.20 s of the wall clock a task" in rows["time per task"]
    assert "solved by the oracle" not in dict(summary_rows(supply))
    stored = json.loads(to_json("planted", played))
    assert len(stored["of"]) == 60 and [one["why_not"] for one in stored["of"] if not one["solved"]] == ["nothing was found"]
    text = page("Drawers", "flywheel tasks supply planted", played)
    assert text.count("\n### ") == 20 and "## Not solved" in text and "- answer: `a" in text and "  1. `click link 'Next'`" in text


def test_samples_are_spread_over_families_and_none_is_of_the_holdout() -> None:
    supply = gather([LETTERS, NUMBERS], 80)
    shown = samples(supply)
    assert [each.task.name for each in shown] == ["letters"] * 10 + ["numbers"] * 10
    assert all(each.split in (Split.TRAIN, Split.EVAL) for each in shown)
    of_letters = [each.facts.difficulty for each in shown[:10]]
    assert of_letters == sorted(of_letters) and of_letters[0] < 0.2 and of_letters[-1] >= 0.8


def test_actions_are_reported_with_what_lies_under_them() -> None:
    link = Element(role="link", text="Next", x_px=50, y_px=20, width_px=40, height_px=10)
    pane = Element(role="pane", text="", x_px=50, y_px=50, width_px=100, height_px=100)
    seen = Observation(instruction="", elements=(pane, link), screenshot=None, width_px=100, height_px=100, time_ms=0.0)
    assert in_words(Click(x=60, y=22), seen) == "click link 'Next'"
    assert in_words(Click(x=10, y=90, count=2), seen) == "click 2 times pane"
    assert in_words(Click(x=300, y=90), seen) == "click (300, 90)"
    assert in_words(TypeText(text="a b"), seen) == "type 'a b'"
    assert in_words(ToolCall(name="execute_bash", arguments={"command": "ls -l"}), seen) == "execute_bash: ls -l"
    assert in_words(Finished(answer="7"), seen) == "finish with '7'" and in_words(Finished(), seen) == "finish"
