"""Keeps the live runs of one server: starts them, plays their episodes, brings them back after a restart, and lets go of those whose
lease has gone to somebody else. What people ask of them is runs.py's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from agent.episode.episode import Episode, Outcome
from agent.episode.loop import EpisodeLimits
from annotation.platform.live import LiveEpisode
from annotation.service.campaigns.policies import PolicySource, Served
from annotation.service.runs import stored_runs
from annotation.service.runs.live_run import LiveRun, Plan, surely
from annotation.service.runs.person import Person, point_of
from annotation.storage import assignments, runs
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.runs import Stored
from annotation.storage.schema import Assignment
from sandbox.pool.pool_protocol import SessionPoolProtocol
from warehouse.core.errors import AssignmentLost, ConfigError, FlywheelError, NotNow

log = logging.getLogger(__name__)
GONE_KEPT = 256
SWEEP_EVERY_S = 5.0


class RunKeeper:
    """Belongs to the event loop that it is used in."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        session_pool: SessionPoolProtocol,
        policies: PolicySource,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._blobs, self._session_pool, self._policies = database, blobs, session_pool, policies
        self._clock = clock
        self._live: dict[str, LiveRun] = {}
        self._gone: dict[str, LiveRun] = {}
        """The last runs that ended, so that pages see the end, and doubled requests are known."""
        self._starting = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None
        self.is_closing = False

    @property
    def policies(self) -> PolicySource:
        return self._policies

    async def start(self, assignment_id: str, lease_number: int, user_id: str) -> str:
        """The run of a lease: a new one begins to be played, an existing one goes on. Raises UnknownSubject, AssignmentLost, ModelError
        where the campaign's policy cannot be had."""
        campaign = await self._database.reading(runs.campaign_of, assignment_id)
        served = await self._policies.get(campaign.policy)
        opened = {"policy_id": served.policy_id, "grammar": served.builder.grammar.name}
        async with self._starting:
            stored = await self._database.writing(runs.begin, assignment_id, lease_number, user_id, **opened, now_s=self._clock())
            run_id = stored.run.run_id
            if run_id not in self._live:
                if stored.run.policy_id != served.policy_id:  # it began before the newest release
                    served = await self._policy_of(stored)
                self._launch(self._made(stored, served))
        return run_id

    async def recover(self) -> int:
        """After the server was started: every live run whose lease still runs goes on where it was; how many do. Leases do not run while
        no server does: nobody could give a sign of life. One that was overdue before waits for its person, those whose lease is gone are
        given up. From then on leases are watched."""
        if self._sweeper is None:
            num_late = await self._database.writing(assignments.renew_after_outage, now_s=self._clock())
            if num_late:
                log.warning("%d leases ended while no server ran: they begin again", num_late)
        found = await self._database.reading(runs.live_runs)
        num_back = 0
        for run, assignment in found:
            if run.run_id in self._live:
                continue
            if not runs.holds(run, assignment):
                await self._database.writing(runs.abandon, run.run_id, now_s=self._clock())
                continue
            if self._is_overdue(assignment):
                continue
            try:
                num_back += await self.wake(run.run_id)
            except FlywheelError as error:
                log.warning("run %s could not be brought back: %s", run.run_id, error)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_for_ever(), name="leases of annotated runs")
        return num_back

    async def abandon(self, run_id: str) -> None:
        """Give a run up, as when its assignment is skipped or flagged. May be called twice, and for a run that is over."""
        await self._database.writing(runs.abandon, run_id, now_s=self._clock())
        if run_id in self._live:
            await self._stop(self._live[run_id])
            self._let_go(run_id, "abandoned")

    async def sweep(self) -> None:
        """Let go of runs whose assignment has been given back or leased to another; and of the sandboxes of those who went away."""
        known = list(self._live)  # before the database is asked: what begins meanwhile is not in its answer
        if not known:
            return
        found = {run.run_id: (run, assignment) for run, assignment in await self._database.reading(runs.live_runs)}
        for run_id in known:
            if run_id not in self._live:
                continue
            if run_id not in found or not runs.holds(*found[run_id]):
                await self.abandon(run_id)
            elif self._is_overdue(found[run_id][1]):
                await self._park(run_id)

    def end_streams(self) -> None:
        """The server is shutting down: clients that wait for changes are notified."""
        self.is_closing = True
        for run in self._live.values():
            run.leave()

    async def close(self) -> None:
        """Leave every run as it is in the database, for the next server to bring back. May be called twice."""
        self.end_streams()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait({self._sweeper})
        await asyncio.gather(*(self._stop(run) for run in self._live.values()))
        self._live.clear()

    async def wake(self, run_id: str, *, if_overdue: bool = True) -> bool:
        """Bring a run back that is live in the database, by doing its steps again; whether that was done. Raises UnknownSubject,
        ModelError, ConfigError."""
        if run_id in self._live:
            return False
        stored = await self._database.reading(runs.load, run_id)
        if stored.run.state != "live" or not runs.holds(stored.run, stored.assignment):
            return False
        if not if_overdue and self._is_overdue(stored.assignment):
            return False
        served = await self._policy_of(stored)
        async with self._starting:
            if run_id in self._live:
                return False
            self._launch(self._made(await self._database.reading(runs.load, run_id), served))
        return True

    async def _park(self, run_id: str) -> None:
        """Free the sandbox of a run that nobody has worked on for as long as a lease lasts."""
        run = self._live[run_id]
        async with run.lock:
            await self._stop(run)
            if self._live.pop(run_id, None) is not None:
                run.leave()

    def _is_overdue(self, assignment: Assignment) -> bool:
        return (assignment.lease_until_s or 0.0) <= self._clock()

    async def _policy_of(self, stored: Stored) -> Served:
        """The policy that a run began with; the campaign's, where that one is gone."""
        try:
            return await self._policies.get(stored.run.policy_id)
        except FlywheelError:
            return await self._policies.get(stored.campaign.policy)

    def _made(self, stored: Stored, served: Served) -> LiveRun:
        run, campaign = stored.run, stored.campaign
        if served.builder.grammar.name != run.grammar:
            raise ConfigError(
                f"run {run.run_id} is in the grammar {run.grammar}, and policy {served.policy_id} answers in "
                f"{served.builder.grammar.name}: serve the policy that it began with, or skip the task"
            )
        request = stored_runs.request_of(stored)
        plan = Plan(
            run_id=run.run_id,
            assignment_id=run.assignment_id,
            user_id=run.user_id,
            campaign=stored_runs.campaign_view(stored),
            num_candidates=campaign.num_candidates,
            temperature=campaign.temperature,
            request=request,
            served=served,
        )
        # Versions go on where those of an earlier server cannot have got to.
        live = LiveRun(
            plan,
            LiveEpisode(self._session_pool, request),
            version=int(self._clock() * 1000),
            lease_until_s=stored.assignment.lease_until_s or 0.0,
        )
        stored_runs.bring_back(live, stored)
        return live

    def _launch(self, run: LiveRun) -> None:
        """Play the episode, unless it is over already."""
        self._live[run.plan.run_id] = run
        if run.outcome is not None:
            run.publish("ended")
        else:
            run.task = asyncio.create_task(self._drive(run), name=f"run {run.plan.run_id}")

    async def _drive(self, run: LiveRun) -> None:
        player = Person(run, self._database, self._blobs, self._clock)
        limits = EpisodeLimits(policy_timeout_s=None, max_new_tokens=run.plan.served.max_new_tokens)
        how_on = "Go back to a step to try it again, or skip the task and say why."
        try:
            episode = await run.episode.play(player, run.plan.served.builder, limits, annotator=run.plan.user_id)
            await self._ended(run, episode)
        except (AssignmentLost, NotNow) as error:
            await surely(self._database.writing(runs.abandon, run.plan.run_id, now_s=self._clock()))
            run.problem = str(error)
            self._let_go(run.plan.run_id, "abandoned")
        except FlywheelError as error:
            run.publish("broken", f"{type(error).__name__}: {error} {how_on}")
        except Exception:
            log.exception("run %s broke", run.plan.run_id)
            run.publish("broken", f"The annotation server failed at this run; its log says why. {how_on}")

    async def _ended(self, run: LiveRun, episode: Episode) -> None:
        """The episode is over: store its outcome and last screen. Where the person ended it, that screen is stored already."""
        seen = run.seen
        last = None if run.stops else point_of(seen, len(run.kept_steps), self._clock(), messages=[])
        if last is not None and seen.screenshot is not None:
            await asyncio.to_thread(self._blobs.put, seen.screenshot)
        verdict = None if episode.outcome is Outcome.CRASHED else episode.is_success
        await surely(
            self._database.writing(
                runs.end,
                run.plan.run_id,
                outcome=episode.outcome.value,
                reward=episode.reward,
                points=episode.points,
                verdict=verdict,
                environment=episode.environment,
                executed=list(run.executed),
                last=last,
                now_s=self._clock(),
            )
        )
        run.executed.clear()
        run.outcome, run.reward, run.verifier, run.open = episode.outcome.value, episode.reward, verdict, None
        if last is not None and seen.screenshot is not None:  # once more, as Person does with every step
            await asyncio.to_thread(self._blobs.put, seen.screenshot)
        run.publish("ended")

    async def _stop(self, run: LiveRun) -> None:
        """End the episode's task; its session goes back to the pool."""
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()
            await asyncio.wait({run.task})
        run.open = None

    def _let_go(self, run_id: str, phase: str) -> None:
        """Does nothing where it was let go meanwhile: the sweep and the next holder of the assignment may come at once."""
        run = self._live.pop(run_id, None)
        if run is None:
            return
        self._gone[run_id] = run
        while len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        run.pictures.clear()
        run.asked.clear()
        run.publish("finished" if phase == "finished" else "abandoned")

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await self.sweep()
            except Exception:  # the database may be away for a while
                log.exception("leases of annotated runs could not be looked at")
