"""The commands that a run submits, stage by stage, as the parts that submit them make them: the stage's worker, beside Dagster or as a job
of a Ray cluster, and the agents of training processes on each host. Ready for a shell, but for what is only known then, in angle brackets.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from assets.settings.profile import Profile
from pipelines.cluster.stage_jobs import job_request
from pipelines.orchestration.work.folder import worker_command, worker_environment
from pipelines.plan.plan import StagePlan
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.core.stages import is_rl

IN_DAGSTER = ("seed_tutorials",)
"""Stages without a worker: the run's own process makes them."""
FOLDERS = {"evaluations": "evaluation"}
"""Stages whose request has another name than their table."""


def stage_commands(profile: Profile, home: Home, iteration: str, stage: StagePlan) -> list[str]:
    """The worker's first, then one a host of its training processes."""
    if stage.stage in IN_DAGSTER:
        return []
    folder = home.root / "work" / iteration / FOLDERS.get(stage.stage, stage.stage)  # `home.work` would make it
    worker = _job(profile, home, folder) if profile.runner.kind == "ray" else _process(home, folder)
    return [worker, *(_agents(profile, home, iteration, stage) if stage.num_processes > 1 else [])]


def _process(home: Home, folder: Path) -> str:
    given = [f"{name}={shlex.quote(value)}" for name, value in worker_environment(home).items()]
    return " ".join([*given, "FLYWHEEL_PARENT_PID=<pid of the run>", shlex.join(worker_command(folder))])


def _job(profile: Profile, home: Home, folder: Path) -> str:
    """By the options of `ray job submit`, which ask for the same as the client that is used."""
    asked = job_request(folder, profile.runner, worker_environment(home))
    named = re.sub(r"[0-9a-f]{8}$", "<8 digits>", asked["submission_id"])
    options = {
        "--address": profile.runner.address,
        "--runtime-env-json": json.dumps(asked["runtime_env"]),
        "--entrypoint-num-cpus": asked.get("entrypoint_num_cpus"),
        "--entrypoint-num-gpus": asked.get("entrypoint_num_gpus"),
        "--entrypoint-resources": json.dumps(asked["entrypoint_resources"]) if "entrypoint_resources" in asked else None,
    }
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return f"{shlex.join(['ray', 'job', 'submit', *given])} --submission-id '{named}' -- {asked['entrypoint']}"


def _agents(profile: Profile, home: Home, iteration: str, stage: StagePlan) -> list[str]:
    """torchrun's agents, as the launcher starts them."""
    from models.training.launcher import LAUNCH_FOLDER, Launch

    launch_folder, leads = home.root / "checkpoints" / iteration / stage.stage / "run" / LAUNCH_FOLDER, is_rl(stage.stage)
    try:
        launch = Launch("", [], launch_folder, num_processes=stage.num_processes, hosts=profile.training, leads=leads)
    except ConfigError as error:
        return [f"# {error}"]
    return [shlex.join(command) for command in launch.commands().values()]
