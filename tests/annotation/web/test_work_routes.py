"""Work over HTTP, on real pages: what a person is given, keeps, passes on, and finds again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from annotation.service.queue import Queue
from sandbox.pool import SessionPool
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
            paused = await admin.send("PATCH", f"/api/v1/campaigns/{campaign['campaign_id']}", {"state": "paused"})
            assert paused.json()["state"] == "paused" and (await bob.post("/api/v1/work/next")).status_code == 204
            assert {entry["action"] for entry in (await admin.get("/api/v1/audit")).json()} >= {
                "campaign.created", "campaign.changed", "assignment.skipped", "assignment.flagged", "assignment.reopened",
            }  # fmt: skip

    asyncio.run(run())


def test_what_cannot_begin_goes_back_into_the_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            admin = await there.person("root", "admin")
            await admin.post("/api/v1/campaigns", {**CAMPAIGN, "policy": "gone"})

            async def fail(_: str) -> None:
                from warehouse.errors import CheckpointError

                raise CheckpointError("no checkpoint gone is registered")

            there.runs._policies.get = fail  # type: ignore[assignment,method-assign]
            answer = await admin.post("/api/v1/work/next")
            assert (answer.status_code, answer.json()["detail"]) == (502, "no checkpoint gone is registered")
            assert (await admin.get("/api/v1/work")).json()["held"] is None
            (campaign,) = (await admin.get("/api/v1/campaigns")).json()
            assert campaign["progress"]["num_leased"] == 0 and campaign["progress"]["num_open"] == 3

    asyncio.run(run())


def test_the_tasks_of_a_selection_are_told_before_a_campaign_begins(tmp_path: Path) -> None:
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
            leased = await Queue(there.database, there.guard._app.state.office.standing).take(admin.me["user_id"])  # type: ignore[attr-defined]
            assert leased is not None
        async with site(tmp_path) as there:
            back = await there.stranger()
            await back.log_in("root")
            assert (await back.get("/api/v1/work")).json()["held"]["assignment_id"] == leased.assignment.assignment_id

    asyncio.run(run())
