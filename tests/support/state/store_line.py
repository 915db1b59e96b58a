"""A store that can be reached or not, and one request's journal in it."""

import asyncio
from dataclasses import replace
from itertools import count

from slipstream.core.errors import Unavailable
from slipstream.core.request.results import Ending, RequestStats, Timings
from slipstream.core.request.stats import Outcomes
from slipstream.core.types import FinishReason
from slipstream.state.journal import StoreJournal
from slipstream.state.memory import MemoryStore
from slipstream.state.store import Bounds, Claim, Opening

PROMPT = (1, 2, 3)
OPENING = Opening(len(PROMPT), "hash")
CLAIM = Claim("s", "r", "digest", "", "here", "model", True, 100.0)
_OUTCOMES = Outcomes().summary(num_spec_tokens=0, lossless=True)
STATS = RequestStats(3, 0, 4, Timings(0, 0, 0, 0), _OUTCOMES)
ENDING = Ending(FinishReason.STOP, STATS)


class Line:
    """A store that can be reached or not; a write may get there though its answer does not."""

    def __init__(self, clock):
        self._clock = clock
        self._fences = count(1)
        self.lose_everything()
        self.is_up = True
        self.loses_answers = self.loses_leases = False

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            if not self.is_up:
                raise Unavailable("the store does not answer")
            await asyncio.sleep(0)
            answer = await getattr(self.store, name)(*args, **kwargs)
            if self.loses_leases:
                self.lose_everything()
            if self.loses_answers:
                raise Unavailable("the answer was lost")
            return answer

        return call

    def lose_everything(self):
        self.store = MemoryStore(Bounds(), self._clock, next_fence=lambda: next(self._fences))


async def opened(line):
    journal = StoreJournal(line, CLAIM, await line.acquire(CLAIM))
    journal.open(PROMPT, OPENING)
    return journal


async def kept(line):
    """Return the record that another router would find."""
    return (await line.store.acquire(CLAIM)).record


async def attempt(line, holder, *, is_kept):
    claim = replace(CLAIM, holder=holder)
    journal = StoreJournal(line, claim, await line.acquire(claim) if is_kept else None)
    journal.open(PROMPT, OPENING)
    return journal
