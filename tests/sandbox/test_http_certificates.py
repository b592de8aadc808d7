"""Sandbox servers behind a proxy that ends TLS with a certificate of a private authority."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from sandbox.actions import Click
from sandbox.http.certificates import verification
from sandbox.http.serving import Server, on_free_port
from sandbox.http.tokens import Tokens
from sandbox.server.address import ServerAddress
from sandbox.server.app import create_app
from sandbox.server.client import SandboxClient
from sandbox.server.servers_pool import ServersPool
from sandbox.server.settings import ServerSettings
from tests.sandbox.counting import TASK, CountingPool
from tests.tls import make_authority, tls_before
from warehouse.core.errors import ConfigError, ServerUnreachable

TOKEN = "token-of-the-pool-0123456789"
WHY = r"its certificate is not accepted \(.+\): SSL_CERT_FILE has to name a file"


def test_a_session_over_tls_by_a_private_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOL_TOKEN", TOKEN)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    authority = make_authority(tmp_path)

    async def plays(url: str) -> None:
        async with SandboxClient(url, TOKEN) as client, client.lease(TASK) as session:
            await session.reset(TASK, 1)
            assert "1" in str((await session.step(Click(x=1, y=1))).observation)

    async def main() -> None:
        app, leases = create_app(CountingPool(2), Tokens({"default": TOKEN}), ServerSettings())
        async with on_free_port(Server(app, grace_s=5, on_end=leases.begin_close)) as plain:
            with tls_before(plain, authority.server) as url:
                monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
                await plays(url)
                await plays(plain)
                monkeypatch.delenv("SSL_CERT_FILE")
                begun_s = time.monotonic()
                with pytest.raises(ServerUnreachable, match=WHY) as raised:
                    await plays(url)
                assert not raised.value.is_retryable and time.monotonic() - begun_s < 10, "asking again does not help"
                with pytest.raises(ConfigError, match=WHY):  # where a server that may come would be waited for
                    async with ServersPool([ServerAddress(url=url, token_env="POOL_TOKEN")], size=1):
                        pass

    asyncio.run(main())


def test_a_file_without_certificates_is_named_and_plain_http_reads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "key.pem"
    wrong.write_text("no certificate")
    for path in (wrong, tmp_path / "missing.pem"):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        assert verification("http://10.0.0.2:8421") is False
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE is '{path}'.*in PEM"):
            verification("https://10.0.0.2:8421")
