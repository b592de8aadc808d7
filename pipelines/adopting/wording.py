"""Other words for the tasks of an adopted site, by a language model, so that training does not know each task in the words of one template
alone. What is asked for, its verifier and its recorded way stay: a wording that drops a name, a value or a number is not used.
"""

from __future__ import annotations

import re
from typing import Any

from annotation.recordings.enrichment import Asks, other_wordings
from sandbox.adopting.adopt import WORDINGS, Report, note, sound_tasks
from sandbox.adopting.checks import normal
from sandbox.adopting.records import AdoptedTask, Folder, Site, Wording
from sandbox.adopting.source import split_of
from sandbox.tasks.task import Split

NUM_WORDINGS = 3
QUOTED = re.compile(r'"([^"]+)"')


def reword(folder: Folder, site: Site, model: Asks, report: Report) -> dict[str, Any]:
    """Ask for other words for each sound task of the training split, and keep them in the folder; tasks that have some are not asked for
    again. Raises WordingFailed where the model does not answer."""
    done = {(wording.start, wording.instruction) for wording in folder.lines(WORDINGS, Wording)}
    tasks = [task for task in sound_tasks(folder) if split_of(site, task) is Split.TRAIN]
    for number, task in enumerate(tasks, start=1):
        if (task.start, task.instruction) not in done:
            others = tuple(text for text in other_wordings(task.instruction, model, NUM_WORDINGS) if asks_for_the_same(task, text))
            folder.add(WORDINGS, Wording(start=task.start, instruction=task.instruction, others=others))
        report("wording", number, len(tasks))
    num_wordings = sum(len(wording.others) for wording in folder.lines(WORDINGS, Wording))
    return note(folder, "wording", {"tasks": len(tasks), "wordings": num_wordings})


def asks_for_the_same(task: AdoptedTask, text: str) -> bool:
    """Whether a wording has all that the instruction quotes, letter by letter, quotes nothing else, and does not give the answer away."""
    gives_away = bool(task.answer) and normal(task.answer) in normal(text) and normal(task.answer) not in normal(task.instruction)
    return sorted(QUOTED.findall(text)) == sorted(QUOTED.findall(task.instruction)) and not gives_away
