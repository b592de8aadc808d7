"""Judges on real models and servers: one protocol, exact probabilities, costs, and a model that learns to judge."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from agent.judging.prompt import JudgeBuilder, Record, at_verdict, read_record
from agent.judging.samples import orm_samples
from agent.policy.policy import Message, Prompt, Response
from models.checkpoints.checkpoint import read_card
from models.engine.embedded import EmbeddedEngine
from models.families.registry import load_codec, load_policy
from models.http.engine import HttpEngine
from models.judges.judge import MAX_SCORE, Case, Judge
from models.judges.orm import Orm, written_score
from models.judges.reference import ReferenceJudge
from models.judges.verdict_scores import ModelVerdictScores
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from tests.agent.judged_episodes import episode, many, store
from tests.models.judging_policy import new_policy
from tests.models.policy_servers import config, our_server

SOLVED = 0.999
BUILDER = JudgeBuilder("elements")


def records(num: int, seed: int = 5) -> tuple[list[Record], list[bool]]:
    played = many(num, seed=seed)
    return [read_record(*each) for each in played], [bool(row["reward"]) for row, _ in played]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that learned to judge from stored episodes, as the flywheel teaches it."""
    root = tmp_path_factory.mktemp("orm")
    warehouse = store(root / "home", ("0001", "rl_pointing", many(700)))
    rows = orm_samples(warehouse, "0001", BUILDER, success_threshold=SOLVED, max_samples=2000).rows
    samples = [TrainingSample(messages=tuple(Message(**message) for message in row["messages"])) for row in rows]
    settings = SupervisedConfig(steps=600, learning_rate=4e-3, batch_tokens=2048, warmup_steps=20, save_every=1000)
    train_supervised(
        settings,
        samples,
        init=new_policy(root / "base"),
        output=root / "trained",
        stage="orm_model",
        iteration="0001",
        run_folder=root / "run",
    )
    return root / "trained"


@contextmanager
def judge_of(kind: str, folder: Path) -> Iterator[Judge]:
    with ExitStack() as stack:
        if kind == "orm":
            model, codec = load_policy(folder), load_codec(folder)
            engine = EmbeddedEngine(model, codec, read_card(folder).checkpoint_id, gives_away=True)
            stack.callback(engine.close)
            yield Orm(engine, BUILDER, scores=ModelVerdictScores(model, codec))
            return
        server = stack.enter_context(our_server(folder))
        remote = HttpEngine(config(server.url))
        stack.callback(remote.close)
        yield Orm(remote, BUILDER, decode=load_codec(folder).decode) if kind == "orm of a server" else ReferenceJudge(remote, BUILDER)


KINDS = ("orm", "orm of a server", "reference judge")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("engine_token")
def test_every_judge_judges_alike(kind: str, trained: Path) -> None:
    judged, truths = records(24)
    cases = [Case(record=record, reference="any" if kind == "reference judge" else None) for record in judged]
    with judge_of(kind, trained) as judge:
        assert isinstance(judge, Judge)
        first = asyncio.run(judge.judge(cases))
        again = asyncio.run(judge.judge(cases[:3]))
        version, origin = judge.version, judge.origin
    assert version == read_card(trained).checkpoint_id and origin in ("orm", "judge")
    assert [each.episode_id for each in first] == [case.record.episode_id for case in cases]
    assert all(0 <= each.score <= MAX_SCORE for each in first), "a threshold of 1 lets nothing pass"
    assert [each.score for each in again] == pytest.approx([each.score for each in first[:3]], abs=1e-5)
    assert all((each.cost_tokens or 0) > 50 and each.cost_ms > 0 for each in first)
    if kind != "reference judge":  # which is asked otherwise than it was taught
        agree = sum((each.score >= 0.5) == truth for each, truth in zip(first, truths, strict=True))
        assert agree >= 22, f"it has learned to judge: {agree} of 24"
        assert all(each.reasons and each.num_readable == 1 for each in first)


@pytest.mark.slow
@pytest.mark.usefixtures("engine_token")
def test_a_server_and_this_process_give_the_same_scores(trained: Path) -> None:
    cases = [Case(record=record) for record in records(16)[0]]
    with judge_of("orm", trained) as here, judge_of("orm of a server", trained) as there:
        exact, written = (asyncio.run(judge.judge(cases)) for judge in (here, there))
    for one, other in zip(exact, written, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.05), "what is neither word has little weight once it is trained"
        assert (one.score >= 0.5) == (other.score >= 0.5)


@pytest.mark.slow
def test_scores_are_the_models_own_probabilities_whatever_the_batch(trained: Path) -> None:
    model, codec = load_policy(trained), load_codec(trained)
    judged, _ = records(9)
    prompts = [BUILDER.build(record) for record in judged]
    pairs = [at_verdict(BUILDER, BUILDER.rationale(record)) for record in judged]
    cases = [Case(record=record) for record in judged]
    scores = ModelVerdictScores(model, codec)
    together = scores(prompts, pairs, cases)
    for place in range(9):
        assert scores(prompts[place : place + 1], pairs[place : place + 1], cases[:1])[0] == pytest.approx(together[place], abs=1e-5)
    good, bad = (codec.encode((*prompts[0], Message(role="assistant", content=text))).token_ids for text in pairs[0])
    at = next(place for place, (one, other) in enumerate(zip(good, bad, strict=False)) if one != other)
    with torch.no_grad():
        probabilities = model(torch.tensor([list(good[:at])])).logits[0, -1].softmax(-1)
    expected = float(probabilities[good[at]] / (probabilities[good[at]] + probabilities[bad[at]]))
    assert together[0] == pytest.approx(expected, abs=1e-5)


def test_an_untrained_policy_is_scored_at_the_verdict_it_does_not_write(tmp_path: Path) -> None:
    with judge_of("orm", new_policy(tmp_path / "fresh")) as judge:
        judged = asyncio.run(judge.judge([Case(record=record) for record in records(6)[0]]))
    assert all(each.num_readable == 0 and "no verdict could be read" in each.reasons[0] for each in judged)
    assert all(0 < each.score < 1 for each in judged)


class Parrot:
    """A policy that gives the same answers over and over: what servers may say, played."""

    policy_id = "parrot"

    def __init__(self, *texts: str) -> None:
        self._texts, self.asked = list(texts), 0

    async def act(self, prompts: list[Prompt]) -> list[Response]:
        self.asked += len(prompts)
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        return [Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id="parrot") for _ in prompts]


def test_an_answer_without_a_verdict_is_asked_for_again_and_never_passes() -> None:
    case = Case(record=read_record(*episode("a", wanted="Ok", clicked="Ok")), reference="Ok")
    late = Parrot("Hm.", "It did.\nVerdict: yes")
    (judged,) = asyncio.run(ReferenceJudge(late, JudgeBuilder("chat")).judge([case]))
    assert (judged.score, judged.num_asked, judged.num_readable) == (MAX_SCORE, 2, 1)
    assert judged.reasons == ("no verdict could be read in 1 of 2 answers", "It did.") and judged.cost_tokens is None
    never = Parrot("Verdict: perhaps")
    (judged,) = asyncio.run(ReferenceJudge(never, JudgeBuilder("chat"), repeats=2).judge([case]))
    assert (judged.score, never.asked) == (0.0, 3)
    (judged,) = asyncio.run(Orm(Parrot("who knows"), JudgeBuilder("chat")).judge([case]))
    assert judged.score == 0.0 and judged.num_readable == 0


def test_votes_are_averaged() -> None:
    case = Case(record=read_record(*episode("a", wanted="Ok", clicked="Ok")))
    split = Parrot("a\nVerdict: yes", "b\nVerdict: no", "c\nVerdict: no", "d\nVerdict: yes")
    (judged,) = asyncio.run(ReferenceJudge(split, JudgeBuilder("chat"), votes=4).judge([case]))
    assert judged.score == pytest.approx(0.5) and judged.num_asked == 4


@pytest.mark.parametrize(("is_good", "expected"), [(True, 0.8), (False, 0.2), (None, None)])
def test_a_written_word_is_as_sure_as_its_tokens(is_good: bool | None, expected: float | None) -> None:
    words = {1: "the", 2: "end", 3: " ye", 4: "s", 5: ""}
    response = Response(
        text="", prompt_token_ids=(1,), token_ids=(1, 2, 3, 4, 5), logprobs=(-3.0, -2.0, math.log(0.8), 0.0, 0.0), policy_id="p"
    )
    score = written_score(response, is_good, lambda ids: "".join(words[token] for token in ids))
    assert score == (None if expected is None else pytest.approx(expected))
