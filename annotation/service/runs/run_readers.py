"""What changes nothing about a run: its state and pictures, help in the editor, a look at its workspace and terminal."""

from __future__ import annotations

import asyncio

from agent.grammars.base import NotRepresentable
from annotation.service.editor.answers import action_view, composed, view_of_action
from annotation.service.editor.at_point import at_point
from annotation.service.editor.completion import complete
from annotation.service.editor.completion_values import Surroundings
from annotation.service.runs import stored_runs
from annotation.service.runs.live_run import LiveRun
from annotation.service.runs.run_keeper import RunKeeper
from annotation.storage import runs
from annotation.wire import runs as bodies
from annotation.wire.runs import ActionView, Completion, RunState
from sandbox.session import HasFiles
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import kind_of
from warehouse.core.errors import NotNow, UnknownSubject, UnreadableAnswer

LOOK_TIMEOUT_S = 20.0


class RunReaders(RunKeeper):
    """Who may ask is the caller's to know (`owner`). Raise UnknownSubject, NotNow."""

    async def state(self, run_id: str) -> RunState:
        """Of any run, live or not."""
        run = self._live.get(run_id) or self._gone.get(run_id)
        if run is not None:
            return run.view()
        stored = await self._database.reading(runs.load, run_id)
        return stored_runs.state_of(stored, version=int(self._clock() * 1000))

    async def changes(self, run_id: str, after_version: int, timeout_s: float) -> RunState | None:
        """The state as soon as its version is another one; None where it stayed. A run that is over changes no more."""
        run = self._live.get(run_id)
        if run is None:
            state = await self.state(run_id)
            return state if state.version != after_version else None
        return run.view() if await run.change(after_version, timeout_s) else None

    def is_live(self, run_id: str) -> bool:
        return run_id in self._live

    async def owner(self, run_id: str) -> str:
        """Whose run it is."""
        run = self._live.get(run_id) or self._gone.get(run_id)
        return run.plan.user_id if run is not None else (await self._database.reading(runs.get, run_id)).user_id

    async def screen(self, run_id: str, screenshot_id: str) -> bytes:
        """A picture of a run. Raises UnknownSubject for one that is not the run's."""
        run = self._live.get(run_id)
        if run is not None and screenshot_id in run.pictures:
            return run.pictures[screenshot_id]
        if not await self._database.reading(runs.shows, run_id, screenshot_id):
            raise runs.unknown(run_id)
        return await asyncio.to_thread(self._blobs.get, screenshot_id)

    async def check(self, run_id: str, body: bodies.Check) -> ActionView:
        """How an answer would be read; nothing is done."""
        run = self._get(run_id)
        try:
            text = composed(body.thought, body.action, run.plan.grammar, run.seen)
        except UnreadableAnswer as error:
            return ActionView(text="", thought=body.thought, action=body.action, problem=str(error))
        return action_view(text, run.plan.grammar, run.seen)

    async def complete(self, run_id: str, body: bodies.Complete) -> list[Completion]:
        run = self._get(run_id)
        task = run.plan.request.task
        kind = kind_of(task) if task.source in SOURCES else "page"
        around = Surroundings(grammar=run.plan.grammar, observation=run.seen, session_kind=kind, files=run.files)
        return complete(body.action, body.cursor, around)

    async def at(self, run_id: str, body: bodies.AtPoint) -> list[ActionView]:
        run = self._get(run_id)
        return at_point(body.point, run.plan.grammar, run.seen)

    async def write(self, run_id: str, body: bodies.Write) -> ActionView:
        """An action in the words of the run's grammar. Raises UnreadableAnswer where it has none."""
        run = self._get(run_id)
        try:
            return view_of_action(body.action, run.plan.grammar, run.seen)
        except NotRepresentable as error:
            raise UnreadableAnswer(str(error)) from error

    async def files(self, run_id: str) -> bodies.FileList:
        """The workspace of the live session; one without any has no files."""
        run = self._get(run_id)
        session = run.episode.session
        if not isinstance(session, HasFiles):
            return bodies.FileList(has_workspace=False, files=())
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            found = await session.files()
        run.files = tuple(entry.path for entry in found or () if entry.kind == "file")
        files = tuple(bodies.FileView(path=entry.path, kind=entry.kind, num_bytes=entry.num_bytes) for entry in found or ())
        return bodies.FileList(has_workspace=found is not None, files=files)

    async def read_file(self, run_id: str, path: str) -> bodies.FileText:
        """Raises UnknownSubject for what is not a text file, or too long to be shown."""
        session = self._get(run_id).episode.session
        text = None
        if isinstance(session, HasFiles):
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                text = await session.read_file(path)
        if text is None:
            raise UnknownSubject(f"the workspace has no text file {path[:200]!r} that can be shown")
        return bodies.FileText(path=path, text=text)

    async def terminal(self, run_id: str) -> bodies.Transcript:
        """What tools were asked, and what they printed, in the steps that stand."""
        state = await self.state(run_id)
        calls = [step for step in state.history if step.kind == "tool"]
        return bodies.Transcript(
            calls=tuple(bodies.ToolTurn(step_index=step.step_index, line=step.line, output=step.output or "") for step in calls)
        )

    def _get(self, run_id: str) -> LiveRun:
        if run_id not in self._live:
            raise NotNow(f"run {run_id[:80]!r} is not live")
        return self._live[run_id]
