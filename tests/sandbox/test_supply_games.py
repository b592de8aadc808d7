"""Generated games: goals that a seed draws and an oracle reaches, no more moves than there are, pages that are what their checksum says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.browser.page_session import PageSession
from sandbox.pool.pool import SessionPool
from sandbox.tasks.games import versions
from sandbox.tasks.games.generated import families, instance_of
from sandbox.tasks.games.source import ELEMENTS_SUFFIX, GamesSource, facts, family_of, load_tasks
from sandbox.tasks.games.versions import PAGES, game_names, recorded_versions
from sandbox.tasks.prove import attempt
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.supply_report import gather
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError

SMALL = load_tasks("generated-small" + ELEMENTS_SUFFIX)


@pytest.fixture(scope="module")
def pool(live_pool: Any) -> Iterator[Any]:
    with live_pool(SessionPool({"games": GamesSource()}, size=1)) as live:
        yield live


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the games' files, which may be written in."""
    copied = tmp_path / "pages"
    copied.mkdir()
    for path in PAGES.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(versions, "PAGES", copied)
    return copied


def test_every_game_and_level_has_a_family() -> None:
    assert {family.game for family in families().values()} == set(game_names())
    assert set(load_tasks("generated")) == {name for name in families() if not name.endswith("small")}
    assert list(load_tasks("generated-elements")) == [name + ELEMENTS_SUFFIX for name in load_tasks("generated")]
    assert len(load_tasks("generated")) >= 45 and len(SMALL) >= 5


@pytest.mark.parametrize("name", SMALL)
def test_the_oracle_reaches_what_is_drawn_and_the_page_says_what_was_asked(pool: Any, name: str) -> None:
    task = SMALL[name]
    seed = task.seeds(Split.TRAIN, 1)[0]
    reported = facts(task, seed)

    async def use(sessions: SessionPool) -> None:
        async with sessions.lease(task, screenshots=False) as session:
            observation = await session.reset(task, seed)
            assert reported is not None and observation.instruction == reported.instruction and 0 < len(observation.elements) <= 40
            assert not (await session.evaluate()).success
            done = await attempt(session, task, seed)
            assert done.is_success, done.reason

    pool.run(use)


@pytest.mark.slow
def test_two_hundred_instances_are_all_different() -> None:
    for group in ("generated", "generated-small-elements"):
        supply = gather(tasks_of(f"games:{group}"), 200)
        assert (supply.duplicates.within_splits, supply.duplicates.across_splits) == (0, 0)
        for each in supply.instances:
            assert each.facts.provenance["checksum"] == recorded_versions()[each.facts.provenance["game"]].checksum


def test_a_drawn_target_is_one_of_its_family_and_hand_written_tasks_have_no_facts() -> None:
    for name, task in load_tasks("generated").items():
        family = family_of(task)
        assert family is not None
        for seed in range(12):
            made, _ = instance_of(task, family, seed)
            goal = next(each for each in family.goals if each.goal == made.goal)
            assert made.target in goal.choices and made.reference > 0, name
            assert (made.moves > 0) == (family.moves is not None)
    assert facts(load_tasks("all")["snake-apples-2"], 1) is None


@pytest.mark.slow
def test_a_level_with_few_boards_gives_each_to_one_split_and_by_turns(pool: Any) -> None:
    task = load_tasks("generated")["sokoban-goals-1"]
    family = family_of(task)
    assert family is not None and len(set(family.boards)) == len(family.boards) > 400
    drawn = {split: [instance_of(task, family, seed)[0].board for seed in task.seeds(split, 60)] for split in Split}
    num_different = {split: len(set(boards)) for split, boards in drawn.items()}
    assert min(num_different.values()) > 30, "a tenth of the boards, more or less, is the least that a split has"
    for split, boards in drawn.items():
        turn = num_different[split]
        assert boards[turn:] == boards[: 60 - turn], "none comes again before each has come"
    assert len({board for boards in drawn.values() for board in boards}) == sum(num_different.values()), "none is in two splits"

    async def use(sessions: SessionPool) -> None:
        async with sessions.lease(task, screenshots=False) as session:
            await session.reset(task, 1)
            assert isinstance(session, PageSession) and session._page is not None
            script = "game.start(seed, 1, {goal: 'solve', target: 1}); return JSON.stringify(game.state().metadata)"
            states = await session._page.evaluate(f"{list(family.boards)}.map((seed) => {{ {script} }})")
            assert len(set(states)) == len(family.boards), "boards are different"

    pool.run(use)


def test_when_no_move_is_left_the_game_is_over_and_not_won(pool: Any) -> None:
    """The same slide there and back: each counts, and the last ends the episode."""
    task = load_tasks("generated")["sokoban-goals-1"]
    family = family_of(task)
    assert family is not None
    moves = instance_of(task, family, 2)[0].moves

    async def use(sessions: SessionPool) -> None:
        from sandbox.actions import Hotkey

        async with sessions.lease(task, screenshots=False) as session:
            observation = await session.reset(task, 2)
            assert observation.instruction.endswith(f"You have {moves} moves.")
            transition, taken = None, 0
            while transition is None or not (transition.terminated or transition.truncated):
                way = "up" if taken % 2 else "down"
                transition = await session.step(Hotkey(keys=(way,)))
                taken += 1
                assert taken <= task.max_steps
            verdict = await session.evaluate()
            if transition.terminated and not verdict.success:
                assert verdict.reasons == ("no moves are left",) and transition.info["game"]["steps"] == moves
            again = load_tasks("all")["sokoban-easy"]
            assert "moves" not in (await session.reset(again, 1)).instruction, "the next task of the page has no such limit"

    pool.run(use)


def test_a_page_whose_files_are_others_is_refused_before_it_is_played_and_when_it_is_judged(pool: Any, pages: Path) -> None:
    task = SMALL["shapes-goals-small-elements"]

    async def use(sessions: SessionPool) -> None:
        async with sessions.lease(task, screenshots=False) as session:
            await session.reset(task, 1)
            (pages / "shapes.js").write_text((pages / "shapes.js").read_text() + "\n// easier now\n")
            with pytest.raises(ConfigError, match="not to be trusted"):
                await session.evaluate()
            with pytest.raises(ConfigError, match="shapes' has files of checksum"):
                GamesSource().start_script(task, 1)

    pool.run(use)
    other = Task(**{**task.model_dump(), "name": "pairs-goals-small"})
    assert "game.start" in GamesSource().start_script(other, 1), "the other games are as they were"


def test_a_game_that_lists_its_elements_too_has_the_same_boards_in_the_same_splits() -> None:
    tasks = load_tasks()
    pairs = [(task, tasks[name + ELEMENTS_SUFFIX]) for name, task in tasks.items() if name + ELEMENTS_SUFFIX in tasks]
    assert pairs and all(task.split(seed) is other.split(seed) for task, other in pairs for seed in range(50))
