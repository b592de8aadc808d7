"""Parts for tests of annotated runs: a policy that reads the compact prompt, work on lease, and a service over a real pool."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from agent.policy.policy import Policy, Prompt, Response
from agent.prompts.prompt import PromptBuilder
from annotation.service.campaigns.policies import Served
from annotation.service.runs.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.migrating import open_database
from annotation.storage.schema import Assignment, Campaign, User
from annotation.wire.runs import Decide, RunState
from sandbox import wire
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Split, Task
from tests.annotation import fresh
from warehouse.core.errors import CheckpointError, ModelError

ANN, BOB = "user-ann", "user-bob"
WAIT_S = 60.0
_ELEMENT = re.compile(r'(.*?)"(.*)" <(\w+)>.*? \[(\d+)\]$')


class Reader:
    """Does click-button, enter-text and click-button-sequence by reading the prompt, and waits in other tasks. Of what is sampled beside
    its own choice every third acts on a wrong element, and every third is not an answer. `errs`: its own is wrong, and those are right."""

    def __init__(self, policy_id: str = "policy-reader", *, errs: bool = False) -> None:
        self.policy_id, self.errs, self.is_down = policy_id, errs, False
        self.calls: list[int] = []

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        if self.is_down:
            raise ModelError("the engine is down, on purpose")
        self.calls.append(len(prompts))
        return [self._response(prompt, number % 3) for number, prompt in enumerate(prompts)]

    def _response(self, prompt: Prompt, kind: int) -> Response:
        text = self.answer(prompt, errs=self.errs != (kind == 1)) if kind < 2 else "I would rather not say"
        logprob = -0.1 * (1 + kind)
        return Response(text=text, prompt_token_ids=(1,), token_ids=(2, 3), logprobs=(logprob, logprob), policy_id=self.policy_id)

    @staticmethod
    def answer(prompt: Prompt, *, errs: bool) -> str:
        instruction, *lines = prompt.messages[-1].content.splitlines()
        words = re.findall(r'"(.*?)"', instruction)
        elements = [(m[3], m[1], m[2], m[4]) for line in lines if not line.startswith("click") and (m := _ELEMENT.match(line))]
        field = next((e for e in elements if e[0] == "input"), None) if instruction.startswith("Enter") else None
        if field and "focused" in field[1] and field[2] == "":
            return f'Thought type Action type "{words[0]}{"x" * errs}"'
        if field:
            wanted = field if field[2] == "" else next(e for e in elements if e[2] == "Submit")
        elif words:
            wanted = next((e for e in elements if e[2] == words[0]), elements[0])
        else:
            has_clicked = any(line.startswith("click") for line in lines)
            found = next((e for e in elements if e[2] == ("TWO" if has_clicked else "ONE")), None)
            if found is None:
                return "Thought wait Action wait"
            wanted = found
        if errs:
            wanted = next(e for e in elements if e is not wanted)
        return f'Thought click "{wanted[2]}" <{wanted[0]}> [{wanted[3]}] Action click [{wanted[3]}]'


class OneSource:
    """Serves one policy, whatever is asked for but for what is `gone`."""

    gone: frozenset[str] = frozenset()

    def __init__(self, policy: Policy, grammar: str = "compact") -> None:
        self.policy, self.builder, self.asked = policy, PromptBuilder(grammar), []  # type: ignore[var-annotated]

    async def check(self, policy: str) -> None:
        if policy in self.gone:
            raise CheckpointError(f"no checkpoint {policy} is registered")

    async def get(self, policy: str) -> Served:
        await self.check(policy)
        self.asked.append(policy)
        return Served(policy_id=self.policy.policy_id, policy=self.policy, builder=self.builder, max_new_tokens=96)

    async def close(self) -> None:
        return None


class Work:
    """A database with two annotators, and work on lease in it."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or fresh.sqlite_url(folder)
        self.database = open_database(self.url)
        self.blobs = Blobs(folder / "screens")
        self.num = 0
        with self.database.write() as session:
            session.add_all(User(user_id=user, name=user, role="annotator", created_at_s=0.0) for user in (ANN, BOB))

    def campaign(self, mode: str = "intervene", *, num_candidates: int = 4, name: str = "") -> str:
        self.num += 1
        campaign_id = f"campaign-{self.num}"
        with self.database.write() as session:
            session.add(
                Campaign(
                    campaign_id=campaign_id,
                    name=name or campaign_id,
                    guidelines="Be kind.",
                    mode=mode,
                    tasks=["miniwob"],
                    policy="newest",
                    num_candidates=num_candidates,
                    temperature=1.0,
                    target_count=10,
                    double_share=0.0,
                    lease_s=600.0,
                    state="active",
                    created_at_s=time.time(),
                )
            )
        return campaign_id

    def lease(self, campaign_id: str, task: Task, *, seed: int | None = None, copy: int = 0, user_id: str = ANN) -> str:
        """An assignment that the user holds under lease 1."""
        self.num += 1
        assignment_id = f"assignment-{self.num}"
        with self.database.write() as session:
            session.add(
                Assignment(
                    assignment_id=assignment_id,
                    campaign_id=campaign_id,
                    task_id=task.task_id,
                    task_name=task.name,
                    domain=task.domain,
                    task=wire.TASK.to_plain(task),
                    seed=task.seeds(Split.TRAIN, 1)[0] if seed is None else seed,
                    copy=copy,
                    priority=1.0,
                    state="leased",
                    user_id=user_id,
                    lease_number=1,
                    lease_until_s=time.time() + 600.0,
                    changed_at_s=time.time(),
                )
            )
        return assignment_id

    def offer(self, campaign_id: str, task: Task, *, seed: int, priority: float) -> str:
        """An assignment that lies open."""
        assignment_id = self.lease(campaign_id, task, seed=seed)

        def work(session: Session) -> None:
            one = session.get_one(Assignment, assignment_id)
            one.state, one.user_id, one.lease_number, one.lease_until_s, one.priority = "open", None, 0, None, priority

        self.database.transact(work)
        return assignment_id

    def give_to(self, assignment_id: str, user_id: str) -> None:
        """The lease ran out, and somebody else has taken it."""

        def work(session: Session) -> None:
            assignment = session.get_one(Assignment, assignment_id)
            assignment.user_id, assignment.lease_number = user_id, assignment.lease_number + 1

        self.database.transact(work)

    def expire(self, assignment_id: str) -> None:
        """The lease ran out, and nobody has taken it yet."""

        def work(session: Session) -> None:
            session.get_one(Assignment, assignment_id).lease_until_s = time.time() - 1.0

        self.database.transact(work)

    def rows(self, query: Any) -> list[Any]:
        with self.database.read() as session:
            return list(session.scalars(query))

    def close(self) -> None:
        self.database.close()


@asynccontextmanager
async def service(
    work: Work, pool: SessionPoolProtocol, policy: Policy | None = None, *, grammar: str = "compact"
) -> AsyncIterator[LiveRuns]:
    live = LiveRuns(work.database, work.blobs, pool, OneSource(policy or Reader(), grammar))
    try:
        yield live
    finally:
        await live.close()


async def until(live: LiveRuns, run_id: str, *phases: str) -> RunState:
    """The state as soon as its phase is one of these."""
    deadline = time.monotonic() + WAIT_S
    state = await live.state(run_id)
    while state.phase not in phases:
        if time.monotonic() > deadline or (state.phase in ("broken", "abandoned") and state.phase not in phases):
            raise AssertionError(f"run {run_id} is {state.phase}, not {phases}: {state.problem}")
        state = await live.changes(run_id, state.version, 1.0) or state
    return state


async def accept(live: LiveRuns, state: RunState, user_id: str = ANN, candidate: int = 0) -> RunState:
    """Accept a candidate, and the next state that waits for somebody."""
    await live.decide(state.run_id, user_id, Decide(version=state.version, decision="accept", candidate=candidate))
    return await until(live, state.run_id, "deciding", "ended")


def task_named(name: str) -> Task:
    return load_tasks()[name]
