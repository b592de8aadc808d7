"""The dataset card of an export: README.md with YAML front matter, as Hugging Face's hub and `datasets` read it. Counts, sources, licences
and filters, all read from the tables at the version that is exported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import yaml

from warehouse.datasets.provenance import UNKNOWN, Source

FILE = "README.md"
HUB_LICENCES = {
    "apache-2.0": "apache-2.0",
    "mit": "mit",
    "cc-by-4.0": "cc-by-4.0",
    "cc-by-sa-4.0": "cc-by-sa-4.0",
    "cc-by-nc-4.0": "cc-by-nc-4.0",
    "cc0-1.0": "cc0-1.0",
    "bsd-3-clause": "bsd-3-clause",
    "gpl-3.0": "gpl-3.0",
    "openrail": "openrail",
    UNKNOWN: UNKNOWN,
}
"""Licences by their names in lower case → what the hub calls them; all others are `other` there."""
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))
COLLECTED = {
    "people": "people: annotated or recorded",
    "scripted": "the scripted annotator",
    "oracle": "scripts that solve the tasks",
    "policy": "policies of this flywheel",
    "text": "no episode: texts and chats",
}


@dataclass(slots=True, kw_only=True)
class Counts:
    """Of the samples of an export, counted as they are written."""

    num_samples: int = 0
    episodes: set[str] = field(default_factory=set)
    by: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """(source, licence, collected by, origin) → samples."""
    domains: Counter[str] = field(default_factory=Counter)
    iterations: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        self.num_samples += 1
        if row["episode_id"] is not None:
            self.episodes.add(row["episode_id"])
        self.by[row["source"], row["licence"], row["collected_by"], row["origin"]] += 1
        self.domains[row["domain"]] += 1
        self.iterations[row["iteration"]] += 1

    @property
    def licences(self) -> dict[str, int]:
        """Samples by licence, most first."""
        found: Counter[str] = Counter()
        for (_, licence, _, _), num in self.by.items():
            found[licence] += num
        return dict(found.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is exported, beside its samples."""

    dataset: str
    format: str
    as_of: str | None
    file_name: str
    has_images: bool
    note: str
    num_left_out: int
    num_withdrawn: int
    filters: Sequence[tuple[str, str, int, int]]
    """Judge, version, episodes judged, episodes that passed."""
    routes: Mapping[str, int]


def filters_of(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str, int, int]]:
    """The quality filters and judges that episodes went through, with how many passed."""
    return [
        (judge, version, num, passed)
        for judge, version, num, passed in con.execute(
            "select judge, case when origin = 'human' then '' else judge_version end as version, count(distinct episode_id), "
            "count(distinct episode_id) filter (passed) from verdicts group by all order by 1, 2"
        ).fetchall()
    ]


def routes_of(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    return dict(con.execute("select route, count(*) from routes group by all order by 2 desc").fetchall())


def card(about: About, counts: Counts, sources: Mapping[str, Source]) -> str:
    """The whole file."""
    matter = yaml.safe_dump(_front_matter(about, counts), sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{matter}---\n\n{_body(about, counts, sources)}"


def _front_matter(about: About, counts: Counts) -> dict[str, Any]:
    names = list(dict.fromkeys(HUB_LICENCES.get(licence.lower(), "other") for licence in counts.licences)) or [UNKNOWN]
    matter: dict[str, Any] = {"pretty_name": f"Flywheel {about.dataset}", "license": names[0] if len(names) == 1 else names}
    if "other" in names:
        others = [licence for licence in counts.licences if licence.lower() not in HUB_LICENCES]
        matter["license_name"] = "; ".join(others)
    return matter | {
        "task_categories": ["image-text-to-text" if about.has_images else "text-generation"],
        "tags": ["agents", "computer-use", "gui", "flywheel"],
        "size_categories": [next((name for least, name in SIZES if counts.num_samples < least), "10M<n<100M")],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": about.file_name}]}],
    }


def _body(about: About, counts: Counts, sources: Mapping[str, Source]) -> str:
    version = f", as of iteration {about.as_of}" if about.as_of is not None else ""
    parts = [
        f"# Flywheel {about.dataset}\n",
        f"{counts.num_samples:,} samples from {len(counts.episodes):,} episodes, exported by `flywheel export --format {about.format} "
        f"--dataset {about.dataset}`{version}.{f' Layout: {about.note}.' if about.note else ''}\n",
        "## Sources and licences\n",
        "A sample is under the licence of the source of its task or of its import and, where a person decided on it, under what annotators "
        "agreed to. `unknown`: nobody said.\n",
        _table(
            ("source", "licence", "collected by", "origin", "samples"),
            [(source, licence, COLLECTED[by], origin, f"{num:,}") for (source, licence, by, origin), num in sorted(counts.by.items())],
        ),
        _table(
            ("source", "what it is", "licence", "stated by"),
            [
                (one.source, one.origin or "–", one.licence, one.stated_by or "–")
                for name in sorted({source for source, *_ in counts.by})
                for one in [sources.get(name, Source(source=name, kind="tasks"))]
            ],
        ),
        "## Counts\n",
        _table(("domain", "samples"), [(name, f"{num:,}") for name, num in counts.domains.most_common()]),
        _table(("iteration", "samples"), [(name, f"{num:,}") for name, num in sorted(counts.iterations.items())]),
        f"Left out: {about.num_left_out:,} that the format cannot express, {about.num_withdrawn:,} that were withdrawn.\n",
        "## Filters\n",
        "Episodes of this flywheel were judged and filtered before samples were cut from them (all episodes, those of other datasets too); "
        "imports were screened when they came in. What is evaluated on is in no training data.\n",
        _table(("route", "episodes"), [(name, f"{num:,}") for name, num in about.routes.items()]),
        _table(
            ("judge or filter", "version", "episodes", "passed"),
            [(judge, version or "–", f"{num:,}", f"{passed:,}") for judge, version, num, passed in about.filters],
        ),
    ]
    return "\n".join(part for part in parts if part)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
