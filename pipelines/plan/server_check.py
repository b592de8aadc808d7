"""What can be checked of a profile's policy server before a run: what it gives, and what it may load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from assets.settings.profile import Profile
from models.http.config import HttpEngineConfig
from warehouse.core.checks import Check, Status
from warehouse.core.errors import FlywheelError
from warehouse.core.home import Home

SHORT_TIMEOUTS = {"retries": 0, "timeout_s": 20.0, "connect_timeout_s": 5.0}
START = "Start it (docs/serving.md) or fix engine.http; stages that act cannot run without it"
NO_CHECKPOINTS = "it cannot load another checkpoint, as RL, evaluation and the search for merge weights need"


def check_server(profile: Profile, home: Home) -> Check:
    """Asks each policy server what it gives, as an engine does when it opens, and whether it may load what the run's stages would have it
    load: checkpoints of the home, the merge's candidates among them, and what a learner puts into the exchange folder."""
    http = profile.engine.http
    if http is None:
        own = "checkpoints answer in the stage's own process"
        if profile.engine.kind == "served":
            num = profile.engine.replicas
            own = f"each stage that acts starts {num} {'server' if num == 1 else 'servers'} of its own"
        return Check(name="server", status="ok", found=f"none: {own}")
    if http.exchange is None and http.weights != "transfer":
        fix = "Name a folder that the server sees under the same path: --set engine.http.exchange=FOLDER"
        return Check(name="server", status="fail", found="reinforcement learning has no way to hand its weights over", fix=fix)
    if profile.max_parallel > 1 and len(profile.tasks.specialists) + len(profile.tasks.joint) > 1:
        fix = "--set max_parallel=1: the server answers with the weights of one RL run at a time"
        found = f"up to {profile.max_parallel} stages would ask {http.base_url} at once"
        return Check(name="server", status="fail", found=found, fix=fix)
    folders = [home.root / "checkpoints", *([Path(http.exchange).absolute()] if http.exchange else [])]
    answers = asyncio.run(_all_asked(http.each(), folders))
    if failed := [f"{url}: {answer}" for url, answer in answers.items() if isinstance(answer, Exception)]:
        return Check(name="server", status="fail", found="\n".join(failed), fix=START)
    asked = {url: answer for url, answer in answers.items() if not isinstance(answer, Exception)}
    if len({text for text, _ in asked.values()}) > 1:
        fix = "Start all of engine.http.base_url and replicas in the same way"
        return Check(
            name="server",
            status="fail",
            found="replicas differ: " + " / ".join(f"{url}: {text}" for url, (text, _) in asked.items()),
            fix=fix,
        )
    found = asked[http.base_url][0]
    for url, (_, closed) in asked.items():
        if closed:
            where = " and ".join(map(str, closed))
            fix = f"Start it with --home {home.root}" + (f" --weights-root {http.exchange}" if http.exchange else "")
            return Check(name="server", status="fail", found=f"{url}: {found}; it loads nothing from {where}", fix=fix)
    if NO_CHECKPOINTS in found:
        fix = "Take one that loads checkpoints: flywheel policy serve, or vLLM in its development mode (docs/serving.md)"
        status: Status = "fail" if profile.tasks.specialists else "warn"
        return Check(name="server", status=status, found=f"{http.base_url}: {found}", fix=fix)
    return Check(name="server", status="ok", found=f"{http.base_url}: {found}")


async def _all_asked(
    every: Sequence[HttpEngineConfig], folders: Sequence[Path]
) -> dict[str, tuple[str, list[Path]] | FlywheelError | OSError]:
    """What `_asked` found of each server by its address, or why it could not be asked."""

    async def found(http: HttpEngineConfig) -> tuple[str, list[Path]] | FlywheelError | OSError:
        try:
            return await _asked(http, folders)
        except (FlywheelError, OSError) as error:
            return error

    return dict(zip([http.base_url for http in every], await asyncio.gather(*map(found, every)), strict=True))


async def _asked(http: HttpEngineConfig, folders: Sequence[Path]) -> tuple[str, list[Path]]:
    """What the server gives, and the folders that it is not allowed to load from."""
    from models.http.client import HttpClient
    from models.http.probe import may_load_from, probe

    quick = http.model_copy(update={**SHORT_TIMEOUTS, "send": "messages"})
    client = HttpClient(quick)
    try:
        gives = (await probe(client, quick, None)).gives
        takes = gives.loads == "checkpoints"
        closed = [folder for folder in folders if takes and not await may_load_from(client, gives, folder)]
    finally:
        await client.close()
    why = gives.why_not_learnable()
    text = f"{gives.server}, model {gives.model}, loads {gives.loads}"
    text += f"; its answers could not be learned from: {why}" if why else "; its answers could be learned from"
    return text if takes else f"{text}; {NO_CHECKPOINTS}", closed
