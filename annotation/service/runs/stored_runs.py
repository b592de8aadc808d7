"""Runs as the database knows them: the state of one that is not live, and a live one brought back after the server was restarted."""

from __future__ import annotations

from itertools import zip_longest

from agent.episode.episode import EpisodeRequest
from agent.grammars.base import Grammar
from agent.grammars.registry import grammar_named
from agent.policy.policy import Message, Response
from annotation.service.runs.live_run import KeptStep, LiveRun, attempt_of, history_step
from annotation.service.runs.proposals import Candidate
from annotation.service.runs.screens import LONGEST_OUTPUT, observation_of, screen_view
from annotation.storage.runs import Stored
from annotation.storage.schema import Assignment, Draft, Proposal, Run, RunStep
from annotation.wire.runs import CampaignView, DraftView, HistoryStep, RunPhase, RunState, TaskView
from sandbox import wire
from sandbox.tasks.task import Task

DECIDED = ("accept", "edit", "override")


def task_of(stored: Stored) -> Task:
    return wire.TASK.from_plain(stored.assignment.task)


def request_of(stored: Stored, *, screenshots: bool = True, temperature: float = 0.0, attempt: int | None = None) -> EpisodeRequest:
    """The episode of a run, whose id is that of its rows in the warehouse."""
    return request_for(stored.run, stored.assignment, screenshots=screenshots, temperature=temperature, attempt=attempt)


def request_for(
    run: Run, assignment: Assignment, *, screenshots: bool = True, temperature: float = 0.0, attempt: int | None = None
) -> EpisodeRequest:
    """The same, of a run that was not loaded whole."""
    return EpisodeRequest(
        purpose="annotation",
        task=wire.TASK.from_plain(assignment.task),
        seed=assignment.seed,
        attempt=attempt_of(run.run_id) if attempt is None else attempt,
        policy_id=run.policy_id,
        temperature=temperature,
        screenshots=screenshots,
    )


def campaign_view(stored: Stored) -> CampaignView:
    campaign = stored.campaign
    return CampaignView(campaign_id=campaign.campaign_id, name=campaign.name, guidelines=campaign.guidelines, mode=campaign.mode)


def bring_back(run: LiveRun, stored: Stored) -> None:
    """What was decided before the server ended, so that the episode begins with it."""
    grammar, instruction = run.plan.grammar, stored.run.instruction
    views = histories(stored, grammar)
    for step in stored.steps:
        if step.decision in DECIDED:
            run.kept_steps.append(_kept_step(step, stored, views[step.step_id]))
        elif step.decision is not None:
            run.closing, run.stops = views[step.step_id], True
        elif step.messages:
            run.recovered = (step.step_id, step.observation)
            messages = tuple(Message(**message) for message in step.messages)
            run.asked[step.step_index, messages] = [_candidate(proposal) for proposal in stored.proposals[step.step_id]]
            run.draft = draft_of(stored, step.step_index)
    run.outcome, run.reward, run.verifier = stored.run.outcome, stored.run.reward, stored.run.verifier_verdict
    if stored.steps:
        last = stored.steps[-1]
        run.observation = observation_of(last, instruction)
        run.screenshot_id = last.screenshot_id


def _kept_step(step: RunStep, stored: Stored, view: HistoryStep) -> KeptStep:
    """In mode relabel the policy's first proposal is done again; otherwise the response, as the policy's where it was accepted."""
    proposals = stored.proposals[step.step_id]
    proposed = proposals[step.candidate or 0] if proposals else None
    if stored.campaign.mode == "relabel" and proposals:
        proposed = proposals[0]
    text = step.executed if step.executed is not None else step.response or ""
    base = text if proposed is None else proposed.text
    policy_id = stored.run.user_id if proposed is None else proposed.policy_id
    return KeptStep(
        step_id=step.step_id,
        base=Response(text=base, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=policy_id),
        override=None if text == base else text,
        instruction=stored.run.instruction or "",
        observation=step.observation,
        screenshot_id=step.screenshot_id,
        view=view,
        is_executed=step.executed_at_s is not None,
    )


def _candidate(proposal: Proposal) -> Candidate:
    response = Response(text=proposal.text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=proposal.policy_id)
    return Candidate(response=response, num_samples=proposal.num_samples, score=proposal.score)


def histories(stored: Stored, grammar: Grammar) -> dict[str, HistoryStep]:
    """Decided steps by their ids; what a tool printed is on the screen after its step."""
    views: dict[str, HistoryStep] = {}
    for step, after in zip_longest(stored.steps, stored.steps[1:]):
        if step.decision is not None:
            view = history_of(step, grammar, stored.run.instruction)
            is_shown = view.kind == "tool" and after is not None
            output = str(after.screen["output"])[-LONGEST_OUTPUT:] if is_shown and after is not None else None
            views[step.step_id] = view.model_copy(update={"output": output})
    return views


def history_of(step: RunStep, grammar: Grammar, instruction: str | None) -> HistoryStep:
    return history_step(
        step.response,
        grammar,
        observation_of(step, instruction),
        step_index=step.step_index,
        decision=step.decision or "",
        screenshot_id=step.screenshot_id,
        reward=step.reward,
    )


def draft_of(stored: Stored, step_index: int) -> DraftView | None:
    draft = stored.drafts.get(step_index)
    if draft is None:
        return None
    return view_of_draft(draft)


def view_of_draft(draft: Draft) -> DraftView:
    return DraftView(
        step_index=draft.step_index, number=draft.number, thought=draft.thought, action=draft.action, candidate=draft.candidate
    )


def state_of(stored: Stored, *, version: int) -> RunState:
    """A run that is not live."""
    run, task, grammar = stored.run, task_of(stored), grammar_named(stored.run.grammar)
    history = tuple(histories(stored, grammar).values())
    last = stored.steps[-1] if stored.steps else None
    return RunState(
        run_id=run.run_id,
        assignment_id=run.assignment_id,
        version=version,
        phase=phase_of(run),
        campaign=campaign_view(stored),
        task=TaskView(name=task.name, domain=task.domain, seed=stored.assignment.seed, max_steps=task.max_steps),
        instruction=run.instruction,
        grammar=run.grammar,
        policy_id=run.policy_id,
        step_index=len(history),
        screen=None if last is None else screen_view(observation_of(last, run.instruction), last.screenshot_id),
        proposals=(),
        history=history,
        draft=None,
        verifier=run.verifier_verdict,
        outcome=run.outcome,
        lease_until_s=stored.assignment.lease_until_s or 0.0,
    )


def phase_of(run: Run) -> RunPhase:
    """A live run that is in nobody's hands waits for the server to bring it back."""
    phases: dict[str, RunPhase] = {"finished": "finished", "abandoned": "abandoned"}
    return phases.get(run.state, "starting")
