"""What agents did through the gateway on its way into D_SFT and D_CT: taken in once, judged, routed, and learned by the very tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent.episode.log import EpisodeLog
from agent.gateway.episodes import REPLY, LeftOut, finished
from agent.gateway.grouping import Grouping
from agent.gateway.log import CALLS_FILE, OUTCOMES_FILE, folder_of
from agent.gateway.records import Call, Called, Outcome, Said, Shown, digests
from assets.gateway import gateway_episodes
from assets.iterations.partitions import ITERATIONS
from assets.routing import routing, verdicts
from assets.stages.resources import WarehouseResource
from tests.assets.instances import emptied_instance
from tests.assets.people_parts import Smoke
from tests.models.chat_models import png
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.storage.tables import Warehouse

FIRST, NEXT = "0001", "0002"
SHOT = png(8, 4, "red")


def said(text: str, role: Any = "user", **more: Any) -> Said:
    return Said(role=role, pieces=(text,), **more)


class Writer:
    """A gateway's log, written without a gateway."""

    def __init__(self, home: Path) -> None:
        self.grouping, self.log = Grouping(), EpisodeLog(folder_of(Home(home)))
        self.num = 0

    def call(self, name: str, *messages: Said, answer: Said, **more: Any) -> Call:
        found = digests(messages)
        place = self.grouping.begin("shop", name, "agent", found)
        num_before, self.num = self.grouping.num_before(place), self.num + 1
        call = Call(
            call_id=f"call-{self.num}",
            place=place,
            project="shop",
            name=name,
            agent="agent",
            route="chat",
            messages=messages[num_before:],
            num_before=num_before,
            answer=answer,
            policy_id="policy-1",
            prompt_token_ids=(1, 2, self.num),
            response_token_ids=(7, 8),
            response_logprobs=(-0.5, -0.25),
            response_versions=(3, 3),
            began_at="2026-11-26T10:00:00.000+00:00",
            latency_ms=5.0,
            digests=(*found[num_before:], answer.digest(found[-1])),
            **more,
        )
        self.grouping.end(place, [call])
        self.log.write_line(CALLS_FILE, call)
        return call

    def outcome(self, call: Call, value: Any, origin: Any = "verifier") -> None:
        given = {"by": "checker", "origin": origin, "reasons": ("seen",), "given_at": "2026-11-26T10:01:00+00:00"}
        outcome = Outcome(episode=call.place.episode, project="shop", value=value, **given)
        self.grouping.close(outcome)
        self.log.write_line(OUTCOMES_FILE, outcome)


def take_in(root: Path, iteration: str) -> None:
    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), [FIRST, NEXT])
        resources = {"tables": WarehouseResource(root=str(root)), "profile": Smoke()}
        stages = [gateway_episodes, verdicts, routing]
        assert dg.materialize(stages, partition_key=iteration, instance=instance, resources=resources).success


@pytest.mark.slow
def test_episodes_with_an_outcome_are_routed_once_and_keep_their_tokens(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.log.keep_screenshots({(shot := bytes_id("screenshot", SHOT)): SHOT})
    ask = Said(role="user", pieces=("Buy a lamp", Shown(screenshot_id=shot)))
    click = Called(id="c1", name="click", arguments='{"x": 3}')
    first = writer.call("good", ask, answer=Said(role="assistant", pieces=("I look.",), calls=(click,)))
    result = Said(role="tool", pieces=("a page of lamps",), call_id="c1")
    again = writer.call("good", ask, first.answer, result, answer=said("It never came.", "assistant"))
    second = writer.call("good", ask, first.answer, result, answer=said("Buy it?", "assistant"))
    last = writer.call("good", ask, first.answer, result, second.answer, said("Yes"), answer=said("Bought.", "assistant"))
    bad = writer.call("bad", said("Buy a chair"), answer=said("Nothing there.", "assistant"))
    writer.call("open", said("Buy a bed"), answer=said("Which?", "assistant"))
    writer.outcome(first, 1)
    writer.outcome(bad, 0, "human")
    take_in(tmp_path, FIRST)

    warehouse = Warehouse(Home(tmp_path))
    episodes = warehouse.read("episodes").to_pylist()
    assert {(row["purpose"], row["task_name"], row["instruction"]) for row in episodes} == {
        ("gateway", "shop", "Buy a lamp"),
        ("gateway", "shop", "Buy a chair"),
    }
    steps = {tuple(row["prompt_token_ids"]): row for row in warehouse.read("steps").to_pylist()}
    assert set(steps) == {(1, 2, number) for number in range(1, 6)}
    step = steps[(1, 2, 2)]
    assert (step["response_token_ids"], step["response_logprobs"], step["response_versions"]) == ([7, 8], [-0.5, -0.25], [3, 3])
    assert step["screenshot_id"] == shot and [row["role"] for row in step["messages"]] == ["user", "user", "assistant", "tool"]
    assert REPLY in step["action"] and '"click"' in steps[(1, 2, 1)]["action"] and steps[(1, 2, 1)]["thought"] == "I look."
    assert warehouse.read("screenshots").to_pylist()[0]["data"] == SHOT
    spoken = {(row["judge"], row["passed"]) for row in warehouse.read("verdicts").to_pylist() if row["kind"] == "verdict"}
    assert spoken == {("verifier", True), ("outcome", True), ("verifier", False), ("human", False)}
    routes = {row["episode_id"]: row for row in warehouse.read("routes").to_pylist()}
    assert len(routes) == len(episodes) == 4
    assert sorted((row["route"], row["reason"].split(":")[0]) for row in routes.values()) == [
        ("ct", "V=0"),
        ("sft", "V=1"),
        ("sft", "V=1"),
        ("withheld", "crashed"),
    ]
    samples = warehouse.read("ct_samples").to_pylist() + warehouse.read("sft_samples").to_pylist()
    answers = {row["messages"][-1]["content"] for row in samples}
    assert {row["origin"] for row in samples} == {"gateway"} and last.answer.text in answers
    assert again.answer.text not in answers, "another answer to the same messages was gone on from"

    take_in(tmp_path, NEXT)
    assert warehouse.read("episodes", iteration=NEXT).num_rows == 0, "each is taken once"


def test_only_new_episodes_are_put_together_and_one_without_its_picture_is_left_out(tmp_path: Path) -> None:
    writer, shots = Writer(tmp_path), {bytes_id("screenshot", shot): shot for shot in (SHOT, png(8, 4, "blue"))}
    writer.log.keep_screenshots(shots)
    shown = {name: Said(role="user", pieces=("Look", Shown(screenshot_id=shot))) for name, shot in zip(("one", "two"), shots, strict=True)}
    calls = {name: writer.call(name, ask, answer=said("A lamp.", "assistant")) for name, ask in shown.items()}
    for call in calls.values():
        writer.outcome(call, 1)
    home, lost = Home(tmp_path), next(iter(shots))
    first, second = (one.episode for one in finished(home))
    (folder_of(home) / "screenshots" / lost).unlink()
    left_out = LeftOut()
    assert [one.episode.episode_id for one in finished(home, left_out=left_out)] == [second.episode_id]
    assert list(left_out.lost) == [calls["one"].place.episode] and lost in left_out.lost[calls["one"].place.episode]
    left_out = LeftOut()
    assert not list(finished(home, but={first.episode_id, second.episode_id}, left_out=left_out))
    assert not left_out.lost, "what was taken is not read again"
