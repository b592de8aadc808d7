"""Flywheel in a notebook: `import flywheel as fw; home = fw.open(".flywheel")`.

Tables come as Arrow (`.to_pandas()` where pandas is installed), an episode shows itself with its screens, and what runs, runs as the
command `flywheel` does. Nothing here needs torch.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from warehouse.core.errors import StageFailed
from warehouse.core.home import HOME_VARIABLE, Home
from warehouse.evaluation.evaluations import REPORTED_SPLIT
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect, run
from warehouse.storage.tables import Warehouse

if TYPE_CHECKING:
    from agent.episode.replay import RecordedEpisode

PAGE_HEIGHT_PX = 640
_SUCCESS = """
select iteration, checkpoint_role as policy, split, count(*) as tasks, sum(num_episodes)::bigint as episodes,
    round(avg(num_success / num_episodes), 3) as success
from evaluations where num_episodes > 0 group by iteration, policy, split order by all
"""


def open(home: str | Path | None = None) -> OpenHome:
    """A home by its folder, else that of FLYWHEEL_HOME, else `.flywheel`. Raises ConfigError if it does not exist."""
    found = Home(Path(home).absolute()) if home is not None else Home.from_env()
    found.check_exists()
    return OpenHome(found)


@dataclass(frozen=True, slots=True)
class OpenHome:
    """The tables of a home, its episodes and policies, and the commands on it."""

    home: Home

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(TABLES)

    def table(self, name: str, *, iteration: str | None = None, stage: str | None = None) -> pa.Table:
        """Rows of a table, of one iteration or stage, or all: by iteration, then by stage, and of one stage as they were written. Raises
        UnknownTable."""
        return self._warehouse.read(name, iteration=iteration, stage=stage)

    def sql(self, query: str, *, as_of: str | None = None) -> pa.Table:
        """What DuckDB answers, every table a view, now or as of an iteration; in an order only where the query has an `order by`. Raises
        QueryError."""
        return run(self._warehouse, query, as_of=as_of)

    def episode(self, episode_id: str) -> ShownEpisode:
        """By its id, or the beginning of it. Raises UnknownId."""
        from agent.episode.replay import load_episode

        with connect(self._warehouse) as con:
            return ShownEpisode(load_episode(con, episode_id))

    def compare(self, first: str, second: str, *, split: str = REPORTED_SPLIT, tasks: tuple[str, ...] = ()) -> pa.Table:
        """What the second policy gains on instances that both have played: a row for all, each domain and each task. Policies are ids,
        ITERATION/STAGE or `released`. Raises ConfigError where they have none in common, with the command that plays them."""
        from pipelines.cli.policies.compare import compared, plain, two_policies

        both = two_policies(self._warehouse, first, second, split)
        command = f"flywheel compare {first} {second} --split {split} --home {self.home.root}"
        found = plain(compared(self._warehouse, both, split, tasks, command), both, split)
        return pa.Table.from_pylist([found["total"], *found["domains"], *found["tasks"]])

    def run(self, *arguments: str) -> None:
        """`flywheel ARGUMENTS` on this home, its output as it comes: `home.run("run", "--iterations", "1")`. Raises StageFailed for an exit
        status that is not 0."""
        command = [sys.executable, "-m", "pipelines.cli", *arguments]
        environment = {HOME_VARIABLE: str(self.home.root)}
        status = _streamed(command, environment)
        if status:
            raise StageFailed(f"`flywheel {' '.join(arguments)}` ended with status {status}; its output says why")

    def _repr_html_(self) -> str:
        """Success of every policy on every split."""
        found = self.sql(_SUCCESS)
        head = "".join(f"<th>{name}</th>" for name in found.column_names)
        rows = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in found.to_pylist())
        return f"<p>{html.escape(str(self.home.root))}</p><table><tr>{head}</tr>{rows}</table>"

    @property
    def _warehouse(self) -> Warehouse:
        return Warehouse(self.home)


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """A stored episode. As the last value of a cell it shows its screens, thoughts and actions."""

    recorded: RecordedEpisode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.recorded, name)

    def to_html(self) -> str:
        """The page of `flywheel replay --html`; it holds all that it shows."""
        from pipelines.replay.page import page_of

        return page_of(self.recorded)

    def _repr_html_(self) -> str:
        frame = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{frame}" sandbox="allow-scripts" style="width:100%;height:{PAGE_HEIGHT_PX}px;border:0"></iframe>'


def _cell(value: object) -> str:
    return f"<td>{html.escape(str(value))}</td>"


def _streamed(command: list[str], environment: dict[str, str]) -> int:
    """Run a command and print its output line by line, into the cell of a notebook too; its exit status."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, env={**os.environ, **environment}, **options) as process:
        for line in process.stdout or ():
            print(line, end="")
    return process.returncode
