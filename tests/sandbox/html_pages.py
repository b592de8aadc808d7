"""Pages of our own as a source of tasks, here and in the worker processes of a fleet (`page_sources`)."""

from __future__ import annotations

from pathlib import Path

from sandbox.actions import Action
from sandbox.session import Verdict
from sandbox.tasks.page_task import PageSettings, PageState, PageStepContext, PageTasks
from sandbox.tasks.sources import page_tasks
from sandbox.tasks.task import Task

PAGES = Path(__file__).with_name("pages")
PAGE_SOURCES = f"{__name__}:page_sources"


class HtmlSource:
    """A source whose tasks are the HTML files of a folder."""

    ready_script = "typeof start === 'function'"
    state_script = "state()"
    environment = "test pages"

    def __init__(self, root: Path = PAGES) -> None:
        self.root = root

    def settings(self, task: Task) -> PageSettings:
        return PageSettings(viewport_px=(320, 320), area_px=(240, 300), step_time_ms=50.0, frame_time_ms=1000 / 60)

    def url(self, task: Task) -> str:
        return (self.root / f"{task.name}.html").as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        return f"start({seed})"

    def needs_fresh_page(self, task: Task) -> bool:
        return False

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward if state.done else 0.0, threshold=1.0)

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        return None


def page_sources() -> PageTasks:
    return {**page_tasks(), "html": HtmlSource()}
