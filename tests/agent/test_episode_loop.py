"""The episode loop on the form environment: every outcome, what is recorded, overriding by an annotator, an oracle as source."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agent.episode.episode import Episode, Outcome
from agent.episode.loop import EpisodeLimits, run_episode
from agent.policy.action_source import OracleActionSource, PolicyActionSource, StepContext
from agent.policy.policy import Policy, Prompt, Response
from agent.prompts.prompt import PromptBuilder
from sandbox.actions import Click, InvalidAction, TypeText
from sandbox.session import Session
from warehouse.core.errors import BrowserCrashed, ModelError, SandboxError

BUILDER = PromptBuilder("compact")


class Scripted:
    """A source that says its lines, and the last of them for ever."""

    def __init__(self, *lines: str, tokens: tuple[int, ...] = (7,), delay_s: float = 0.0) -> None:
        self.lines, self.tokens, self.delay_s = list(lines), tokens, delay_s
        self.contexts: list[StepContext] = []

    async def respond(self, context: StepContext) -> Response | None:
        self.contexts.append(context)
        await asyncio.sleep(self.delay_s)
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        return Response(
            text=line, prompt_token_ids=(1,), token_ids=self.tokens, logprobs=(-0.5,) * len(self.tokens), policy_id="policy-scripted"
        )


def run(form: SimpleNamespace, source: Any, *, limits: EpisodeLimits | None = None, request: Any = None, **options: Any) -> Episode:
    session = options.pop("session", None) or form.Session()
    return asyncio.run(run_episode(request or form.request(), session, source, options.pop("builder", BUILDER), limits, **options))


def test_the_parts_satisfy_their_protocols(form: SimpleNamespace) -> None:
    assert isinstance(form.Session(), Session)
    assert isinstance(form.Policy(), Policy)


def test_a_solved_episode_records_every_step(form: SimpleNamespace) -> None:
    policy = form.Policy()

    async def act(prompt: Prompt) -> Response:
        return (await policy.act([prompt]))[0]

    episode = run(form, PolicyActionSource(act))
    assert episode.outcome is Outcome.SUCCESS and episode.reward == 1.0 and episode.error is None
    assert [step.step_index for step in episode.steps] == [0, 1, 2]
    assert [type(step.action) for step in episode.steps] == [Click, TypeText, Click]
    assert episode.steps[0].observation.split("\n") == ['"" <input> [1]', '"Submit" <button> [2]', '"Cancel" <button> [3]']
    assert episode.steps[1].messages[0].content.split("\n")[1] == 'click "" <input> [1]'
    assert episode.steps[-1].reward == 1.0 and episode.steps[0].reward == 0.0
    assert all(step.response_token_ids == (3, 4) and step.prompt_token_ids == (1, 2) for step in episode.steps)
    assert {step.screenshot_id for step in episode.steps} <= set(episode.screenshots)
    assert len(episode.screenshots) == 4
    assert episode.environment == "form 1"


@pytest.mark.parametrize(
    ("lines", "outcome", "num_steps"),
    [
        (["Action click [3]"], Outcome.FAILURE, 1),
        (["Action finished"], Outcome.FAILURE, 1),
        (["Action call_user"], Outcome.FAILURE, 1),
        (["Action click [1]"], Outcome.TRUNCATED, 6),
        (["nonsense"], Outcome.INVALID_ACTION, 3),
        (["nonsense", "Action wait", "nonsense"], Outcome.INVALID_ACTION, 5),
    ],
)
def test_outcomes_of_what_a_policy_does_wrong(form: SimpleNamespace, lines: list[str], outcome: Outcome, num_steps: int) -> None:
    episode = run(form, Scripted(*lines))
    assert (episode.outcome, len(episode.steps), episode.reward) == (outcome, num_steps, 0.0)


def test_an_episode_to_learn_from_keeps_the_prompt_after_its_cut(form: SimpleNamespace) -> None:
    request = form.request().model_copy(update={"purpose": "rl"})
    cut = run(form, Scripted("Action click [1]"), request=request)
    longer = run(form, Scripted("Action click [1]", "Action finished"), request=request)
    assert cut.outcome is Outcome.TRUNCATED
    assert cut.final_messages[-1].role == "user"
    assert cut.final_messages != cut.steps[-1].messages  # the last step is in the prompt, as it would have been
    assert longer.final_messages == ()
    assert run(form, Scripted("Action click [1]")).final_messages == ()


def test_bad_answers_are_fed_back(form: SimpleNamespace) -> None:
    source = Scripted("nonsense", "Action click [9]", "Action finished")
    episode = run(form, source)
    assert isinstance(episode.steps[0].action, InvalidAction) and episode.steps[0].response == "nonsense"
    assert "invalid: no element [9]; there are 3" in source.contexts[2].messages[0].content


def test_a_policy_without_end_times_out(form: SimpleNamespace) -> None:
    source, request = Scripted("Action wait", delay_s=0.06), form.request().model_copy(update={"purpose": "rl"})
    episode = run(form, source, request=request, limits=EpisodeLimits(policy_timeout_s=0.1))
    assert episode.outcome is Outcome.TIMEOUT and episode.reward == 0.0 and len(episode.steps) == 1
    assert episode.final_messages == source.contexts[1].messages  # what the policy was asked when its time was up


def test_a_prompt_that_is_too_long_is_an_invalid_action(form: SimpleNamespace) -> None:
    episode = run(form, Scripted("", tokens=()))
    assert episode.outcome is Outcome.INVALID_ACTION
    assert episode.steps[0].action == InvalidAction(text="", reason="the prompt is too long for the policy")


def test_the_infrastructures_failures_pass_through(form: SimpleNamespace) -> None:
    with pytest.raises(BrowserCrashed):
        run(form, Scripted("Action click [1]"), session=form.Session(crash_plan=[1]))

    class Broken:
        async def respond(self, context: StepContext) -> Response | None:
            raise ModelError("no weights")

    with pytest.raises(ModelError):
        run(form, Broken())

    class SlowServer:
        async def respond(self, context: StepContext) -> Response | None:
            raise TimeoutError("the server's own time-out is not the policy's")

    with pytest.raises(TimeoutError) as caught:
        run(form, SlowServer())
    assert not isinstance(caught.value, SandboxError)


def test_an_oracle_drives_the_loop(form: SimpleNamespace) -> None:
    episode = run(form, OracleActionSource(BUILDER.grammar))
    assert episode.outcome is Outcome.SUCCESS
    assert episode.steps[0].response == 'Thought click "" <input> [1] Action click [1]'
    assert all(step.policy_id == "oracle" and step.response_token_ids == () for step in episode.steps)
    gave_up = run(form, OracleActionSource(BUILDER.grammar), session=form.Session(is_solvable=False))
    assert gave_up.outcome is Outcome.FAILURE and gave_up.steps == ()


def test_an_annotator_overrides_and_both_texts_are_kept(form: SimpleNamespace) -> None:
    oracle = OracleActionSource(BUILDER.grammar)

    async def intervene(context: StepContext, proposal: Response) -> str | None:
        right = await oracle.response_text(context)
        wanted, offered = (BUILDER.grammar.parse(text or "", context.observation).actions for text in (right, proposal.text))
        return None if wanted == offered else right

    source = Scripted("Action click [1]", "Action click [3]", "Action click [2]")
    episode = run(form, source, intervene=intervene)
    assert episode.outcome is Outcome.SUCCESS
    assert [step.proposal for step in episode.steps] == [None, "Action click [3]", None]
    corrected = episode.steps[1]
    assert corrected.policy_id == "oracle" and corrected.response.startswith("Thought type Action type")
    assert corrected.response_token_ids == () and episode.steps[0].response_token_ids == (7,)


def test_screenshots_can_be_left_out(form: SimpleNamespace) -> None:
    episode = run(form, Scripted("Action finished"), request=form.request(screenshots=False))
    assert episode.screenshots == {} and episode.steps[0].screenshot_id is None


def test_sampling_follows_the_request(form: SimpleNamespace) -> None:
    prompts: list[Prompt] = []

    async def act(prompt: Prompt) -> Response:
        prompts.append(prompt)
        return Response(text="Action wait", prompt_token_ids=(), token_ids=(1,), logprobs=(0.0,), policy_id="p")

    request = form.request(3, temperature=0.7, max_steps=2)
    run(form, PolicyActionSource(act), request=request, limits=EpisodeLimits(max_new_tokens=11))
    assert [prompt.sampling.seed for prompt in prompts] == [request.sampling_seed(0), request.sampling_seed(1)]
    assert all(prompt.sampling.temperature == 0.7 and prompt.sampling.max_new_tokens == 11 for prompt in prompts)
