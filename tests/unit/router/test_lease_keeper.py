"""Laws of journals that a silent store leaves behind: they are kept later, in bounded memory."""

from dataclasses import replace

import pytest

from slipstream.core.errors import SessionNotFound
from slipstream.state.journal import StoreJournal
from slipstream_router.lease_keeper import LeaseKeeper
from support.state.store_line import CLAIM, OPENING, PROMPT, Line


async def test_what_waits_for_a_silent_store_takes_no_more_than_it_may(caplog):
    line, keeper = Line(lambda: 1000.0), LeaseKeeper(lease_s=15.0, max_late_bytes=60)
    claims = [replace(CLAIM, session_id=name) for name in "ab"]
    line.is_up = False
    for claim in claims:
        await ended(keeper, line, claim)
    assert "too much waits for the store" in caplog.text
    line.is_up = True
    await keeper.aclose()
    assert keeper._num_late_bytes == 0
    assert (await line.acquire(claims[0])).record.output == (4, 5, 6, 7, 8)
    with pytest.raises(SessionNotFound):
        await line.acquire(replace(claims[1], create=False))


async def ended(keeper, line, claim):
    """A request of 32 bytes of tokens, none of which could be kept."""
    journal = StoreJournal(line, claim, None)
    async with keeper.kept(journal):
        journal.open(PROMPT, OPENING)
        await journal.keep([4, 5, 6, 7, 8], None)
