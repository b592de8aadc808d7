"""The scripted annotator on real pages: a policy that errs on purpose is relabelled after the fact, and corrected live."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from agent.episode.episode import EpisodeRequest
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.grammars.registry import grammar_named
from agent.policy.policy import Prompt, Response
from agent.prompts.prompt import PromptBuilder
from annotation.config import Mode, ScriptedAnnotatorConfig
from annotation.scripted import Annotation, AnnotationResult, Note, annotate, balanced, within_budget
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Split
from warehouse.storage.catalogue import TABLES

TASKS = ("click-button", "enter-text", "click-button-sequence")
GRAMMAR = grammar_named("compact")


class ErringPolicy:
    """Reads the compact prompt and does the task; by the step's seed it sometimes acts on a wrong element or types a wrong word."""

    def __init__(self, error_rate: float) -> None:
        self.policy_id = f"policy-erring-{error_rate}"
        self._error_rate = error_rate

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return [
            Response(text=self._answer(prompt), prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.1,), policy_id=self.policy_id)
            for prompt in prompts
        ]

    def _answer(self, prompt: Prompt) -> str:
        instruction, *lines = prompt.messages[-1].content.splitlines()
        words = re.findall(r'"(.*?)"', instruction)
        elements = [(m[3], m[1], m[2], m[4]) for line in lines if (m := re.match(r'(.*?)"(.*)" <(\w+)>.*? \[(\d+)\]$', line))]
        errs = prompt.sampling.seed % 100 < 100 * self._error_rate
        field = next((e for e in elements if e[0] == "input"), None) if instruction.startswith("Enter") else None
        if field and "focused" in field[1] and field[2] == "":
            return f'Thought type Action type "{words[0] + "x" * errs}"'
        if field:
            wanted = field if field[2] == "" else next(e for e in elements if e[2] == "Submit")
        elif words:
            wanted = next((e for e in elements if e[2] == words[0]), elements[0])
        else:
            has_clicked = any(line.startswith("click") for line in lines)
            wanted = next(e for e in elements if e[2] == ("TWO" if has_clicked else "ONE"))
        if errs:
            wanted = next(e for e in elements if e is not wanted)
        return f'Thought click "{wanted[2]}" <{wanted[0]}> [{wanted[3]}] Action click [{wanted[3]}]'


def requests(policy: ErringPolicy, num: int) -> list[EpisodeRequest]:
    tasks = load_tasks("quickstart")
    return [
        EpisodeRequest(purpose="annotation", task=tasks[name], seed=seed, policy_id=policy.policy_id, screenshots=False)
        for name in TASKS
        for seed in tasks[name].seeds(Split.TRAIN, num)
    ]


@asynccontextmanager
async def collector() -> AsyncIterator[PoolCollector]:
    async with SessionPool(size=3, num_browsers=1) as pool:
        yield PoolCollector(pool, PromptBuilder("compact"), settings=CollectorSettings(concurrency=3))


def play(mode: Mode, error_rate: float, num: int = 6, **changes: Any) -> AnnotationResult:
    config = ScriptedAnnotatorConfig(mode=mode, **changes)
    policy = ErringPolicy(error_rate)

    async def run() -> AnnotationResult:
        async with collector() as live:
            return await annotate(policy, requests(policy, num), live, GRAMMAR, config)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def relabelled() -> AnnotationResult:
    return play("relabel", 0.4)


@pytest.fixture(scope="module")
def intervened() -> AnnotationResult:
    return play("intervene", 0.4, max_interventions_per_episode=4)


def rows_of(result: AnnotationResult) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {episode.episode_id: [] for episode in result.episodes}
    for row in sorted(result.rows, key=lambda row: int(row["step_index"])):
        rows[row["episode_id"]].append(row)
    return rows


def test_solved_episodes_are_approved_and_failed_ones_corrected(relabelled: AnnotationResult) -> None:
    assert len(relabelled.episodes) == 18 and {episode.is_success for episode in relabelled.episodes} == {True, False}
    rows = rows_of(relabelled)
    for episode in relabelled.episodes:
        decisions = [row["decision"] for row in rows[episode.episode_id]]
        if episode.is_success:
            assert set(decisions) <= {"accept"}
        elif "beyond_repair" in decisions:
            assert decisions.index("beyond_repair") == len(decisions) - 1, "nothing follows a state beyond repair"
    assert {"override", "accept"} <= {row["decision"] for row in relabelled.rows}
    for row in relabelled.rows:
        if row["decision"] == "override":
            assert row["response"] != row["proposal"] and row["response"].startswith("Thought ")
        elif row["decision"] == "accept":
            assert row["response"] == row["proposal"]


def test_a_wrong_first_button_is_beyond_repair(relabelled: AnnotationResult) -> None:
    rows = rows_of(relabelled)
    sequences = [e for e in relabelled.episodes if e.request.task.name == "click-button-sequence" and len(e.steps) > 1 and not e.is_success]
    lost = [rows[e.episode_id] for e in sequences if '"TWO"' in e.steps[0].response]
    assert lost, "the seeds hold such an episode"
    for decisions in lost:
        assert [row["decision"] for row in decisions] in (["override", "beyond_repair"], ["beyond_repair"])


def test_rows_fit_the_catalogue_and_quote_the_prompt(relabelled: AnnotationResult) -> None:
    rows = [row | {"iteration": "0001", "stage": "annotations"} for row in relabelled.rows]
    table = pa.Table.from_pylist(rows, schema=TABLES["annotations"].schema)
    assert len(set(table.column("annotation_id").to_pylist())) == table.num_rows
    steps = {(e.episode_id, step.step_index): step for e in relabelled.episodes for step in e.steps}
    for row in relabelled.rows:
        step = steps[row["episode_id"], row["step_index"]]
        assert row["proposal"] == step.response
        assert [m["content"] for m in row["messages"]] == [m.content for m in step.messages]


def test_the_same_seeds_give_the_same_annotations(relabelled: AnnotationResult) -> None:
    assert play("relabel", 0.4).rows == relabelled.rows


def test_a_small_budget_is_spread_over_tasks() -> None:
    result = play("relabel", 1.0, num=3, max_corrections=4, max_approvals=0)
    tasks = {episode.episode_id: episode.request.task.name for episode in result.episodes}
    corrected = sorted(tasks[row["episode_id"]] for row in result.rows if row["decision"] == "override")
    assert len(corrected) == 4 and set(corrected) == set(TASKS) and "accept" not in {row["decision"] for row in result.rows}


def test_corrections_are_carried_out_live_and_the_verifier_decides(intervened: AnnotationResult) -> None:
    rows = rows_of(intervened)
    assert "override" in {row["decision"] for row in intervened.rows}
    for episode in intervened.episodes:
        assert episode.is_success, "with every error corrected each episode is solved"
        overridden = {row["step_index"]: row for row in rows[episode.episode_id] if row["decision"] == "override"}
        for step in episode.steps:
            if step.step_index in overridden:
                assert step.policy_id == "oracle" and step.response == overridden[step.step_index]["response"]
                assert step.proposal == overridden[step.step_index]["proposal"]
            else:
                assert step.policy_id == episode.request.policy_id and step.proposal is None


def test_interventions_keep_to_the_budget_of_task_and_episode() -> None:
    result = play("intervene", 1.0, num=4, max_corrections=6, max_interventions_per_episode=1)
    tasks = {episode.episode_id: episode.request.task.name for episode in result.episodes}
    overrides = [row["episode_id"] for row in result.rows if row["decision"] == "override"]
    assert sorted(tasks[episode_id] for episode_id in overrides) == sorted([*TASKS, *TASKS])
    assert len(set(overrides)) == len(overrides), "one intervention an episode"
    assert len(result.episodes) < 4 * len(TASKS), "what no share is left for is not run"


def annotation(task: str, episode: int, step: int = 0, prompt: str = "p", **changes: Any) -> Annotation:
    note = Note(
        step_index=step,
        messages=(),
        proposal=f"{prompt} {episode}",
        label="l",
        agrees=False,
        is_valid=True,
        is_typing=False,
        overridden=False,
        screen=(),
    )
    fields: dict[str, Any] = {"decision": "override", "response": f"{prompt} {episode} {step}", "mode": "relabel"} | changes
    return Annotation(task=task, episode_id=f"e{episode}", note=note, **fields)


def test_tasks_take_turns() -> None:
    many = [annotation("a", i) for i in range(5)] + [annotation("b", 9)] + [annotation("c", 8), annotation("c", 7)]
    assert [a.task for a in balanced(many, 6)] == ["a", "b", "c", "a", "c", "a"]
    assert balanced(many, 0) == [] and len(balanced(many, 100)) == 8


def test_the_same_lesson_is_given_once() -> None:
    config = ScriptedAnnotatorConfig()
    twice = [annotation("a", 2, response="same"), annotation("a", 1, response="same"), annotation("a", 3, response="other")]
    assert sorted(a.episode_id for a in within_budget(twice, config)) == ["e1", "e3"]
    lost = [annotation("a", i, decision="beyond_repair", response=None) for i in (1, 2)]
    assert len(within_budget(lost, config)) == 2


def test_config_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="max_correction"):
        ScriptedAnnotatorConfig.model_validate({"max_correction": 3})
    assert json.loads(ScriptedAnnotatorConfig().model_dump_json())["mode"] == "relabel"


def test_a_setting_may_be_called_as_before() -> None:
    config = ScriptedAnnotatorConfig.model_validate({"mend_typing": False})
    assert not config.fix_typing and ScriptedAnnotatorConfig.model_validate(config.model_dump()) == config
