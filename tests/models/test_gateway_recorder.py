"""What the gateway records when clients, upstreams and disks are not at their best: its recorder on a real log, without HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.gateway.grouping import Group, Grouping
from agent.gateway.log import GatewayLog, Pictures, read_calls, read_outcomes
from agent.gateway.records import Call, Called, Outcome, arguments_of
from models.gateway.messages import MessagesWriter
from models.gateway.recorder import Caller, Recorder
from models.gateway.settings import GatewaySettings
from models.gateway.upstream import Upstream
from models.gateway.upstreams import Upstreams
from models.server.problems import ApiError
from models.server.wire import ChatRequest
from tests.models.gateways import asked, user
from tests.models.policy_servers import played_server
from warehouse.core.errors import StorageFull
from warehouse.core.home import Home

ADDRESS, CARD = "ann.smith@corp.io", "4111 1111 1111 1111"
MINE = Caller(project="alpha", name="mine")


def answer(content: str = "It is open", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"} | more]}


class PlayedUpstream(Upstream):
    """Gives one answer to everything."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__("http://127.0.0.1:9", None, timeout_s=1.0)
        self._data = data

    async def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._data


class SlowLog(GatewayLog):
    """Writes once it may."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.is_reached, self.may_write, self.is_full = asyncio.Event(), asyncio.Event(), False

    async def _wait(self) -> None:
        self.is_reached.set()
        await self.may_write.wait()
        if self.is_full:
            raise StorageFull("the disk is full")

    async def append(self, calls: Sequence[Call], pictures: Pictures) -> None:
        await self._wait()
        await super().append(calls, pictures)

    async def close_episode(self, outcome: Outcome) -> None:
        await self._wait()
        await super().close_episode(outcome)


@asynccontextmanager
async def opened(folder: Path, data: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[tuple[Recorder, SlowLog]]:
    log, upstream = SlowLog(Home(folder)), PlayedUpstream(data or answer())
    try:
        yield Recorder(log, Upstreams([upstream]), None, GatewaySettings(**settings)), log
    finally:
        await upstream.close()
        log.close()


def chat(text: str = "hello", **fields: Any) -> ChatRequest:
    return ChatRequest.model_validate(asked(user(text), **fields))


def outcome(group: Group, **fields: Any) -> Outcome:
    given = {"value": 1, "by": "checker", "origin": "verifier", "given_at": "2026-11-26T10:01:00+00:00"}
    return Outcome(episode=group.episode, project=group.project, **(given | fields))


def tool(**parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "click", "parameters": {"type": "object"} | parameters}}


def recorded(folder: Path, request: ChatRequest, data: dict[str, Any] | None = None, **settings: Any) -> Call:
    async def record() -> None:
        async with opened(folder, data, **settings) as (recorder, log):
            log.may_write.set()
            await recorder.whole(await recorder.begin(MINE, "chat", request))

    asyncio.run(record())
    (call,) = read_calls(Home(folder))
    return call


def refused(folder: Path, caller: Caller, request: ChatRequest) -> ApiError:
    async def begin() -> None:
        async with opened(folder) as (recorder, _):
            with pytest.raises(ApiError) as caught:
                await recorder.begin(caller, "chat", request)
            assert not recorder.running.total()
            found.append(caught.value)

    found: list[ApiError] = []
    asyncio.run(begin())
    return found[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [tool(description=f"ask {ADDRESS}")]},
        {"tools": [tool(properties={ADDRESS: {}})]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": ADDRESS}}}},
        {"stop": ["\n", ADDRESS]},
    ],
)
def test_personal_data_in_tools_and_settings_is_not_stored(tmp_path: Path, fields: dict[str, Any]) -> None:
    call = recorded(tmp_path, chat(**fields))
    assert call.withheld == ("an e-mail address",) and not call.tools and not call.sampling
    assert ADDRESS not in (tmp_path / "gateway" / "calls.jsonl").read_text()
    assert ADDRESS in recorded(tmp_path / "kept", chat(**fields), keep_personal_data=True).model_dump_json()


def test_bounds_and_seeds_are_no_card_numbers(tmp_path: Path) -> None:
    number = int(CARD.replace(" ", ""))
    assert not recorded(tmp_path, chat(seed=number, tools=[tool(maximum=number)])).withheld


def test_personal_data_behind_the_escapes_of_arguments_is_not_stored(tmp_path: Path) -> None:
    function = {"name": "type", "arguments": json.dumps({"text": f"pay with\n{CARD}"})}
    call = recorded(tmp_path, chat(), answer(message={"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]}))
    assert call.withheld == ("a card number",)


def test_names_and_outcomes_with_personal_data_are_refused(tmp_path: Path) -> None:
    for caller in (Caller(project="alpha", name=ADDRESS), Caller(project="alpha", task=f"write to {ADDRESS}")):
        error = refused(tmp_path, caller, chat())
        assert error.status == 400 and "an e-mail address in names" in str(error)

    async def end() -> None:
        async with opened(tmp_path) as (recorder, log):
            log.may_write.set()
            at_a_time = Caller(project="alpha", name="run 4111111111111111")
            call = await recorder.begin(at_a_time, "chat", chat())
            await recorder.whole(call)
            group = recorder.grouping.group(call.episode)
            for fields in ({"by": ADDRESS}, {"reasons": ("seen", f"sent to {ADDRESS}")}):
                with pytest.raises(ApiError, match="an e-mail address in `by` and `reasons`"):
                    await recorder.close_episode(group, outcome(group, **fields))
            await recorder.close_episode(group, outcome(group))

    asyncio.run(end())
    assert [one.by for one in read_outcomes(Home(tmp_path))] == ["checker"]


def test_the_id_of_an_episode_names_it_too() -> None:
    grouping = Grouping()
    first = grouping.begin("alpha", None, "agent", ["a"])
    again = grouping.begin("alpha", first.episode, "agent", ["b"])
    assert again.episode == first.episode and grouping.group(first.episode).num_running == 2
    foreign = grouping.begin("beta", first.episode, "agent", ["a"])
    assert foreign.episode != first.episode, "another project's"
    found = grouping.find("beta", first.episode)
    assert found is not None and found.episode == foreign.episode and found.name == first.episode


def test_calls_that_come_together_do_not_pass_the_limit(tmp_path: Path) -> None:
    async def together() -> None:
        async with opened(tmp_path, max_running=2) as (recorder, _):
            begun = (recorder.begin(Caller(project="alpha"), "chat", chat(str(number))) for number in range(4))
            found = await asyncio.gather(*begun, return_exceptions=True)
            refusals = [one for one in found if isinstance(one, ApiError)]
            assert [one.status for one in refusals] == [429, 429] and recorder.running["alpha"] == 2
            assert "2 calls of the project are under way" in str(refusals[0]) and "--max-running" in str(refusals[0])

    asyncio.run(together())


def test_a_call_that_is_read_while_the_end_begins_is_refused(tmp_path: Path) -> None:
    async def end() -> None:
        async with opened(tmp_path) as (recorder, _):
            begun = asyncio.create_task(recorder.begin(MINE, "chat", chat()))
            await asyncio.sleep(0)
            recorder.is_closing = True
            with pytest.raises(ApiError, match="shutting down"):
                await begun
            assert not recorder.running.total()

    asyncio.run(end())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_stream_is_cut_at_line_feeds_alone(end: str) -> None:
    text = "one\u2028two\u2029three\u0085four \U0001f600"
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False)
    stream = f"data: {event}{end}{end}data: [DONE]{end}{end}"

    async def read(url: str) -> list[dict[str, Any]]:
        upstream = Upstream(url, None, timeout_s=30.0)
        try:
            return [chunk async for chunk in upstream.chunks({})]
        finally:
            await upstream.close()

    with played_server(lambda *_: (200, {"content-length": str(len(stream.encode()))}, stream)) as played:
        (chunk,) = asyncio.run(read(played.url))
    assert chunk["choices"][0]["delta"]["content"] == text


def test_half_a_surrogate_pair_costs_no_answer(tmp_path: Path) -> None:
    text = r'{"choices": [{"index": 0, "message": {"content": "a\ud83d\ude00 b\ud800"}, "finish_reason": "stop"}]}'

    async def read(url: str) -> dict[str, Any]:
        upstream = Upstream(url, None, timeout_s=30.0)
        try:
            return await upstream.whole({})
        finally:
            await upstream.close()

    with played_server(lambda *_: (200, {}, text)) as played:
        data = asyncio.run(read(played.url))
    assert recorded(tmp_path, chat(), data).answer.text == "a\U0001f600 b?"


@pytest.mark.parametrize("arguments", ['{"x": NaN}', '{"x": 1e999}', r'{"x": "\ud800"}'])
def test_arguments_that_only_python_reads_are_a_text(tmp_path: Path, arguments: str) -> None:
    called = Called(id="c1", name="click", arguments=arguments)
    assert arguments_of(called) == arguments
    function = {"name": "click", "arguments": arguments}
    data = answer(message={"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]})
    assert recorded(tmp_path, chat(), data).answer.calls == (called,)
    (block,) = MessagesWriter(chat()).whole(data)["content"]
    assert block["input"] == {"text": arguments}


def test_logprobs_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    content = [{"token": "a", "logprob": float("-inf")}]
    call = recorded(tmp_path, chat(), answer(token_ids=[7], logprobs={"content": content}))
    assert call.response_token_ids == (7,) and call.response_logprobs == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_a_request_that_no_json_carries_is_refused_in_words(tmp_path: Path, value: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": value}}}
    cases: dict[str, Any] = {"tools": [tool(const=value)], "response_format": schema}
    for name, given in cases.items():
        error = refused(tmp_path, MINE, chat(**{name: given}))
        assert (error.status, error.problem.param) == (400, name) and "finite" in str(error)


def test_a_message_with_half_a_surrogate_pair_is_refused_in_words(tmp_path: Path) -> None:
    error = refused(tmp_path, MINE, chat("a\ud800"))
    assert (error.status, error.problem.param) == (400, "messages")


@pytest.mark.parametrize("name", [None, "mine"])
def test_a_call_is_under_way_until_it_is_written_whoever_leaves(tmp_path: Path, name: str | None) -> None:
    async def leave() -> None:
        async with opened(tmp_path) as (recorder, log):
            call = await recorder.begin(Caller(project="alpha", name=name), "chat", chat())
            answering = asyncio.create_task(recorder.whole(call))
            await log.is_reached.wait()
            answering.cancel()
            await asyncio.wait([answering])
            group = recorder.grouping.group(call.episode)
            assert answering.cancelled() and recorder.running["alpha"] == group.num_running == 1
            with pytest.raises(ApiError, match="under way"):
                await recorder.close_episode(group, outcome(group))
            log.may_write.set()
            await recorder.settle()
            assert recorder.running["alpha"] == group.num_running == 0 and len(group.calls) == 1
            await recorder.close_episode(group, outcome(group))

    asyncio.run(leave())
    (call,) = read_calls(Home(tmp_path))
    assert [one.episode for one in read_outcomes(Home(tmp_path))] == [call.place.episode]


def test_a_call_that_cannot_be_written_is_over_and_counts_as_never_made(tmp_path: Path) -> None:
    async def fail() -> None:
        async with opened(tmp_path) as (recorder, log):
            log.is_full = True
            log.may_write.set()
            call = await recorder.begin(Caller(project="alpha"), "chat", chat())
            with pytest.raises(StorageFull):
                await recorder.whole(call)
            assert not recorder.running.total() and not recorder.grouping.of_project("alpha")

    asyncio.run(fail())


@pytest.mark.parametrize("is_full", [False, True])
def test_an_outcome_that_is_repeated_is_durable_before_it_is_acknowledged(tmp_path: Path, is_full: bool) -> None:
    async def repeat() -> None:
        async with opened(tmp_path) as (recorder, log):
            log.may_write.set()
            call = await recorder.begin(MINE, "chat", chat())
            await recorder.whole(call)
            log.may_write.clear()
            group = recorder.grouping.group(call.episode)
            first = asyncio.create_task(recorder.close_episode(group, outcome(group)))
            await asyncio.sleep(0)
            again = asyncio.create_task(recorder.close_episode(group, outcome(group)))
            await asyncio.sleep(0.02)
            assert not first.done() and not again.done()
            first.cancel()  # the client gives up waiting, which changes nothing
            log.is_full = is_full
            log.may_write.set()
            if is_full:
                with pytest.raises(StorageFull):
                    await again
                assert group.outcome is None
            else:
                assert (await again).value == 1 and len(list(read_outcomes(Home(tmp_path)))) == 1

    asyncio.run(repeat())
