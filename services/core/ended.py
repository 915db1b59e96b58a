"""Waiting for a task that was told to end, so that what it used is free afterwards."""

import asyncio
from typing import Any


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
