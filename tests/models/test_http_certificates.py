"""Policy servers behind a proxy that ends TLS with a certificate of a private authority, asked by the engine and by the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from models.gateway.upstream import Upstream
from models.http.engine import HttpEngine
from tests.models.policy_servers import TOKEN, act, config, our_server, prompt
from tests.tls import make_authority, tls_before
from warehouse.core.errors import EngineUnreachable

WHY = r"its certificate is not accepted \(.+\): SSL_CERT_FILE has to name a file"


@pytest.mark.usefixtures("engine_token")
def test_answers_over_tls_by_a_private_authority(roots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    authority = make_authority(tmp_path)

    async def opened(url: str) -> str:
        upstream = Upstream(url, TOKEN, timeout_s=60.0)
        try:
            await upstream.open()
            return upstream.policy_id
        finally:
            await upstream.close()

    with our_server(roots / "a") as server, tls_before(server.url, authority.server) as url:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        engine = HttpEngine(config(url))
        assert act(engine, prompt())[0].text
        engine.close()
        assert asyncio.run(opened(url)) == server.engine.policy_id
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(EngineUnreachable, match=WHY) as raised:
            HttpEngine(config(url))
        assert not raised.value.is_retryable
        with pytest.raises(EngineUnreachable, match=WHY):
            asyncio.run(opened(url))
