"""benchmarks/env_steps.py gives every peer both browsers: the full one that it is written for, and the one that ours runs in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.env_steps import CONTESTANTS, FLOOR, OURS, PEERS, SHELL, browser_of
from sandbox.browser.chromium import EXECUTABLE_VARIABLE


def test_every_peer_stands_in_both_browsers_and_nothing_else_differs() -> None:
    by_name = {each.name: each for each in CONTESTANTS}
    assert len(by_name) == len(CONTESTANTS) == len(OURS) + 2 * len(PEERS) + 1
    for peer in PEERS:
        assert not by_name[peer.name].in_headless_shell
        in_shell = by_name[peer.name + SHELL]
        assert in_shell.in_headless_shell
        assert replace(in_shell, name=peer.name, in_headless_shell=False) == peer
    assert CONTESTANTS[-1] is FLOOR


@pytest.mark.parametrize(("name", "is_shell"), [("chromium-headless-shell", True), ("chromium", False)])
def test_no_peer_is_listed_with_a_browser_that_it_does_not_get(
    name: str, is_shell: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = tmp_path / name
    executable.touch(mode=0o755)
    monkeypatch.setenv(EXECUTABLE_VARIABLE, str(executable))
    assert browser_of(replace(PEERS[0], in_headless_shell=is_shell)) == str(executable)
    with pytest.raises(SystemExit, match="needs a"):
        browser_of(replace(PEERS[0], in_headless_shell=not is_shell))
