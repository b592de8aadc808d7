"""Proof that adopted tasks are sound: each is played in fresh sessions. At the start it is not solved, doing nothing and doing something
else do not solve it, and its recorded way does. What fails is dropped, with its reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sandbox.actions import ACTION, Action, Finished, Wait
from sandbox.adopting.checks import Rows, normal, primary_keys
from sandbox.adopting.records import AdoptedTask, Folder, Proof, RequestCheck, RowCheck, Site
from sandbox.adopting.session import AdoptedSession
from sandbox.browser.page_session import Limits
from sandbox.tasks.task import Task
from warehouse.core.errors import SandboxError, TaskError

PROOFS = "proofs.jsonl"
WRONG_ANSWER = "no such text"
LIMITS = Limits(ready_s=120.0, step_s=60.0)
"""Nobody waits for a proof: a busy machine has time."""
MAX_TRIES = 2
MAX_FAILURES = 5
"""So many plays in a row that fail for another reason than the task: the application is gone, or the machine has no room."""
OnProof = Callable[[int, int, int], None]
"""Called with the number of tasks played, of all tasks, and of sound ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    folder: Folder
    site: Site
    candidates: Sequence[AdoptedTask]
    on_proof: OnProof

    async def run(self, num_sessions: int) -> list[Proof]:
        """Play what is not proved yet. Raises SandboxError where the application is gone, or a person must fix something."""
        done = {proof.task_id: proof for proof in self.folder.lines(PROOFS, Proof)}
        waiting = [number for number, task in enumerate(self.candidates) if task.task_id not in done]
        queue = iter(waiting)
        others = self._others()

        failures: list[Exception] = []

        async def work() -> None:
            session = AdoptedSession(self.folder, self.site, lambda task, seed: self.candidates[seed], limits=LIMITS)
            session.screenshots = False
            try:
                for number in queue:
                    try:
                        proof = await self._prove(session, number, others[number])
                    except (SandboxError, TaskError) as error:  # it may be well the next time: not kept
                        failures.append(error)
                        if _needs_a_person(error) or len(failures) > MAX_FAILURES:
                            raise
                        proof = Proof(task_id=self.candidates[number].task_id, why_not=f"could not be played: {type(error).__name__}")
                    else:
                        failures.clear()
                        self.folder.add(PROOFS, proof)
                    done[proof.task_id] = proof
                    self.on_proof(len(done), len(self.candidates), sum(not each.why_not for each in done.values()))
            finally:
                await session.close()

        workers = [asyncio.ensure_future(work()) for _ in range(1 if self.site.allow_writes else num_sessions)]
        try:
            await asyncio.gather(*workers)
        finally:  # where one fails, the others end before the browser does
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [done[task.task_id] for task in self.candidates]

    def _others(self) -> Mapping[int, int | None]:
        """For each task another with the same start and another goal: doing that one instead is to do the wrong thing."""
        by_start: dict[str, list[int]] = defaultdict(list)
        for number, task in enumerate(self.candidates):
            by_start[task.start].append(number)
        found: dict[int, int | None] = {}
        for number, task in enumerate(self.candidates):
            rivals = [other for other in by_start[task.start] if is_wrong_for(task, self.candidates[other])]
            alike = [other for other in rivals if self.candidates[other].family == task.family]
            found[number] = next(iter(alike or rivals), None)
        return found

    async def _prove(self, session: AdoptedSession, number: int, other: int | None) -> Proof:
        """Raises TaskError, and SandboxError where each of `MAX_TRIES` plays fails, or a person must fix something."""
        for _ in range(MAX_TRIES - 1):
            try:
                return await self._play(session, self.candidates[number], number, other)
            except SandboxError as error:
                if not error.is_retryable:
                    raise
        return await self._play(session, self.candidates[number], number, other)

    async def _play(self, session: AdoptedSession, task: AdoptedTask, number: int, other: int | None) -> Proof:
        played = session_task(self.site, task)
        await session.reset(played, number)
        if (await session.evaluate()).success:
            return Proof(task_id=task.task_id, why_not="is solved at the start")
        if (await session.step(Wait(seconds=0.2))).reward or (await session.evaluate()).success:
            return Proof(task_id=task.task_id, why_not="is solved by doing nothing")
        if await self._is_solved_wrongly(session, task, None if other is None else self.candidates[other]):
            return Proof(task_id=task.task_id, why_not="is solved by doing something else")
        await session.reset(played, number)
        actions: list[Action] = []
        while (action := await session.oracle_action()) is not None:
            actions.append(action)
            transition = await session.step(action)
            if transition.terminated or transition.truncated:
                break
        if not (await session.evaluate()).success:
            return Proof(task_id=task.task_id, why_not=f"its recorded way does not solve it ({task.family})")
        spoken = tuple(ACTION.dump_json(action).decode() for action in actions)
        proof = Proof(task_id=task.task_id, num_steps=len(actions), actions=spoken)
        if self.site.database is None or not any(isinstance(check, RequestCheck) and check.method != "GET" for check in task.checks):
            return proof
        row = row_check(task, session.new_rows(), primary_keys(self.site.database))
        if row is None:
            return proof.model_copy(update={"why_not": "the database shows nothing of it"})
        return proof.model_copy(update={"row": row})

    async def _is_solved_wrongly(self, session: AdoptedSession, task: AdoptedTask, other: AdoptedTask | None) -> bool:
        """What another task asks for, or a wrong answer."""
        for _ in range(0 if other is None else other.max_steps):
            action = await session.oracle_action_for(other) if other is not None else None
            if action is None or isinstance(action, Finished):
                break
            transition = await session.step(action)
            if transition.terminated or transition.truncated:
                return (await session.evaluate()).success
        answer = other.answer if other is not None and normal(other.answer) != normal(task.answer) else ""
        await session.step(Finished(answer=answer or WRONG_ANSWER))
        return (await session.evaluate()).success


def _needs_a_person(error: Exception) -> bool:
    return isinstance(error, SandboxError) and not error.is_retryable


def is_wrong_for(task: AdoptedTask, other: AdoptedTask) -> bool:
    """Whether doing the other task does not do this one on the way."""
    return other.goal != task.goal and other.steps[: len(task.steps)] != task.steps


def session_task(site: Site, task: AdoptedTask) -> Task:
    return Task(source=site.name, name=f"{site.name}-{task.family}", domain=site.name, max_steps=task.max_steps)


def row_check(task: AdoptedTask, new: Rows, keys: Mapping[str, frozenset[str]]) -> RowCheck | None:
    """The row that holds all that was typed: a column for each field, that of its name before others, and never one of the primary key."""
    typed = [(step.at.key, step.value) for step in task.steps if step.do == "type"]
    for table, rows in sorted(new.items()):
        for row in rows:
            left = {name: value for name, value in row if name not in keys.get(table, frozenset())}
            cells: dict[str, str] = {}
            for field, value in sorted(typed, key=lambda each: left.get(each[0]) != each[1]):
                column = field if left.get(field) == value else next((name for name, held in left.items() if held == value), None)
                if column is None:
                    break
                cells[column] = left.pop(column)
            if typed and len(cells) == len(typed):
                return RowCheck(table=table, cells=cells)
    return None


def reasons(proofs: Sequence[Proof]) -> Counter[str]:
    return Counter(proof.why_not for proof in proofs if proof.why_not)
