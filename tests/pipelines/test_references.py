"""What an LLM judge is told of the right answer: what the source says of the instance, of whichever split, else the domain's rubric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.stages.references import references
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split, Task
from warehouse.core.home import Home
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

RUBRICS = {"forms": "The form was sent with what the task names."}


def played(task: Task, split: Split) -> dict[str, Any]:
    (seed,) = task.seeds(split, 1)
    return {"episode_id": f"{task.name}/{split}", "task_id": task.task_id, "seed": seed, "domain": task.domain}


def test_it_is_given_what_is_right_in_every_split(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    generated = next(task for task in tasks_of("terminal:generated-small") if task.name == "lines-2")
    written = Task(source="miniwob", name="enter-text", domain="forms", max_steps=5)
    gone = generated.model_copy(update={"name": "of-another-version"})
    unknown = generated.model_copy(update={"source": "taken-out"})
    stored = [{"task_id": task.task_id, **task.model_dump()} for task in (generated, written, gone, unknown)]
    warehouse.replace_partition("tasks", stored, iteration="0000", stage="tasks")
    episodes = [played(generated, split) for split in Split]
    never_stored = generated.model_copy(update={"max_steps": 3})
    episodes += [played(task, Split.TRAIN) for task in (written, gone)]
    episodes += [played(task, Split.TRAIN) | {"episode_id": name} for name, task in {"never": never_stored, "unknown": unknown}.items()]
    with connect(warehouse) as con:
        found, untold = references(con, episodes, RUBRICS)
    assert {name for name, text in found.items() if text.startswith("Right is that ")} == {f"{generated.name}/{split}" for split in Split}
    assert found["enter-text/train"] == RUBRICS["forms"] and len(set(found.values())) == len(found) == len(Split) + 1
    assert sum(untold.values()) == 1 and "of-another-version" in next(iter(untold)), "a task that its source knows no more is said"
