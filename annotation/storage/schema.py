"""What an annotation server keeps, described once: its tables. Queries are in the other files of this folder, one noun a file; how the
tables become those of a later release is migrations/'.

Times are seconds since 1970 (`_at_s`), so that SQLite and Postgres keep the same. Pictures are not here but in blobs.py, under their
screenshot ids. Rows are never deleted: what no longer counts says so (`superseded_at_s`, `withdrawn_at_s`, `disabled_at_s`); only
what is to be forgotten is (forgetting.py).
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

ROLES = ("annotator", "reviewer", "admin")
"""Each may do what those before it may."""
LOGIN_KINDS = ("browser", "program")
MODES = ("intervene", "relabel")
"""intervene: what the person chose is carried out; relabel: the policy's first proposal is, the person's answer is its label."""
CAMPAIGN_STATES = ("active", "paused", "ended")
ASSIGNMENT_STATES = ("open", "leased", "finished", "flagged", "cancelled")
RUN_STATES = ("live", "finished", "abandoned")
REVIEW_STATES = ("none", "pending", "approved", "rejected")
"""`none`: nobody asked for a review; such a run counts as approved."""
REVIEW_KINDS = ("second", "adjudication")
RECORDING_STATES = ("uploading", "pending", "approved", "rejected", "withdrawn")
TRACKS = ("expert", "novice")
CHANGE_KINDS = ("run", "recording", "withdrawal")
ID = String(32)
COUNTER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the column is called INTEGER."""


def _one_of(column: str, allowed: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} in ({', '.join(repr(value) for value in allowed)})", name=f"{column}_is_known")


class Base(DeclarativeBase):
    # A constraint has a name, so that a migration can say which it changes.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON, list[Any]: JSON, str: Text}


# --- people -----------------------------------------------------------------------------------------------------------------------


class User(Base):
    __tablename__ = "users"
    __table_args__ = (_one_of("role", ROLES),)

    user_id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    password_hash: Mapped[str | None]
    """null for programs, which hold tokens, e.g. the scripted annotator."""
    role: Mapped[str] = mapped_column(String(16))
    created_at_s: Mapped[float]
    disabled_at_s: Mapped[float | None]


class Invitation(Base):
    """A link that makes one account, or gives an account a new password. It is used once."""

    __tablename__ = "invitations"
    __table_args__ = (_one_of("role", ROLES),)

    token_digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.user_id"))
    """Whose new password it is for; null where it makes an account."""
    invited_by: Mapped[str | None] = mapped_column(ForeignKey("users.user_id"))
    """null: from the command line."""
    created_at_s: Mapped[float]
    expires_at_s: Mapped[float]
    used_by: Mapped[str | None] = mapped_column(ForeignKey("users.user_id"))


class Login(Base):
    """A browser's session, or a program's token. Only digests are kept."""

    __tablename__ = "logins"
    __table_args__ = (_one_of("kind", LOGIN_KINDS),)

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.user_id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    csrf_token: Mapped[str | None]
    """Of a browser: what every request that changes something carries in a header."""
    label: Mapped[str | None]
    """Of a program: what the token is for, in its owner's words."""
    created_at_s: Mapped[float]
    seen_at_s: Mapped[float]
    expires_at_s: Mapped[float]
    ended_at_s: Mapped[float | None]


class LoginAttempt(Base):
    """What the limits by name (as its digest) and address count."""

    __tablename__ = "login_attempts"
    __table_args__ = (Index("login_attempts_by_name", "name", "at_s"), Index("login_attempts_by_address", "address", "at_s"))

    attempt_id: Mapped[int] = mapped_column(COUNTER, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(64))
    address: Mapped[str] = mapped_column(String(64))
    at_s: Mapped[float]
    succeeded: Mapped[bool]


class AuditEntry(Base):
    """Who did what to whom: logins, accounts, campaigns, reviews, withdrawals. Append-only."""

    __tablename__ = "audit"

    entry_id: Mapped[int] = mapped_column(COUNTER, primary_key=True, autoincrement=True)
    at_s: Mapped[float]
    user_id: Mapped[str | None]
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str | None]
    detail: Mapped[dict[str, Any]]
    address: Mapped[str | None] = mapped_column(String(64))


# --- work -------------------------------------------------------------------------------------------------------------------------


class Campaign(Base):
    """What is to be annotated, of which policy, by whom, how often."""

    __tablename__ = "campaigns"
    __table_args__ = (_one_of("mode", MODES), _one_of("state", CAMPAIGN_STATES))

    campaign_id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    guidelines: Mapped[str]
    """Instructions for annotators, as plain text."""
    mode: Mapped[str] = mapped_column(String(16))
    tasks: Mapped[list[Any]]
    """Selections as profiles write them, `source` or `source:group`; or `source/name` of one task; or `pool`, the newest task pool."""
    policy: Mapped[str]
    """A checkpoint id, or `newest`: the newest release when an episode begins."""
    num_candidates: Mapped[int]
    temperature: Mapped[float]
    target_count: Mapped[int]
    """Annotated episodes that are wanted in all, second copies not counted."""
    double_share: Mapped[float]
    """Share of the instances that two people annotate."""
    priority: Mapped[int] = mapped_column(server_default="0")
    """Beside other campaigns': the higher one is asked for first."""
    lease_s: Mapped[float]
    state: Mapped[str] = mapped_column(String(16))
    created_by: Mapped[str | None] = mapped_column(ForeignKey("users.user_id"))
    created_at_s: Mapped[float]


class CampaignMember(Base):
    """Who works on a campaign; one without members is open to every annotator."""

    __tablename__ = "campaign_members"

    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.campaign_id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.user_id"), primary_key=True)


class Assignment(Base):
    """One annotation that is wanted of one task instance. `copy` 1 is the second person's."""

    __tablename__ = "assignments"
    __table_args__ = (
        UniqueConstraint("campaign_id", "task_id", "seed", "copy", name="assignment_is_wanted_once"),
        Index("assignments_by_state", "campaign_id", "state", "priority"),
        Index("assignments_by_user", "user_id", "state"),
        _one_of("state", ASSIGNMENT_STATES),
    )

    assignment_id: Mapped[str] = mapped_column(ID, primary_key=True)
    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.campaign_id"))
    task_id: Mapped[str]
    task_name: Mapped[str]
    domain: Mapped[str]
    task: Mapped[dict[str, Any]]
    """sandbox.wire.TASK's plain form."""
    seed: Mapped[int] = mapped_column(BigInteger)
    copy: Mapped[int]
    priority: Mapped[float]
    """Higher first: 1 minus the share of its episodes that the policy solves."""
    state: Mapped[str] = mapped_column(String(16))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.user_id"))
    lease_number: Mapped[int]
    """Counts leases: the holder of an earlier one can no longer change anything."""
    lease_until_s: Mapped[float | None]
    changed_at_s: Mapped[float]
    """When it was last leased, returned, or brought to an end."""
    reason: Mapped[str | None]
    """Why it was flagged or cancelled."""


class Skip(Base):
    """Somebody passed an assignment on; they are not asked again."""

    __tablename__ = "skips"

    assignment_id: Mapped[str] = mapped_column(ForeignKey("assignments.assignment_id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.user_id"), primary_key=True)
    reason: Mapped[str]
    at_s: Mapped[float]


class Run(Base):
    """One annotated episode, from the lease of its assignment to the person's verdict."""

    __tablename__ = "runs"
    __table_args__ = (_one_of("state", RUN_STATES), _one_of("review_state", REVIEW_STATES), Index("runs_by_state", "state", "user_id"))

    run_id: Mapped[str] = mapped_column(ID, primary_key=True)
    assignment_id: Mapped[str] = mapped_column(ForeignKey("assignments.assignment_id"), index=True)
    lease_number: Mapped[int]
    user_id: Mapped[str] = mapped_column(ForeignKey("users.user_id"))
    policy_id: Mapped[str]
    """The policy whose proposals it began with."""
    grammar: Mapped[str] = mapped_column(String(32))
    instruction: Mapped[str | None]
    environment: Mapped[str | None]
    state: Mapped[str] = mapped_column(String(16))
    started_at_s: Mapped[float]
    finished_at_s: Mapped[float | None]
    outcome: Mapped[str | None] = mapped_column(String(32))
    """agent.episode.episode.Outcome, once the episode has ended."""
    reward: Mapped[float | None]
    points: Mapped[float | None]
    """A game's score in its own points."""
    verifier_verdict: Mapped[bool | None]
    person_verdict: Mapped[bool | None]
    note: Mapped[str | None]
    num_backs: Mapped[int]
    """How often the person stepped back."""
    review_state: Mapped[str] = mapped_column(String(16))
    withdrawn_at_s: Mapped[float | None]


class RunStep(Base):
    """One decision point: what was seen and asked, and, once decided, what stands. One that was stepped back over is superseded."""

    __tablename__ = "run_steps"
    __table_args__ = (Index("run_steps_by_run", "run_id", "step_index"),)

    step_id: Mapped[str] = mapped_column(ID, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    step_index: Mapped[int]
    asked_at_s: Mapped[float]
    """When the proposals were shown."""
    messages: Mapped[list[Any]]
    """The prompt as it was asked (catalogue: MESSAGES)."""
    observation: Mapped[str]
    """The element list as text."""
    screenshot_id: Mapped[str | None] = mapped_column(String(80))
    url: Mapped[str | None]
    screen: Mapped[dict[str, Any]]
    """What the page draws over the picture: width_px, height_px, elements, output."""
    decided_at_s: Mapped[float | None]
    decision: Mapped[str | None] = mapped_column(String(16))
    candidate: Mapped[int | None]
    """Rank of the proposal that was accepted or edited."""
    response: Mapped[str | None]
    """Thought and action that stand, in the grammar."""
    executed: Mapped[str | None]
    """What was carried out, where that is not the response (mode relabel)."""
    thought: Mapped[str | None]
    action: Mapped[dict[str, Any] | None]
    """sandbox.actions.Action as JSON, as the response parses."""
    reward: Mapped[float | None]
    executed_at_s: Mapped[float | None]
    superseded_at_s: Mapped[float | None]


class Proposal(Base):
    """A candidate of the policy at one step; equal samples are one, counted."""

    __tablename__ = "proposals"

    step_id: Mapped[str] = mapped_column(ForeignKey("run_steps.step_id"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    """0 is the policy's own choice (its greedy answer)."""
    text: Mapped[str]
    score: Mapped[float | None]
    """Mean log-probability of its tokens, in nats; null where the server returns none."""
    num_samples: Mapped[int]
    policy_id: Mapped[str]


class Draft(Base):
    """What a person has typed at a step and not yet decided; the newest number wins."""

    __tablename__ = "drafts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    step_index: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    thought: Mapped[str]
    action: Mapped[str]
    candidate: Mapped[int | None]
    """Rank of the proposal that is being edited; null for an override."""
    saved_at_s: Mapped[float]


class Review(Base):
    """A second person's opinion of a finished run, or the word that settles a disagreement."""

    __tablename__ = "reviews"
    __table_args__ = (_one_of("kind", REVIEW_KINDS), Index("reviews_by_run", "run_id"), Index("reviews_by_recording", "recording_id"))

    review_id: Mapped[str] = mapped_column(ID, primary_key=True)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.run_id"))
    recording_id: Mapped[str | None] = mapped_column(ForeignKey("recordings.recording_id"))
    reviewer_id: Mapped[str] = mapped_column(ForeignKey("users.user_id"))
    kind: Mapped[str] = mapped_column(String(16))
    approves: Mapped[bool]
    verdict: Mapped[bool | None]
    """Whether the task was done, in the reviewer's eyes."""
    steps: Mapped[dict[str, Any]]
    """By step index: {"is_right": bool, "thought_fits": bool, "note": str}, each where the reviewer said so."""
    note: Mapped[str | None]
    created_at_s: Mapped[float]


class Change(Base):
    """What the flywheel may take in, in the order in which it was committed: finished and approved runs, approved recordings, and what
    was withdrawn afterwards. Written under a lock (changes.py), so that a reader who has seen number n has seen all before it."""

    __tablename__ = "landings"
    __table_args__ = (_one_of("kind", CHANGE_KINDS),)

    change_id: Mapped[int] = mapped_column("landing_id", COUNTER, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(16))
    subject_id: Mapped[str] = mapped_column(ID)
    at_s: Mapped[float]


# --- recordings of people's own work ----------------------------------------------------------------------------------------------


class Recording(Base):
    """One bundle (annotation/recordings/bundle.py), from its announcement on."""

    __tablename__ = "recordings"
    __table_args__ = (_one_of("state", RECORDING_STATES), _one_of("track", TRACKS), Index("recordings_by_user", "user_id"))

    recording_id: Mapped[str] = mapped_column(ID, primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.user_id"))
    digest: Mapped[str] = mapped_column(String(64))
    """Of the manifest, which is a part like the others and names them all (parts.py)."""
    parts: Mapped[list[Any]]
    """As they were announced: sha256, num_bytes, media_type. Empty once they are erased."""
    track: Mapped[str | None] = mapped_column(String(16))
    """null until it is complete."""
    query_id: Mapped[str | None] = mapped_column(ForeignKey("task_queries.query_id"))
    summary: Mapped[dict[str, Any]]
    """Of the manifest, for lists: query, applications, environment, num_actions, length_s. Empty until it is complete, and once it is
    erased."""
    state: Mapped[str] = mapped_column(String(16))
    is_executable: Mapped[bool | None]
    """Whether its actions could be replayed; null where no environment allows to try."""
    created_at_s: Mapped[float]
    """Until it is complete: of the last announcement."""
    completed_at_s: Mapped[float | None]
    erased_at_s: Mapped[float | None]
    """When its parts were erased: for good where it was withdrawn before; else nobody completed it, and it may be announced again."""


# --- design of tasks --------------------------------------------------------------------------------------------------------------


class Application(Base):
    """An application or site that people are to record work in. Scores are from 0 to 1."""

    __tablename__ = "applications"

    application_id: Mapped[str] = mapped_column(ID, primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    address: Mapped[str | None]
    industry_coverage: Mapped[float]
    user_engagement: Mapped[float]
    market_penetration: Mapped[float]


class TaskNode(Base):
    """A function of an application, or a part of one: the task graph is a tree."""

    __tablename__ = "task_nodes"

    node_id: Mapped[str] = mapped_column(ID, primary_key=True)
    application_id: Mapped[str] = mapped_column(ForeignKey("applications.application_id"), index=True)
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("task_nodes.node_id"))
    title: Mapped[str]
    usage_frequency: Mapped[float]
    user_benefit: Mapped[float]
    cross_scenario_transfer: Mapped[float]


class TaskQuery(Base):
    """Something a person is asked to do and record."""

    __tablename__ = "task_queries"
    __table_args__ = (_one_of("track", TRACKS),)

    query_id: Mapped[str] = mapped_column(ID, primary_key=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("task_nodes.node_id"), index=True)
    text: Mapped[str]
    track: Mapped[str] = mapped_column(String(16))
    num_steps: Mapped[int]
    crosses_pages: Mapped[bool]
    num_prerequisites: Mapped[int]
    handles_exceptions: Mapped[bool]
    """The rubric of difficulty: steps, operations across pages, prerequisites, exceptions."""
    author_id: Mapped[str | None] = mapped_column(ForeignKey("users.user_id"))
    created_at_s: Mapped[float]
    retired_at_s: Mapped[float | None]
