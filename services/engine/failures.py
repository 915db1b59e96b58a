"""Steps of an engine that fail: whose fault that is, and how many in a row are too many."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.core.errors import InternalError

MAX_FAILED_STEPS = 8
"""In a row. A step that one request spoils is followed by others that succeed; where a device or
its memory is lost, every step fails, and only a new process helps."""


@contextmanager
def internal_errors(engine: str) -> Iterator[None]:
    """Raise `InternalError` from whatever is raised inside: a step's failure is the engine's own,
    and never blamed on a caller."""
    try:
        yield
    except InternalError:
        raise
    except Exception as error:
        raise InternalError(
            f"a step of the {engine} failed, through no fault of the request"
        ) from error


class FailedSteps:
    """Counts the failed steps of one engine since the last that succeeded."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._count = 0
        self._are_too_many = asyncio.Event()

    def record(self, *, has_failed: bool) -> None:
        """Count a step. On the event loop."""
        self._count = self._count + 1 if has_failed else 0
        if self._count >= MAX_FAILED_STEPS:
            self._are_too_many.set()

    async def too_many(self) -> str:
        """Wait until too many have failed in a row; return a sentence that says so."""
        await self._are_too_many.wait()
        return (
            f"{MAX_FAILED_STEPS} steps of the {self._engine} in a row have failed, the limit:"
            " the process ends, so that it is started anew"
        )
