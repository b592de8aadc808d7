"""Instances of tasks: of each a campaign wants one assignment, or two copies that two people do. Conditions of queries only."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_

from annotation.storage.schema import Assignment


def same_instance(one: type[Assignment], other: type[Assignment]) -> ColumnElement[bool]:
    """Both are of one instance, or are the same assignment."""
    return and_(one.campaign_id == other.campaign_id, one.task_id == other.task_id, one.seed == other.seed)


def other_copy(one: type[Assignment], other: type[Assignment]) -> ColumnElement[bool]:
    """The two copies of one instance."""
    return and_(same_instance(one, other), one.assignment_id != other.assignment_id)
