"""A sandbox server with one session, for benchmarks/ours/env_steps.py: prints its address, ends with its standard input."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.ours.env_steps import ENDLESS, TOKEN, pages
from sandbox.pool.pool import SessionPool
from sandbox.pool.slots import RecyclePolicy
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import Tokens


async def main() -> None:
    pool = SessionPool(pages(sys.argv[1]), size=1, recycle=RecyclePolicy(recycle_resets=ENDLESS))
    async with pool, serving(pool, Tokens({"benchmark": TOKEN}), ServerSettings()) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
