"""`flywheel import manuals`: pages of Debian's libffi documentation and Markdown into D_CT as passages; what is not worth reading is named
and kept aside, and what was written to do harm is refused page by page."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agent.prompts.prompt import estimate_tokens
from pipelines.cli import app as cli
from pipelines.importing.manuals import ManualSettings, import_manuals, passages_of
from pipelines.importing.pages import MAX_BYTES, read_page
from pipelines.importing.report import Report
from sandbox.importing.fields import BadRecord
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.datasets.provenance import known_sources
from warehouse.quality.texts import TextQuality, fault, language, near_duplicates, quality_for
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

PAGES = Path(__file__).with_name("pages")
"""Three pages of libffi-dev's manual (MIT), as the package has them."""
PROSE = "The form is sent when the button is clicked, and the page says what was saved. Where a field is empty, the page asks for it again."
MANUAL = f"""---
title: not read
---
# Sending forms

{PROSE}

## With the keyboard

Press [Tab](x.html) until the button has the focus, then press `Enter`. This is the same as a click, and quicker when you have many forms.

![picture](x.png) <script>alert(1)</script>

```
send --form letter
```

| key | what it does in a form that is shown on the screen |
|---|---|
| Enter | sends the form, if the button has the focus, and shows what was saved of it |
"""


def run(home: Path, *paths: Path, name: str | None = None, licence: str = "MIT", **settings: Any) -> tuple[Report, str]:
    console = Console(record=True, width=200)
    report = import_manuals(Warehouse(Home(home)), paths, name, console, ManualSettings(**settings), licence=licence)
    return report, console.export_text()


def stored(home: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [row for row in Warehouse(Home(home)).read("ct_samples").to_pylist() if row["origin"] == "manual"]
    return rows


def texts(home: Path) -> str:
    return "\n".join(message["content"] for row in stored(home) for message in row["messages"])


def test_a_manual_of_debian_becomes_passages(tmp_path: Path) -> None:
    report, said = run(tmp_path, PAGES, name="libffi")
    rows = stored(tmp_path)
    assert report.num_records == 3 and report.num_added == len(rows) >= 4 and not report.malformed
    assert {row["stage"] for row in rows} == {"manuals_libffi"} and "manual: {}" in said
    for row in rows:
        asked, answer = row["messages"]
        assert (asked["role"], answer["role"], answer["loss"]) == ("user", "assistant", 1.0)
        assert asked["content"].startswith(("The Basics", "Simple Example", "Introduction")), "it says of what page it is"
        assert estimate_tokens(answer["content"]) <= 400
    everything = texts(tmp_path)
    assert "ffi_prep_cif" in everything and "#include <ffi.h>\n" in everything, "code keeps its lines"
    for boilerplate in ("Next:", "Previous:", "[Index]", "visibility: hidden", "Permission is hereby", "copiable"):
        assert boilerplate not in everything
    assert known_sources(Warehouse(Home(tmp_path)))["manuals_libffi"].licence == "MIT"
    again, _ = run(tmp_path, PAGES, name="libffi")
    assert again.num_added == len(rows) and stored(tmp_path) == rows, "the same again changes nothing"
    other, _ = run(tmp_path, PAGES, name="copy")
    assert other.num_added == 0 and all("like an earlier import" in why for _, why in other.withheld), "under any name"


def test_markdown_is_read_by_its_structure(tmp_path: Path) -> None:
    path = tmp_path / "forms.md"
    path.write_text(MANUAL)
    run(tmp_path / "home", path, max_tokens=60)
    found = [(row["messages"][0]["content"], row["messages"][1]["content"]) for row in stored(tmp_path / "home")]
    assert ("Sending forms", PROSE) in found
    (keyboard,) = [text for asked, text in found if asked == "Sending forms > With the keyboard" and "Tab" in text]
    assert keyboard.startswith("Press Tab until the button has the focus, then press Enter.")
    assert "not read" not in str(found) and "alert" not in str(found) and "picture" not in str(found)


def test_sections_are_cut_where_they_are_long_and_joined_where_they_are_short(tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    short = "".join(f"<h2>Part {number}</h2><p>{PROSE}</p>" for number in range(4))
    path.write_text(f"<title>Long</title><h1>Long</h1><p>{' '.join([PROSE] * 20)}</p>{short}<p>{'x' * 5000}</p>")
    page = read_page(path, "long.html")
    passages = list(passages_of(page, 100))
    assert all(estimate_tokens(passage.text) <= 100 for passage in passages)
    assert "".join("".join(passage.text.split()) for passage in passages).count("saved") == 24, "nothing is lost"
    whole = list(passages_of(page, 10_000))
    assert len(whole) == 1 and "\nPart 2\n" in whole[0].text


def test_a_section_is_not_taken_for_a_menu_by_its_name_and_what_stands_around_is_counted(tmp_path: Path) -> None:
    around = '<nav>Next page</nav><div class="sphinxsidebar x">Pages</div><footer>Made by us</footer><script>1</script>'
    kept = f'<section id="boot-menu"><p>{PROSE}</p></section><div class="copyright-considerations">{PROSE} Yes.</div>'
    page = f'<body class="has-sidebar">{kept}'
    path = tmp_path / "page.html"
    path.write_text(page + around)
    read = read_page(path, "page.html")
    assert [block.text for block in read.blocks] == [PROSE, f"{PROSE} Yes."] and read.num_boilerplate == 3


def test_what_is_on_many_pages_is_nobodys_text(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    for number in range(6):
        body = (
            f"<p>This manual is published by the makers of the program, for whoever has to use it.</p><p>{PROSE} It is page {number}.</p>"
        )
        links = "".join(f"<li><a href=x>Chapter {chapter}</a></li>" for chapter in range(9))
        menu = f"<div>{''.join(f'<a href=x>Chapter {chapter}</a> ' for chapter in range(9))}</div>"
        (folder / f"{number}.html").write_text(f"<title>Page {number}</title><ul class='navbar'>{links}</ul>{menu}{body}")
    report, _ = run(tmp_path / "home", folder, quality=TextQuality(max_similarity=1.0))
    assert report.num_added == 6 and report.lost["blocks of navigation, or of many pages"] == 18
    assert "published by" not in texts(tmp_path / "home") and "Chapter" not in texts(tmp_path / "home")


def test_what_is_not_worth_reading_is_named_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    near = PROSE * 3 + " One more."
    (folder / "a.md").write_text(f"# A\n\n{PROSE * 3}\n")
    (folder / "b.md").write_text(f"# B\n\n{near}\n")
    (folder / "c.md").write_text("# C\n\nToo short.\n")
    (folder / "d.md").write_text(f"# D\n\n{PROSE} Ask grace.hopper@navy.mil.\n")
    (folder / "e.md").write_text(
        "# E\n\n" + "Das Formular wird gesendet, wenn der Knopf gedrückt ist, und die Seite zeigt, was nicht leer ist. " * 3
    )
    (folder / "f.md").write_text("# F\n\n" + "0x7f 12.5% {}[] == != (( )) a b c d e f g h i j k l m n o p q r s t u v w x y z\n" * 2)
    report, said = run(tmp_path / "home", folder, quality=quality_for(["en"]))
    assert report.num_added == 1
    why = dict(report.withheld)
    assert why["docs/b.md#1"].startswith("near-duplicate: ") and why["docs/b.md#1"].endswith("like docs/a.md#1")
    for page, part in {"c": "too short: 2 words", "d": "an e-mail address", "e": "in another language: de", "f": "mostly signs"}.items():
        assert part in why[f"docs/{page}.md#1"]
    kept = [json.loads(line) for line in (tmp_path / "home/imports/manuals_docs/rejected.jsonl").read_text().splitlines()]
    assert len(kept) == 5 and "hopper" not in said


HARMFUL = [
    ("huge.html", b"<p>" + b"a " * (MAX_BYTES // 2 + 1), "larger than 16 MiB"),
    ("bomb.html.gz", gzip.compress(b"\n" * (MAX_BYTES + 1)), "larger than 16 MiB"),
    ("cut.html.gz", gzip.compress(b"<p>" + bytes(range(256)) * 99)[:300], "cannot be unpacked"),
    ("not.md.gz", b"plain", "cannot be unpacked"),
    ("torn.html.gz", gzip.compress(b"<p>")[:10] + b"\xff" * 64, "cannot be unpacked"),
    ("binary.html", b"\x7fELF\0\0\0", "NUL bytes"),
    ("empty.html", b"", "cannot be read as HTML"),
    ("script.html", b"<script>while(1);</script><nav>Menu</nav>", "no text of its own"),
    ("empty.md", b"---\na: b\n---\n", "no text of its own"),
]


@pytest.mark.parametrize(("name", "data", "why"), HARMFUL, ids=[name for name, *_ in HARMFUL])  # zipped bytes hold the time
def test_pages_that_do_harm_are_refused_alone(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / name).write_bytes(data)
    (folder / "good.md").write_text(f"# Good\n\n{PROSE}\n")
    report, _ = run(tmp_path / "home", folder)
    assert report.num_added == 1
    ((where, found),) = report.malformed
    assert where == f"docs/{name}" and why in found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.html", "<div>" * 50_000 + PROSE),
        ("open.html", f"<p><b><table><tr><td>{PROSE}</p></div></body><p>&#xD800;&nope;<a href"),
        ("latin.html", f"<meta charset=nonsense><p>{PROSE} Caf\xe9."),
        *((f"{name}.html", f"<meta charset={name}><p>{PROSE} Caf\xe9.") for name in ("idna", "undefined", "punycode", "utf-16")),
        ("deep.md", "> " * 5_000 + PROSE),
        ("lists.md", "".join(f"{'  ' * level}- {PROSE}\n" for level in range(200))),
        ("brackets.md", "[" * 20_000 + PROSE),
    ],
)
def test_broken_and_deep_pages_end_in_time(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    started = time.process_time()
    try:
        page = read_page(path, name)
        assert list(passages_of(page, 400))
    except BadRecord as error:
        assert name.startswith("deep"), error
    assert time.process_time() - started < 10


def test_a_folder_gives_its_own_pages_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (tmp_path / "secret.md").write_text(f"# Secret\n\n{PROSE}\n")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "data.json").write_text("{}")
    with pytest.raises(ConfigError, match="no page there"):
        run(tmp_path / "home", folder)
    with pytest.raises(ConfigError, match="no such file or folder"):
        run(tmp_path / "home", tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot name manuals"):
        run(tmp_path / "home", PAGES, name="Bad name")
    (folder / "bad.html").write_bytes(b"\0")
    with pytest.raises(ConfigError, match="none of 1 records is a page"):
        run(tmp_path / "home", folder)


def test_a_mixture_draws_them_from_a_pool_of_their_own(tmp_path: Path) -> None:
    run(tmp_path, PAGES)
    with connect(Warehouse(Home(tmp_path))) as con:
        drawn = mixed(con, "ct", "0001", MixtureConfig(manual=SamplePool(draws=2))).rows.to_pylist()
        assert not mixed(con, "ct", "0001", MixtureConfig(tutorial=SamplePool())).rows.num_rows
    assert {row["component"] for row in drawn} == {"manual"} and sum(row["weight"] for row in drawn) == pytest.approx(2, abs=1e-4)


def test_the_command_wants_a_licence(tmp_path: Path) -> None:
    asked = ["import", "manuals", str(PAGES), "--home", str(tmp_path)]
    missing = CliRunner().invoke(cli.app, asked)
    assert missing.exit_code == 2 and "--licence" in missing.output
    assert CliRunner().invoke(cli.app, [*asked, "--licence", "MIT", "--language", "en"]).exit_code == 0
    assert len(stored(tmp_path)) >= 4


def test_quality_of_texts() -> None:
    asked = TextQuality()
    assert fault(PROSE, asked) is None and language(PROSE) == "en" and language("") is None
    assert "repeats itself" in (fault(f"{PROSE}\n" * 3, asked) or "")
    assert "no running text" in (fault("antidisestablishmentarianism " * 30, asked) or "")
    assert near_duplicates([PROSE, PROSE.upper(), "Something else entirely is said here."], 0.8) == {1: (0, 1.0)}
    assert near_duplicates([], 0.8) == {}
    with pytest.raises(ConfigError, match="'xx' cannot be detected; known are en, de"):
        quality_for(["en", "xx"])
