"""Parts for tests of what comes after annotating: a small history made by hand, through the rules that end runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from annotation.storage import run_endings
from annotation.storage.database import Database
from annotation.storage.ids import new_id
from annotation.storage.logins import Principal
from annotation.storage.schema import Assignment, Campaign, Change, Proposal, Run, RunStep, User
from sandbox import wire
from sandbox.tasks.miniwob.source import load_tasks

NOON_S = 1_790_000_000.0
POLICY = "policy-1"
SCREEN = {
    "width_px": 160,
    "height_px": 210,
    "time_ms": 0.0,
    "output": "",
    "elements": [
        {"role": "button", "text": name, "states": [], "x_px": 40, "y_px": y, "width_px": 60, "height_px": 20}
        for name, y in (("one", 60), ("two", 90))
    ],
}
LINES = '"one" <button> [1]\n"two" <button> [2]'


def click(number: int) -> tuple[str, dict[str, Any]]:
    """The answer that clicks an element, and its action."""
    name, y = (("one", 60), ("two", 90))[number - 1]
    text = f'Thought click "{name}" <button> [{number}] Action click [{number}]'
    return text, {"kind": "click", "x": 40, "y": y, "button": "left", "count": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Did:
    """One decided step."""

    decision: str = "accept"
    number: int = 1
    took_s: float = 4.0
    policy_id: str = POLICY
    is_superseded: bool = False


class History:
    """A database with a campaign and people in it."""

    def __init__(self, database: Database, *people: str, mode: str = "intervene") -> None:
        self.database, self.now_s = database, NOON_S
        self.ids: dict[str, str] = {}
        """Of accounts that there were before, by name."""
        self.task = load_tasks("quickstart")["click-button"]
        with database.write() as session:
            for person in people:
                name, _, role = person.partition(":")
                session.add(User(user_id=f"user-{name}", name=name, role=role or "annotator", created_at_s=0.0))
        self.campaign_id = self.campaign("buttons", mode)

    def campaign(self, name: str, mode: str = "intervene") -> str:
        campaign_id = new_id("campaign")
        with self.database.write() as session:
            session.add(
                Campaign(
                    campaign_id=campaign_id,
                    name=name,
                    guidelines="Be kind.",
                    mode=mode,
                    tasks=["miniwob"],
                    policy="newest",
                    num_candidates=4,
                    temperature=1.0,
                    target_count=10,
                    double_share=0.0,
                    lease_s=600.0,
                    state="active",
                    created_at_s=0.0,
                )
            )
        return campaign_id

    def who(self, name: str, role: str = "reviewer") -> Principal:
        return Principal(user_id=f"user-{name}", name=name, role=role, kind="browser", digest=name, csrf_token=None)

    def run(
        self,
        name: str,
        *,
        seed: int = 0,
        copy: int = 0,
        verdict: bool = True,
        verifier: bool | None = True,
        steps: Sequence[Did] = (Did(),),
        run_id: str | None = None,
        campaign_id: str | None = None,
        at_s: float | None = None,
        num_backs: int = 0,
        finishes: bool = True,
    ) -> str:
        """A run of theirs; finished now, by the rules. By default it is none of the sample."""
        self.now_s += 60.0
        run_id, at_s = run_id or f"run-ff{new_id('x')[4:]}", self.now_s if at_s is None else at_s
        assignment_id, user_id = new_id("assignment"), self.ids.get(name, f"user-{name}")
        with self.database.write() as session:
            session.add(
                Assignment(
                    assignment_id=assignment_id,
                    campaign_id=campaign_id or self.campaign_id,
                    task_id=self.task.task_id,
                    task_name=self.task.name,
                    domain=self.task.domain,
                    task=wire.TASK.to_plain(self.task),
                    seed=seed,
                    copy=copy,
                    priority=1.0,
                    state="leased",
                    user_id=user_id,
                    lease_number=1,
                    lease_until_s=at_s + 600.0,
                    changed_at_s=at_s,
                )
            )
            session.flush()
            session.add(
                Run(
                    run_id=run_id,
                    assignment_id=assignment_id,
                    lease_number=1,
                    user_id=user_id,
                    policy_id=POLICY,
                    grammar="compact",
                    instruction="Click on two.",
                    state="live",
                    started_at_s=at_s - 60.0,
                    outcome="success",
                    verifier_verdict=verifier,
                    num_backs=num_backs,
                    review_state="none",
                )
            )
            session.flush()
            self._steps(session, run_id, steps, at_s)
        if finishes:
            self.finish(run_id, verdict, at_s)
        return run_id

    def finish(self, run_id: str, verdict: bool, at_s: float | None = None) -> None:
        now_s = self.now_s if at_s is None else at_s
        self.database.transact(run_endings.finish, run_id, is_success=verdict, note="", now_s=now_s)

    def _steps(self, session: Any, run_id: str, steps: Sequence[Did], at_s: float) -> None:
        index = 0
        for did in steps:
            (text, action), is_given_up = click(did.number), did.decision == "beyond_repair"
            step_id = new_id("step")
            session.add(
                RunStep(
                    step_id=step_id,
                    run_id=run_id,
                    step_index=index,
                    asked_at_s=at_s - 60.0 + index,
                    observation=LINES,
                    messages=[{"role": "user", "content": "a long prompt"}],
                    screenshot_id="screen-0123456789abcdef",
                    screen=SCREEN,
                    decided_at_s=at_s - 60.0 + index + did.took_s,
                    decision=did.decision,
                    candidate=0 if did.decision == "accept" else None,
                    response=None if is_given_up else text,
                    thought=None,
                    action=None if is_given_up else action,
                    superseded_at_s=at_s if did.is_superseded else None,
                )
            )
            session.flush()
            session.add(Proposal(step_id=step_id, rank=0, text=click(1)[0], score=-0.5, num_samples=3, policy_id=did.policy_id))
            index += not did.is_superseded
        session.add(
            RunStep(
                step_id=new_id("step"),
                run_id=run_id,
                step_index=index,
                asked_at_s=at_s,
                observation=LINES,
                messages=[],
                screen=SCREEN,
                screenshot_id="screen-fedcba9876543210",
            )
        )

    def state(self, run_id: str) -> str:
        with self.database.read() as session:
            return session.get_one(Run, run_id).review_state

    def changes(self, subject_id: str) -> list[str]:
        """Kinds of its changes, in order."""
        with self.database.read() as session:
            return list(session.scalars(select(Change.kind).where(Change.subject_id == subject_id).order_by(Change.change_id)))

    def rows(self, query: Any) -> list[Any]:
        with self.database.read() as session:
            return list(session.scalars(query))

    def all(self, table: type[Any]) -> list[Any]:
        return self.rows(select(table))
