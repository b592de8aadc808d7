"""What `flywheel import manuals` does: web pages and Markdown into D_CT as texts to read, each a question of its heading and the text as
the answer, with a terminal in front. How a file is read is pages.py's; what is good enough, warehouse/quality/texts.py's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console
from rich.progress import Progress

from agent.prompts.prompt import estimate_tokens
from pipelines.importing.licences import add_licence
from pipelines.importing.pages import SUFFIXES, Block, Page, is_page, page_files, read_page, without_repeated
from pipelines.importing.report import Kept, Report, check_any, manifest_of, print_report
from pipelines.importing.rows import Rows, ScreeningSettings
from pipelines.importing.screening import Screening
from pipelines.importing.trajectories import Entry
from sandbox.importing.fields import BadRecord
from warehouse.core.errors import ConfigError
from warehouse.core.locks import FileLock
from warehouse.core.stages import MANUALS_STAGE, SEED_ITERATION
from warehouse.quality.texts import TextQuality, fault, near_duplicates
from warehouse.routing.samples import GENERAL, chat_row
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ORIGIN = "manual"
Row = dict[str, Any]


class ManualSettings(ScreeningSettings):
    """What an import makes of pages."""

    quality: TextQuality = TextQuality()
    max_tokens: Annotated[int, Field(ge=32, le=100_000)] = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A sample's text: the page, the headings that it stands under, and what it says."""

    where: str
    heading: str
    text: str

    @property
    def entry(self) -> Entry:
        whole = f"{self.heading}\n{self.text}"
        return Entry(where=self.where, digest=hashlib.sha256(whole.encode()).hexdigest()[:32], text=whole)

    @property
    def row(self) -> Row:
        asked = {"role": "user", "content": self.heading, "loss": 1.0}
        return chat_row("ct", origin=ORIGIN, domain=GENERAL, messages=[asked, {"role": "assistant", "content": self.text, "loss": 1.0}])


def import_manuals(
    warehouse: Warehouse, paths: Sequence[Path], name: str | None, console: Console, settings: ManualSettings | None = None, *, licence: str
) -> Report:
    """Make the pages of `paths` the manuals called `name` (the first path's name is the default), in place of what was imported under it
    before, and say what became of every page and passage. Raises ConfigError for a path that is not there or holds no page."""
    asked, report = settings or ManualSettings(), Report()
    stage = _stage(name or re.sub(r"[^a-z0-9_]+", "_", paths[0].resolve().name.removesuffix(".gz").rsplit(".", 1)[0].lower()).strip("_"))
    files = list(page_files([_there(path) for path in paths], is_page))
    if not files:
        raise ConfigError(f"{', '.join(map(str, paths))}: no page there; pages end in {', '.join(SUFFIXES)}, or these with .gz")
    screening, folder = Screening(asked), warehouse.home.root / "imports" / stage
    with FileLock(warehouse.home.locks / f"import-{stage}.lock"):
        kept = Kept(folder, manifest_of("manuals", [path for path, _ in files], asked.model_dump(mode="json")))
        with Progress(console=console, transient=True) as progress:
            pages = list(_read(progress.track(files, description="pages"), report, kept))
        check_any(report, "manuals", "page")
        rows = _chosen(_passages(pages, asked.max_tokens, report), _imported(warehouse, stage), screening, asked, report, kept)
        kept.begin()
        add_licence(warehouse, stage, "manuals", licence)
        warehouse.replace_partition("ct_samples", rows, iteration=SEED_ITERATION, stage=stage)
        kept.write(report)
    print_report(report, f"{report.num_added} ct_samples of {len(pages)} pages", console, stage, folder)
    console.print("A mixture draws them by `manual: {}` (docs/supervised.md).", highlight=False)
    return report


def _stage(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]{0,62}", name):
        raise ConfigError(f"{name!r} cannot name manuals: use lower-case letters, digits and _; give --name")
    return f"{MANUALS_STAGE}{name}"


def _there(path: Path) -> Path:
    if not path.exists():
        raise ConfigError(f"{path} cannot be read: there is no such file or folder")
    return path


def _read(files: Any, report: Report, kept: Kept) -> Iterator[Page]:
    """Every page that can be read; of the others, why not."""
    for path, where in files:
        report.num_records += 1
        try:
            yield read_page(path, where)
        except (BadRecord, OSError) as error:
            why = str(error) if isinstance(error, BadRecord) else f"it cannot be read: {error.strerror or error}"
            report.malformed.append((where, why))
            kept.reject(Entry(where=where, digest="", text=""), why)


def _passages(pages: Sequence[Page], max_tokens: int, report: Report) -> list[Passage]:
    own = without_repeated(pages)
    report.lost.update({"blocks of navigation, or of many pages": num} if (num := sum(page.num_boilerplate for page in own)) else {})
    return [passage for page in own for passage in passages_of(page, max_tokens)]


def passages_of(page: Page, max_tokens: int) -> Iterator[Passage]:
    """A page cut at its headings, and where a section is longer than `max_tokens` (as prompts estimate them) between blocks, or within one
    between sentences or lines. Short sections that follow each other stay together up to half of that, their headings in the text."""
    headings: list[tuple[int, str]] = []
    asked, parts, num = page.title, list[str](), 0
    place = 0

    def finished() -> Iterator[Passage]:
        nonlocal place, parts, num
        if parts:
            place += 1
            yield Passage(where=f"{page.where}#{place}", heading=asked, text="\n".join(parts))
        parts, num = [], 0

    for block in page.blocks:
        if block.level:
            headings = [each for each in headings if each[0] < block.level] + [(block.level, block.text)]
            if num >= max_tokens / 2:
                yield from finished()
        for text in _pieces(block, max_tokens):
            tokens = estimate_tokens(text)
            if parts and num + tokens > max_tokens:
                yield from finished()
            if not parts:
                asked = " > ".join(dict.fromkeys([page.title, *(words for _, words in headings)]))
                if block.level:  # the question has it
                    continue
            parts.append(text)
            num += tokens
    yield from finished()


def _pieces(block: Block, max_tokens: int) -> Iterator[str]:
    """A block's text, in pieces where it is longer than a passage may be; a piece without an end to cut at, by words."""
    if estimate_tokens(block.text) <= max_tokens:
        yield block.text
        return
    piece: list[str] = []
    num = 0
    ends = "\n" if block.is_code else " "
    units = block.text.split("\n") if block.is_code else re.split(r"(?<=[.!?。])\s+", block.text)
    for unit in (short for long in units for short in _short(long, max_tokens)):
        tokens = estimate_tokens(unit)
        if piece and num + tokens > max_tokens:
            yield ends.join(piece)
            piece, num = [], 0
        piece.append(unit)
        num += tokens
    yield ends.join(piece)


def _short(unit: str, max_tokens: int) -> Iterator[str]:
    """A sentence or a line, by a fixed number of characters where it is too long: a token has four at most as they are estimated."""
    if estimate_tokens(unit) <= max_tokens:
        yield unit
    else:
        yield from (unit[at : at + max_tokens] for at in range(0, len(unit), max_tokens))


def _chosen(
    passages: Sequence[Passage], before: Sequence[str], screening: Screening, asked: ManualSettings, report: Report, kept: Kept
) -> list[Row]:
    """Rows of those that are good enough, hold no personal data and are like none before them, of this import or of an earlier one."""
    good: list[tuple[Passage, Row]] = []
    for passage in passages:
        row = passage.row
        why = fault(passage.text, asked.quality) or screening.reason(Rows(of={"ct_samples": [row]}))
        if why is None:
            good.append((passage, row))
        else:
            _withhold(passage, why, report, kept)
    alike = near_duplicates([*before, *(passage.text for passage, _ in good)], asked.quality.max_similarity)
    rows: dict[str, Row] = {}
    for number, (passage, row) in enumerate(good, start=len(before)):
        if number in alike:
            other, likeness = alike[number]
            of = good[other - len(before)][0].where if other >= len(before) else "an earlier import"
            _withhold(passage, f"near-duplicate: {likeness:.0%} like {of}", report, kept)
        else:
            kept.came_from(passage.entry, row["sample_id"], {})
            rows[row["sample_id"]] = row
    report.num_added = len(rows)
    return list(rows.values())


def _withhold(passage: Passage, why: str, report: Report, kept: Kept) -> None:
    report.withheld.append((passage.where, why))
    kept.reject(passage.entry, why)


def _imported(warehouse: Warehouse, stage: str) -> list[str]:
    """Texts of manuals under other names."""
    query = (
        f"select messages[-1].content from ct_samples where origin = '{ORIGIN}' and stage <> $stage and not withdrawn order by sample_id"
    )
    with connect(warehouse, tables=["ct_samples"]) as con:
        return [row[0] for row in con.execute(query, {"stage": stage}).fetchall()]
