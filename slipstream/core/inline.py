"""Runs coroutines that never wait to their end, without an event loop.

Ports and backends are asynchronous because engines may live elsewhere. Where they compute or block
inside, their coroutines can be driven by hand, inside a notebook's loop as well.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine waited for something, but nothing runs an event loop for it")


def iterated(generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of an asynchronous generator that never waits; closes it in the end."""
    try:
        while True:
            try:
                item = finished(generator.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        finished(generator.aclose())


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Wait until all tasks have ended; what they raised counts as seen.

    Being cancelled does not end the wait: the caller is about to close what the tasks use. The
    cancellation is raised once they have ended.
    """
    cancelled = None
    while running := {task for task in tasks if not task.done()}:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if cancelled is not None:
        raise cancelled


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the work beside the block; then cancel it, and wait for its end."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await ended(task)


async def either(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, T]) -> T:
    """Run both until either ends; return what that one returned. The other is cancelled."""
    tasks = [asyncio.ensure_future(work) for work in (one, other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await ended(*tasks)


async def before(other: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` returns; None where `other` is done first, which cancels it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
