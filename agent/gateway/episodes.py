"""Episodes of the gateway as the warehouse keeps them: one for each line of an episode that has its outcome. Token ids, log-probabilities
and pictures are those of the log, untouched.

Messages have one picture a row there, and no calls: a message with several pictures becomes several rows, and a call a line of text.
Training reads the token ids; the texts are for people, filters and models with another tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.gateway.log import read_calls, read_outcomes, read_picture
from agent.gateway.records import Call, Said, Shown, arguments_of
from agent.gateway.records import Outcome as Verdict
from agent.policy.policy import Message
from sandbox.actions import Action, ToolCall
from sandbox.tasks.task import Split, Task
from warehouse.core.home import Home
from warehouse.core.identity import stable_seed

SOURCE, DOMAIN = "gateway", "gateway"
MAX_STEPS = 1000
REPLY = "reply"
"""Name of the tool in the stored action of an answer that calls none."""
JUDGE = {"human": "human", "verifier": "outcome"}
"""Who gives V, by the origin of an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One episode for the warehouse and the verdict on it. `group`: the gateway's episode that it is a line of."""

    group: str
    episode: Episode
    verdict: dict[str, Any] | None


@dataclass(slots=True)
class LeftOut:
    """`num_withheld`: episodes of the gateway in which personal data was found. `lost`: why one cannot be put together, by its id."""

    num_withheld: int = 0
    lost: dict[str, str] = field(default_factory=dict)


def finished(home: Home, *, but: Collection[str] = (), left_out: LeftOut | None = None) -> Iterator[Taken]:
    """Every episode that has its outcome, `but` those of these ids, in the order of their ends; one that cannot be put together, such as
    one whose picture is gone, is left out. Raises ModelError for a damaged log."""
    left_out = left_out if left_out is not None else LeftOut()
    outcomes = {outcome.episode: outcome for outcome in read_outcomes(home)}
    calls: dict[str, list[Call]] = {name: [] for name in outcomes}
    for call in read_calls(home):
        if call.place.episode in calls:
            calls[call.place.episode].append(call)
    for name, outcome in outcomes.items():
        if any(call.withheld for call in calls[name]):
            left_out.num_withheld += 1
            continue
        try:
            yield from _episodes(home, calls[name], outcome, but)
        except (OSError, LookupError, ValueError) as error:
            left_out.lost[name] = f"{type(error).__name__}: {error}"


def groups_of(home: Home, episodes: Collection[str]) -> set[str]:
    """The gateway's episodes of which some of these, by their ids in the tables, are lines. Raises ModelError for a damaged log."""
    calls: dict[str, list[Call]] = {}
    for call in read_calls(home):
        calls.setdefault(call.place.episode, []).append(call)
    return {name for name, of_episode in calls.items() for part in _parts(of_episode) if part.request.episode_id in episodes}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What becomes an episode of the tables: a line, or an answer that was given up, which has no V: nobody knows what it would have come
    to."""

    request: EpisodeRequest
    calls: Sequence[Call]
    is_given_up: bool


def _parts(calls: Sequence[Call]) -> list[_Part]:
    given_up = _given_up(calls)
    lines: dict[int, list[Call]] = {}
    for call in calls:
        if call.call_id not in given_up:
            lines.setdefault(call.place.line, []).append(call)
    parts = [_Part(request=_request(line[0], number), calls=line, is_given_up=False) for number, line in sorted(lines.items())]
    alone = [call for call in calls if call.call_id in given_up]
    return parts + [_Part(request=_request(call, call.call_id), calls=[call], is_given_up=True) for call in alone]


def _episodes(home: Home, calls: Sequence[Call], outcome: Verdict, but: Collection[str]) -> list[Taken]:
    """One for each line."""
    conversations = _conversations(calls)
    taken = []
    for part in _parts(calls):
        if part.request.episode_id not in but:
            verdict = None if part.is_given_up else outcome
            episode = _episode(home, part.request, part.calls, conversations, verdict)
            said = None if verdict is None else _verdict(part.request.episode_id, verdict)
            taken.append(Taken(group=outcome.episode, episode=episode, verdict=said))
    return taken


def steps_of(calls: Sequence[Call]) -> tuple[Step, ...]:
    """The steps of one episode whose verifier and task are known, those of sub-agents among them, in the order in which they began; without
    answers that were given up. `calls` are whole, in the order of their ends."""
    conversations, given_up = _conversations(calls), _given_up(calls)
    kept = sorted((call for call in calls if call.call_id not in given_up), key=lambda call: call.began_at)
    return tuple(_step(index, call, conversations[call.call_id]) for index, call in enumerate(kept))


def _given_up(calls: Sequence[Call]) -> set[str]:
    """Calls that nothing extends although another answer to the same messages was extended: retried, or one of several."""
    extended = {call.place.parent for call in calls}
    gone_on_from = {call.digests[:-1][-1:] for call in calls if call.call_id in extended}
    return {call.call_id for call in calls if call.call_id not in extended and call.digests[:-1][-1:] in gone_on_from}


def _conversations(calls: Sequence[Call]) -> dict[str, tuple[Said, ...]]:
    """The whole prompt of each call, by its id."""
    found: dict[str, tuple[Said, ...]] = {}
    answers = {call.call_id: call.answer for call in calls}
    for call in calls:  # a parent stands before what extends it
        parent = call.place.parent
        before = () if parent is None else (*found[parent], answers[parent])
        found[call.call_id] = (*before, *call.messages)
    return found


def _request(first: Call, number: int | str) -> EpisodeRequest:
    """Of the line, or the answer, that has this number in its episode."""
    task = Task(source=SOURCE, name=first.task or first.project, domain=DOMAIN, max_steps=MAX_STEPS)
    return EpisodeRequest(
        purpose="gateway",
        task=task,
        seed=task.seeds(Split.TRAIN, 1)[0],
        attempt=stable_seed("gateway", first.place.episode, number) % 2**31,
        policy_id=first.policy_id,
        temperature=first.temperature,
    )


def _episode(
    home: Home, request: EpisodeRequest, line: Sequence[Call], conversations: Mapping[str, Sequence[Said]], outcome: Verdict | None
) -> Episode:
    first, last = line[0], line[-1]
    steps = tuple(_step(index, call, conversations[call.call_id]) for index, call in enumerate(line))
    ended = {1: Outcome.SUCCESS, 0: Outcome.FAILURE}
    names = sorted({name for call in line for said in conversations[call.call_id] for name in said.pictures})
    return Episode(
        request=request,
        instruction=next((said.text for said in conversations[first.call_id] if said.role == "user"), None),
        steps=steps,
        outcome=Outcome.TRUNCATED if outcome is None else ended[outcome.value],
        reward=None if outcome is None else float(outcome.value),
        duration_ms=_ms_between(first.began_at, last.began_at) + last.latency_ms,
        environment=f"gateway, {first.route}",
        screenshots={name: read_picture(home, name) for name in names},
    )


def _ms_between(begin: str, end: str) -> float:
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() * 1000)


def _step(index: int, call: Call, prompt: Sequence[Said]) -> Step:
    shown = [name for said in prompt for name in said.pictures]
    new = [said for said in call.messages if said.role != "assistant" and said.role != "system"]
    said = "\n".join(piece for piece in call.answer.pieces if isinstance(piece, str))
    actions = _actions(call, said)
    return Step(
        step_index=index,
        policy_id=call.policy_id,
        observation="\n".join(one.text for one in new),
        screenshot_id=shown[-1] if shown else None,
        messages=tuple(row for one in prompt for row in message_rows(one)),
        response=call.answer.text,
        thought=said if call.answer.calls and said else None,
        action=actions[0],
        more_actions=actions[1:],
        prompt_token_ids=call.prompt_token_ids,
        response_token_ids=call.response_token_ids,
        response_logprobs=call.response_logprobs,
        response_versions=call.response_versions,
        latency_ms=call.latency_ms,
    )


def _actions(call: Call, said: str) -> tuple[Action, ...]:
    if not call.answer.calls:
        return (ToolCall(name=REPLY, arguments={"text": said}),)
    given = ((one.name, arguments_of(one)) for one in call.answer.calls)
    return tuple(ToolCall(name=name, arguments=value if isinstance(value, dict) else {"text": value}) for name, value in given)


def message_rows(said: Said) -> Iterator[Message]:
    """A message as rows that show at most one picture each, which stands before the row's text."""
    picture, texts = None, list[str]()
    for piece in said.pieces:
        if isinstance(piece, Shown):
            if picture is not None or texts:
                yield Message(role=said.role, content="\n".join(texts), screenshot_id=picture)
            picture, texts = piece.screenshot_id, []
        else:
            texts.append(piece)
    texts += Said(role=said.role, calls=said.calls).text.splitlines()
    yield Message(role=said.role, content="\n".join(texts), screenshot_id=picture)


def _verdict(episode_id: str, outcome: Verdict) -> dict[str, Any]:
    return {
        "episode_id": episode_id,
        "judge": JUDGE[outcome.origin],
        "judge_version": outcome.given_at,
        "kind": "verdict",
        "origin": outcome.origin,
        "score": float(outcome.value),
        "threshold": 0.5,
        "passed": bool(outcome.value),
        "reasons": [*outcome.reasons, f"by {outcome.by}"],
    }
