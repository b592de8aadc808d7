"""Composed tasks in a terminal: splits that share nothing, oracles that solve them by their tools, verifiers that want the state itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sandbox.actions import Finished
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.supply import OTHER_SPLIT, content_split
from sandbox.tasks.supply_report import gather
from sandbox.tasks.task import Split
from sandbox.tasks.terminal.generated.families import FAMILIES, GROUPS
from sandbox.tasks.terminal.source import KINDS, facts, load_tasks, terminal_instance
from sandbox.terminal.session import TerminalSession
from sandbox.terminal.tasks import Holds, HoldsJson
from tests.sandbox.tool_sessions import bash, follow


def on_session(use: Callable[[TerminalSession], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        session = TerminalSession()
        try:
            await use(session)
        finally:
            await session.close()

    asyncio.run(whole())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_oracle_of_a_family_solves_what_it_gives(name: str) -> None:
    task = load_tasks()[name]

    async def use(session: TerminalSession) -> None:
        await session.reset(task, task.seeds(Split.TRAIN, 1)[0])
        assert not (await session.evaluate()).success, "solved before it began"
        transition = await follow(session)
        verdict = await session.evaluate()
        assert transition.terminated and transition.reward == 1.0 and verdict.success, verdict.reasons

    on_session(use)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_two_hundred_instances_are_all_different_and_no_split_has_anothers(group: str) -> None:
    supply = gather(tasks_of(f"terminal:{group}"), 200)
    found = supply.duplicates
    assert (found.within_splits, found.across_splits, found.same_instructions) == (0, 0, 0)
    assert all(content_split(each.task, each.facts.content) is each.split is each.task.split(each.seed) for each in supply.instances)
    assert set(Split) == {each.split for each in supply.instances}
    assert supply.yield_ > 0.5 and set(supply.dropped) > {OTHER_SPLIT}


def test_what_is_said_of_an_instance_is_what_is_run() -> None:
    for name, task in load_tasks("generated").items():
        reported, again = facts(task, 7), facts(task.model_copy(update={"max_steps": 99}), 7)
        assert reported is not None and again is not None and reported == again
        instance = terminal_instance(task, 7)
        assert reported.instruction == instance.instruction, name
        assert len(instance.steps) + 2 <= task.max_steps, name
        asked = [goal for goal in instance.goals if isinstance(goal, Holds) and instance.files.get(goal.path) != goal.text]
        assert reported.reference is not None and all(repr(goal.text)[:300] in reported.reference for goal in asked), name
    assert all(facts(load_tasks()[name], 1) is None for name in KINDS)


def test_levels_grow_harder_and_the_small_ones_are_short() -> None:
    reported = {name: facts(task, 3) for name, task in load_tasks().items() if name in FAMILIES}
    for subject in ("tables", "logs", "records", "trees"):
        difficulties = [each.difficulty for level in (1, 2, 3, 4) if (each := reported[f"{subject}-{level}"]) is not None]
        assert difficulties == sorted(difficulties) and len(set(difficulties)) == 4
    for name in GROUPS["generated-small"]:
        each = reported[name]
        assert each is not None and len(each.instruction) < 260 and each.difficulty <= 0.2
        assert len(terminal_instance(load_tasks()[name], 3).steps) <= 3


def test_a_wrong_answer_and_an_answer_that_is_only_printed_are_refused() -> None:
    """The right text said, printed, or written elsewhere; and the file with one line too many."""
    task = load_tasks()["tables-2"]
    (goal,) = terminal_instance(task, 2).goals
    assert isinstance(goal, Holds)

    async def use(session: TerminalSession) -> None:
        await session.reset(task, 2)
        await session.step(bash(f"echo {goal.text}; echo {goal.text} > answer.txt; (echo {goal.text}; echo more) > {goal.path}"))
        transition = await session.step(Finished(answer=goal.text))
        assert transition.reward == 0.0 and f"{goal.path} holds something else" in (await session.evaluate()).reasons

    on_session(use)


def test_json_counts_by_its_value_and_nothing_else_passes_for_it() -> None:
    task = next(
        task for task in [load_tasks()["records-4"]] for seed in range(40) if isinstance(terminal_instance(task, seed).goals[0], HoldsJson)
    )
    goal = terminal_instance(task, 0).goals[0]
    assert isinstance(goal, HoldsJson)
    value = goal.value

    async def use(session: TerminalSession) -> None:
        await session.reset(task, 0)
        assert session.tools is not None
        from sandbox.terminal.tasks import Probe

        probe = Probe(session.tools.jail)
        folder = f"mkdir -p {goal.path.rpartition('/')[0] or '.'}; "
        for text, is_met in (
            (str(value).replace("'", '"').replace(",", ",\n  "), True),
            (str({**value, "more": 1}).replace("'", '"'), False),
            (str(value), False),
            ("[" * 100_000, False),
        ):
            workspace = session.tools.jail.workspace
            await session.step(bash(folder))
            workspace.write(goal.path, text)
            assert (await goal.unmet(probe) is None) is is_met, text[:60]

    on_session(use)


@pytest.mark.slow
def test_every_kind_of_operation_comes_up() -> None:
    counts: Counter[str] = Counter()
    for each in gather(tasks_of("terminal:generated"), 400).instances:
        counts.update(each.facts.provenance["operations"].split(" → "))
    of_data = ("gather parts", "gather archive", "gather gzip", "filter is not", "ranked", "most common", "sum by group")
    of_files = ("write JSON, packed", "write JSON, private", "move", "copy", "delete by content", "rename", "permissions", "pack")
    assert not [operation for operation in (*of_data, *of_files) if not counts[operation]]
