"""Adopting a site, step by step: each step reads what the one before has left in the folder, and goes on where it was cut off."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandbox.adopting.compose import Composer
from sandbox.adopting.crawl import PRESSES, VISITS, Crawler, pages_of
from sandbox.adopting.proof import PROOFS, Prover, reasons
from sandbox.adopting.records import AdoptedTask, Folder, Proof, Record, Site, TaskSet, Visit, Wording
from sandbox.adopting.site_browser import shared_browser
from sandbox.adopting.source import PLUGIN, PLUGIN_TEXT, TASKS, kept_tasks, with_wordings
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.home import atomic_write

SITE, CANDIDATES, WORDINGS, SUMMARY = "site.json", "candidates.json", "wordings.jsonl", "summary.json"
MADE = (VISITS, PRESSES, CANDIDATES, PROOFS, WORDINGS, TASKS)
MAX_WRITES = 5
MAY_CHANGE = ("delay_s", "login_path", "user")
"""Parts of a site that make no other tasks."""
Report = Callable[[str, int, int], None]
"""What is being done, how far it is, of how much."""


class Candidates(Record):
    """candidates.json: what the pages gave, and what was dropped, by reason."""

    tasks: tuple[AdoptedTask, ...]
    dropped: dict[str, int]
    num_changed: int


def open_site(folder: Folder, site: Site) -> None:
    """Take a folder for a site. Raises ConfigError where it holds another, or the same adopted otherwise."""
    if folder.path(SITE).exists():
        before = folder.read(SITE, Site)
        if other := [name for name in Site.model_fields if name not in MAY_CHANGE and getattr(before, name) != getattr(site, name)]:
            changes = "; ".join(f"{name} {getattr(before, name)!r}, now {getattr(site, name)!r}" for name in other)
            raise ConfigError(f"{folder.root} was adopted otherwise: {changes}. Give another --output, or delete {folder.root}.")
    folder.write(SITE, site)


async def crawl(folder: Folder, site: Site, *, max_pages: int, max_depth: int, report: Report) -> dict[str, Any]:
    """Raises SandboxError where the first page cannot be reached."""
    begun_s = time.monotonic()
    browser = shared_browser(site, folder.login if site.has_login else None)
    crawler = Crawler(folder, site, browser, max_pages=max_pages, max_depth=max_depth, on_page=lambda done, of: report("crawl", done, of))
    try:
        pages = await crawler.run()
    finally:
        await browser.close()
    visits = list(folder.lines(VISITS, Visit))
    num_blocked = sum(visit.num_blocked for visit in visits) + len(browser.refused)
    found = {
        "pages": dict(pages),
        "requests_elsewhere_refused": num_blocked,
        "pages_that_write_by_themselves": len({visit.url for visit in visits if visit.writes}),
        "such_writes": list(dict.fromkeys(write for visit in visits for write in visit.writes))[:MAX_WRITES],
        "s": round(time.monotonic() - begun_s, 1),
    }
    return note(folder, "crawl", found)


def compose(folder: Folder, site: Site, *, max_tasks: int) -> dict[str, Any]:
    """Raises ConfigError where nothing was crawled, or it gives no task."""
    pages, num_changed = pages_of(folder, site)
    if not pages:
        raise ConfigError(f"{folder.path(VISITS)} has no pages: run the crawl first.")
    made = Composer(site, pages).compose(max_tasks)
    if not made.tasks:
        raise ConfigError(f"The {len(pages)} pages of {site.origin} gave no task: {dict(made.dropped)}. Try --start, --pages or --writes.")
    folder.write(CANDIDATES, Candidates(tasks=tuple(made.tasks), dropped=dict(made.dropped), num_changed=num_changed))
    families = Counter(task.family for task in made.tasks)
    found = {
        "candidates": len(made.tasks),
        "by_family": dict(families),
        "changed_between_visits": num_changed,
        "dropped": dict(made.dropped),
    }
    return note(folder, "tasks", found)


async def prove(folder: Folder, site: Site, *, num_sessions: int, report: Report) -> dict[str, Any]:
    begun_s = time.monotonic()
    candidates = folder.read(CANDIDATES, Candidates).tasks
    prover = Prover(folder=folder, site=site, candidates=candidates, on_proof=lambda done, of, _: report("proof", done, of))
    try:
        proofs = await prover.run(num_sessions)
    finally:
        await shared_browser(site, folder.login if site.has_login else None).close()
    num_sound = sum(not proof.why_not for proof in proofs)
    found = {
        "played": len(proofs),
        "sound": num_sound,
        "dropped": dict(reasons(proofs)),
        "oracle_solves": sum(proof.num_steps > 0 for proof in proofs),
        "s": round(time.monotonic() - begun_s, 1),
    }
    return note(folder, "proof", found)


def write_source(folder: Folder, site: Site) -> dict[str, Any]:
    """tasks.json and source.py, of the tasks that are sound. Raises ConfigError where none is."""
    candidates = folder.read(CANDIDATES, Candidates).tasks
    proofs = {proof.task_id: proof for proof in folder.lines(PROOFS, Proof)}
    sound = sound_tasks(folder)
    if not sound:
        why = dict(reasons(list(proofs.values())))
        raise ConfigError(f"None of the {len(candidates)} tasks of {site.origin} is sound: {why}. Is the application as it was crawled?")
    made = kept_tasks(site, [with_row(task, proofs[task.task_id]) for task in sound])
    if not made.tasks:
        raise ConfigError(
            f"The {len(sound)} sound tasks of {site.origin} are too few to train or evaluate on. Give more --pages or --tasks."
        )
    reworded = with_wordings(made, list(folder.lines(WORDINGS, Wording)))
    folder.write(TASKS, reworded)
    atomic_write(folder.path(PLUGIN), PLUGIN_TEXT.encode())
    left_out = len(sound) - len(made.tasks)
    unproved = sum(task.task_id not in proofs for task in candidates)
    return note(folder, "source", {**counted(reworded), "candidates_not_proved_yet": unproved, "in_families_too_small": left_out})


def sound_tasks(folder: Folder) -> list[AdoptedTask]:
    """The candidates that were proved and not dropped. Raises ConfigError where there are no candidates yet."""
    sound = {proof.task_id for proof in folder.lines(PROOFS, Proof) if not proof.why_not}
    return [task for task in folder.read(CANDIDATES, Candidates).tasks if task.task_id in sound]


def with_row(task: AdoptedTask, proof: Proof) -> AdoptedTask:
    return task if proof.row is None else task.model_copy(update={"checks": (*task.checks, proof.row)})


def counted(made: TaskSet) -> dict[str, Any]:
    by_split = Counter(str(kept.split) for kept in made.tasks)
    families: dict[str, dict[str, int]] = {}
    for kept in made.tasks:
        of = families.setdefault(kept.task.family, {str(split): 0 for split in Split})
        of[str(kept.split)] += 1
    return {"tasks": len(made.tasks), "splits": dict(by_split), "families": families}


def note(folder: Folder, part: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Put what a step found into summary.json. Times of a step that went on are added up."""
    summary = read_summary(folder)
    before = summary.get(part, {}).get("s", 0.0)
    summary[part] = {**found, "s": round(found["s"] + before, 1)} if "s" in found else dict(found)
    folder.root.mkdir(parents=True, exist_ok=True)
    atomic_write(folder.path(SUMMARY), (json.dumps(summary, indent=1) + "\n").encode())
    return summary[part]  # type: ignore[no-any-return]


def read_summary(folder: Folder) -> dict[str, Any]:
    path = folder.path(SUMMARY)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def sample(tasks: Sequence[AdoptedTask], num: int) -> list[AdoptedTask]:
    """For people to look at: spread over all."""
    return list(tasks[:: max(1, len(tasks) // num)])[:num]
