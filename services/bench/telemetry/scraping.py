"""Reads pages of metrics over and over, as Prometheus does, and counts what is there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.request import urlopen

EVERY_S = 1.0
_TIMEOUT_S = 5.0


class Scraper:
    """Reads some pages while it is asked to. For one event loop."""

    def __init__(self, urls: Sequence[str], *, every_s: float = EVERY_S) -> None:
        self._urls = urls
        self._every_s = every_s
        self.num_pages = 0
        """That were read."""
        self.num_samples = 0
        """Lines of them that are values."""
        self.num_failed = 0
        """Pages that could not be read."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read all pages now, and then every so often until the end."""
        await self.once()
        task = asyncio.get_running_loop().create_task(self._read())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def once(self) -> None:
        """Read every page."""
        for url in self._urls:
            try:
                text = await asyncio.to_thread(_text, url)
            except OSError:
                self.num_failed += 1
                continue
            self.num_pages += 1
            self.num_samples += sum(not line.startswith("#") for line in text.splitlines())

    async def _read(self) -> None:
        clock = asyncio.get_running_loop().time
        due_s = clock()
        while True:
            due_s = max(due_s + self._every_s, clock())
            await asyncio.sleep(due_s - clock())
            await self.once()


def _text(url: str) -> str:
    with urlopen(url, timeout=_TIMEOUT_S) as page:
        body: bytes = page.read()
        return body.decode()
