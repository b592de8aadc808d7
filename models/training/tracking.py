"""MLflow, through the callback that transformers has for it, driven by the metrics of any run (metrics.py): so CT, SFT and RL are tracked
alike. Where it sends to is set by its own variables (MLFLOW_TRACKING_URI, …); without them everything is kept in the home.

A stage names its run by `use`; the processes that it starts get the name in an environment variable. A run that goes on after a kill
goes on as the same run. A tracker that fails is logged and left alone from then on: no training ends for it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.training.tracking_config import TrackingConfig
from warehouse.core.errors import ConfigError, missing_extra
from warehouse.core.home import atomic_write

VARIABLE = "FLYWHEEL_TRACKING"
RUN_FILE = "mlflow_run"
"""In a run's folder: the id of its MLflow run."""
DATABASE = "mlflow.db"
"""In the home."""
_LOG = logging.getLogger(__name__)


def use(config: TrackingConfig, home: Path, *, name: str, params: Mapping[str, Any]) -> None:
    """Track the runs that this process and its children make from here on; `home` keeps what is sent nowhere. Raises ConfigError for a
    tracker that is not installed."""
    os.environ.pop(VARIABLE, None)
    if not config.report_to:
        return
    if find_spec("mlflow") is None:
        raise ConfigError(missing_extra("mlflow-skinny", "tracking"))
    os.environ[VARIABLE] = json.dumps({"report_to": config.report_to, "name": name, "params": dict(params)})
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{home / DATABASE}")
    os.environ.setdefault("MLFLOW_EXPERIMENT_NAME", config.project)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """What the callback reads of transformers' TrainingArguments, which would set up devices and processes."""

    run_name: str
    output_dir: str
    params: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.params


class Trackers:
    """Those of one run; none where nobody asked for any. Called from one thread: MLflow's open run is the thread's."""

    def __init__(self, run_folder: Path) -> None:
        self._open: dict[str, Any] = {}
        said = os.environ.get(VARIABLE)
        if not said:
            return
        from transformers import TrainerControl, TrainerState
        from transformers.integrations.integration_utils import get_reporting_integration_callbacks

        asked = json.loads(said)
        self._arguments = _Arguments(asked["name"], str(run_folder), asked["params"])
        self._state, self._control = TrainerState(is_world_process_zero=True), TrainerControl()
        for tracker, kind in zip(asked["report_to"], get_reporting_integration_callbacks(asked["report_to"]), strict=True):
            self._try(tracker, partial(self._begin, tracker, kind, run_folder / RUN_FILE))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker, callback in list(self._open.items()):
            self._state.global_step = step
            self._try(tracker, partial(callback.on_log, self._arguments, self._state, self._control, logs=dict(metrics)))

    def close(self) -> None:
        for tracker, callback in list(self._open.items()):
            self._try(tracker, partial(callback.on_train_end, self._arguments, self._state, self._control))
        self._open.clear()

    def _begin(self, tracker: str, kind: Callable[[], Any], known: Path) -> None:
        os.environ.pop("MLFLOW_RUN_ID", None)
        if known.is_file():
            os.environ["MLFLOW_RUN_ID"] = known.read_text(encoding="ascii")
        callback = kind()
        callback.on_train_begin(self._arguments, self._state, self._control, model=None)
        self._open[tracker] = callback
        if (run := import_module("mlflow").active_run()) is not None:
            atomic_write(known, run.info.run_id.encode())

    def _try(self, tracker: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:
            self._open.pop(tracker, None)
            _LOG.warning("%s does not track this run any more, which goes on (%s: %s)", tracker, type(error).__name__, error)
