"""Runs coroutines of an engine in this process to their end, without an event loop.

The ports are asynchronous because engines may live elsewhere. An embedded engine never waits
for anything, so its coroutines can be driven by hand, inside a notebook's loop as well.
"""

from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("an embedded engine waited for something")


def iterated(generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of an asynchronous generator that never waits; closes it in the end."""
    try:
        while True:
            try:
                item = finished(_next(generator))
            except StopAsyncIteration:
                return
            yield item
    finally:
        finished(generator.aclose())


async def _next(generator: AsyncGenerator[T, None]) -> T:
    return await generator.__anext__()
