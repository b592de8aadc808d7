"""Composed tasks between a page and a terminal: oracles that solve them, pages that take nothing else, splits that share nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.actions import Click, Finished, TypeText
from sandbox.hybrid.tasks import find
from sandbox.pool.pool import SessionPool
from sandbox.tasks.hybrid.generated import FAMILIES, GROUPS
from sandbox.tasks.hybrid.source import KINDS, facts, hybrid_instance, load_tasks
from sandbox.tasks.sources import page_tasks, tasks_of
from sandbox.tasks.supply import content_split
from sandbox.tasks.supply_report import gather
from sandbox.tasks.task import Split
from tests.sandbox.tool_sessions import follow


@pytest.fixture(scope="module")
def pool(live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool(page_tasks(), size=1)) as live:
        yield live


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.endswith("-2")])
def test_the_oracle_of_a_family_solves_what_it_gives(pool: Any, name: str) -> None:
    solve(pool, name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.endswith("-2")])
def test_the_oracle_of_every_other_family_does_too(pool: Any, name: str) -> None:
    solve(pool, name)


def solve(pool: Any, name: str) -> None:
    task = load_tasks()[name]

    async def use(sessions: SessionPool) -> None:
        async with sessions.lease(task) as session:
            seed = task.seeds(Split.TRAIN, 1)[0]
            observation = await session.reset(task, seed)
            reported = facts(task, seed)
            assert reported is not None and observation.instruction == reported.instruction and len(observation.elements) <= 25
            assert not (await session.evaluate()).success, "solved before it began"
            transition = await follow(session)
            verdict = await session.evaluate()
            assert transition.terminated and transition.reward == 1.0 and verdict.success, verdict.reasons

    pool.run(use)


@pytest.mark.parametrize("group", GROUPS)
def test_two_hundred_instances_are_all_different_and_no_split_has_anothers(group: str) -> None:
    supply = gather(tasks_of(f"hybrid:{group}"), 200)
    found = supply.duplicates
    assert (found.within_splits, found.across_splits) == (0, 0)
    assert all(content_split(each.task, each.facts.content) is each.split for each in supply.instances)
    assert set(Split) == {each.split for each in supply.instances}


def test_limits_leave_room_and_hand_written_tasks_have_no_facts() -> None:
    for name in FAMILIES:
        task = load_tasks()[name]
        assert len(hybrid_instance(task, 3).steps) + 2 <= task.max_steps, name
        reported, wanted = (
            facts(task, 3),
            [field["wanted"] for shown in hybrid_instance(task, 3).page["rounds"] for field in shown["fields"]],
        )
        assert reported is not None and all(repr(value) in str(reported.reference) for value in wanted), name
    assert all(facts(load_tasks()[name], 1) is None for name in KINDS)
    assert set(load_tasks("all")) == set(KINDS) and set(load_tasks()) == set(KINDS) | set(FAMILIES)


def test_a_wrong_answer_is_not_taken_and_saying_that_it_is_done_is_nothing(pool: Any) -> None:
    task = load_tasks()["consult-1"]

    async def use(sessions: SessionPool) -> None:
        async with sessions.lease(task) as session:
            observation = await session.reset(task, 2)
            field = next(each for each in observation.elements if each.role == "input")
            await session.step(Click(x=field.x_px, y=field.y_px))
            observation = (await session.step(TypeText(text="100000"))).observation
            send = find(observation, "Send", role="button")
            assert send is not None
            await session.step(Click(x=send.x_px, y=send.y_px))
            transition = await session.step(Finished(answer="done"))
            assert transition.terminated and transition.reward == 0.0
            assert (await session.evaluate()).reasons == ("the page has not accepted what it expects",)

    pool.run(use)
