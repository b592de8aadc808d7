"""Logs of agents as an asset with a partition a day: what lies in FLYWHEEL_HOME/logs/<day>/<format>/ is imported as demonstrations, so that
the next iteration learns from it. A schedule takes the days that are over. How a format is read is pipelines/importing's.
"""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from rich.console import Console

from agent.gateway.intake import logs_of
from assets.settings.profile import LogSettings
from assets.stages.failures import RETRY, retried
from assets.stages.resources import WarehouseResource
from assets.stages.stage_assets import CONCURRENCY_POOL, OWNERS
from pipelines.importing.demonstrations import import_demonstration_files
from pipelines.importing.report import Report
from pipelines.importing.rows import DemonstrationSettings, settings_of
from pipelines.orchestration.runs.living_runs import living_runs
from warehouse.core.errors import ConfigError, FlywheelError
from warehouse.core.home import Home

ASSET, JOB, SCHEDULE = "imported_logs", "import_logs", "daily_logs"
BEGAN = "began"
"""Metadata of a day's import: what is written into its files from then on may have been missed."""
SUFFIXES = (".jsonl", ".json", ".parquet", ".zip")


class LogsConfig(dg.Config):
    """`replace`: drop what was imported of this day first, as after a change of the profile's `logs`, or once people have given thumbs."""

    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What imports them, of a profile that says how; else nothing."""

    assets: tuple[dg.AssetsDefinition, ...] = ()
    jobs: tuple[Any, ...] = ()
    schedules: tuple[dg.ScheduleDefinition, ...] = ()


def build_logs(settings: LogSettings | None) -> Logs:
    if settings is None:
        return Logs()
    asset = _asset(settings)
    job = dg.define_asset_job(JOB, dg.AssetSelection.assets(asset), description="Import the logs of one day; what is stored is kept.")
    return Logs(assets=(asset,), jobs=(job,), schedules=() if settings.cron is None else (_schedule(settings, settings.cron, job),))


def _asset(settings: LogSettings) -> dg.AssetsDefinition:
    @dg.asset(
        name=ASSET,
        partitions_def=dg.DailyPartitionsDefinition(start_date=settings.first_day),
        group_name="imports",
        owners=OWNERS,
        pool=CONCURRENCY_POOL,
        retry_policy=RETRY,
        kinds={"deltalake"},
        description="Logs of agents that came in on one day, as demonstrations in the seed's partition.",
    )
    @retried
    def imported_logs(context: dg.AssetExecutionContext, config: LogsConfig, tables: WarehouseResource) -> dg.MaterializeResult[None]:
        home, day, began = tables.home, context.partition_key, time.time()
        reports: dict[str, Report] = {}
        refused: list[str] = []
        for format, files in files_of(home, day):
            try:
                reports[format] = _import(home, day, format, files, settings, replace=config.replace)
            except FlywheelError as error:
                if error.is_retryable:
                    raise
                refused.append(f"{format}: {error}")
        if refused:
            raise ConfigError(f"of {day}, the rest is imported: {'; '.join(refused)}")
        return dg.MaterializeResult(metadata={BEGAN: dg.MetadataValue.timestamp(began), **_metadata(reports)})

    return imported_logs


def files_of(home: Home, day: str) -> Iterator[tuple[str, list[Path]]]:
    """Each format that a day has files of, with them. Links are not followed."""
    folder = logs_of(home) / day
    for of_format in sorted(folder.iterdir()) if folder.is_dir() else ():
        files = [path for path in sorted(of_format.iterdir()) if _is_log(path)] if of_format.is_dir() else []
        if files:
            yield of_format.name, files


def _is_log(path: Path) -> bool:
    return path.suffix in SUFFIXES and path.is_file() and not path.is_symlink()


def _import(home: Home, day: str, format: str, files: list[Path], settings: LogSettings, *, replace: bool) -> Report:
    """Raises ConfigError for a folder that is called like no format."""
    chosen = settings_of(DemonstrationSettings, **settings.model_dump(include={"track", "outcome", "domain", "grammar", "policy"}))
    name = f"logs_{day}_{format}".replace("-", "_")
    images = [path for path in files[0].parent.iterdir() if path.is_dir()]
    console = Console(file=io.StringIO(), width=200)
    return import_demonstration_files(
        home, format, files, chosen, console, name=name, images=images, dry_run=False, replace=replace, licence=settings.licence
    )


def _metadata(reports: dict[str, Report]) -> dict[str, dg.MetadataValue[Any]]:
    """Counts of each format, what was not kept by name, and the first malformed record's reason."""
    found: dict[str, dg.MetadataValue[Any]] = {}
    for format, report in reports.items():
        found[f"{format}/records"] = dg.MetadataValue.int(report.num_records)
        found[f"{format}/added"] = dg.MetadataValue.int(report.num_added)
        found[f"{format}/report"] = dg.MetadataValue.json(report.counts)
        if report.malformed:
            found[f"{format}/first malformed"] = dg.MetadataValue.text(": ".join(report.malformed[0])[:1000])
    return found or {"records": dg.MetadataValue.int(0)}


def _schedule(settings: LogSettings, cron: str, job: Any) -> dg.ScheduleDefinition:
    """Off until a person switches it on, as every schedule."""

    @dg.schedule(cron_schedule=cron, job=job, name=SCHEDULE)
    def tick(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        home = Home.from_env()
        begun = {run.tags.get("dagster/partition") for run in living_runs(context.instance, home)}
        over = [day for day in days_over(home, datetime.now(UTC)) if day >= settings.first_day and day not in begun]
        days = [day for day in over if not _is_imported(context.instance, home, day)]
        if not days:
            yield dg.SkipReason(
                f"no day that is over has logs which are not imported or about to be: they lie in {logs_of(home)}/<day>/<format>"
            )
        for day in days:
            yield dg.RunRequest(partition_key=day)

    return tick


def _is_imported(instance: dg.DagsterInstance, home: Home, day: str) -> bool:
    """Whether no file of the day has changed since its last import began; a copy that keeps its date has."""
    of_day = dg.AssetRecordsFilter(dg.AssetKey(ASSET), asset_partitions=[day])
    newest = next(iter(instance.fetch_materializations(of_day, limit=1).records), None)
    if newest is None or newest.asset_materialization is None:
        return False
    began = newest.asset_materialization.metadata.get(BEGAN)
    since = began.value if isinstance(began, dg.TimestampMetadataValue) else newest.timestamp
    return all(path.stat().st_ctime < since for _, files in files_of(home, day) for path in files)


def days_over(home: Home, now: datetime) -> list[str]:
    """Days before today, by UTC, that have files."""
    folder = logs_of(home)
    names = [path.name for path in sorted(folder.iterdir())] if folder.is_dir() else []
    return [name for name in names if _is_day(name) and name < now.date().isoformat() and any(files_of(home, name))]


def _is_day(name: str) -> bool:
    try:
        return datetime.strptime(name, "%Y-%m-%d").date().isoformat() == name
    except ValueError:
        return False
