"""Routes of task design: applications with their importance, the task graph of each, and the queries that people record."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from annotation.web.access import Address, Who, needs, office_of
from annotation.wire.design import ApplicationView, Graph, NodeView, QueryView, SaveApplication, SaveNode, SaveQuery

ANNOTATOR, REVIEWER = needs("annotator"), needs("reviewer")


def add_to(app: FastAPI) -> None:
    _add_applications(app)
    _add_nodes(app)
    _add_queries(app)


def _add_applications(app: FastAPI) -> None:
    @app.get("/api/v1/design/applications", tags=["design"], summary="The most important first", **ANNOTATOR)
    async def applications(request: Request) -> list[ApplicationView]:
        return await office_of(request).design.applications()

    @app.post("/api/v1/design/applications", status_code=201, tags=["design"], summary="A new application", **REVIEWER)
    async def add_application(body: SaveApplication, request: Request, who: Who, address: Address) -> ApplicationView:
        return await office_of(request).design.save_application(body, by=who, address=address)

    @app.put("/api/v1/design/applications/{application_id}", tags=["design"], summary="Change an application", **REVIEWER)
    async def change_application(
        application_id: str, body: SaveApplication, request: Request, who: Who, address: Address
    ) -> ApplicationView:
        return await office_of(request).design.save_application(body, application_id, by=who, address=address)

    @app.delete(
        "/api/v1/design/applications/{application_id}", status_code=204, tags=["design"], summary="Remove an application", **REVIEWER
    )
    async def remove_application(application_id: str, request: Request, who: Who, address: Address) -> Response:
        await office_of(request).design.remove_application(application_id, by=who, address=address)
        return Response(status_code=204)

    @app.get("/api/v1/design/applications/{application_id}/graph", tags=["design"], summary="Functions and queries", **ANNOTATOR)
    async def graph(application_id: str, request: Request) -> Graph:
        return await office_of(request).design.graph(application_id)


def _add_nodes(app: FastAPI) -> None:
    @app.post("/api/v1/design/nodes", status_code=201, tags=["design"], summary="A new function", **REVIEWER)
    async def add_node(body: SaveNode, request: Request, who: Who, address: Address) -> NodeView:
        return await office_of(request).design.save_node(body, by=who, address=address)

    @app.put("/api/v1/design/nodes/{node_id}", tags=["design"], summary="Change a function", **REVIEWER)
    async def change_node(node_id: str, body: SaveNode, request: Request, who: Who, address: Address) -> NodeView:
        return await office_of(request).design.save_node(body, node_id, by=who, address=address)

    @app.delete("/api/v1/design/nodes/{node_id}", status_code=204, tags=["design"], summary="Remove a function", **REVIEWER)
    async def remove_node(node_id: str, request: Request, who: Who, address: Address) -> Response:
        await office_of(request).design.remove_node(node_id, by=who, address=address)
        return Response(status_code=204)


def _add_queries(app: FastAPI) -> None:
    @app.post("/api/v1/design/queries", status_code=201, tags=["design"], summary="A new query", **REVIEWER)
    async def add_query(body: SaveQuery, request: Request, who: Who, address: Address) -> QueryView:
        return await office_of(request).design.save_query(body, by=who, address=address)

    @app.put("/api/v1/design/queries/{query_id}", tags=["design"], summary="Change a query", **REVIEWER)
    async def change_query(query_id: str, body: SaveQuery, request: Request, who: Who, address: Address) -> QueryView:
        return await office_of(request).design.save_query(body, query_id, by=who, address=address)

    @app.post("/api/v1/design/queries/{query_id}/retire", status_code=204, tags=["design"], summary="Offer it no longer", **REVIEWER)
    async def retire(query_id: str, request: Request, who: Who, address: Address) -> Response:
        await office_of(request).design.retire_query(query_id, by=who, address=address)
        return Response(status_code=204)
