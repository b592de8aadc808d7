"""A server whose disk is full says so, and takes what is sent again once there is room."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.annotation.web.web_parts import site
from tests.disks import fill, mounted_disk


def test_what_the_database_cannot_store_is_answered_as_a_full_disk(tmp_path: Path) -> None:
    async def use(disk: Path) -> None:
        async with site(disk) as served:
            admin = await served.person("admin", "admin")
            fill(disk / "filler")
            for _ in range(200):  # what the write-ahead log has room for is stored
                answer = await admin.post("/api/v1/invitations", {"role": "annotator"})
                if answer.status_code != 201:
                    break
            reported = answer.json()
            assert (answer.status_code, reported["error"]) == (507, "StorageFull") and "disk is full" in reported["detail"], answer.text
            assert str(disk) not in answer.text
            (disk / "filler").unlink()
            assert (await admin.post("/api/v1/invitations", {"role": "annotator"})).status_code == 201

    with mounted_disk(tmp_path / "disk", "4m"):
        asyncio.run(use(tmp_path / "disk"))
