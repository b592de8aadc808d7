"""An annotated run as the flywheel keeps it: an episode, and a row of `annotations` for each decision. Which runs count, and when they are
taken in, is intake.py's.

The episode is what was done: steps that were stepped back over are not part of it, and in mode relabel the policy's own proposal was
carried out. The annotation is what should have been done. Who decided goes by the id of the account, never by a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.episode.episode import Episode, Outcome, Step
from agent.grammars.base import Grammar
from agent.grammars.registry import grammar_named
from agent.policy.policy import Message
from annotation.rows import annotation_row
from annotation.service.runs.screens import observation_of
from annotation.service.runs.stored_runs import DECIDED, request_of
from annotation.storage.blobs import Blobs
from annotation.storage.runs import Stored
from annotation.storage.schema import RunStep
from warehouse.core.errors import NotNow

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """`annotations` are rows of that table, without iteration and stage."""

    episode: Episode
    annotations: tuple[Row, ...]


def exported(stored: Stored, blobs: Blobs) -> Exported:
    """Raises NotNow for a run that is not finished, UnknownSubject where one of its pictures is gone."""
    run = stored.run
    if run.state != "finished" or run.finished_at_s is None:
        raise NotNow(f"run {run.run_id} is {run.state}: only what is finished is taken in")
    grammar = grammar_named(run.grammar)
    done = [step for step in stored.steps if step.decision in DECIDED]
    pictures = dict.fromkeys(step.screenshot_id for step in done if step.screenshot_id is not None)
    episode = Episode(
        request=request_of(stored, screenshots=bool(pictures)),
        instruction=run.instruction,
        steps=tuple(_step(step, stored, grammar) for step in done),
        outcome=Outcome(run.outcome or Outcome.FAILURE),
        reward=run.reward,
        points=run.points,
        duration_ms=(run.finished_at_s - run.started_at_s) * 1000,
        environment=run.environment or "unknown",
        screenshots={screenshot_id: blobs.get(screenshot_id) for screenshot_id in pictures},
    )
    decided = [step for step in stored.steps if step.decision is not None]
    return Exported(episode=episode, annotations=tuple(_annotation(step, stored, episode.episode_id) for step in decided))


def _step(step: RunStep, stored: Stored, grammar: Grammar) -> Step:
    """One that was carried out: the text is what the environment got."""
    proposals = stored.proposals[step.step_id]
    text = step.executed if step.executed is not None else step.response or ""
    parsed = grammar.parse(text, observation_of(step, stored.run.instruction))
    by_policy = next((proposal for proposal in proposals if proposal.text == text), None)
    return Step(
        step_index=step.step_index,
        policy_id=stored.run.user_id if by_policy is None else by_policy.policy_id,
        observation=step.observation,
        screenshot_id=step.screenshot_id,
        messages=tuple(Message(**message) for message in step.messages),
        response=text,
        thought=parsed.thought,
        action=parsed.actions[0],
        more_actions=parsed.actions[1:],
        proposal=None if by_policy is not None or not proposals else proposals[0].text,
        reward=min(1.0, max(-1.0, step.reward or 0.0)),
        latency_ms=max(0.0, ((step.executed_at_s or step.decided_at_s or step.asked_at_s) - step.asked_at_s) * 1000),
    )


def _annotation(step: RunStep, stored: Stored, episode_id: str) -> Row:
    proposals = stored.proposals[step.step_id]
    chosen = next((proposal for proposal in proposals if proposal.rank == (step.candidate or 0)), None)
    return annotation_row(
        episode_id=episode_id,
        step_index=step.step_index,
        annotator=stored.run.user_id,
        origin="human",
        mode=stored.campaign.mode,
        decision=str(step.decision),
        proposal="" if chosen is None else chosen.text,
        response=None if step.decision == "beyond_repair" else step.response,
        messages=list(step.messages),
    )
