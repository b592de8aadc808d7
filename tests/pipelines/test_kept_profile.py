"""The profile that a home remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import profiles
from pipelines.orchestration.runs import kept_profile
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home


def test_a_new_home_means_the_quickstart(tmp_path: Path) -> None:
    assert kept_profile.chosen(Home(tmp_path), None, {"seed": 1}) == ("quickstart", {"seed": 1})


def test_a_home_means_the_profile_that_it_was_run_under(tmp_path: Path) -> None:
    home = Home(tmp_path)
    kept_profile.keep(home, "smoke", {"seed": 7, "rl.rounds": 2})
    assert kept_profile.chosen(home, None, {"rl.rounds": 3}) == ("smoke", {"seed": 7, "rl.rounds": 3})
    assert profiles.load(*kept_profile.chosen(home, None, {})).seed == 7
    assert kept_profile.chosen(home, "generated", {}) == ("generated", {}), "one that is named is taken as it is"


def test_a_home_tells_another_profile_from_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    assert kept_profile.other(home, "quickstart") is None
    kept_profile.keep(home, "smoke", {"seed": 7})
    assert (kept_profile.other(home, "quickstart"), kept_profile.other(home, "smoke")) == ("smoke", None)
    (tmp_path / "own.yaml").write_text("extends: smoke\n")
    kept_profile.keep(home, str(tmp_path / "own.yaml"), {})
    monkeypatch.chdir(tmp_path)
    assert kept_profile.other(home, "own.yaml") is None, "the same file by another path"


def test_a_profile_in_a_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text("extends: smoke\nseed: 5\n")
    monkeypatch.chdir(tmp_path)
    kept_profile.keep(Home(tmp_path / "home"), "own.yaml", {})
    monkeypatch.chdir("/")
    assert profiles.load(*kept_profile.chosen(Home(tmp_path / "home"), None, {})).seed == 5


@pytest.mark.parametrize("text", ["just words", "profile: 3", "profile: smoke\nset: [1]", "a: ["])
def test_a_spoilt_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / kept_profile.FILE).write_text(text)
    with pytest.raises(ConfigError, match=r"profile\.yaml"):
        kept_profile.chosen(Home(tmp_path), None, {})
    assert kept_profile.other(Home(tmp_path), "smoke") is None, "who names a profile need not delete the file first"
