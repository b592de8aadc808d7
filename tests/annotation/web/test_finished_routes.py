"""Finished runs over HTTP: whose list it is, what is asked of it wrongly, and recordings in the queue of a reviewer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.annotation.service.review_parts import History
from tests.annotation.web.recording_parts import reviewed, uploaded
from tests.annotation.web.web_parts import site

RUNS = "/api/v1/runs"


def test_a_list_of_runs_is_ones_own_or_a_reviewers(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann, bob, rex = await there.person("ann"), await there.person("bob"), await there.person("rex", "reviewer")
            history = History(there.database)
            history.ids = {person.me["name"]: person.me["user_id"] for person in (ann, bob)}
            own, other = history.run("ann"), history.run("bob", seed=1)
            (item,) = (await ann.get(RUNS)).json()["runs"]
            assert (item["run_id"], item["status"], item["is_own"], item["num_steps"]) == (own, "counts", True, 1)
            assert [one["run_id"] for one in (await rex.get(RUNS)).json()["runs"]] == [other, own]
            assert (await ann.get(f"{RUNS}?user=bob")).json()["runs"] == []
            assert (await rex.get(f"{RUNS}?user=nobody")).status_code == 404
            for wrong in ("status=unheard", "user=" + "x" * 65, "campaign_id=" + "x" * 81):
                assert (await rex.get(f"{RUNS}?{wrong}")).status_code == 422, wrong
            for nothing in ("campaign_id=campaign-none", "before=run-none", "status=rejected"):
                assert (await rex.get(f"{RUNS}?{nothing}")).json()["runs"] == [], nothing
            seen = (await ann.get(f"{RUNS}/{own}/replay")).json()
            assert seen["item"] == item and seen["run"]["steps"][0]["decision"] == "accept" and seen["review"] is None
            assert (await rex.get(f"{RUNS}/{own}/replay")).json()["review"] == "second"
            for path in (f"{RUNS}/{other}/replay", f"{RUNS}/run-none/replay"):
                assert (await ann.get(path)).status_code == 404, "another's as much as nobody's"
            assert (await ann.post(f"{RUNS}/{own}/withdraw", {"reason": "a slip"})).status_code == 204
            assert (await ann.get(f"{RUNS}?status=withdrawn")).json()["num"] == 1

    asyncio.run(run())


def test_what_others_recorded_waits_in_the_reviewers_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann, rex = await there.program("ann"), await there.person("rex", "reviewer")
            own = await there.program("rita", "reviewer")
            store = reviewed(tmp_path / "made")
            await uploaded(there, ann, store)
            queue = (await rex.get("/api/v1/reviews")).json()
            assert [one["recording_id"] for one in queue["recordings"]] == [store.cover.recording_id]
            assert (queue["num_recordings"], queue["num_waiting"], queue["waiting"]) == (1, 0, [])
            mine = reviewed(tmp_path / "rita", "hers")
            await uploaded(there, own, mine)
            assert (await own.get("/api/v1/reviews")).json()["num_recordings"] == 1, "one's own is another's to judge"
            say = {"approves": True, "verdict": None}
            assert (await rex.post(f"/api/v1/recordings/{store.cover.recording_id}/review", say)).status_code == 201
            left = (await rex.get("/api/v1/reviews")).json()
            assert (left["num_recordings"], left["num_reviewed_today"]) == (1, 1)

    asyncio.run(run())
