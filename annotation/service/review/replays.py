"""A stored run as a reviewer looks at it: step by step, what was seen, proposed and decided."""

from __future__ import annotations

from collections.abc import Mapping

from agent.grammars.base import Grammar
from agent.grammars.registry import grammar_named
from annotation.service.editor.answers import action_view
from annotation.service.runs.screens import observation_of, screen_view
from annotation.service.runs.stored_runs import histories
from annotation.storage.runs import Stored
from annotation.storage.schema import Proposal, RunStep
from annotation.wire.review import Replay, ReplayStep
from annotation.wire.runs import ActionView, HistoryStep, ProposalView
from sandbox.session import Observation


def replay_of(stored: Stored, names: Mapping[str, str]) -> Replay:
    """`names`: of accounts, by id."""
    run, grammar = stored.run, grammar_named(stored.run.grammar)
    views = histories(stored, grammar)
    decided = [step for step in stored.steps if step.decided_at_s is not None]
    last = stored.steps[-1] if stored.steps and stored.steps[-1].decided_at_s is None else None
    return Replay(
        run_id=run.run_id,
        annotator=names.get(run.user_id, run.user_id),
        policy_id=run.policy_id,
        grammar=run.grammar,
        started_at_s=run.started_at_s,
        finished_at_s=run.finished_at_s,
        outcome=run.outcome,
        verifier_verdict=run.verifier_verdict,
        person_verdict=run.person_verdict,
        note=run.note,
        num_backs=run.num_backs,
        steps=tuple(_step(stored, step, grammar, views[step.step_id]) for step in decided),
        last_screen=None if last is None else screen_view(observation_of(last, run.instruction), last.screenshot_id),
        is_withdrawn=run.withdrawn_at_s is not None,
    )


def _step(stored: Stored, step: RunStep, grammar: Grammar, view: HistoryStep) -> ReplayStep:
    seen = observation_of(step, stored.run.instruction)
    return ReplayStep(
        **view.model_dump(include=set(ActionView.model_fields)),
        step_index=step.step_index,
        decision=view.decision,
        candidate=step.candidate,
        screen=screen_view(seen, step.screenshot_id),
        proposals=tuple(_proposal(one, grammar, seen) for one in stored.proposals[step.step_id]),
        took_s=None if step.decided_at_s is None else max(0.0, step.decided_at_s - step.asked_at_s),
        reward=step.reward,
    )


def _proposal(one: Proposal, grammar: Grammar, seen: Observation) -> ProposalView:
    view = action_view(one.text, grammar, seen)
    return ProposalView(**view.model_dump(), rank=one.rank, score=one.score, num_samples=one.num_samples, policy_id=one.policy_id)
