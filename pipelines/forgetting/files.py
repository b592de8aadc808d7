"""What lies beside the tables and may hold the content of what is forgotten: logs of episodes that stages keep, encoded samples, reports,
imports, exports, caches, files set aside. What can be made again is removed whole; logs lose the episodes alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb

from agent.episode.log import EpisodeLog, forget_in_lines, names_in_lines
from agent.gateway.episodes import groups_of
from agent.gateway.log import GatewayLog, folder_of, has_log
from models.rl.rollouts.log import BATCHES_FILE, BatchLine, RolloutLog
from models.rl.value.offline_fit import FIT_FILE, PRETRAINED, OfflineFit
from pipelines.cli.data.queries import installed_sources
from warehouse.core.durable import sync
from warehouse.core.errors import FlywheelError
from warehouse.core.home import Home
from warehouse.datasets.export import ALL_TABLES, export
from warehouse.datasets.known_exports import Known, known_exports
from warehouse.storage.tables import Warehouse

GATEWAY_LOG = "log of the gateway"
FITTED_NOTE = "its critic was fitted to them; the run starts over"
REPORTS_AGAIN = "`flywheel report` writes them again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Files to be dealt with: what they are, where, and how. `erase` says why an export still holds it that cannot be written again."""

    what: str
    path: Path
    erase: Callable[[], str | None]
    note: str = ""
    is_of_it: bool = False
    """They do hold something of the subject; of the others this is not known."""


def found(warehouse: Warehouse, episodes: Collection[str], rows: Mapping[str, Collection[str]], import_name: str | None) -> list[Found]:
    """All that is there now and concerned."""
    home = warehouse.home
    return [
        *_logs(home, set(episodes)),
        *_gateway(home, set(episodes)),
        *_pretrained_critics(home, set(episodes)),
        *_encoded(home, {id_ for ids in rows.values() for id_ in ids}),
        *_whole(home),
        *_imported(home, import_name),
        *_exports(warehouse, rows),
    ]


def _logs(home: Home, episodes: set[str]) -> Iterator[Found]:
    """Of stages under way, and of RL, which keeps its own; and what judges of stages under way have said."""
    for root in (home.work, home.checkpoints):
        folders = {path.parent for name in ("episodes.jsonl", "round-*.jsonl") for path in root.rglob(name)}
        folders |= {path.parent.parent for path in root.rglob("under_way/*.jsonl")}
        for folder in sorted(folders):
            log = EpisodeLog(folder)
            if held := log.holds(episodes):
                yield from _state_of_rl(folder, held)
                note = f"{len(held)} of them"
                yield Found(what="log of episodes", path=folder, erase=partial(log.forget, episodes), note=note, is_of_it=True)
        for path in sorted(root.rglob("*.jsonl")):
            if path.parent not in folders and path.parent.name != "under_way" and names_in_lines(path, episodes):
                yield Found(what="lines about episodes", path=path, erase=partial(forget_in_lines, path, episodes), is_of_it=True)


def _gateway(home: Home, episodes: set[str]) -> Iterator[Found]:
    """Its log loses the whole of an episode of which one line is forgotten. A harness's, of a stage that was killed, goes whole."""
    if groups := groups_of(home, episodes) if has_log(home) else set():
        note, erase = f"{len(groups)} episodes of agents, with all that belongs to them", partial(_forget_calls, home, groups)
        yield Found(what=GATEWAY_LOG, path=folder_of(home), erase=erase, note=note, is_of_it=True)
    for folder in sorted(home.work.rglob("harness/gateway")):
        yield Found(what="calls of a harness under way", path=folder, erase=partial(_remove, folder))


def _forget_calls(home: Home, groups: Collection[str]) -> None:
    with closing(GatewayLog(home)) as log:
        log.forget(groups)


def _state_of_rl(log: Path, held: set[str]) -> Iterator[Found]:
    """What an RL run that goes on resumes from, where batches held them: without it the run starts over, and learns again from what is left
    of its batches. It is found by the log, which has to go after it."""
    state = log.parent / "state"
    batches = {id_ for line in RolloutLog(log).lines(BATCHES_FILE, BatchLine) for id_ in line.episode_ids}
    if state.is_dir() and batches & held:
        note = "it has learned from them; the run starts over, from the episodes that it has"
        yield Found(what="state of RL", path=state, erase=partial(_remove, state), note=note, is_of_it=True)


def _pretrained_critics(home: Home, episodes: set[str]) -> Iterator[Found]:
    """What an RL run that goes on has made of stored episodes: it starts over without them."""
    for path in sorted(home.checkpoints.rglob(FIT_FILE)):
        if episodes & set(OfflineFit.model_validate_json(path.read_bytes()).episode_ids):
            for part in (path.parent / "state", path.parent / PRETRAINED):
                if part.is_dir():
                    yield Found(what=f"{part.name} of RL", path=part, erase=partial(_remove, part), note=FITTED_NOTE, is_of_it=True)
            yield Found(what="names of fitted episodes", path=path, erase=partial(path.unlink, missing_ok=True), is_of_it=True)


def _encoded(home: Home, samples: set[str]) -> Iterator[Found]:
    """What a training that was cut off has encoded; it is encoded again when it goes on."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    for path in sorted(home.checkpoints.rglob("samples/*.arrow")):
        try:
            with ipc.open_file(memory_map(str(path))) as reader:
                ids = {id_ for part in range(reader.num_record_batches) for id_ in reader.get_batch(part).column("sample_id").to_pylist()}
        except (ArrowInvalid, OSError):
            ids = samples  # of a training that was killed: nobody reads it any more
        if ids & samples:
            yield Found(what="encoded samples", path=path.parent, erase=partial(_remove, path.parent))


def _whole(home: Home) -> Iterator[Found]:
    """Pages show screens and texts; the others are made of the tables again, or of nothing."""
    for name, note in (("reports", REPORTS_AGAIN), ("cache", ""), ("set_aside", "torn or damaged files of tables"), ("scratch", "")):
        folder = home.root / name
        if folder.is_dir() and any(folder.iterdir()):
            yield Found(what=name.replace("_", " "), path=folder, erase=partial(_empty, folder), note=note)
    for batch in sorted(home.checkpoints.rglob("batch.jsonl")):
        yield Found(what="batch that RL's processes were sent", path=batch, erase=partial(batch.unlink, missing_ok=True))
    for images in sorted([*home.work.rglob("images"), *home.checkpoints.rglob("run/images")]):
        if images.is_dir():
            yield Found(what="pictures of a training under way", path=images, erase=partial(_remove, images))


def _imported(home: Home, name: str | None) -> Iterator[Found]:
    folder = home.root / "imports" / (name or "")
    if name is not None and folder.is_dir():
        yield Found(what="what was kept of the import", path=folder, erase=partial(_remove, folder), is_of_it=True)


def _exports(warehouse: Warehouse, rows: Mapping[str, Collection[str]]) -> Iterator[Found]:
    """Exports that were written with what is forgotten now, where they still are, are written again without it."""
    for known in known_exports(warehouse.home):
        if _may_be_there(known) and _may_hold(warehouse, known, rows):
            note = f"{known.format} of {known.dataset}, written again without it"
            yield Found(what="export", path=Path(known.path), erase=partial(_write_again, warehouse, known), note=note)


def _may_be_there(known: Known) -> bool:
    try:
        return known.is_there
    except OSError:  # below a folder that may not be read
        return True


def _write_again(warehouse: Warehouse, known: Known) -> str | None:
    try:
        export(
            warehouse,
            Path(known.path),
            format=known.format,
            dataset=known.dataset,
            as_of=known.as_of,
            installed=installed_sources(warehouse),
        )
    except (FlywheelError, OSError, duckdb.Error) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _may_hold(warehouse: Warehouse, known: Known, rows: Mapping[str, Collection[str]]) -> bool:
    if known.format == "duckdb" or known.dataset == ALL_TABLES:
        return True
    if known.dataset in ("sft", "ct"):
        return bool(rows.get(f"{known.dataset}_samples"))
    held = {id_ for table, ids in rows.items() if table.endswith("_samples") for id_ in ids}
    members = warehouse.read("datasets", columns=["dataset_id", "sample_id"]).to_pylist()
    return any(row["sample_id"] in held for row in members if row["dataset_id"] == known.dataset)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    sync(path.parent)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
    sync(folder)
