"""A TCP proxy that makes a connection slow: what comes in at one end goes out at the other so much later, in order, as over a long way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self


class DelayingProxy:
    """`async with DelayingProxy("10.0.0.2", 8421, delay_s=0.5) as proxy: proxy.url`. `delay_s` is one way and may be changed."""

    def __init__(self, host: str, port: int, *, delay_s: float, listen_on: str = "127.0.0.1") -> None:
        self._host, self._port, self._listen_on, self.delay_s = host, port, listen_on, delay_s
        self._connections: set[asyncio.Task[None]] = set()
        self.num_bytes = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._listen_on, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with suppress(OSError, asyncio.CancelledError):  # asyncio reports a cancelled one as a failure
            there, back = await asyncio.open_connection(self._host, self._port)
            try:
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
            finally:
                back.close()
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Each piece so long after it came; the end as well."""
        loop, under_way = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def deliver() -> None:
            while True:
                due_s, data = await under_way.get()
                await asyncio.sleep(due_s - loop.time())
                if not data:
                    sink.close()
                    return
                self.num_bytes += len(data)
                sink.write(data)
                await sink.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while True:
                data = await source.read(1 << 16)
                await under_way.put((loop.time() + self.delay_s, data))
                if not data:
                    break
            await delivering
        finally:
            delivering.cancel()
