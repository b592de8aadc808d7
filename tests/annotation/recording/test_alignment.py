"""Each action gets what was said before it, since the action before; utterances end with pauses."""

from __future__ import annotations

from annotation.recorder.speech.alignment import align, utterances
from annotation.recordings.bundle import Word


def words(text: str, start_s: float, each_s: float = 0.3) -> list[Word]:
    parts = text.split()
    return [Word(text=part, start_s=start_s + i * each_s, end_s=start_s + (i + 1) * each_s - 0.05) for i, part in enumerate(parts)]


def texts(said: list[Word], starts: list[float]) -> list[str | None]:
    return [thought.text if thought else None for thought in align(said, starts)]


def test_what_is_said_before_an_action_is_its_thought():
    said = [*words("open the menu", 1.0), *words("now save it", 5.0)]
    assert texts(said, [2.5, 6.5]) == ["open the menu", "now save it"]


def test_several_utterances_come_together_and_actions_without_words_have_none():
    said = [*words("hm", 0.5), *words("open the menu", 2.0)]
    assert texts(said, [3.5, 4.0, 4.2]) == ["hm open the menu", None, None]


def test_the_last_words_may_run_into_the_action_they_announce():
    said = words("i click on the save button", 1.0)
    assert texts(said, [2.3, 8.0]) == ["i click on the save button", None]


def test_speech_without_a_pause_is_split_where_an_action_begins_inside_it():
    said = words("first i open the menu and then i save the file with a name", 1.0)
    first, second = align(said, [2.55, 6.0])
    assert first is not None and second is not None
    assert first.text == "first i open the menu" and second.text == "and then i save the file with a name"
    assert (first.start_s, first.raw) == (1.0, first.text)


def test_what_is_said_after_the_last_action_belongs_to_none():
    assert texts(words("that was it", 9.0), [2.0]) == [None] and texts([], [1.0]) == [None]
    assert len(utterances([*words("a b", 0.0), *words("c", 3.0)])) == 2
