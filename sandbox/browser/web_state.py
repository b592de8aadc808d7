"""The state of a web task, whose page changes under it: elements are read from whatever is shown, how the episode stands is asked of the
task's source. For one-page tasks the page's own script says both (PageTask.state_script).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sandbox.actions import Action
from sandbox.browser.page import Page, WebPage
from sandbox.tasks.page_task import PageState, PageTask, WebStepContext, WebTask
from sandbox.tasks.task import Task
from warehouse.core.errors import BrowserCrashed, SandboxError


async def read_web_state(
    page: Page,
    web: WebPage,
    source: PageTask,
    task: Task,
    seed: int,
    actions: Sequence[Action],
    workspace: Path | None,
    last: PageState | None,
) -> PageState:
    """What is shown, and how the episode stands: by the source's `progress`; or by its state script where a page of the task is shown on
    which that works, and as it stood last elsewhere, whatever another page says of itself."""
    elements = await web.elements()

    async def evaluate(expression: str) -> Any:
        """None where the script fails: the page may be any page, and a dialog may hold it."""
        try:
            return await page.evaluate(expression)
        except BrowserCrashed:
            raise
        except SandboxError:
            return None

    if isinstance(source, WebTask):
        context = WebStepContext(
            task=task, seed=seed, actions=actions, url=web.url, evaluate=evaluate, inspect=web.inspect, sent=web.sent, workspace=workspace
        )
        progress = await source.progress(context)
        return PageState(instruction=progress.instruction, elements=elements, reward=progress.reward, done=progress.done)
    value = await evaluate(source.state_script) if is_of_task(web.url, source.url(task)) else None
    try:
        state = PageState.from_json(value)
    except SandboxError:
        if last is None:
            raise
        state = last
    return PageState(instruction=state.instruction, elements=elements, reward=state.reward, done=state.done, info=state.info)


def is_of_task(shown: str, address: str) -> bool:
    """Whether the page that is shown (WebPage.url) is the task's own: a file below its root, or of the origin of its address."""
    ours, theirs = urlsplit(address), urlsplit(shown)
    if ours.scheme == "file":
        return not theirs.scheme and not theirs.netloc
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
