"""Services that a command runs until it is told to stop. Knows nothing of what they do."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import typer

T = TypeVar("T")


class Services(Protocol):
    """What is started, watched and stopped as one."""

    async def start(self) -> str:
        """Start; the address at which requests can be sent from now on."""
        ...

    async def watch(self) -> None:
        """Keep them going. Raises once that can't be."""
        ...

    async def stop(self, *, hurry: bool = False) -> None:
        """Let running requests finish, unless in a hurry, and end. Again is fine."""
        ...


async def run_until_told(services: Services, *, hint: str | None = None) -> None:
    """Start, print `ready HOST:PORT`, and stop at SIGTERM or SIGINT; a second one hurries that.

    `hint` is said first, beside standard output.
    """
    signals = _Signals()
    try:
        address = await signals.unless_asked(services.start())
        if address is not None:
            if hint is not None:
                typer.echo(hint, err=True)
            typer.echo(f"ready {address}")
            await signals.unless_asked(services.watch())
    finally:
        await _stop(services, signals)


async def _stop(services: Services, signals: "_Signals") -> None:
    """Stop in order; whoever asks again while that goes on wants it now."""
    signals.asked.clear()
    if await signals.unless_asked(_done(services.stop())) is None:
        await services.stop(hurry=True)


async def _done(work: Coroutine[Any, Any, None]) -> bool:
    await work
    return True


class _Signals:
    """SIGTERM and SIGINT as something that can be waited for. For one event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.asked.set)

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of the work; None when a signal comes first, which ends the work."""
        task, asked = asyncio.create_task(work), asyncio.create_task(self.asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
