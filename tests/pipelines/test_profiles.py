"""Profiles: what comes with the project is valid, one may extend another, and whatever is wrong is named with what is allowed."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from assets.settings.profile import Profile
from pipelines import profiles
from pipelines.cli.options import overrides
from pipelines.profiles import load
from sandbox.actions import Click
from sandbox.session import Observation
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_in
from tests.sandbox.own_source import ROOT, write_own_source
from warehouse.core.errors import ConfigError
from warehouse.core.plain_yaml import read_yaml


def own(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text(text)
    return str(path)


def test_the_profiles_of_the_project_are_valid_and_their_tasks_exist():
    assert {"quickstart", "smoke"} <= set(profiles.names())
    for name in profiles.names():
        profile = profiles.load(name)
        assert profile.name == name
        domains = {task.domain for task in tasks_in(profile.tasks.lists).values()}
        assert set(profile.tasks.domains) <= domains


SAID_TWICE = {"full-2b": {"ct.packing", "ct_refresh.packing", "sft.packing", "sft_refresh.packing"}}
"""What a profile needs, whatever the one that it extends has: what reads images cannot be packed."""


def settings_of(data: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in data.items():
        yield from settings_of(value, (*above, key)) if isinstance(value, dict) and value else [(*above, key)]


@pytest.mark.parametrize("name", [name for name in profiles.names() if name != profiles.DEFAULT_PROFILE])
def test_a_profile_says_only_what_it_has_otherwise_than_the_one_it_extends(name: str, tmp_path: Path):
    whole, data = profiles.load(name), yaml.safe_load((files(profiles) / f"{name}.yaml").read_text())
    repeated = set()
    for path in set(settings_of(data)) - {("extends",), ("name",)}:
        less = copy.deepcopy(data)
        group = less
        for part in path[:-1]:
            group = group[part]
        del group[path[-1]]
        try:
            is_same = profiles.load(own(tmp_path, yaml.safe_dump(less))) == whole
        except ConfigError:
            is_same = False
        if is_same:
            repeated.add(".".join(path))
    assert repeated == SAID_TWICE.get(name, set())


NAMES = {"name", "policy.source", "policy.model", "policy.dtype", "tasks.lists", "tasks.domains"}
SUPERVISED = ("ct", "ct_refresh", "sft", "sft_refresh")
WITHOUT_A_GPU = {
    *(f"{stage}.{key}" for stage in SUPERVISED for key in ("bf16", "gradient_checkpointing")),
    *("rl.gradient_checkpointing", "rl.lora_base_dtype", "engine.kind"),
}
FROM_RANDOM_WEIGHTS = {"agent.standing", "rl.gate_policy", *(f"{stage}.train_vision" for stage in SUPERVISED)}


def flat(data: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        yield from flat(value, f"{above}{key}.") if isinstance(value, dict) and value else [(above + key, value)]


def is_size(value: Any) -> bool:
    """Also of one that is left to its default."""
    numbers = value if isinstance(value, tuple | list) else [value]
    return all(each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in numbers)


def test_pixels_differs_from_full_size_in_names_and_sizes():
    """And in what follows from where it runs and from what it begins with: no GPU, no server, and random weights."""
    full, small = (dict(flat(profiles.load(name).model_dump())) for name in ("full-2b", "pixels"))
    other = {path for path in full.keys() | small.keys() if full.get(path) != small.get(path)}
    of_kind = {path for path in other if not (is_size(full.get(path)) and is_size(small.get(path)))}
    assert {path for path in of_kind if not path.startswith("engine.http")} == NAMES | WITHOUT_A_GPU | FROM_RANDOM_WEIGHTS
    for stage in SUPERVISED:
        assert (small[f"{stage}.num_processes"], small[f"{stage}.deepspeed_stage"]) == (2, 1)


def test_a_profile_crosses_a_process_as_json_unchanged():
    profile = profiles.load("smoke")
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_extending_says_only_what_differs(tmp_path: Path):
    profile = profiles.load(own(tmp_path, "extends: smoke\nname: own\nrl: {rounds: 1}\n"))
    smoke = profiles.load("smoke")
    assert profile.rl.rounds == 1
    assert profile.rl.episodes_per_task == smoke.rl.episodes_per_task
    assert profile.model_copy(update={"name": "smoke", "rl": smoke.rl}) == smoke


def test_a_file_without_a_name_is_named_after_itself(tmp_path: Path):
    assert profiles.load(own(tmp_path, "extends: smoke\n")).name == "own"


def test_the_path_of_what_a_file_extends_counts_from_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "base.yaml").write_text("extends: smoke\nseed: 4\n")
    own(tmp_path / "mine", "extends: ../base.yaml\nname: own\n")
    for folder, path in ((tmp_path, "mine/own.yaml"), (tmp_path / "mine", "own.yaml")):
        monkeypatch.chdir(folder)
        profile = profiles.load(path)
        assert (profile.name, profile.seed) == ("own", 4)


def test_what_we_start_elsewhere_finds_the_same_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in (profiles.PROFILE_VARIABLE, profiles.OVERRIDES_VARIABLE):
        monkeypatch.setenv(name, "")
    own(tmp_path, "extends: smoke\nname: own\n")
    monkeypatch.chdir(tmp_path)
    profile = profiles.export("own.yaml", {"seed": 9})
    monkeypatch.chdir("/")
    assert profiles.from_env() == profile and profile.seed == 9
    profiles.export("smoke", {})
    assert profiles.from_env() == profiles.load("smoke")


def test_overrides_reach_into_groups_and_win():
    profile = profiles.load("smoke", {"seed": 7, "annotation.enabled": False, "sandbox.num_sessions": 2})
    assert (profile.seed, profile.annotation.enabled, profile.sandbox.num_sessions) == (7, False, 2)
    assert profile.annotation.instances_per_task == profiles.load("smoke").annotation.instances_per_task


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(profiles.PROFILE_VARIABLE, "smoke")
    monkeypatch.setenv(profiles.OVERRIDES_VARIABLE, "{seed: 3, rl.rounds: 1}")
    profile = profiles.from_env()
    assert (profile.name, profile.seed, profile.rl.rounds) == ("smoke", 3, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: smoke\nsandbx: {num_sessions: 3}\n", ["sandbx", "unknown key"]),
        ("extends: pixels\npolicy: {token_shift: 6}\n", ["policy.token_shift is 6", "small-vision", "remove the setting"]),
        ("extends: quickstart\nsft_mixture: {correction: {}}\n", ["`sft_mixture.correction: {}`", "draws, max_repeats", "null"]),
        ("extends: smoke\nrl: {round: 3}\n", ["rl.round", "unknown key"]),
        ("extends: smoke\nseed: many\n", ["seed", "'many'", "integer"]),
        ("extends: smoke\nrl: {rounds: 1.5}\n", ["rl.rounds", "1.5", "integer"]),
        ("extends: smoke\nsandbox: {num_sessions: 0}\n", ["sandbox.num_sessions", "greater than or equal to 1"]),
        ("extends: smoke\nsandbox: {session: firefox}\n", ["sandbox.session", "'firefox'", "beginframe"]),
        ("extends: smoke\nmerge: {weights: [0.5, 0.3, 0.2]}\n", ["3 entries for 2 domains", "one per domain"]),
        ("extends: smoke\ncollection: {instances_per_task: 201}\n", ["collection.instances_per_task", "201", "rollout has 200"]),
        ("extends: smoke\nannotation: {instances_per_task: 201}\n", ["annotation.instances_per_task", "annotation has 200"]),
        ("extends: smoke\nrl: {rounds: 19, episodes_per_task: 16}\n", ["rl.rounds", "608", "rl has 600"]),
        ("extends: smoke\nseed: 24\nseed_data: {demonstrations_per_task: 41}\n", ["demonstrations_per_task", "demonstration has 40"]),
        ("extends: smoke\nrouting: {rules: {loop: {effect: forget}}}\n", ["routing.rules.loop.effect", "withhold"]),
        ("extends: smoke\nrl: 3\n", ["rl"]),
        ("extends: smok\n", ["no profile `smok`", "smoke"]),
        ("name: bare\n", ["tasks", "Field required", "begins with `extends: quickstart`"]),
        ("- a\n- b\n", ["not a YAML mapping"]),
        ("extends: smoke\nrl: {rounds: [\n", ["YAML"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: list[str]):
    with pytest.raises(ConfigError) as raised:
        profiles.load(own(tmp_path, text))
    for word in words:
        assert word in str(raised.value)


def test_every_wrong_key_is_listed_at_once(tmp_path: Path):
    with pytest.raises(ConfigError) as raised:
        profiles.load(own(tmp_path, "extends: smoke\nseed: -1\nct: {steps: none}\nextra: 1\n"))
    assert all(key in str(raised.value) for key in ("seed", "ct.steps", "extra"))


def test_a_profile_that_extends_itself_is_refused(tmp_path: Path):
    path = own(tmp_path, f"extends: {tmp_path / 'own.yaml'}\nname: own\n")
    with pytest.raises(ConfigError, match="extends itself"):
        profiles.load(path)


def test_unknown_names_and_files_say_what_there_is():
    with pytest.raises(ConfigError, match="quickstart, sandbox, smoke"):
        profiles.load("nightly")
    with pytest.raises(ConfigError, match=r"no profile file none\.yaml"):
        profiles.load("none.yaml")


def test_an_override_through_a_plain_value_is_refused():
    with pytest.raises(ConfigError, match="`seed` is not a group of settings"):
        profiles.load("smoke", {"seed.more": 1})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{at}: &{at} [{', '.join([f'*{of}'] * 10)}]\n" for of, at in pairwise("abcdefgh")
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "more than 100,000 values"),
        ("a: &a [*a]", "nested too deeply, or holds itself"),
        ("[" * 5000, "nested too deeply"),
        ("- " * 5000 + "a", "nested too deeply"),
        ("seed: " + "9" * 5000, "a value in it cannot be read"),
        ("extends: " + "n" * 5000 + ".yaml", "there is no profile"),
        (r'extends: "a\0.yaml"', "it holds a NUL"),
        (r'plugins: {judges: ["a\0.py:judge"]}', "is not a reference to a plug-in"),
        ("plugins: {judges: ['~nobody-of-that-name/a.py:judge']}", "is not a reference to a plug-in"),
        (f"plugins: {{judges: ['{'n' * 5000}:judge']}}", "is not a reference to a plug-in"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_a_hostile_profile_is_refused_with_words(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=why):
        profiles.load(str(tmp_path / "mine.yaml"))


def test_brackets_in_quotes_and_comments_are_no_nesting(tmp_path: Path) -> None:
    brackets = "[{" * 60
    (tmp_path / "mine.yaml").write_text(f"# {brackets}\nextends: smoke\nname: '{brackets}'\n")
    assert profiles.load(str(tmp_path / "mine.yaml")).name == brackets
    assert read_yaml("[" * 100 + "]" * 100) and read_yaml(f"{{a: '{brackets}'}}") == {"a": brackets}
    with pytest.raises(yaml.YAMLError, match="nested too deeply"):
        read_yaml("[" * 101 + "]" * 101)


@pytest.mark.parametrize("text", ["just words", "[1, 2]", "{unclosed: "])
def test_overrides_in_the_environment_must_be_a_mapping(text: str):
    with pytest.raises(ConfigError, match=r"is not YAML|a YAML mapping"):
        profiles.parse_overrides(text)


def test_task_lists_that_do_not_exist_are_named():
    with pytest.raises(ConfigError, match=r"tasks\.lists"):
        profiles.load("smoke", {"tasks.lists": ["miniwob:nothing"]})
    with pytest.raises(ConfigError, match=r"tasks\.domains"):
        profiles.load("smoke", {"tasks.domains": ["pointing", "juggling"]})
    with pytest.raises(ConfigError, match="rl_domains has forms"):
        profiles.load("smoke", {"tasks.domains": ["pointing"], "tasks.rl_domains": ["forms"]})


def test_the_grammar_reaches_every_prompt_and_unset_lengths_are_its_own():
    compact, chat = profiles.load("smoke").agent, profiles.load("smoke", {"agent.grammar": "uitars15"}).agent
    assert (compact.builder().grammar.name, compact.builder().window, compact.builder().max_tokens) == ("compact", 4, 960)
    assert (chat.builder().grammar.name, chat.builder().window, chat.builder().max_tokens) == ("uitars15", 100, 32_000)


def test_pixels_are_counted_in_the_picture_that_the_policy_sees():
    screen = Observation(instruction="", elements=(), screenshot=None, time_ms=0.0, width_px=1280, height_px=720)
    full, limited = (
        profiles.load("smoke", {"agent.grammar": "uitars15", "agent.max_image_pixels": area}).agent.builder().grammar
        for area in (None, 401_408)
    )
    assert "(644,364)" in full.format(None, Click(x=640, y=360), screen)
    assert "(420,224)" in limited.format(None, Click(x=640, y=360), screen)


def test_sandbox_servers_are_named_by_address_and_say_themselves_how_they_run_sessions():
    given = overrides(["sandbox.servers=[http://10.0.0.2:8421/, {url: 'https://a:8600', token_env: A_TOKEN}]"])
    first, second = load("smoke", given).sandbox.servers
    assert (first.url, first.token_env, second.url, second.token_env) == ("http://10.0.0.2:8421", None, "https://a:8600", "A_TOKEN")
    assert load("smoke").sandbox.servers == ()
    with pytest.raises(ConfigError, match=r"sandbox\.num_workers is 8, and sandbox\.servers are named.*set it to 1"):
        load("smoke", given | {"sandbox.num_workers": 8})
    with pytest.raises(ConfigError, match=r"names http://a:1 twice"):
        load("smoke", {"sandbox.servers": ["http://a:1", "http://a:1/"]})
    with pytest.raises(ConfigError, match=r"'a:1' is not the address of a sandbox server"):
        load("smoke", {"sandbox.servers": ["a:1"]})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agent.grammar": "uitars3"}, "uitars15"),
        ({"policy.source": "huggingface"}, "set a model"),
        ({"policy.model": "Qwen/Qwen2-VL-2B-Instruct"}, "set a model"),
        ({"policy.dtype": "bfloat16"}, "float32 weights"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(settings: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        profiles.load("smoke", settings)


@pytest.fixture
def own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's own task source, as docs/page-tasks.md has it."""
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return write_own_source(tmp_path)


@pytest.mark.parametrize("sources", ['{press: "press.py:SOURCE"}', '["press:SOURCE"]', '{press: "press:SOURCE"}'])
def test_a_profile_brings_task_sources_from_its_own_folder(own_source: Path, sources: str) -> None:
    mine = (own_source / "mine.yaml").read_text(encoding="utf-8").replace('{press: "press.py:SOURCE"}', sources)
    (own_source / "mine.yaml").write_text(mine, encoding="utf-8")
    child = own_source / "below" / "child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../mine.yaml\nname: child\ntasks: {lists: [press], domains: [pointing]}\n")
    profile = load(str(child))
    assert [task.name for task in tasks_in(profile.tasks.lists).values()] == ["press-letter"]
    assert SOURCES.parse(os.environ[SOURCES.variable]) == [("press", f"{own_source / 'press.py'}:SOURCE")]
    assert str(own_source) not in profile.acting.model_dump_json(), "a stage's request is the same wherever the profile lies"
    program = "from sandbox.tasks.sources import tasks_of; print(*(task.name for task in tasks_of('press')))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["press-letter"], "what this process starts has it too: " + ran.stderr


def test_a_source_given_on_the_command_line_counts_from_here(own_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_source)
    changes = overrides(["plugins.task_sources={press: press.py:SOURCE}", "tasks.lists=[press]", "tasks.domains=[pointing]"])
    assert changes["plugins.task_sources"] == {"press": f"{own_source / 'press.py'}:SOURCE"}
    assert load("smoke", changes).tasks.lists == ("press",)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ('{press: "gone.py:SOURCE"}', r"plugins\.task_sources of the profile .*gone\.py:SOURCE cannot be imported: FileNotFoundError"),
        ('{press: "press.py:GONE"}', r"has no 'GONE'; its task sources are SOURCE"),
        ('["press.py:PressPage"]', r"plugins\.task_sources of the profile .* is a type: expected a TaskSource"),
        ('{miniwob: "press.py:SOURCE"}', r"plugins\.task_sources of the profile .*'miniwob' .* has the name of another one"),
        ("3", r"plugins\.task_sources"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(own_source: Path, sources: str, message: str) -> None:
    (own_source / "wrong.yaml").write_text(
        f"extends: smoke\nname: wrong\nplugins: {{task_sources: {sources}}}\ntasks: {{lists: [press]}}\n"
    )
    with pytest.raises(ConfigError, match=message):
        load(str(own_source / "wrong.yaml"))
