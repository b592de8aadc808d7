"""Work on many things at once, a few at a time: collectors run their episodes so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def results(
    things: Iterable[T] | AsyncIterable[T], work: Callable[[T], Awaitable[R]], *, num_workers: int, name: str
) -> AsyncGenerator[R, None]:
    """What `work` gives for each thing, as it comes. Closing it early cancels the rest: use `contextlib.aclosing`. Raises what `work` or an
    iterator of things raises, after all others were cancelled."""
    done: asyncio.Queue[tuple[R] | Exception | None] = asyncio.Queue()
    todo = _OneAtATime(things)

    async def take() -> None:
        """Ends with None, or with the exception that stops everything."""
        try:
            while (thing := await todo.next()) is not None:
                done.put_nowait((await work(thing[0]),))
        except Exception as error:
            done.put_nowait(error)
        else:
            done.put_nowait(None)

    num_working = num_workers
    workers = [asyncio.create_task(take(), name=name) for _ in range(num_working)]
    try:
        while num_working:
            result = await done.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                num_working -= 1
            else:
                yield result[0]
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class _OneAtATime(Generic[T]):
    """Things for several workers: one waits for the next while the others stand in line."""

    def __init__(self, things: Iterable[T] | AsyncIterable[T]) -> None:
        self._lock = asyncio.Lock()
        self._things: AsyncIterator[T] | Iterator[T] = aiter(things) if isinstance(things, AsyncIterable) else iter(things)

    async def next(self) -> tuple[T] | None:
        """The next one; None when there are no more."""
        if isinstance(self._things, AsyncIterator):
            async with self._lock:
                async for thing in self._things:
                    return (thing,)
                return None
        for thing in self._things:
            return (thing,)
        return None
