"""What travels between the pages and the server about work that is done: review, quality and recordings. Wire forms only, as in
runs.py; every text in here may have been written by a model or a stranger.

    GET  /api/v1/reviews                          -> ReviewQueue        what the person may review, most urgent first  (reviewer)
    GET  /api/v1/reviews/runs/{run_id}            -> RunReview          everything that is looked at                   (reviewer)
    POST /api/v1/reviews/runs/{run_id}            SubmitReview -> ReviewView; 409 where it was settled meanwhile       (reviewer)
    GET  /api/v1/quality?campaign_id=&days=       -> Quality                                                           (reviewer)
    GET  /api/v1/recordings                       -> list of RecordingItem: one's own; a reviewer's: everybody's
    GET  /api/v1/recordings/{recording_id}        -> RecordingDetail
    GET  /api/v1/recordings/{recording_id}/screens/{screen_id}   the picture
    GET  /api/v1/recordings/{recording_id}/sounds/{sound_id}     a stretch of what was said, WAV; may be asked for in ranges
    POST /api/v1/recordings/{recording_id}/review SubmitReview; not one's own                                          (reviewer)
    POST /api/v1/recordings/{recording_id}/withdraw Withdraw; one's own, or a reviewer

The pictures of a run are GET /api/v1/runs/{run_id}/screens/{screenshot_id}, as for the annotator; a reviewer may see everybody's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from annotation.wire.runs import ActionView, ProposalView, ScreenView, Text

Why = Literal["sampled", "verifier_disagrees", "annotators_disagree", "reviewers_disagree", "asked"]
"""Why a run waits for a review. `sampled`: by the campaign's share; `asked`: somebody sent it there."""
ReviewKind = Literal["second", "adjudication"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReviewItem(_Body):
    run_id: str
    kind: ReviewKind
    why: tuple[Why, ...]
    campaign: str
    task_name: str
    seed: int
    annotator: str
    num_steps: int
    person_verdict: bool | None
    verifier_verdict: bool | None
    finished_at_s: float


class ReviewQueue(_Body):
    """`waiting` and `recordings` (oldest first) leave out one's own: nobody reviews themselves. `num_waiting` and `num_recordings`: of all
    that wait, listed or not. `num_reviewed_today` is the person's own."""

    waiting: tuple[ReviewItem, ...]
    recordings: tuple[RecordingItem, ...] = ()
    num_waiting: int
    num_recordings: int = 0
    num_reviewed_today: int


class ReplayStep(ActionView):
    """One decided step: the screen that was decided on, what the policy proposed, and the answer that stands."""

    step_index: int
    decision: str
    candidate: int | None
    screen: ScreenView
    proposals: tuple[ProposalView, ...]
    took_s: float | None
    """From the moment when the proposals were shown to the decision."""
    reward: float | None


class Replay(_Body):
    """One annotator's run of an instance."""

    run_id: str
    annotator: str
    policy_id: str
    grammar: str
    started_at_s: float
    finished_at_s: float | None
    outcome: str | None
    verifier_verdict: bool | None
    person_verdict: bool | None
    note: str | None
    num_backs: int
    steps: tuple[ReplayStep, ...]
    last_screen: ScreenView | None
    """After the last step, where it was kept."""
    is_withdrawn: bool


class StepOpinion(_Body):
    """A reviewer's opinion of one step; null: none."""

    is_right: bool | None = None
    thought_fits: bool | None = None
    note: Annotated[str | None, Field(max_length=2000)] = None


class ReviewView(_Body):
    review_id: str
    reviewer: str
    kind: ReviewKind
    approves: bool
    verdict: bool | None
    steps: dict[int, StepOpinion]
    note: str | None
    created_at_s: float


class RunReview(_Body):
    """`second_run` is the second annotator's run of the same instance, where there is one. Earlier opinions are only shown to whoever
    adjudicates: a second opinion is formed without them."""

    item: ReviewItem
    instruction: str | None
    guidelines: str
    run: Replay
    second_run: Replay | None
    reviews: tuple[ReviewView, ...]


class SubmitReview(_Body):
    """`approves`: it may be learned from. `verdict`: whether the task was done, in the reviewer's eyes; null: not known."""

    kind: ReviewKind = "second"
    approves: bool
    verdict: bool | None
    steps: dict[int, StepOpinion] = Field(default_factory=dict)
    note: Text = ""


class Withdraw(_Body):
    """It disappears from the next version of the data sets; the row itself stays."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]


class Withdrawal(_Body):
    """Who took a run or a recording back, when and why. `by` null: from the command line."""

    by: str | None
    at_s: float
    reason: str


# --- quality --------------------------------------------------------------------------------------------------------------------------


class Agreement(_Body):
    """How far two people agree on one field, of what both judged. Null where nothing can be said: too few items, or only one answer
    ever given."""

    field: str
    """verdict, decision, action, thought_fits, is_right …"""
    kappa: float | None
    """Cohen's; averaged over pairs of people, weighted by the items that they share."""
    alpha: float | None
    """Krippendorff's, nominal."""
    observed: float | None
    """Share of equal answers."""
    num_items: int
    num_people: int


class PersonQuality(_Body):
    user_id: str
    name: str
    num_runs: int
    num_steps: int
    worked_s: float
    median_step_s: float | None
    accept_share: float | None
    edit_share: float | None
    override_share: float | None
    num_backs: int
    agrees_with_verifier: float | None
    """Share of finished runs whose verdict is the verifier's, of those where it spoke."""
    approved_share: float | None
    """Of reviewed runs."""
    right_share: float | None
    """Of reviewed steps."""


class Day(_Body):
    """One day in UTC."""

    day: str
    num_runs: int
    num_steps: int
    num_people: int


class PolicyRates(_Body):
    """What people did with the proposals of one policy version; shares of decided steps."""

    policy_id: str
    first_at_s: float
    num_steps: int
    accept: float
    edit: float
    override: float
    beyond_repair: float


class Quality(_Body):
    """`policies` in the order in which they were first annotated, `days` oldest first, without gaps."""

    agreement: tuple[Agreement, ...]
    people: tuple[PersonQuality, ...]
    days: tuple[Day, ...]
    policies: tuple[PolicyRates, ...]


# --- recordings -----------------------------------------------------------------------------------------------------------------------


RecordingState = Literal["uploading", "pending", "approved", "rejected", "withdrawn"]


class RecordingItem(_Body):
    recording_id: str
    person: str
    track: Literal["expert", "novice"] | None
    """null while it is uploaded; the query is empty then, and the figures are 0."""
    state: RecordingState
    query: str
    applications: tuple[str, ...]
    num_actions: int
    length_s: float
    is_executable: bool | None
    """Whether its actions could be replayed; null where no environment allows to try."""
    is_own: bool
    created_at_s: float


class RecordedStep(ActionView):
    """One recorded action: `text` and `action` in words, `points` where it was. `heard` is what the recogniser heard, `thought` the wording
    in use."""

    step_index: int
    at_s: float
    screen: ScreenView | None
    heard: str | None
    window: str
    hidden: tuple[str, ...]
    """What was taken out of it, e.g. password."""


class SoundView(_Body):
    """A stretch of speech; what was taken out of it is silent."""

    sound_id: str
    start_s: float
    length_s: float


class RecordingDetail(_Body):
    item: RecordingItem
    result: str
    system: str
    hidden: dict[str, int]
    """How much was taken out before the upload, by kind."""
    steps: tuple[RecordedStep, ...]
    sounds: tuple[SoundView, ...] = ()
    reviews: tuple[ReviewView, ...]
    withdrawal: Withdrawal | None = None


class RecordingList(_Body):
    """`num`: how many there are of what was asked for."""

    recordings: tuple[RecordingItem, ...]
    num: int
