"""Work over HTTP, on real pages: what a person is given, keeps, passes on, and finds again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import update

from annotation.service.campaigns.queue import Queue
from annotation.storage.schema import Assignment, Campaign
from sandbox.pool.pool import SessionPool
from tests.annotation.service.live_parts import until
from tests.annotation.web.web_parts import Person, Site, site

CAMPAIGN = {"name": "buttons", "tasks": ["miniwob/click-button"], "guidelines": "Be kind.", "target_count": 3, "double_share": 0}


async def begun(there: Site, person: Person) -> dict[str, str]:
    answer = await person.post("/api/v1/work/next")
    assert answer.status_code == 200, answer.text
    state: dict[str, str] = answer.json()
    await until(there.runs, state["run_id"], "deciding")
    return state


def test_a_person_is_given_work_and_keeps_passes_on_or_gives_back_what_they_have(tmp_path: Path) -> None:
    async def run() -> None:
        pool = SessionPool(size=2, num_browsers=1)
        async with pool, site(tmp_path, pool=pool) as there:
            admin, ada, bob = await there.person("root", "admin"), await there.person("ada"), await there.person("bob")
            assert (await ada.post("/api/v1/work/next")).status_code == 204
            campaign = (await admin.post("/api/v1/campaigns", CAMPAIGN)).json()
            state = await begun(there, ada)
            assert state["campaign"]["guidelines"] == "Be kind." and state["task"]["name"] == "click-button"  # type: ignore[index]
            again = await begun(there, ada)
            assert (again["run_id"], again["assignment_id"]) == (state["run_id"], state["assignment_id"])
            held = (await ada.get("/api/v1/work")).json()["held"]
            assert (held["run_id"], held["campaign_name"]) == (state["run_id"], "buttons")
            path = f"/api/v1/assignments/{state['assignment_id']}"
            assert (await ada.post(f"{path}/heartbeat")).json()["lease_until_s"] >= held["lease_until_s"]
            for verb in ("heartbeat", "skip", "flag", "release"):
                assert (await bob.post(f"{path}/{verb}", {"reason": "mine now"})).status_code == 410, "nobody touches another's lease"
            assert (await ada.post(f"{path}/skip", {"reason": "I know no buttons"})).status_code == 204
            assert (await there.runs.state(state["run_id"])).phase == "abandoned"
            assert (await ada.post(f"{path}/heartbeat")).status_code == 410
            other = await begun(there, ada)
            assert other["assignment_id"] != state["assignment_id"]
            assert (await ada.post(f"/api/v1/assignments/{other['assignment_id']}/release")).status_code == 204
            flagged = await begun(there, bob)
            path = f"/api/v1/assignments/{flagged['assignment_id']}"
            assert (await bob.post(f"{path}/flag", {"reason": "the page is empty"})).status_code == 204
            (seen,) = (await admin.get("/api/v1/assignments/flagged")).json()
            assert (seen["reason"], seen["user"]) == ("the page is empty", "bob")
            assert (await admin.post(f"{path}/reopen")).status_code == 204
            path = f"/api/v1/campaigns/{campaign['campaign_id']}"
            changed = (await admin.send("PATCH", path, {"double_share": 0.5, "priority": 3})).json()
            assert (changed["double_share"], changed["priority"], changed["target_count"]) == (0.5, 3, 3)
            assert (await admin.send("PATCH", path, {"priority": 101})).status_code == 422
            paused = await admin.send("PATCH", path, {"state": "paused"})
            assert paused.json()["state"] == "paused" and (await bob.post("/api/v1/work/next")).status_code == 204
            assert {entry["action"] for entry in (await admin.get("/api/v1/audit")).json()} >= {
                "campaign.created",
                "campaign.changed",
                "assignment.skipped",
                "assignment.flagged",
                "assignment.reopened",
            }

    asyncio.run(run())


def test_what_cannot_begin_goes_back_into_the_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("root", "admin")
            await admin.post("/api/v1/campaigns", {**CAMPAIGN, "policy": "gone"})
            there.policies.gone = frozenset({"gone"})
            answer = await admin.post("/api/v1/work/next")
            assert (answer.status_code, answer.json()["detail"]) == (502, "no checkpoint gone is registered")
            assert (await admin.get("/api/v1/work")).json()["held"] is None
            (campaign,) = (await admin.get("/api/v1/campaigns")).json()
            assert campaign["progress"]["num_leased"] == 0 and campaign["progress"]["num_open"] == 3

    asyncio.run(run())


def test_a_campaign_whose_policy_is_gone_stops_nobody_and_can_be_given_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with SessionPool(size=1) as pool, site(tmp_path, pool=pool) as there:
            admin, ada = await there.person("root", "admin"), await there.person("ada")
            there.policies.gone = frozenset({"wrong", "gone"})
            refused = await admin.post("/api/v1/campaigns", {**CAMPAIGN, "policy": "wrong"})
            assert refused.status_code == 422 and "no checkpoint wrong is registered" in refused.json()["detail"]
            there.policies.gone = frozenset({"wrong"})
            urgent = (await admin.post("/api/v1/campaigns", {**CAMPAIGN, "policy": "gone", "target_count": 1})).json()
            await admin.post("/api/v1/campaigns", {**CAMPAIGN, "name": "others"})
            with there.database.write() as session:  # as if its tasks were the weakest
                campaign = session.get_one(Campaign, urgent["campaign_id"])
                session.execute(update(Assignment).where(Assignment.campaign_id == campaign.campaign_id).values(priority=2.0))
            there.policies.gone = frozenset({"wrong", "gone"})
            state = await begun(there, ada)
            assert state["campaign"]["name"] == "others"  # type: ignore[index]
            assert (await ada.post(f"/api/v1/assignments/{state['assignment_id']}/release")).status_code == 204
            asked_for = await ada.post("/api/v1/work/next", {"campaign_id": urgent["campaign_id"]})
            assert (asked_for.status_code, asked_for.json()["detail"]) == (502, "no checkpoint gone is registered")
            path = f"/api/v1/campaigns/{urgent['campaign_id']}"
            assert (await admin.send("PATCH", path, {"policy": "wrong"})).status_code == 422
            assert (await admin.send("PATCH", path, {"guidelines": "Be quick."})).status_code == 200
            assert (await admin.send("PATCH", path, {"policy": "newest"})).json()["policy"] == "newest"
            assert (await ada.post("/api/v1/work/next", {"campaign_id": urgent["campaign_id"]})).status_code == 200

    asyncio.run(run())


def test_what_is_held_and_cannot_go_on_is_named_so_that_it_can_be_let_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with SessionPool(size=1) as pool:
            async with site(tmp_path, pool=pool) as there:
                admin = await there.person("root", "admin")
                await admin.post("/api/v1/campaigns", CAMPAIGN)
                held = (await begun(there, admin))["assignment_id"]
                there.policies.gone = frozenset({"newest"})
                for num in (1, 2):
                    answer = await admin.post("/api/v1/work/next")
                    assert (answer.status_code, answer.json()["extra"]) == (502, {"assignment_id": held})
                    reported = [message for message in caplog.messages if held in message]
                    assert len(reported) == num and "CheckpointError: no checkpoint newest is registered" in reported[-1], "each time"
            async with site(tmp_path, pool=pool, grammar="uitars15") as there:  # which another policy answers in
                back = await there.stranger()
                await back.log_in("root")
                for _ in range(2):
                    answer = await back.post("/api/v1/work/next")
                    assert answer.status_code == 422 and "or skip the task" in answer.json()["detail"]
                    assert answer.json()["extra"] == {"assignment_id": held}
                assert (await back.post(f"/api/v1/assignments/{held}/skip", {"reason": "it cannot go on"})).status_code == 204
                assert (await back.post("/api/v1/work/next")).json()["assignment_id"] != held

    asyncio.run(run())


def test_the_tasks_of_a_selection_are_reported_before_a_campaign_begins(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("root", "admin")
            found = (await admin.get("/api/v1/tasks?select=miniwob:quickstart&select=games/2048-tile-16")).json()
            assert found["num"] == len(found["tasks"]) > 10 and "miniwob" in found["sources"]
            assert {task["weakness"] for task in found["tasks"]} == {0.5}
            wrong = await admin.get("/api/v1/tasks?select=nowhere")
            assert wrong.status_code == 422 and "nowhere" in wrong.json()["detail"]
            assert (await admin.get("/api/v1/openapi.json")).json()["info"]["title"] == "Flywheel annotation"

    asyncio.run(run())


def test_the_stock_is_kept_between_servers(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("root", "admin")
            await admin.post("/api/v1/campaigns", CAMPAIGN)
            leased = await Queue(there.database, there.guard._app.state.office.task_priorities).take(admin.me["user_id"])  # type: ignore[attr-defined]
            assert leased is not None
        async with site(tmp_path) as there:
            back = await there.stranger()
            await back.log_in("root")
            assert (await back.get("/api/v1/work")).json()["held"]["assignment_id"] == leased.assignment.assignment_id

    asyncio.run(run())
