"""What is evaluated on is kept out of training by what it says, not by its seed: the indexes, how they are made, and that no other seed is
ever shown a reserved content. Splits of generated tasks are test_supply_*.py's."""

from __future__ import annotations

import pytest

from sandbox.browser.page_session import PageSession
from sandbox.session import first_content
from sandbox.tasks.contents import LEAST, indexed_tasks, of_task, of_tasks
from sandbox.tasks.miniwob.source import load_tasks, package_version
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.reserved import contents_of, reserved_of, screen_content, short
from sandbox.tasks.sources import page_tasks
from sandbox.tasks.task import Split, Task
from sandbox.tasks.terminal.source import content, terminal_instance
from sandbox.tasks.terminal.source import load_tasks as terminal_tasks
from tests.sandbox.one_session import in_one_browser
from warehouse.core.identity import content_id

OTHERS = (Split.EVAL, Split.HOLDOUT, Split.REPORT)
SPARE = Task(source="planted", name="spare", domain="planted", max_steps=5)


def shown(num: int) -> list[str]:
    return [content_id("content", number) for number in range(num)]


@pytest.mark.parametrize("source", [name for name in SOURCES if SOURCES[name].contents is not None])
def test_every_task_of_an_indexed_source_is_in_its_index(source: str) -> None:
    tasks = indexed_tasks(source)
    assert set(contents_of(source).tasks) == set(tasks)
    everything: set[str] = set()
    for task in tasks.values():
        seeds = {split: task.seeds(split, 1000) for split in OTHERS}
        assert all(task.split(seed) is split for split, of_split in seeds.items() for seed in of_split)
        digests = [digest for found in contents_of(source).tasks[task.name].reserved.values() for digest in found]
        assert len(digests) == len(set(digests)) == sum(map(len, seeds.values())), "each content once, in one split"
        assert not everything & set(digests), "and of one task"
        everything.update(digests)
        assert not set(task.seeds(Split.TRAIN, 700)) & {seed for of_split in seeds.values() for seed in of_split}


def test_the_index_is_of_the_pages_that_are_installed() -> None:
    assert contents_of("miniwob").version == package_version()


def test_repeats_are_dropped_and_splits_are_of_equal_size() -> None:
    contents = shown(50)
    made = of_task(SPARE, [*contents, *contents])
    assert made.num_seeds == 100 and made.num_contents == 50 and made.is_reported
    assert {split: len(found) for split, found in made.reserved.items()} == {"eval": 5, "holdout": 5, "report": 5}
    assert all(seed < 50 for found in made.reserved.values() for seed in found.values()), "the first seed that shows a content"
    assert of_task(SPARE, [*reversed(contents), *contents]).reserved.keys() == made.reserved.keys()
    again = of_task(SPARE, contents[::-1])
    assert {split: set(found) for split, found in again.reserved.items()} == {split: set(found) for split, found in made.reserved.items()}


@pytest.mark.parametrize("held_out", [False, True])
def test_a_task_with_too_few_contents_is_not_reported(held_out: bool) -> None:
    task = SPARE.model_copy(update={"held_out": held_out})
    few = of_task(task, shown(LEAST * 3 - 1) * 9)
    assert not few.is_reported and set(few.reserved) == ({"eval"} if held_out else set())
    assert of_task(task, shown(LEAST * 10)).is_reported


def test_what_two_tasks_ask_is_reserved_once_for_the_one_that_is_never_trained_on() -> None:
    other = SPARE.model_copy(update={"name": "other", "held_out": True})
    made = of_tasks({SPARE: shown(60), other: shown(45)})
    of_other, of_spare = ({digest for found in made[name].reserved.values() for digest in found} for name in ("other", "spare"))
    assert of_other == set(map(short, shown(45))) and not of_other & of_spare


def test_a_content_says_nothing_of_where_things_lie_or_how_text_wraps() -> None:
    wrapped = screen_content("Click  the\nbutton", [("button", "O\u00a0k", ("focused",))])
    assert wrapped == screen_content("Click the button ", [("button", "O k", ["focused"])])
    assert len({wrapped, screen_content("Click the button", [("button", "Ok", [])]), screen_content("Click the button", [])}) == 3


def test_tasks_with_one_prompt_are_trained_on_and_not_reported() -> None:
    tasks = load_tasks("quickstart")
    unreported = {name for name in tasks if not contents_of("miniwob").tasks[name].is_reported}
    assert unreported == {"click-test-2", "focus-text-2", "click-button-sequence"}
    assert all(tasks[name].seeds(split, 1) == [] for name in unreported for split in OTHERS)
    assert all(len(tasks[name].seeds(split, 12)) >= 5 for name in set(tasks) - unreported for split in OTHERS)


def test_no_train_seed_is_shown_what_is_reserved() -> None:
    task = load_tasks()["enter-text"]  # of fifty prompts fifteen are reserved
    reserved = reserved_of(task.source, task.name)
    assert reserved is not None
    kept = {digest: seed for found in reserved.contents.reserved.values() for digest, seed in found.items()}
    seeds = task.seeds(Split.TRAIN, 25)

    async def look(session: PageSession) -> None:
        async def shown_by(seed: int) -> str:
            return short(first_content(await session.reset(task, seed)))

        first = {seed: short(first_content(await session.begin(task, seed))) for seed in seeds}
        refused = [seed for seed in seeds if first[seed] in kept]
        assert refused, "otherwise nothing is shown here"
        drawn = {seed: await shown_by(seed) for seed in seeds}
        assert not drawn.values() & kept.keys() and session.num_refused >= len(refused)
        assert all(drawn[seed] == first[seed] for seed in seeds if seed not in refused)
        assert {seed: await shown_by(seed) for seed in reversed(seeds)} == drawn, "the same in any order"
        assert all([await shown_by(seed) == digest for digest, seed in kept.items()]), "reserved seeds show what they are reserved for"

    with in_one_browser(lambda open_page: PageSession(open_page, page_tasks(), screenshots=False)) as on_session:
        on_session(look)


def test_no_train_seed_of_a_terminal_is_given_what_is_reserved() -> None:
    task = terminal_tasks()["allow-running"]  # 24 of some ninety contents are reserved
    reserved = reserved_of(task.source, task.name)
    assert reserved is not None
    kept = {digest for found in reserved.contents.reserved.values() for digest in found}
    seeds = task.seeds(Split.TRAIN, 60)
    assert {short(content(task, seed)) for seed in seeds} & kept
    assert not {short(terminal_instance(task, seed).content) for seed in seeds} & kept
