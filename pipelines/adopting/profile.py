"""The profile that a specialist for an adopted site is trained with: that of the home whose release it starts from, else the quickstart's,
with the site's tasks in place of the others and sizes for few tasks and slow pages. It is a file like any other, which people may edit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from assets.settings.profile import Profile
from pipelines import profiles
from pipelines.orchestration.runs import kept_profile
from sandbox.adopting.records import Folder, Site, TaskSet
from sandbox.adopting.source import PLUGIN, TASKS
from sandbox.tasks.task import Split
from warehouse.core.home import Home, atomic_write
from warehouse.lineage import registry
from warehouse.lineage.registry import Registered
from warehouse.lineage.release_ledger import read_ledger
from warehouse.storage.tables import Warehouse

PROFILE = "profile.yaml"
MAX_DEMONSTRATIONS = 24
"""Of a family, by the recorded ways of its tasks. A family with fewer tasks shows them again."""
MAX_EVALUATED = 40
"""Held-out tasks of a family that are played; of more, the first."""
CT_STEPS = 100
"""Of a policy that was released before: it can read a screen, and its tutorials keep it from forgetting how."""
HEAD = """# Made by `flywheel adopt` of {origin}: what `train` runs. Edit it before training, or delete it to have it made again.

"""
FROM_NOTHING: Mapping[str, Any] = {
    "seed_data": {"curricula": ["web", "browsing"], "tutorials": 12000},
    "ct": {"steps": 1200, "batch_tokens": 1536},
    "sft": {"steps": 300, "batch_tokens": 2048, "learning_rate": 1.0e-3},
    "rl": {"rounds": 2},
}
"""Where no release is there to start from: the quickstart's small model, and the tutorials that teach it to read pages."""


def newest_release(home: Home) -> Registered | None:
    """The live release of a home; None where there is no such home, or nothing is live in it."""
    if not home.root.is_dir() or read_ledger(warehouse := Warehouse(home)).live_id is None:
        return None
    return registry.released(warehouse)


def write_profile(folder: Folder, site: Site, home: Home, *, num_sessions: int) -> Path:
    """profile.yaml of the site's folder, unless it is there; returns its path. `home`: whose live release training starts from, if it has
    one. Raises ConfigError where the folder has no tasks."""
    path = folder.path(PROFILE)
    if not path.exists():
        data = profile_data(folder.read(TASKS, TaskSet), site, home, num_sessions=num_sessions)
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
        atomic_write(path, (HEAD.format(origin=site.origin) + text).encode())
    return path


def profile_data(made: TaskSet, site: Site, home: Home, *, num_sessions: int) -> dict[str, Any]:
    release = newest_release(home)
    start = {"extends": profiles.DEFAULT_PROFILE, **FROM_NOTHING} if release is None else _continued(home, release)
    return profiles.merged(start, _of_site(made, site, num_sessions=num_sessions))


def _of_site(made: TaskSet, site: Site, *, num_sessions: int) -> dict[str, Any]:
    """The settings of every site. Settings that speak of other tasks, domains or machines are set back."""
    num_train = Counter(kept.task.family for kept in made.tasks if kept.split is Split.TRAIN)
    return {
        "name": f"adopted-{site.name}",
        "plugins": {"task_sources": {site.name: f"{PLUGIN}:SOURCE"}},
        "tasks": {"lists": [site.name], "domains": [site.name], "rl_domains": None, "joint": [], "self_challenge": {"enabled": False}},
        "seed_data": {"demonstrations_per_task": min(MAX_DEMONSTRATIONS, max(num_train.values(), default=1))},
        "sandbox": {"num_sessions": num_sessions, "num_workers": 1, "num_browsers": 1, "servers": [], "ray": None},
        "ct_mixture": {"max_domain_share": 1.0},
        "sft_mixture": {"demonstration": {"draws": 600}, "tutorial": {"draws": 600}, "max_task_share": 0.5, "max_domain_share": 1.0},
        "rl": {"episodes_per_task": 8, "adaptive_episodes": True},
        "merge": {"weights": None, "include_joint": False},
        "evaluation": {"eval_per_task": MAX_EVALUATED, "holdout_per_task": MAX_EVALUATED, "playwright_share": 0.0},
        "release": {"needs_approval": False},
        "collection": {"instances_per_task": 4, "attempts": 1, "harness": None},
        "annotation": {"enabled": False},
        "people": {"enabled": False},
        "rl_harness": None,
        "quality": {"min_evaluation_distance": 0.0},
        "verdicts": {"unverified_domains": []},
    }


def _continued(home: Home, release: Registered) -> dict[str, Any]:
    """The settings of the home, and as its first training what a later iteration of it would do."""
    name, changes = kept_profile.chosen(home, None, {})
    before = profiles.load(name, changes)
    data: dict[str, Any] = {"extends": profiles.located(name, Path.cwd())}
    for dotted, value in changes.items():
        _put(data, dotted, value)
    first = {stage: _refreshed(before, stage) for stage in ("ct", "sft")}
    first["ct"]["steps"] = min(CT_STEPS, before.ct_refresh.steps)
    policy = {"source": "checkpoint", "model": str(release.folder), "revision": None, "dtype": "as stored", "link": False}
    return profiles.merged(data, {**first, "policy": policy})


def _refreshed(before: Profile, stage: str) -> dict[str, Any]:
    """Settings of `ct_refresh` or `sft_refresh` that differ from those of the first run."""
    first, later = (getattr(before, name).model_dump(mode="json") for name in (stage, f"{stage}_refresh"))
    return {name: value for name, value in later.items() if value != first[name]}


def _put(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
    data[last] = value
