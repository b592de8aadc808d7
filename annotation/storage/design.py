"""The design of what people record: applications, their functions as a tree, and queries. Rows; what they weigh is service/design.py's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from annotation.storage.database import lock
from annotation.storage.schema import Application, Recording, TaskNode, TaskQuery
from warehouse.core.errors import UnknownSubject


def hold(session: Session) -> None:
    """Serialises changes of the design: names stay unique, and trees trees."""
    lock(session, "task design")


def application(session: Session, application_id: str) -> Application:
    """Raises UnknownSubject, as do the next two."""
    found = session.get(Application, application_id)
    if found is None:
        raise UnknownSubject(f"there is no application {application_id[:80]!r}")
    return found


def node(session: Session, node_id: str) -> TaskNode:
    found = session.get(TaskNode, node_id)
    if found is None:
        raise UnknownSubject(f"there is no function {node_id[:80]!r}")
    return found


def query(session: Session, query_id: str) -> TaskQuery:
    found = session.get(TaskQuery, query_id)
    if found is None:
        raise UnknownSubject(f"there is no query {query_id[:80]!r}")
    return found


def applications(session: Session) -> Sequence[Application]:
    return session.scalars(select(Application).order_by(Application.name)).all()


def named(session: Session, name: str) -> Application | None:
    return session.scalar(select(Application).where(Application.name == name))


def nodes(session: Session, application_id: str) -> Sequence[TaskNode]:
    found = select(TaskNode).where(TaskNode.application_id == application_id)
    return session.scalars(found.order_by(TaskNode.title, TaskNode.node_id)).all()


def queries(session: Session, application_id: str) -> Sequence[TaskQuery]:
    """Retired ones too, oldest first."""
    found = select(TaskQuery).join(TaskNode, TaskNode.node_id == TaskQuery.node_id).where(TaskNode.application_id == application_id)
    return session.scalars(found.order_by(TaskQuery.created_at_s, TaskQuery.query_id)).all()


def num_recorded(session: Session, node_ids: Collection[str]) -> int:
    """Recordings of the queries of some functions, whatever became of them."""
    query = select(func.count()).select_from(Recording).join(TaskQuery, TaskQuery.query_id == Recording.query_id)
    return session.scalar(query.where(TaskQuery.node_id.in_(node_ids))) or 0


def remove_nodes(session: Session, node_ids: Collection[str]) -> None:
    """Functions with all their parts among them, and their queries, of which there are no recordings."""
    session.execute(delete(TaskQuery).where(TaskQuery.node_id.in_(node_ids)))
    session.execute(update(TaskNode).where(TaskNode.node_id.in_(node_ids)).values(parent_id=None))
    session.execute(delete(TaskNode).where(TaskNode.node_id.in_(node_ids)))


def num_nodes(session: Session) -> Counter[str]:
    """By application."""
    found = select(TaskNode.application_id, func.count()).group_by(TaskNode.application_id)
    return Counter(dict(session.execute(found).all()))


def num_queries(session: Session) -> Counter[str]:
    """By application, without retired ones."""
    found = select(TaskNode.application_id, func.count()).join(TaskQuery, TaskQuery.node_id == TaskNode.node_id)
    found = found.where(TaskQuery.retired_at_s.is_(None)).group_by(TaskNode.application_id)
    return Counter(dict(session.execute(found).all()))
