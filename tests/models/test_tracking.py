"""CT, SFT and RL in MLflow, in a database of the home: each run once, with the curve of metrics.jsonl, over a start that was cut off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.training.metrics import MetricLog, Progress, read_metrics
from models.training.tracking import DATABASE, VARIABLE, use
from models.training.tracking_config import TrackingConfig
from tests.models.test_ppo_trainer import collector, make_run, train
from tests.models.test_ppo_trainer import weak as weak
from tests.models.test_supervised import samples
from warehouse.core.errors import ConfigError

CONFIG = SupervisedConfig(steps=6, warmup_steps=2, batch_tokens=256, log_every=2)
VARIABLES = (VARIABLE, "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID")


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def tracked(home: Path, stage: str) -> None:
    use(TrackingConfig(report_to=("mlflow",)), home, name=f"0001/{stage}", params={"stage": stage})


@pytest.mark.slow
def test_every_kind_of_training_is_a_run_of_mlflow(seed_checkpoint: Path, weak: Any, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed: the extra tracking")
    curves = {}
    for stage in ("ct_model", "sft_model"):
        tracked(tmp_path, stage)
        run = {"init": seed_checkpoint, "output": tmp_path / stage, "stage": stage, "iteration": "0001"}
        train_supervised(CONFIG, samples(), **run)
        curves[f"0001/{stage}"] = read_metrics(tmp_path / f"{stage}.run")
    tracked(tmp_path, "rl_pointing")
    train(make_run(weak, tmp_path, rounds=2, episodes_per_task=4, minibatch_episodes=4), collector())
    curves["0001/rl_pointing"] = read_metrics(next((tmp_path / "out.run").glob("rl-*")))

    tracked(tmp_path, "cut_off")
    for step in (1, 2):  # the second start finds what the first left
        log = MetricLog(tmp_path / "again", resume_step=step - 1)
        log.write(Progress(step=step, num_steps=2, metrics={"loss": 1.0 / step}))
        log.close()
    curves["0001/cut_off"] = read_metrics(tmp_path / "again")

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / DATABASE}")
    experiment = client.get_experiment_by_name("flywheel")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == set(curves) and {run.info.status for run in runs.values()} == {"FINISHED"}
    for name, curve in curves.items():
        assert runs[name].data.params["stage"] == name.partition("/")[2] and curve
        for metric in ("loss",) if name != "0001/rl_pointing" else ("reward", "entropy"):
            logged = sorted((point.step, point.value) for point in client.get_metric_history(runs[name].info.run_id, metric))
            assert logged == [(each.step, pytest.approx(each.metrics[metric])) for each in curve if metric in each.metrics], name


@pytest.mark.slow
def test_a_tracker_that_fails_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed: the extra tracking")
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / 'no folder' / 'mlflow.db'}"
    (tmp_path / "no folder").write_text("a file")
    tracked(tmp_path, "sft_model")
    log = MetricLog(tmp_path / "run")
    log.write(Progress(step=1, num_steps=1, metrics={"loss": 1.0}))
    log.close()
    assert [each.step for each in read_metrics(tmp_path / "run")] == [1]
    assert "mlflow does not track this run any more, which goes on" in caplog.text


def test_nothing_is_tracked_unless_asked_for_and_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(TrackingConfig(), tmp_path, name="0001/sft_model", params={})
    assert VARIABLE not in os.environ and "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setattr("models.training.tracking.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="mlflow-skinny"):
        tracked(tmp_path, "sft_model")
