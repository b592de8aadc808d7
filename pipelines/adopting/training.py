"""`train` of `flywheel adopt`: iterations of the flywheel in a home of the site's own. It resumes as any run does."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from pipelines.adopting.profile import newest_release, write_profile
from pipelines.cli.runs.run import run_until
from sandbox.adopting.adopt import note, read_summary
from sandbox.adopting.records import Folder, Site, TaskSet
from sandbox.adopting.source import TASKS
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.home import HOME_VARIABLE, Home
from warehouse.core.identity import content_id

HOME = "home"
TRAIN = "train"


def train(
    folder: Folder, site: Site, entered: Home, *, iterations: int, num_sessions: int, overrides: Mapping[str, Any], console: Console
) -> dict[str, Any]:
    """Complete so many iterations on the site's tasks, in `home` of its folder; returns what summary.json says of it. `entered` is the home
    whose live release they start from. From here on the site's home is that of this process.

    Raises ConfigError where the site's tasks have changed since training began, and what run_until raises.
    """
    begun_s = time.monotonic()
    started = begun(folder, entered)
    profile = write_profile(folder, site, entered, num_sessions=num_sessions)
    home = own_home(folder)
    run_until(iterations, home, str(profile), overrides, console)
    found = {"iterations": iterations, **started, "home": str(home.root), "s": round(time.monotonic() - begun_s, 1)}
    return note(folder, TRAIN, found)


def own_home(folder: Folder) -> Home:
    """The home of an adopted site, which becomes that of this process and of those that it starts."""
    home = Home(folder.path(HOME))
    os.environ[HOME_VARIABLE] = str(home.root)
    return home


def begun(folder: Folder, entered: Home) -> dict[str, Any]:
    """What training starts from, written down before it begins: another release, or other tasks, would be another training. Raises
    ConfigError where there are too few tasks, or other ones than training began with."""
    made = folder.read(TASKS, TaskSet)
    splits = {kept.split for kept in made.tasks}
    if missing := [split.value for split in (Split.TRAIN, Split.EVAL, Split.HOLDOUT) if split not in splits]:
        raise ConfigError(
            f"The {len(made.tasks)} tasks of {folder.root} are too few to train and report on: none is of the split "
            f"{' and '.join(missing)}. Give more --pages, --tasks or --depth."
        )
    tasks_id = content_id("adopted tasks", made.model_dump(mode="json"))
    before = read_summary(folder).get(TRAIN)
    if before is None:
        release = newest_release(entered)
        came = None if release is None else {"checkpoint": release.checkpoint_id, "home": str(entered.root)}
        before = note(folder, TRAIN, {"entered_with": came, "tasks_id": tasks_id})
    if before["tasks_id"] != tasks_id:
        raise ConfigError(
            f"The tasks of {folder.root} have changed since training on them began. Adopt into another --output, or delete "
            f"{folder.path(HOME)}, profile.yaml beside it and `train` of summary.json to train again from the beginning."
        )
    return {"entered_with": before["entered_with"], "tasks_id": tasks_id}
