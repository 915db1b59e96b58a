"""No key that a draft can't trust is ever read, and its session goes on without.

The target here is a real server that sends what each test has it send.
"""

import asyncio

import pytest

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Session
from support.services import scripted_keys
from support.services.scripted_keys import NUM_KEYS, PROMPT, Script, following, held, message

BAD = {
    "a flipped bit": lambda keys: {"payload": flipped(message(keys, 5, 9).payload)},
    "another process": lambda keys: {"incarnation": "two"},
    "more positions": lambda keys: {"count": 2**32 - 1},
    "a gap": lambda keys: {"start": 6},
    "far away": lambda keys: {"start": 2**32 - 1},
}


def flipped(payload):
    return bytes([payload[0] ^ 1]) + payload[1:]


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_slice_is_never_read_and_the_session_goes_on(models, keys, name, caplog):
    bad = message(keys, 5, 9, **BAD[name](keys))
    script = Script([message(keys, 0, 5), bad, message(keys, 5, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await scripted_keys.proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == 5
        assert (await drafts.load()).num_kv_streams == 0
        again = await draft.propose(
            TokenSequence(scripted_keys.SESSION, PROMPT), scripted_keys.DEEP
        )
        await draft.release("s")
    assert proposal.stopped_by == again.stopped_by == "lag"
    assert proposal.staleness == NUM_KEYS - 5
    assert len(script.asked) == 1
    assert "no more keys and values" in caplog.text


async def test_more_positions_than_the_session_has_are_not_held(models, keys):
    session = Session("s", len(PROMPT) - 5, 2)
    script = Script([message(keys, 0, 10), message(keys, 10, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(TokenSequence(session, PROMPT[:10]), scripted_keys.DEEP)
        await drafts.receivers.wait("s", NUM_KEYS, scripted_keys.LIMIT_S)
        assert held(drafts, keys) == 10
        await draft.release("s")
