"""A map over many items with a bounded number of workers: collectors run their episodes with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def bounded_map(
    items: Iterable[T] | AsyncIterable[T], work: Callable[[T], Awaitable[R]], *, num_workers: int, name: str
) -> AsyncGenerator[R, None]:
    """The results of `work` for each item, in the order of completion, by at most `num_workers` tasks at once. Closing it early cancels the
    rest: use `contextlib.aclosing`. Raises what `work` or the iterator of items raises, after all other tasks were cancelled."""
    done: asyncio.Queue[tuple[R] | Exception | None] = asyncio.Queue()
    todo = _SharedIterator(items)

    async def take() -> None:
        """Ends with None, or with the exception that stops everything."""
        try:
            while (item := await todo.next()) is not None:
                done.put_nowait((await work(item[0]),))
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


async def admitted_map(
    items: Iterable[T] | AsyncIterable[T],
    work: Callable[[T], Awaitable[R]],
    *,
    admit: Callable[[Callable[[], int]], Awaitable[None]],
    name: str,
) -> AsyncGenerator[R, None]:
    """As bounded_map, with a bound that may change: `admit`, which is given how to count what is under way, returns once there is room for
    one more. Only then the next item is taken."""
    done: asyncio.Queue[tuple[R] | Exception | None] = asyncio.Queue()
    todo, under_way = _SharedIterator(items), set[asyncio.Task[None]]()

    async def one(item: T) -> None:
        try:
            done.put_nowait((await work(item),))
        except Exception as error:
            done.put_nowait(error)

    async def feed() -> None:
        try:
            while True:
                await admit(lambda: len(under_way))
                if (item := await todo.next()) is None:
                    break
                task = asyncio.create_task(one(item[0]), name=name)
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.gather(*under_way)
        except Exception as error:
            done.put_nowait(error)
        else:
            done.put_nowait(None)

    feeding = asyncio.create_task(feed(), name=name)
    try:
        while (result := await done.get()) is not None:
            if isinstance(result, Exception):
                raise result
            yield result[0]
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        for task in tuple(under_way):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


class _SharedIterator(Generic[T]):
    """Items for several workers: one waits for the next item, the others wait for the lock."""

    def __init__(self, items: Iterable[T] | AsyncIterable[T]) -> None:
        self._lock = asyncio.Lock()
        self._items: AsyncIterator[T] | Iterator[T] = aiter(items) if isinstance(items, AsyncIterable) else iter(items)

    async def next(self) -> tuple[T] | None:
        """The next one; None when there are no more."""
        if isinstance(self._items, AsyncIterator):
            async with self._lock:
                async for item in self._items:
                    return (item,)
                return None
        for item in self._items:
            return (item,)
        return None
