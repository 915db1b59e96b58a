"""Exchange of learned texts between routers, in the background: no request waits for it.

Knows scopes by name, and texts; neither who learned them nor how they are used.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.errors import Unavailable

MAX_TEXT_TOKENS = 4096
"""Tokens of a text; of a longer one the last."""
EVERY_S = 1.0
IN_USE_S = 60.0
"""How long a scope is read after it was last used."""
MAX_WAITING = 256
"""Texts that wait to be published."""
MAX_SCOPES = 10_000
_PAGES = 4
"""Pages of one scope that are read in a row."""
Text = tuple[int, ...]
_LOG = logging.getLogger("slipstream.state")


@dataclass(frozen=True, slots=True)
class TextPage:
    """Texts of a scope that follow a position, oldest first."""

    texts: tuple[Text, ...]
    position: str
    """Where to read on."""
    has_more: bool
    num_invalid: int
    """Entries that can't be texts, and are left out."""


class SharedTexts(Protocol):
    """Where texts are exchanged; see `RedisTexts`."""

    async def publish(self, scope: str, text: Sequence[int]) -> None:
        """Add a text. Raises `Unavailable`."""
        ...

    async def read(self, scope: str, position: str) -> TextPage:
        """Return texts of other replicas behind a position. Raises `Unavailable`."""
        ...

    async def aclose(self) -> None:
        """End connections. Again is fine."""
        ...


@dataclass(slots=True)
class _Followed:
    """How far a scope has been read, what its tokens are below, and when it was used last."""

    vocab_size: int
    used_s: float = 0.0
    position: str = ""


class TextExchange:
    """Publishes texts of this router and reads those of others, while `run` runs."""

    def __init__(
        self,
        texts: SharedTexts,
        learn: Callable[[str, Sequence[int]], None],
        *,
        clock: Callable[[], float],
        every_s: float = EVERY_S,
    ) -> None:
        """`learn` is called with the scope and the tokens of each text that another router has
        published. `texts` are closed with this."""
        self._texts = texts
        self._learn = learn
        self._clock = clock
        self._every_s = every_s
        self._waiting: deque[tuple[str, Sequence[int]]] = deque()
        self._followed: dict[str, _Followed] = {}  # least recently used first
        self._wake = asyncio.Event()
        self._problem = ""
        self.num_dropped = 0
        """Texts of this router that others do not get, as the store did not keep up."""
        self.num_invalid = 0
        """Entries of the store that hold no text."""

    def publish(self, scope: str, text: Sequence[int]) -> None:
        """Have a text published soon. Returns at once."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1
        self._waiting.append((scope, text))

    def follow(self, scope: str, vocab_size: int) -> None:
        """Have a scope read for a while: what is there of it at once, then what comes.

        Texts with ids from `vocab_size` on are left out: a target would refuse them.
        """
        followed = self._followed.pop(scope, None)
        if followed is None:
            followed = _Followed(vocab_size)
            self._wake.set()
        followed.used_s = self._clock()
        self._followed[scope] = followed
        if len(self._followed) > MAX_SCOPES:
            del self._followed[next(iter(self._followed))]

    async def run(self) -> None:
        """Publish and read, until cancelled."""
        while True:
            try:
                await self._publish_all()
                await self._read_all()
            except Unavailable as error:
                if not self._problem:
                    _LOG.warning("routers do not share what they learn: %s", error)
                self._problem = str(error)
            else:
                if self._problem:
                    _LOG.info("routers share what they learn again")
                self._problem = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()
            self._wake.clear()

    async def aclose(self) -> None:
        """Publish what waits, if the store answers, and end connections."""
        with suppress(Unavailable):
            await self._publish_all()
        await self._texts.aclose()

    async def _publish_all(self) -> None:
        while self._waiting:
            text = self._waiting.popleft()
            try:
                await self._texts.publish(*text)
            except BaseException:
                self._waiting.appendleft(text)
                raise

    async def _read_all(self) -> None:
        now_s = self._clock()
        in_use = [at for at in self._followed.items() if now_s - at[1].used_s < IN_USE_S]
        for scope, followed in in_use:
            for _ in range(_PAGES):
                page = await self._texts.read(scope, followed.position)
                followed.position = page.position
                self.num_invalid += page.num_invalid
                await self._learn_all(scope, page.texts, followed.vocab_size)
                if not page.has_more:
                    break

    async def _learn_all(self, scope: str, texts: Iterable[Text], vocab_size: int) -> None:
        for text in texts:
            if max(text, default=0) >= vocab_size:
                self.num_invalid += 1
                continue
            self._learn(scope, text)
            await asyncio.sleep(0)  # requests come first
