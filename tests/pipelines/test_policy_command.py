"""`flywheel policy serve`: where its token is from, what it says at once, and one whole server as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.cli.policies.policy import TOKEN_VARIABLE, server_token, weight_roots
from warehouse.core.errors import CheckpointError, ConfigError
from warehouse.core.home import Home


def test_the_token_is_of_the_variable_or_of_a_private_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert server_token(home, "MINE", {"MINE": " secret "}) == ("secret", "the variable MINE")
    made, place = server_token(home, "MINE", {})
    path = tmp_path / "policy" / "token"
    assert place == f"the file {path}" and len(made) >= 32
    assert path.stat().st_mode & 0o077 == 0
    assert server_token(home, "MINE", {"MINE": ""}) == (made, place), "the same at the next start"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="may be read by others"):
        server_token(home, "MINE", {})


def test_a_further_root_does_not_close_the_homes_checkpoints(tmp_path: Path) -> None:
    assert weight_roots(Home(tmp_path), [Path("exchange")]) == [tmp_path / "checkpoints", Path("exchange").absolute()]


def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    for arguments, kind in (
        (["nothing-here", "--home", str(tmp_path)], CheckpointError),
        ([str(tmp_path), "--dtype", "int4", "--home", str(tmp_path)], ConfigError),
    ):
        assert isinstance(CliRunner().invoke(app, ["policy", "serve", *arguments]).exception, kind)
    assert "Bearer TOKEN" in CliRunner().invoke(app, ["policy", "serve", "--help"]).output


@pytest.mark.long
def test_a_server_as_a_process(tmp_path: Path) -> None:
    from models.checkpoints.checkpoint import save
    from tests.models.conftest import small_model

    model, tokenizer = small_model()
    folder = tmp_path / "checkpoints" / "small"
    card = save(folder, model, tokenizer, stage="seed_policy", iteration="0000")
    token = "a-token-for-this-test"
    command = [sys.executable, "-m", "pipelines.cli", "policy", "serve", str(folder), "--port", "0", "--home", str(tmp_path)]
    environment = os.environ | {TOKEN_VARIABLE: token}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(3)]
            address = re.search(r"http://127\.0\.0\.1:\d+", said[0])
            assert address is not None and card.checkpoint_id in said[1] and TOKEN_VARIABLE in said[2]
            assert token not in "".join(said)
            with httpx.Client(base_url=address[0], headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False) as client:
                answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Find Ok"}], "max_tokens": 3})
                assert answer.json()["usage"]["completion_tokens"] in (1, 2, 3)
                loaded = client.post("/v1/weights", json={"folder": str(folder), "version": 4})
                assert loaded.json() == {"policy_id": card.checkpoint_id, "version": 4}, "below the home's checkpoints"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert "every answer is given" in process.stdout.read()
        finally:
            process.kill()
