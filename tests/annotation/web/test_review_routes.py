"""Review, quality and task design over HTTP: as the pages ask, and as they do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.annotation.service.review_parts import Did, History
from tests.annotation.web.web_parts import Person, Site, site

REVIEWS, DESIGN = "/api/v1/reviews", "/api/v1/design"
EVIL = "<script>window.evil = 1</script>\u0000"


async def history_of(there: Site, *people: Person) -> History:
    made = History(there.database)
    made.ids = {person.me["name"]: person.me["user_id"] for person in people}
    return made


def test_a_disputed_run_goes_through_two_reviewers(tmp_path: Path, annotation_url: str) -> None:
    async def run() -> None:
        async with site(tmp_path, url=annotation_url) as there:
            ann, bob = await there.person("ann"), await there.person("bob")
            rex, eve = await there.person("rex", "reviewer"), await there.person("eve", "reviewer")
            history = await history_of(there, ann, bob)
            run_id = history.run("ann", verifier=False, steps=(Did(), Did(decision="override", number=2)))
            path = f"{REVIEWS}/runs/{run_id}"
            assert (await ann.get(REVIEWS)).status_code == (await ann.get(path)).status_code == 403, "for reviewers"
            (item,) = (await rex.get(REVIEWS)).json()["waiting"]
            assert (item["kind"], item["why"], item["num_steps"]) == ("second", ["verifier_disagrees"], 2)
            seen = (await rex.get(path)).json()
            assert [step["decision"] for step in seen["run"]["steps"]] == ["accept", "override"] and seen["reviews"] == []
            say = {"approves": False, "verdict": False, "steps": {"1": {"is_right": False}}, "note": "no"}
            for wrong in (
                {**say, "steps": {"7": {}}},
                {**say, "kind": "last"},
                {**say, "steps": {"x": {}}},
                {"approves": True},
                {**say, "by": "eve"},
            ):
                assert (await rex.post(path, wrong)).status_code == 422, wrong
            assert (await rex.post(path, {**say, "note": EVIL})).status_code == (422 if "postgres" in annotation_url else 201)
            if "postgres" in annotation_url:
                assert (await rex.post(path, say)).status_code == 201
            assert (await rex.post(path, say)).status_code == 409
            (item,) = (await eve.get(REVIEWS)).json()["waiting"]
            assert item["kind"] == "adjudication" and len((await eve.get(path)).json()["reviews"]) == 1
            answer = await eve.post(path, {**say, "kind": "adjudication"}, **{"X-CSRF-Token": "stale"})
            assert answer.status_code == 403
            assert (await eve.post(path, {**say, "kind": "adjudication", "approves": True, "verdict": True})).status_code == 201
            assert history.changes(run_id) == ["run"]
            withdraw = f"/api/v1/runs/{run_id}/withdraw"
            assert (await bob.post(withdraw, {"reason": "mine"})).status_code == 404
            assert (await ann.post(withdraw, {"reason": ""})).status_code == 422
            assert (await ann.post(withdraw, {"reason": "a mistake"})).status_code == 204
            assert history.changes(run_id) == ["run", "withdrawal"]

    asyncio.run(run())


def test_figures_are_for_reviewers_and_of_the_days_that_are_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann, rex = await there.person("ann"), await there.person("rex", "reviewer")
            history = await history_of(there, ann)
            history.run("ann", at_s=there.guard._accounts.clock())
            found = (await rex.get(f"/api/v1/quality?days=3&campaign_id={history.campaign_id}")).json()
            assert [day["num_runs"] for day in found["days"]] == [0, 0, 1] and found["people"][0]["name"] == "ann"
            assert (await ann.get("/api/v1/quality")).status_code == 403
            for wrong, status in (("days=0", 422), ("days=100000", 422), ("campaign_id=campaign-none", 404)):
                assert (await rex.get(f"/api/v1/quality?{wrong}")).status_code == status

    asyncio.run(run())


SCORES = {"usage_frequency": 0.4, "user_benefit": 0.5, "cross_scenario_transfer": 0.0}
MAIL = {"name": "Mail", "address": None, "industry_coverage": 0.9, "user_engagement": 0.6, "market_penetration": 0.3}


async def made(person: Person, noun: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await person.post(f"{DESIGN}/{noun}", body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_is_recorded_is_designed_as_a_tree_with_queries_by_difficulty(tmp_path: Path, annotation_url: str) -> None:
    async def run() -> None:
        async with site(tmp_path, url=annotation_url) as there:
            ann, rex = await there.person("ann"), await there.person("rex", "reviewer")
            mail = await made(rex, "applications", MAIL)
            shop = await made(rex, "applications", {**MAIL, "name": "Shop", "market_penetration": 1.0})
            assert abs(mail["importance"] - 0.6) < 1e-9
            assert [one["name"] for one in (await ann.get(f"{DESIGN}/applications")).json()] == ["Shop", "Mail"]
            node = {"application_id": mail["application_id"], "parent_id": None, "title": "Write", **SCORES}
            write = await made(rex, "nodes", node)
            attach = await made(rex, "nodes", {**node, "title": "Attach", "parent_id": write["node_id"], "usage_frequency": 0.8})
            assert abs(attach["importance"] - 2 / 3) < 1e-9, "1, 1 and 0 of the highest of each score"
            query = {
                "node_id": attach["node_id"],
                "text": "Send the two newest invoices",
                "track": "expert",
                "num_steps": 14,
                "crosses_pages": True,
                "num_prerequisites": 3,
                "handles_exceptions": False,
            }
            send = await made(rex, "queries", query)
            assert (send["difficulty"], send["author"], send["num_recordings"], send["is_retired"]) == ("advanced", "rex", 0, False)
            path = f"{DESIGN}/queries/{send['query_id']}"
            eased = await rex.send("PUT", path, {**query, "num_steps": 5, "num_prerequisites": 0})
            assert eased.json()["difficulty"] == "novice"
            assert (await rex.post(f"{path}/retire")).status_code == (await rex.post(f"{path}/retire")).status_code == 204
            assert (await rex.send("PUT", path, query)).status_code == 409
            graph = (await ann.get(f"{DESIGN}/applications/{mail['application_id']}/graph")).json()
            assert [one["title"] for one in graph["nodes"]] == ["Write", "Attach"] and graph["queries"][0]["is_retired"]
            assert (graph["application"]["num_nodes"], graph["application"]["num_queries"]) == (2, 0)
            wrong: list[tuple[str, str, dict[str, Any], int]] = [
                ("POST", "applications", MAIL, 422),
                ("PUT", f"applications/{shop['application_id']}", MAIL, 422),
                ("PUT", "applications/app-none", {**MAIL, "name": "None"}, 404),
                ("POST", "applications", {**MAIL, "name": "  "}, 422),
                ("POST", "applications", {**MAIL, "name": "New", "user_engagement": 1.5}, 422),
                ("POST", "nodes", {**node, "application_id": "app-none"}, 404),
                ("POST", "nodes", {**node, "application_id": shop["application_id"], "parent_id": write["node_id"]}, 422),
                ("PUT", f"nodes/{write['node_id']}", {**node, "parent_id": attach["node_id"]}, 422),
                ("PUT", f"nodes/{write['node_id']}", {**node, "parent_id": write["node_id"]}, 422),
                ("PUT", f"nodes/{write['node_id']}", {**node, "application_id": shop["application_id"]}, 422),
                ("POST", "queries", {**query, "node_id": "node-none"}, 404),
                ("POST", "queries", {**query, "text": " "}, 422),
                ("POST", "queries", {**query, "num_steps": 0}, 422),
            ]
            for method, noun, body, status in wrong:
                assert (await rex.send(method, f"{DESIGN}/{noun}", body)).status_code == status, (method, noun, body)
            assert (await ann.post(f"{DESIGN}/applications", {**MAIL, "name": "Mine"})).status_code == 403
            renamed = await rex.send("PUT", f"{DESIGN}/applications/{mail['application_id']}", {**MAIL, "name": "Letters"})
            assert renamed.json()["name"] == "Letters" and renamed.json()["num_nodes"] == 2
            parent = write["node_id"]
            for depth in range(2, 9):
                parent = (await made(rex, "nodes", {**node, "title": f"level {depth}", "parent_id": parent}))["node_id"]
            assert (await rex.post(f"{DESIGN}/nodes", {**node, "parent_id": parent})).status_code == 422, "at most 8 deep"

    asyncio.run(run())


def test_of_two_applications_of_one_name_made_at_once_one_stays(tmp_path: Path, annotation_url: str) -> None:
    async def run() -> None:
        async with site(tmp_path, url=annotation_url) as there:
            rex = await there.person("rex", "reviewer")
            answers = await asyncio.gather(*(rex.post(f"{DESIGN}/applications", MAIL) for _ in range(6)))
            assert sorted(one.status_code for one in answers) == [201, *[422] * 5]

    asyncio.run(run())
