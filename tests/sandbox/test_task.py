"""Splits of a task's instances: their shares, what is never trained on, and that a split's seeds are the smallest of it, in order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sandbox.tasks.task import Split, Task, split_at
from warehouse.evaluation.choosing import CHOICE_SPLITS
from warehouse.storage.catalogue import SPLITS

NUM = 4000
CONTENTS = Path(__file__).resolve().parents[2] / "sandbox" / "tasks" / "miniwob" / "contents.json"


def task(**changes: object) -> Task:
    return Task.model_validate({"source": "buttons", "name": "one", "domain": "forms", "max_steps": 3} | changes)


def test_the_tables_know_every_split_and_choices_read_two() -> None:
    assert set(SPLITS) == {str(split) for split in Split} and CHOICE_SPLITS == (Split.TRAIN, Split.EVAL)


@pytest.mark.parametrize(
    ("fraction", "held_out", "split"),
    [
        (0.0, False, "train"),
        (0.6999, False, "train"),
        (0.7, False, "report"),
        (0.7999, False, "report"),
        (0.8, False, "eval"),
        (0.8999, False, "eval"),
        (0.9, False, "holdout"),
        (0.9999, False, "holdout"),
        (0.0, True, "eval"),
        (0.3499, True, "eval"),
        (0.35, True, "report"),
        (0.6499, True, "report"),
        (0.65, True, "holdout"),
        (0.9999, True, "holdout"),
    ],
)
def test_edges_belong_to_the_split_above(fraction: float, held_out: bool, split: str) -> None:
    assert split_at(fraction, held_out=held_out) == split
    assert held_out or split_at(fraction) == split


def test_each_split_has_its_share_and_another_step_limit_moves_nothing() -> None:
    shares = Counter(task().split(seed) for seed in range(NUM))
    assert {split: round(num / NUM, 1) for split, num in shares.items()} == {"train": 0.7, "eval": 0.1, "holdout": 0.1, "report": 0.1}
    assert all(task().split(seed) == task(max_steps=9, domain="other").split(seed) for seed in range(50))
    assert any(task().split(seed) != task(name="two").split(seed) for seed in range(50))
    assert any(task().split(seed) != task(source="other").split(seed) for seed in range(50))


def test_a_held_out_task_has_nothing_to_train_on() -> None:
    shares = Counter(task(held_out=True).split(seed) for seed in range(NUM))
    found = {str(split): num / NUM for split, num in shares.items()}
    assert found == pytest.approx({"eval": 0.35, "report": 0.3, "holdout": 0.35}, abs=0.03)
    assert task(held_out=True).seeds(Split.TRAIN, 3) == []


def test_the_split_of_an_instance_stays_what_it_was() -> None:
    """Homes hold instances by these: a change of the rule makes SPLIT_RULE another, and these with it."""
    letters = {"t": Split.TRAIN, "e": Split.EVAL, "h": Split.HOLDOUT, "r": Split.REPORT}
    assert [task().split(seed) for seed in range(24)] == [letters[letter] for letter in "thttthttttttrtetetttthtt"]
    kept = [task(source="imported", name=f"task-{number}", held_out=True).split(3) for number in range(8)]
    assert kept == [letters[letter] for letter in "rheehrhr"]


def test_a_task_that_shows_more_of_the_same_has_the_same_splits() -> None:
    def splits(source: str, name: str) -> list[Split]:
        return [task(source=source, name=name).split(seed) for seed in range(40)]

    assert splits("games", "snake-elements") == splits("games", "snake") != splits("games", "snake-more")
    assert splits("other", "snake-elements") != splits("other", "snake"), "in another source the end of a name says nothing"


def test_where_an_index_reserves_seeds_the_others_are_trained_on() -> None:
    indexed, unseen = (task(source="miniwob", name="click-button", held_out=held_out) for held_out in (False, True))
    reserved = json.loads(CONTENTS.read_text())["tasks"]["click-button"]["reserved"]
    seeds = {split: sorted(found.values()) for split, found in reserved.items()}
    assert set(seeds) == {"eval", "holdout", "report"}
    for split in (Split.EVAL, Split.HOLDOUT, Split.REPORT):
        assert {indexed.split(seed) for seed in seeds[split]} == {unseen.split(seed) for seed in seeds[split]} == {split}
        assert indexed.seeds(split, 4) == seeds[split][:4] and indexed.seeds(split, 3, skip=2) == unseen.seeds(split, 3, skip=2)
        assert indexed.seeds(split, 3, skip=2) == seeds[split][2:5] and indexed.seeds(split, 9999) == seeds[split]
    taken = {seed for found in seeds.values() for seed in found}
    free = [seed for seed in range(400) if seed not in taken]
    assert {indexed.split(seed) for seed in free} == {Split.TRAIN} and {unseen.split(seed) for seed in free} == {Split.EVAL}
    assert indexed.seeds(Split.TRAIN, 5, skip=4) == free[4:9] and unseen.seeds(Split.TRAIN, 5) == []


@pytest.mark.parametrize("held_out", [False, True])
def test_the_seeds_of_a_split_are_its_smallest_in_order(held_out: bool) -> None:
    one = task(held_out=held_out)
    for split in set(Split) - ({Split.TRAIN} if held_out else set()):
        every = [seed for seed in range(300) if one.split(seed) is split]
        assert one.seeds(split, 5) == every[:5] and one.seeds(split, 5, skip=3) == every[3:8] and one.seeds(split, 0) == []
    with pytest.raises(ValueError, match="other"):
        one.seeds("other", 1)  # type: ignore[arg-type]


def test_an_imported_task_is_in_one_split_as_a_whole() -> None:
    taught = task(source="imported")
    assert {taught.split(seed) for seed in range(50)} == {Split.TRAIN} and taught.seeds(Split.TRAIN, 2, skip=1) == [1, 2]
    assert [taught.seeds(split, 3) for split in (Split.EVAL, Split.HOLDOUT, Split.REPORT)] == [[], [], []]
    kept = [task(source="imported", name=f"task-{number}", held_out=True) for number in range(60)]
    assert all(len({each.split(seed) for seed in range(20)}) == 1 for each in kept)
    assert {each.split(0) for each in kept} == {Split.EVAL, Split.HOLDOUT, Split.REPORT}
    assert all(each.seeds(each.split(0), 2) == [0, 1] and each.seeds(Split.TRAIN, 2) == [] for each in kept)


def test_an_id_changes_with_all_that_makes_the_task() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"source": "s"},
        {"name": "n"},
        {"domain": "d"},
        {"max_steps": 4},
        {"held_out": True},
        {"version": "2"},
    ]
    assert len({task(**change).task_id for change in changes}) == len(changes)
