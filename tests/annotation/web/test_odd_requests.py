"""Numbers that no database holds and characters that no file name has, in every place of every route: refused, never a failure of ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.annotation.web.web_parts import Person, site

TEXTS = ["a\0b"]
NUMBERS = [2**63, 10**30]
STREAMS = ("/events", "/stream")
AT_ONCE = 8


def odd_requests(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Method, path, query and body: one odd value at a time, the other places filled as they should be."""
    parts = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            named = [one for one in route.get("parameters", []) if one["in"] in ("path", "query")]
            in_path = [one["name"] for one in named if one["in"] == "path"]
            body = next(iter(route.get("requestBody", {}).get("content", {}).values()), {}).get("schema")
            plain = _example(body, parts) if body is not None else None
            usual = re.sub(r"\{\w+(:\w+)?\}", "none-0000000000000000", path)
            for name in in_path:
                for value in [*TEXTS, *map(str, NUMBERS)]:
                    at = re.sub(r"\{" + name + r"(:\w+)?\}", quote(value, safe=""), path)
                    yield method, re.sub(r"\{\w+(:\w+)?\}", "none-0000000000000000", at), {}, plain
            for one in named:
                if one["in"] == "query":
                    for value in [*TEXTS, *map(str, NUMBERS)]:
                        yield method, usual, {one["name"]: value}, plain
            if isinstance(plain, dict):
                for name in plain:
                    for odd in [*TEXTS, *NUMBERS]:
                        yield method, usual, {}, {**plain, name: odd}


def _example(schema: dict[str, Any], parts: dict[str, Any], depth: int = 0) -> Any:
    """The smallest value that a schema takes, nearly."""
    if "$ref" in schema:
        return _example(parts[schema["$ref"].rpartition("/")[2]], parts, depth + 1)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return _example(several[0], parts, depth + 1)
    match schema.get("type"):
        case "object":
            return {name: _example(one, parts, depth + 1) for name, one in schema.get("properties", {}).items()} if depth < 5 else {}
        case "array":
            return [_example(schema["items"], parts, depth + 1)] if schema.get("minItems") and depth < 5 else []
        case "string":
            return "a" * max(1, schema.get("minLength", 1))
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_odd_value_is_a_failure_of_the_server(tmp_path: Path, annotation_url: str) -> None:
    """Several at a time: most of the time is waiting, for threads and for the database."""

    async def run() -> tuple[int, list[str]]:
        failed: list[str] = []
        num = 0
        async with site(tmp_path, url=annotation_url) as there:
            admin, logging_in = await there.person("root", "admin"), asyncio.Lock()
            schema = (await admin.get("/api/v1/openapi.json")).json()
            requests = odd_requests(schema)

            async def work() -> None:
                nonlocal num
                for method, path, query, body in requests:
                    if path.endswith(STREAMS) or path.endswith("/logout"):
                        continue
                    num += 1
                    answer = await _asked(admin, logging_in, method, path, query, body)
                    if answer.status_code >= 500 and answer.status_code != 503:
                        failed.append(f"{method} {path[:80]} {str(query)[:80]} {str(body)[:200]}: {answer.text[:200]}")

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return num, failed

    num, failed = asyncio.run(run())
    assert num > 200 and not failed, f"{len(failed)} of {num}: {failed[:12]}"


async def _asked(admin: Person, logging_in: asyncio.Lock, method: str, path: str, query: dict[str, Any], body: Any) -> httpx.Response:
    """As an admin, whose log-in may have ended by another request."""
    csrf = admin.csrf
    headers = {"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": csrf}
    answer = await admin.client.request(method, path, params=query, json=body, headers=headers)
    if answer.status_code == 401:
        async with logging_in:
            if admin.csrf == csrf:
                await admin.log_in("root")
    return answer
