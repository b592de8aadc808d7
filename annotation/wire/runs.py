"""What travels between the pages and the server: the JSON of /api/v1. Wire forms only; what the words mean is storage/schema.py's and
service/'s. Every text in here may have been written by a model or a stranger: pages set it as text, never as markup.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.actions import Action

LONGEST_TEXT = 20_000
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
RunPhase = Literal["starting", "proposing", "deciding", "executing", "rewinding", "ended", "finished", "abandoned", "broken"]
"""deciding: waits for the person. ended: the episode is over, the person's verdict is wanted. broken: the sandbox failed and does not come
back; `problem` says how to go on."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Point(_Body):
    """Where an action points, in pixels of the screen; a drag has an end."""

    x: int
    y: int
    to_x: int | None = None
    to_y: int | None = None


class ActionView(_Body):
    """A response as the page shows it. `problem` says why the grammar cannot read it; then there is no action."""

    text: str
    thought: str | None
    action: str
    """The action alone, as the grammar writes it: what the editor edits."""
    kind: str | None = None
    line: str = ""
    """In words, for the history."""
    points: tuple[Point, ...] = ()
    problem: str | None = None


class ProposalView(ActionView):
    rank: int
    score: float | None
    """Mean log-probability of its tokens, in nats."""
    num_samples: int
    policy_id: str


class Box(_Body):
    """A visible element: its role, name and place; `x` and `y` are the upper left corner."""

    index: int
    role: str
    name: str
    x: int
    y: int
    width: int
    height: int


class ScreenView(_Body):
    """The newest screen; its picture is GET /api/v1/runs/{run_id}/screens/{screenshot_id}."""

    screenshot_id: str | None
    width_px: int
    height_px: int
    url: str | None = None
    elements: tuple[Box, ...] = ()
    output: str | None = None
    """What the terminal or tool printed last, for hybrid sessions."""


class HistoryStep(ActionView):
    step_index: int
    decision: str
    screenshot_id: str | None
    """The screen that was decided on."""
    reward: float | None
    output: str | None = None
    """What a tool printed."""


class DraftView(_Body):
    step_index: int
    number: int
    thought: str
    action: str
    candidate: int | None = None


class CampaignView(_Body):
    campaign_id: str
    name: str
    guidelines: str
    mode: str


class TaskView(_Body):
    name: str
    domain: str
    seed: int
    max_steps: int


class RunState(_Body):
    """All that the page shows of a run. `version` grows with every change: decisions name the version that they were made on."""

    run_id: str
    assignment_id: str
    version: int
    phase: RunPhase
    campaign: CampaignView
    task: TaskView
    instruction: str | None
    grammar: str
    policy_id: str
    step_index: int
    screen: ScreenView | None
    proposals: tuple[ProposalView, ...]
    history: tuple[HistoryStep, ...]
    draft: DraftView | None
    verifier: bool | None
    """The verifier's verdict, once the episode has ended."""
    outcome: str | None
    lease_until_s: float
    problem: str | None = None


class Decide(_Body):
    """POST /api/v1/runs/{run_id}/decide. accept names a candidate; edit names the candidate it came from; edit and override carry a
    thought and an action in the grammar's words. beyond_repair ends the episode as failed. What comes to a candidate's own answer is kept
    as an accept or edit of that candidate, whatever it was sent as (service/choices.py)."""

    version: int
    decision: Literal["accept", "edit", "override", "beyond_repair"]
    candidate: int | None = None
    thought: Text | None = None
    action: Text | None = None


class StepBack(_Body):
    """POST …/back: restart, replay the first `to_step` steps, and propose again."""

    version: int
    to_step: Annotated[int, Field(ge=0)]


class Finish(_Body):
    """POST …/finish: the person's verdict on the whole; allowed while deciding (nothing is left to do) and when the episode has ended."""

    version: int
    is_success: bool
    note: Text = ""


class SaveDraft(_Body):
    """PUT …/draft: every keystroke's; a lower number than the stored one changes nothing."""

    step_index: int
    number: int
    thought: Text
    action: Text
    candidate: int | None = None
    """Rank of the proposal that is being edited."""


class Propose(_Body):
    """POST …/propose: ask the policy for more candidates, or again where it did not answer."""

    version: int


class Check(_Body):
    """POST …/check: reads an answer without doing anything; answers an ActionView."""

    thought: Text | None = None
    action: Text


class Write(_Body):
    """POST …/write: an action in the grammar's words; answers an ActionView."""

    action: Action


class Complete(_Body):
    """POST …/complete: what may stand at the cursor of the action editor."""

    action: Text
    cursor: Annotated[int, Field(ge=0)]


class Completion(_Body):
    """Replaces [start, end) of the action by `text`; the cursor then stands at `cursor` (in the new text)."""

    text: str
    label: str
    detail: str
    start: int
    end: int
    cursor: int
    points: tuple[Point, ...] = ()


class AtPoint(_Body):
    """POST …/at: what a click or drag on the screen may mean: ActionViews, likeliest first, in the grammar's words."""

    point: Point


class FileView(_Body):
    path: str
    """Below the workspace."""
    kind: Literal["file", "folder"]
    num_bytes: int


class FileList(_Body):
    """GET …/files: the workspace of a live session, as far as it is shown."""

    has_workspace: bool
    files: tuple[FileView, ...]


class FileText(_Body):
    """GET …/files/text?path=…"""

    path: str
    text: str


class ToolTurn(_Body):
    step_index: int
    line: str
    output: str


class Transcript(_Body):
    """GET …/terminal: calls of tools and what they printed, oldest first."""

    calls: tuple[ToolTurn, ...]


class NextWork(_Body):
    """POST /api/v1/work/next: lease an assignment and start its run, or go on with the one that the person holds."""

    campaign_id: str | None = None


class Reason(_Body):
    """POST /api/v1/assignments/{assignment_id}/skip and …/flag."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]
