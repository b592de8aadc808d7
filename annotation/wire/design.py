"""What travels between the task design page and the server: applications with their importance, the task graph of each, and the queries
that people record. Wire forms only, as in runs.py; every text in here may have been written by a stranger.

    GET  /api/v1/design/applications                        -> list of ApplicationView, most important first      (annotator)
    POST /api/v1/design/applications                        SaveApplication -> ApplicationView                    (reviewer)
    PUT  /api/v1/design/applications/{application_id}       SaveApplication -> ApplicationView                    (reviewer)
    DELETE /api/v1/design/applications/{application_id}     with all in it; 409 where something was recorded of it (reviewer)
    GET  /api/v1/design/applications/{application_id}/graph -> Graph                                              (annotator)
    POST /api/v1/design/nodes                               SaveNode -> NodeView                                  (reviewer)
    PUT  /api/v1/design/nodes/{node_id}                     SaveNode -> NodeView; a node stays in its application (reviewer)
    DELETE /api/v1/design/nodes/{node_id}                   with its parts and queries; 409 likewise               (reviewer)
    POST /api/v1/design/queries                             SaveQuery -> QueryView                                (reviewer)
    PUT  /api/v1/design/queries/{query_id}                  SaveQuery -> QueryView                                (reviewer)
    POST /api/v1/design/queries/{query_id}/retire           no longer offered; it stays where it was recorded     (reviewer)

Source of the criteria: UI-TARS-2 (arXiv 2509.02544), in-situ annotation: coverage, engagement and penetration choose applications; usage
frequency, user benefit and cross-scenario transfer weigh functions; steps, operations across pages, prerequisites and exceptions make a
query difficult.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from annotation.recordings.bundle import Track

Score = Annotated[float, Field(ge=0, le=1)]
Title = Annotated[str, Field(min_length=1, max_length=200)]
Difficulty = Literal["novice", "intermediate", "advanced", "expert"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SaveApplication(_Body):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    address: Annotated[str | None, Field(max_length=2000)] = None
    industry_coverage: Score
    user_engagement: Score
    market_penetration: Score


class ApplicationView(SaveApplication):
    application_id: str
    importance: Score
    """Mean of the three scores."""
    num_nodes: int
    num_queries: int
    num_recordings: int


class SaveNode(_Body):
    """A function of an application, or a part of one."""

    application_id: str
    parent_id: str | None
    title: Title
    usage_frequency: Score
    user_benefit: Score
    cross_scenario_transfer: Score


class NodeView(SaveNode):
    node_id: str
    importance: Score
    """Mean of its three scores, each normalised by the highest of its application."""


class SaveQuery(_Body):
    """Something a person is asked to do and record, with the rubric of its difficulty."""

    node_id: str
    text: Annotated[str, Field(min_length=1, max_length=4000)]
    track: Track
    num_steps: Annotated[int, Field(ge=1, le=1000)]
    crosses_pages: bool
    num_prerequisites: Annotated[int, Field(ge=0, le=100)]
    handles_exceptions: bool


class QueryView(SaveQuery):
    query_id: str
    difficulty: Difficulty
    """By the rubric: one point each for more than 5, 12 and 25 steps, for crossing pages, for each of the first two prerequisites and for
    exceptions; 0–1 novice, 2–3 intermediate, 4–5 advanced, from 6 expert."""
    author: str | None
    num_recordings: int
    is_retired: bool


class Graph(_Body):
    """All nodes and queries of one application; a parent comes before its children."""

    application: ApplicationView
    nodes: tuple[NodeView, ...]
    queries: tuple[QueryView, ...]
