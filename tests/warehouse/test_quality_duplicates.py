"""Duplicates, by text and by pictures; overlap with what is evaluated on; personal data and scripts in what people made."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.warehouse.judging import Row, by_judge, episode_row, judged, step_row, steps_of
from warehouse.quality.config import QualityConfig
from warehouse.quality.filters import duplicates
from warehouse.quality.personal_data import kinds_in
from warehouse.quality.screen_hashes import difference_hashes, distance

PEOPLE_ANNOTATE = {
    "iteration": "0001",
    "stage": "annotations",
    "annotation_id": "note",
    "episode_id": "e1",
    "step_index": 0,
    "annotator": "ann",
    "origin": "human",
    "mode": "relabel",
    "decision": "accept",
    "proposal": "",
    "response": "Action click [1]",
    "messages": [],
    "withdrawn": False,
}


def picture(seed: int, noise: int = 0) -> bytes:
    """A PNG of coloured blocks, a few pixels of it changed."""
    rng = np.random.default_rng(seed)
    pixels = np.kron(rng.integers(0, 255, (9, 16, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    for _ in range(noise):
        pixels[rng.integers(90), rng.integers(160)] = 255
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def screenshot(screenshot_id: str, data: bytes) -> Row:
    return {"screenshot_id": screenshot_id, "format": "png", "width_px": 160, "height_px": 90, "data": data}


def test_duplicates_are_later_episodes_with_the_same_actions_on_like_screens() -> None:
    episodes = [episode_row("e1"), episode_row("e2", seed=5), episode_row("e3"), episode_row("e4", instruction="Another.")]
    other = "\n".join(f'<button> "{word}" [{i}]' for i, word in enumerate("abcdef", 1))
    steps = [step_row(0, "e1"), step_row(0, "e2"), step_row(0, "e4"), step_row(0, "e3", observation=other)]
    found = by_judge(judged(episodes, steps), "duplicate")
    assert [found[e]["passed"] for e in ("e1", "e2", "e3", "e4")] == [True, False, True, True]
    assert found["e2"]["reasons"] == ["1.00 like e1"]


def test_duplicates_reach_back_but_an_annotated_episode_only_to_annotated_ones() -> None:
    later = {"iteration": "0002"}
    episodes = [
        episode_row("z-early"),
        episode_row("a-late", **later),
        episode_row("b-annotated", purpose="annotation", **later),
        episode_row("c-evaluated", purpose="evaluation", **later),
        episode_row("z-early", **later),
    ]
    found = by_judge(judged(episodes, [step for row in episodes for step in steps_of(row)], iteration="0002"), "duplicate")
    assert found.keys() == {"a-late", "b-annotated"}
    assert not found["a-late"]["passed"] and found["b-annotated"]["passed"]


def test_the_order_of_actions_and_of_screens_counts() -> None:
    clicks = [f'{{"kind":"click","x":{x},"y":8}}' for x in (8, 80)]
    screens = [f"page {name}" for name in "ab"]
    made = {
        "e1": (clicks, screens),
        "e2": (clicks[::-1], screens),
        "e3": (clicks, screens[::-1]),
        "e4": (clicks[:1] * 2, screens),
        "e5": (clicks[1:] * 2, screens),
        "e6": (clicks, screens),
    }
    steps = [step_row(k, name, action=done[k], observation=seen[k]) for name, (done, seen) in made.items() for k in range(2)]
    found = by_judge(judged([episode_row(name) for name in made], steps), "duplicate")
    assert [name for name, row in found.items() if not row["passed"]] == ["e6"]


def test_screens_without_elements_are_alike_when_their_pictures_are() -> None:
    hashes = [row.tobytes() for row in difference_hashes([picture(1), picture(1, noise=3), picture(2)])]
    assert distance(hashes[0], hashes[1]) <= 2 < 20 < distance(hashes[0], hashes[2])
    shots = [screenshot("s1", picture(1)), screenshot("s2", picture(1, noise=3)), screenshot("s3", picture(2))]
    episodes = [episode_row(f"e{i}") for i in (1, 2, 3, 4)]
    steps = [step_row(0, f"e{i}", observation="", screenshot_id=f"s{i}") for i in (1, 2, 3, 4)]
    found = by_judge(judged(episodes, steps, screenshots=shots), "duplicate")
    assert [found[f"e{i}"]["passed"] for i in (1, 2, 3, 4)] == [True, False, True, True], "nothing is known of the picture of e4"
    assert found["e2"]["reasons"] == ["1.00 like e1"]


def test_many_of_the_same_actions_are_screened_by_minhash_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    pages = [[f"line {i}" for i in rng.integers(0, 60, 30)] for _ in range(40)]
    episodes = [episode_row(f"e{i:03}") for i in range(120)]
    screens = ["\n".join([*pages[i % 40], f"visit {rng.integers(9)}"]) for i in range(120)]
    steps = [step_row(k, f"e{i:03}", observation=screens[(i + k) % 120]) for i in range(120) for k in range(2)]
    exhaustive = by_judge(judged(episodes, steps), "duplicate")
    monkeypatch.setattr(duplicates, "EXHAUSTIVE", 10)
    screened = by_judge(judged(episodes, steps), "duplicate")
    failing = {name: row["reasons"] for name, row in exhaustive.items() if not row["passed"]}
    assert len(failing) == 80
    assert {name: row["reasons"] for name, row in screened.items() if not row["passed"]} == failing


def test_near_duplicates_whatever_the_actions_are_looked_for_where_asked() -> None:
    page = "\n".join(f"line {i}" for i in range(40))
    episodes = [episode_row("e1"), episode_row("e2"), episode_row("e3")]
    steps = [
        step_row(0, "e1", observation=page),
        step_row(0, "e2", observation=page),
        step_row(1, "e2", observation=page, action='{"kind":"wait"}'),
        step_row(0, "e3", observation="something else"),
    ]
    assert by_judge(judged(episodes, steps), "near_duplicate") == {}
    found = by_judge(judged(episodes, steps, QualityConfig(min_trajectory_novelty=0.1)), "near_duplicate")
    assert {name: row["passed"] for name, row in found.items()} == {"e1": True, "e2": False, "e3": True}
    assert found["e2"]["reasons"] == ["0.98 like e1"]


def test_overlap_with_what_is_evaluated_on() -> None:
    asked = "Book a flight from Rome to Oslo on the third of May"
    episodes = [
        episode_row("e1", instruction=asked),
        episode_row("e2", instruction=asked),
        episode_row("e4", instruction="Click."),
        episode_row("e3", instruction="Buy a red hat and a scarf"),
        episode_row("x", instruction=f" {asked.upper()} ", split="holdout", purpose="evaluation"),
    ]
    steps = [step_row(0, "e1"), step_row(0, "e2", observation="another page"), step_row(0, "e3"), step_row(0, "x"), step_row(0, "e4")]
    instance = {
        "iteration": "0001",
        "stage": "task_pool",
        "task_id": "shop",
        "seed": 3,
        "split": "eval",
        "content_id": "c",
        "difficulty": 0.0,
        "instruction": "Buy a red hat  and a scarf",
        "provenance": "{}",
        "why": "seed",
    }
    assert by_judge(judged(episodes, steps), "evaluation_overlap") == {}
    config = QualityConfig(min_evaluation_distance=0.2)
    found = by_judge(judged(episodes, steps, config, task_instances=[instance]), "evaluation_overlap")
    assert {name: row["passed"] for name, row in found.items()} == {"e1": False, "e2": True, "e3": False, "e4": True}
    assert found["e1"]["reasons"] == ["1.00 like x, which is evaluated on"]
    assert found["e3"]["reasons"] == ["1.00 like instance 3 of shop, which is evaluated on"]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("write to ada.lovelace@analytical.co.uk now", ["an e-mail address"]),
        ("user@example.com and a@b.test", []),
        ("card 4111 1111 1111 1111", ["a card number"]),
        ("order 4111 1111 1111 1112", []),
        ("DE89 3704 0044 0532 0130 00", ["a bank account"]),
        ("DE88 3704 0044 0532 0130 00", []),
        ("call +49 30 901820 or (555) 867-5309", ["a telephone number"]),
        ("version 1.2.3, 2026-11-22, 10:45, 320 x 200", []),
        ("AKIAIOSFODNN7EXAMPLE", ["a secret token"]),
        ("token ghp_" + "a1" * 18, ["a secret token"]),
    ],
)
def test_personal_data_is_distinguished_from_what_looks_like_it(text: str, kinds: list[str]) -> None:
    assert kinds_in(text) == kinds


def test_only_what_people_made_is_screened_and_reasons_do_not_repeat_it() -> None:
    address = "grace.hopper@navy.mil"
    episodes = [episode_row("e1"), episode_row("e2", instruction="Other.")]
    steps = [step_row(0, name, observation=f'"{address}" <text> [1]') for name in ("e1", "e2")]
    rows = judged(episodes, steps, annotations=[PEOPLE_ANNOTATE])
    found = by_judge(rows, "personal_data")
    assert found.keys() == {"e1"} and not found["e1"]["passed"]
    assert found["e1"]["reasons"] == ["step 0: an e-mail address in its screen"]
    scripted: dict[str, Any] = PEOPLE_ANNOTATE | {"origin": "scripted"}
    assert by_judge(judged(episodes, steps, annotations=[scripted]), "personal_data") == {}
    unscreened = QualityConfig(screen_personal_data=False)
    assert by_judge(judged(episodes, steps, unscreened, annotations=[PEOPLE_ANNOTATE]), "personal_data") == {}


def test_words_of_people_are_in_the_scripts_asked_for() -> None:
    steps = [step_row(0, "e1", response="Thought нажать кнопку сейчас Action click [1]")]
    config = QualityConfig(scripts=("Latin",))
    note = PEOPLE_ANNOTATE | {"response": "Thought нажать Action click [1]"}
    found = by_judge(judged([episode_row("e1")], steps, config, annotations=[note]), "language")["e1"]
    assert not found["passed"] and found["reasons"][0].endswith("% of the letters are Latin")
    both = QualityConfig(scripts=("Latin", "Cyrillic"))
    assert by_judge(judged([episode_row("e1")], steps, both, annotations=[note]), "language")["e1"]["passed"]
