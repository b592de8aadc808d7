"""What three servers of ours say of themselves, held against what they answer: schemathesis makes requests from each server's OpenAPI
schema, right ones and wrong ones. No answer is a failure of the server, and each has a status, a kind and a shape that the schema names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from annotation.web.settings import WebSettings
from models.checkpoints.checkpoint import save
from models.server.settings import ServerSettings as PolicySettings
from sandbox.http.tokens import Tokens
from sandbox.loop_thread import LoopThread
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from tests.annotation.web.web_parts import site
from tests.models.conftest import small_model
from tests.models.policy_servers import TOKEN, our_server
from tests.sandbox.counting import CountingPool

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: make setup")
CHECKS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
CLIENT = "token-of-ann-0123456789"
ENDLESS = ("/events", "/stream")
NUM_EXAMPLES = 8


@dataclass(frozen=True, kw_only=True)
class Served:
    url: str
    schema: str
    new_token: Callable[[], str]
    """For each operation, as some end what they are asked with."""


@contextmanager
def policy(folder: Path) -> Iterator[Served]:
    model, tokenizer = small_model()
    save(folder / "model", model, tokenizer, stage="seed_policy", iteration="0000")
    with our_server(folder / "model", PolicySettings(weight_roots=(folder,), max_tokens=20)) as server:
        yield Served(url=server.url, schema="/openapi.json", new_token=lambda: TOKEN)


@contextmanager
def sandbox(folder: Path) -> Iterator[Served]:
    loop, stack = LoopThread("sandbox-server"), AsyncExitStack()

    async def start() -> str:
        return await stack.enter_async_context(serving(CountingPool(2), Tokens({"ann": CLIENT}), ServerSettings(max_wait_s=0.1)))

    try:
        yield Served(url=loop.run(start()), schema="/openapi.json", new_token=lambda: CLIENT)
    finally:
        loop.run(stack.aclose())
        loop.close()


@contextmanager
def annotation(folder: Path) -> Iterator[Served]:
    loop, stack, names = LoopThread("annotation-server"), AsyncExitStack(), iter(range(1000))

    async def start() -> Any:
        return await stack.enter_async_context(site(folder, settings=WebSettings(burst=100_000, requests_per_s=100_000)))

    async def token() -> str:
        return str((await there.accounts.add_program(f"program-{next(names)}", "admin", "a test"))[0])

    try:
        there = loop.run(start())
        yield Served(url=there.address, schema="/api/v1/openapi.json", new_token=lambda: loop.run(token()))
    finally:
        loop.run(stack.aclose())
        loop.close()


def wrong_answers(served: Served, operation: Any) -> set[str]:
    """What is wrong with the answers to an operation."""
    headers, found = {"Authorization": f"Bearer {served.new_token()}"}, set()

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        answer = case.call(base_url=served.url, headers=headers, timeout=60)
        if answer.status_code == 500:
            found.add(f"{case.method} {case.path} failed for {case.body!r}")
        try:
            case.validate_response(answer, checks=[getattr(schemathesis.checks, name) for name in CHECKS], headers=headers)
        except BaseExceptionGroup as wrong:
            found.add(f"{case.method} {case.path}: {wrong}")

    ask()
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("serve", [policy, sandbox, annotation])
def test_a_server_answers_as_its_schema_says(serve: Any, tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        asked = {"Authorization": f"Bearer {served.new_token()}"}
        answer = httpx.get(served.url + served.schema, headers=asked, trust_env=False, verify=False, timeout=60).raise_for_status()
        schema = schemathesis.openapi.from_dict(answer.json())
        operations = [found.ok() for found in schema.get_all_operations()]
        found = [wrong_answers(served, operation) for operation in operations if not operation.path.endswith(ENDLESS)]
    wrong = [text for texts in found for text in sorted(texts)]
    assert len(found) > 5 and not wrong, "\n\n".join(wrong)
