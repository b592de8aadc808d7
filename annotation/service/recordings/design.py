"""Design of what people record: applications by importance, their functions as a tree, and queries by difficulty.

Criteria after UI-TARS-2 (arXiv 2509.02544, in-situ annotation): applications are chosen for industry coverage, user engagement and market
penetration; functions weigh by normalised usage frequency, user benefit and transfer across scenarios; a query's difficulty counts its
steps, operations across pages, prerequisites and exceptions. How these add up the paper does not say: equal parts, and the points below,
are ours.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

from sqlalchemy.orm import Session

from annotation.recordings.bundle import Track
from annotation.storage import accounts, audit, recordings
from annotation.storage import design as stored
from annotation.storage.database import Database
from annotation.storage.ids import new_id
from annotation.storage.logins import Principal
from annotation.storage.schema import Application, TaskNode, TaskQuery
from annotation.wire.design import ApplicationView, Difficulty, Graph, NodeView, QueryView, SaveApplication, SaveNode, SaveQuery
from warehouse.core.errors import ConfigError, NotNow

STEPS = (5, 12, 25)
"""More than each is a point of difficulty."""
MOST_PREREQUISITES = 2
LEVELS: tuple[tuple[int, Difficulty], ...] = ((6, "expert"), (4, "advanced"), (2, "intermediate"), (0, "novice"))
"""From so many points on."""
MAX_DEPTH = 8
SCORES = ("usage_frequency", "user_benefit", "cross_scenario_transfer")


class Design:
    """`clock` gives seconds since 1970."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    async def applications(self) -> list[ApplicationView]:
        """The most important first."""
        return await self._database.reading(_applications)

    async def graph(self, application_id: str) -> Graph:
        """All nodes and queries of one application; a parent comes before its children. Raises UnknownSubject."""
        return await self._database.reading(_graph, application_id)

    async def save_application(
        self, body: SaveApplication, application_id: str | None = None, *, by: Principal, address: str | None = None
    ) -> ApplicationView:
        """A new application, or a changed one. Raises ConfigError for a name that another has, UnknownSubject."""

        def work(session: Session) -> ApplicationView:
            stored.hold(session)
            values = {**body.model_dump(), "name": body.name.strip(), "address": body.address or None}
            same = stored.named(session, values["name"])
            if not values["name"] or (same is not None and same.application_id != application_id):
                raise ConfigError(f"the name {body.name!r} is empty or taken: change the application that has it, or choose another name")
            if application_id is None:
                found = Application(application_id=new_id("app"), **values)
                session.add(found)
            else:
                found = stored.application(session, application_id)
                _set(found, values)
            self._note(session, "application.saved", found.application_id, by, address)
            return _application_views(session, [found])[0]

        return await self._database.writing(work)

    async def save_node(self, body: SaveNode, node_id: str | None = None, *, by: Principal, address: str | None = None) -> NodeView:
        """Raises UnknownSubject for an unknown application or parent, ConfigError for a parent elsewhere, below, or too deep."""

        def work(session: Session) -> NodeView:
            stored.hold(session)
            stored.application(session, body.application_id)
            nodes = {one.node_id: one for one in stored.nodes(session, body.application_id)}
            found = None if node_id is None else stored.node(session, node_id)
            if found is not None and found.application_id != body.application_id:
                raise ConfigError(f"the function {found.title!r} belongs to another application, and stays there")
            _check_parent(nodes, found, body.parent_id)
            if found is None:
                found = TaskNode(node_id=new_id("node"), **body.model_dump())
                session.add(found)
            else:
                _set(found, body.model_dump())
            self._note(session, "function.saved", found.node_id, by, address)
            nodes[found.node_id] = found
            return _node_view(found, _highest(nodes.values()))

        return await self._database.writing(work)

    async def save_query(self, body: SaveQuery, query_id: str | None = None, *, by: Principal, address: str | None = None) -> QueryView:
        """Raises UnknownSubject, ConfigError for no text, NotNow for one that is retired."""

        def work(session: Session) -> QueryView:
            stored.hold(session)
            stored.node(session, body.node_id)
            if not body.text.strip():
                raise ConfigError("a query needs words: say what the person is to do")
            if query_id is None:
                found = TaskQuery(query_id=new_id("query"), author_id=by.user_id, created_at_s=self._clock(), **body.model_dump())
                session.add(found)
            else:
                found = stored.query(session, query_id)
                if found.retired_at_s is not None:
                    raise NotNow(f"query {query_id} is retired: write a new one")
                _set(found, body.model_dump())
            self._note(session, "query.saved", found.query_id, by, address)
            return _query_view(found, accounts.names(session), recordings.num_by_query(session))

        return await self._database.writing(work)

    async def retire_query(self, query_id: str, *, by: Principal, address: str | None = None) -> None:
        """No longer offered; it stays where it was recorded. May be done twice. Raises UnknownSubject."""

        def work(session: Session) -> None:
            stored.hold(session)
            found = stored.query(session, query_id)
            if found.retired_at_s is None:
                found.retired_at_s = self._clock()
                self._note(session, "query.retired", query_id, by, address)

        await self._database.writing(work)

    async def remove_application(self, application_id: str, *, by: Principal, address: str | None = None) -> None:
        """With its functions and their queries. Raises UnknownSubject, NotNow where something was recorded of them."""

        def work(session: Session) -> None:
            stored.hold(session)
            found = stored.application(session, application_id)
            _remove(session, [node.node_id for node in stored.nodes(session, application_id)], found.name)
            session.delete(found)
            self._note(session, "application.removed", application_id, by, address)

        await self._database.writing(work)

    async def remove_node(self, node_id: str, *, by: Principal, address: str | None = None) -> None:
        """With its parts and their queries. Raises as `remove_application`."""

        def work(session: Session) -> None:
            stored.hold(session)
            found = stored.node(session, node_id)
            nodes = {one.node_id: one for one in stored.nodes(session, found.application_id)}
            _remove(session, _with_parts(nodes, node_id), found.title)
            self._note(session, "function.removed", node_id, by, address)

        await self._database.writing(work)

    def _note(self, session: Session, action: str, subject: str, by: Principal, address: str | None) -> None:
        session.flush()
        audit.record(session, action, now_s=self._clock(), user_id=by.user_id, subject=subject, address=address)


def difficulty_points(query: SaveQuery | TaskQuery) -> int:
    """0 to 7: one each for more than 5, 12 and 25 steps, for each of the first two prerequisites, for crossing pages and for exceptions."""
    steps = sum(query.num_steps > limit for limit in STEPS)
    return steps + min(MOST_PREREQUISITES, query.num_prerequisites) + query.crosses_pages + query.handles_exceptions


def difficulty_of(query: SaveQuery | TaskQuery) -> Difficulty:
    points = difficulty_points(query)
    return next(level for least, level in LEVELS if points >= least)


def _applications(session: Session) -> list[ApplicationView]:
    return sorted(_application_views(session, stored.applications(session)), key=lambda one: (-one.importance, one.name))


def _application_views(session: Session, found: Sequence[Application]) -> list[ApplicationView]:
    num_nodes, num_queries, num_recordings = stored.num_nodes(session), stored.num_queries(session), recordings.num_by_application(session)
    return [
        ApplicationView(
            application_id=one.application_id,
            name=one.name,
            address=one.address,
            industry_coverage=one.industry_coverage,
            user_engagement=one.user_engagement,
            market_penetration=one.market_penetration,
            importance=(one.industry_coverage + one.user_engagement + one.market_penetration) / 3,
            num_nodes=num_nodes[one.application_id],
            num_queries=num_queries[one.application_id],
            num_recordings=num_recordings[one.application_id],
        )
        for one in found
    ]


def _graph(session: Session, application_id: str) -> Graph:
    (view,) = _application_views(session, [stored.application(session, application_id)])
    nodes, names, counts = stored.nodes(session, application_id), accounts.names(session), recordings.num_by_query(session)
    highest = _highest(nodes)
    views = [_node_view(node, highest) for node in nodes]
    queries = (_query_view(query, names, counts) for query in stored.queries(session, application_id))
    return Graph(application=view, nodes=tuple(_parents_first(views)), queries=tuple(queries))


def _parents_first(nodes: Sequence[NodeView]) -> list[NodeView]:
    """Each level by importance."""
    below: dict[str | None, list[NodeView]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: (-node.importance, node.title)):
        below[node.parent_id].append(node)
    found: list[NodeView] = list(below[None])
    for node in found:  # which grows meanwhile
        found.extend(below[node.node_id])
    return found


def _highest(nodes: Collection[TaskNode]) -> dict[str, float]:
    """Of each score, among an application's functions."""
    return {name: max((getattr(node, name) for node in nodes), default=0.0) for name in SCORES}


def _node_view(node: TaskNode, highest: Mapping[str, float]) -> NodeView:
    """A score that is 0 everywhere weighs nothing."""
    shares = [getattr(node, name) / highest[name] if highest[name] else 0.0 for name in SCORES]
    return NodeView(
        node_id=node.node_id,
        application_id=node.application_id,
        parent_id=node.parent_id,
        title=node.title,
        usage_frequency=node.usage_frequency,
        user_benefit=node.user_benefit,
        cross_scenario_transfer=node.cross_scenario_transfer,
        importance=min(1.0, sum(shares) / len(shares)),
    )


def _query_view(query: TaskQuery, names: Mapping[str, str], counts: Counter[str]) -> QueryView:
    return QueryView(
        query_id=query.query_id,
        node_id=query.node_id,
        text=query.text,
        track=cast(Track, query.track),
        num_steps=query.num_steps,
        crosses_pages=query.crosses_pages,
        num_prerequisites=query.num_prerequisites,
        handles_exceptions=query.handles_exceptions,
        difficulty=difficulty_of(query),
        author=None if query.author_id is None else names.get(query.author_id, query.author_id),
        num_recordings=counts[query.query_id],
        is_retired=query.retired_at_s is not None,
    )


def _check_parent(nodes: Mapping[str, TaskNode], node: TaskNode | None, parent_id: str | None) -> None:
    """The tree stays one, and not too deep."""
    if parent_id is not None and parent_id not in nodes:
        raise ConfigError(f"there is no function {parent_id[:80]!r} in this application: choose a parent among its own")
    above, at = 0, parent_id
    while at is not None:
        if node is not None and at == node.node_id:
            raise ConfigError(f"the function {node.title!r} cannot be part of itself, or of one of its own parts")
        above, at = above + 1, nodes[at].parent_id
    if above + (1 if node is None else _height(nodes, node.node_id)) > MAX_DEPTH:
        raise ConfigError(f"functions are at most {MAX_DEPTH} deep: put this one further up")


def _height(nodes: Mapping[str, TaskNode], node_id: str) -> int:
    return 1 + max((_height(nodes, one.node_id) for one in nodes.values() if one.parent_id == node_id), default=0)


def _with_parts(nodes: Mapping[str, TaskNode], node_id: str) -> list[str]:
    below = (part for one in nodes.values() if one.parent_id == node_id for part in _with_parts(nodes, one.node_id))
    return [node_id, *below]


def _remove(session: Session, node_ids: Collection[str], name: str) -> None:
    if num := stored.num_recorded(session, node_ids):
        raise NotNow(f"{name!r} stays: {num} recordings were made of its queries, and name them; retire those queries instead")
    stored.remove_nodes(session, node_ids)


def _set(row: Application | TaskNode | TaskQuery, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(row, name, value)
