"""`flywheel adopt` at the command line: what it refuses, and what it says loudly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import adopt
from sandbox.adopting.records import Folder, Site
from warehouse.core.errors import ConfigError
from warehouse.core.locks import FileLock


def site(url: str = "http://127.0.0.1:8001/goods?b=1&a=2", **changed: Any) -> Site:
    options: dict[str, Any] = {"writes": False, "reset": None, "database": None, "has_login": False, "delay": 0.2, "obeys_robots": True}
    return adopt.site_of(url, **{"name": "shop", **options, **changed})


def test_an_address_is_an_origin_and_a_first_page():
    made = site()
    assert (made.origin, made.start, made.allow_writes) == ("http://127.0.0.1:8001", "/goods?a=2&b=1", False)
    assert adopt.default_name("http://127.0.0.1:8001/") == "site-127-0-0-1-8001"
    assert len(adopt.slug("1" * 60)) <= 41 and site(name=adopt.slug("1" * 60)).name
    assert site("http://127.0.0.1/s?tag=C%2B%2B").start == "/s?tag=C%2B%2B"


@pytest.mark.parametrize("url", ["", "shop", "ftp://127.0.0.1/", "http://", "http://ann:secret@127.0.0.1/", "http://127.0.0.1:99999/"])
def test_what_is_no_address_is_named(url: str):
    with pytest.raises(ConfigError, match="is not an address to adopt"):
        site(url)


def test_options_that_do_not_go_together_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="--database goes with --writes"):
        site(database=tmp_path / "app.db")
    with pytest.raises(ConfigError, match="no such file"):
        site(database=tmp_path / "app.db", writes=True)
    with pytest.raises(ConfigError, match="cannot be read as a command"):
        site(reset="cp 'seed.db")
    with pytest.raises(ConfigError, match="lower-case letters"):
        site(name="My Shop")
    with pytest.raises(ConfigError, match="cook is not a part; parts are crawl, tasks"):
        adopt.parts("crawl,cook")
    assert adopt.parts("tasks, crawl") == ("crawl", "tasks")


def test_writing_and_addresses_elsewhere_are_said_loudly(capsys: pytest.CaptureFixture[str]):
    adopt.warn(site())
    assert capsys.readouterr().out == ""
    adopt.warn(site("http://example.org/", writes=True))
    said = capsys.readouterr().out
    assert "is not on this machine" in said and "WRITE to http://example.org; nothing sets it back" in said


def test_two_commands_do_not_work_in_one_folder(tmp_path: Path):
    lock = FileLock(tmp_path / "adopt.lock")
    assert lock.acquire()
    with pytest.raises(ConfigError, match="Another `flywheel adopt` is at work"), adopt.held(Folder(tmp_path)):
        pass
    lock.release()
    with adopt.held(Folder(tmp_path)), pytest.raises(ConfigError, match=r"no .*candidates\.json"):
        adopt.make_tasks(Folder(tmp_path), site(), ("source",), pages=1, depth=1, tasks=1, sessions=1, login=(None, ""))
    assert lock.acquire()
    lock.release()


def test_a_log_in_needs_a_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(adopt.PASSWORD, raising=False)
    with pytest.raises(ConfigError, match=adopt.PASSWORD):
        adopt.password()
