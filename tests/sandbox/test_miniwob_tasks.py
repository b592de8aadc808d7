"""The MiniWoB task list and its page source, without a browser: groups, splits, addresses, verdicts."""

from __future__ import annotations

import pytest

from sandbox.tasks.miniwob.oracles import ORACLES, has_oracle
from sandbox.tasks.miniwob.source import MiniWobSource, load_tasks, task_file
from sandbox.tasks.page_task import PageState
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, TaskError

FIRST_FOURTEEN = {
    "click-test-2",
    "click-button",
    "click-link",
    "click-dialog",
    "click-tab",
    "focus-text-2",
    "click-option",
    "click-checkboxes",
    "enter-text",
    "login-user",
    "click-button-sequence",
    "click-collapsible-nodelay",
    "simple-arithmetic",
    "use-autocomplete-nodelay",
}


def test_quickstart_holds_the_fourteen_and_trains_on_all_of_it() -> None:
    tasks = load_tasks("quickstart")
    assert set(tasks) >= FIRST_FOURTEEN
    assert not any(task.held_out for task in tasks.values())
    assert {task.domain for task in tasks.values()} == {"pointing", "forms"}


def test_unseen_tasks_are_held_out_and_in_no_trained_group() -> None:
    unseen = load_tasks("unseen")
    assert all(task.held_out for task in unseen.values())
    assert not set(unseen) & set(load_tasks("quickstart"))


def test_the_wide_group_is_every_task() -> None:
    assert len(load_tasks("wide")) >= 40
    assert list(load_tasks("wide")) == list(load_tasks()) == list(task_file().tasks)


def test_the_file_says_which_tasks_have_an_oracle() -> None:
    assert {name for name, entry in task_file().tasks.items() if entry.oracle} == set(ORACLES)
    assert all(has_oracle(task) for task in load_tasks("quickstart").values())


def test_every_task_has_its_page() -> None:
    source = MiniWobSource()
    for task in load_tasks().values():
        assert source.url(task) == (source.root / "miniwob" / f"{task.name}.html").as_uri()
        assert (source.root / "miniwob" / f"{task.name}.html").is_file()


def test_splits_are_fixed() -> None:
    task, held_out = load_tasks()["click-button"], load_tasks()["click-test"]
    assert [task.seeds(split, 3) for split in Split] == [[0, 1, 2], [16, 31, 73], [8, 12, 23], [4, 14, 26]]
    assert [held_out.seeds(split, 3) for split in Split] == [[], [0], [], []], "one prompt: looked at, and not reported"
    assert task.seeds("train", 3) == [0, 1, 2], "a split by its name"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trian"):
        task.seeds("trian", 1)  # type: ignore[arg-type]


def test_splits_are_disjoint() -> None:
    for task in load_tasks().values():
        seeds = [seed for split in Split for seed in task.seeds(split, 50)]
        assert len(seeds) == len(set(seeds))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="quickstart"):
        load_tasks("everything")
    with pytest.raises(TaskError, match="no-such-page"):
        MiniWobSource().url(Task(source="miniwob", name="no-such-page", domain="forms", max_steps=3))


def test_the_verdict_is_the_pages_own() -> None:
    def verdict(reward: float, done: bool) -> bool:
        return MiniWobSource().verdict(PageState(instruction="", elements=(), reward=reward, done=done)).success

    assert verdict(1.0, True)
    assert not verdict(0.9, True)
    assert not verdict(-1.0, True)
    assert not verdict(0.0, False)
