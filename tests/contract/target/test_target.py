"""Laws of every target, here and elsewhere: sequences, repetitions, and what is refused."""

from contextlib import asynccontextmanager
from itertools import count as counted

import pytest

from slipstream.core.errors import CapacityError, InvalidRequest, PromptTooLong
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import FinishReason, Proposal, SamplingParams, Session, Verification
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.service_options import SessionOptions
from support.models import tiny
from support.services.served_target import IDENTITY, served_target

PROMPT = tuple(tiny.tokens(20))


class Elsewhere:
    """A served target as one engine: a stream for every request, opened and ended as a router does.

    A request that is refused ends its stream.
    """

    def __init__(self, served):
        self._served = served
        self._fences = counted()
        self._requests = {}

    async def verify(self, sequence, proposal):
        session = sequence.session
        before, remote = self._requests.pop(session.session_id, (None, None))
        if before != session:
            if remote is not None:
                await remote.park(60)
            peer = Peer("the target", self._served.channel)
            remote = RemoteTarget(peer, IDENTITY, CallOptions(fence=next(self._fences)))
        verdict = await remote.verify(sequence, proposal)
        self._requests[session.session_id] = (session, remote)
        return verdict

    async def release(self, session_id):
        _, remote = self._requests.pop(session_id, (None, None))
        if remote is not None:
            await remote.release(session_id)
            left = len(self._requests)
            await self._served.until(lambda load: load.num_sessions == left)

    async def close(self):
        """End all streams, and wait until they have: a server that stops does not."""
        for session_id in list(self._requests):
            await self.release(session_id)
        await self._served.until(lambda load: load.num_sessions == 0)


@asynccontextmanager
async def place(name, model):
    if name == "local":
        yield tiny.local_target(model, free_rows=16, max_sessions=3)
        return
    async with served_target(model, SessionOptions(max_sessions=3), max_sessions=3) as served:
        elsewhere = Elsewhere(served)
        yield elsewhere
        await elsewhere.close()


@pytest.fixture(params=["local", "over grpc"])
async def target(model, request):
    async with place(request.param, model) as made:
        yield made


def session(name="s", *, prompt=PROMPT, max_tokens=50, **options):
    return Session(name, len(prompt), max_tokens, **options)


def chain(*tokens):
    return Proposal(TokenTree.chain(tokens))


async def plain(target, count, name="plain", prompt=PROMPT):
    sequence = TokenSequence(session(name, prompt=prompt), prompt)
    for _ in range(count):
        verdict = await target.verify(sequence, Proposal())
        sequence.append(verdict.tokens)
    await target.release(name)
    return tuple(sequence.tokens[len(prompt) :])


async def test_repeating_a_call_changes_nothing(target):
    expected = await plain(target, 3)
    sequence = TokenSequence(session(), PROMPT)
    first = await target.verify(sequence, chain(*expected[:2]))
    for same in (sequence, TokenSequence(session(), PROMPT)):
        assert await target.verify(same, chain(*expected[:2])) == first
    sequence.append(first.tokens)
    second = await target.verify(sequence, Proposal())
    for same in (sequence, TokenSequence(session(), sequence.tokens)):
        assert await target.verify(same, Proposal()) == second


async def test_another_sequence_takes_tokens_back(target):
    first = await target.verify(TokenSequence(session(), PROMPT), Proposal())
    other = (first.tokens[0] + 1) % tiny.VOCAB or 1
    verdict = await target.verify(TokenSequence(session(), (*PROMPT, other)), Proposal())
    fresh = await plain(target, 1, prompt=(*PROMPT, other))
    assert verdict.tokens == fresh


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
async def test_a_stop_token_or_the_limit_inside_an_accepted_path_ends_the_request(target, reason):
    expected = await plain(target, 4)
    ended = session(max_tokens=2)
    if reason is FinishReason.STOP:
        ended = session(stop_token_ids=frozenset({expected[1]}))
    verdict = await target.verify(TokenSequence(ended, PROMPT), chain(*expected[:3]))
    assert verdict.tokens == expected[: 1 + expected.index(expected[1])]
    assert verdict.finish_reason is reason


async def test_a_session_goes_on_rightly_after_a_truncated_round(target):
    expected = await plain(target, 4)
    await target.verify(TokenSequence(session(max_tokens=2), PROMPT), chain(*expected[:3]))
    turn = (*PROMPT, *expected[:2], 5, 6)
    verdict = await target.verify(TokenSequence(session(prompt=turn), turn), Proposal())
    assert verdict.tokens == await plain(target, 1, prompt=turn)


async def test_cached_tokens_of_an_earlier_turn_are_counted_and_released_ones_serve_others(target):
    first = await target.verify(TokenSequence(session(), PROMPT), Proposal())
    assert first.num_cached == 0
    turn = (*PROMPT, 1, 2)
    second = await target.verify(TokenSequence(session(prompt=turn), turn), Proposal())
    assert second.num_cached == len(PROMPT)
    for _ in range(2):  # twice is fine
        await target.release("s")
    again = await target.verify(TokenSequence(session(), PROMPT), Proposal())
    assert (again.num_cached, again.tokens) == (len(PROMPT) - 1, first.tokens)


ROOTS = {"verification": Verification.TARGET_INIT, "num_roots": tiny.VOCAB + 1}
BIASED = {"sampling": SamplingParams(logit_bias=((tiny.VOCAB, 1.0),))}
DEEP = tuple(tiny.tokens(500))
LENGTH = "prompt of 20 and up to 50 new ones need 20 to 69"


@pytest.mark.parametrize(
    ("options", "tokens", "proposal", "reason"),
    [
        ({}, (1, tiny.VOCAB), Proposal(), None),
        ({}, PROMPT, chain(tiny.VOCAB), None),
        ({}, (), Proposal(), None),
        ({}, PROMPT[:-1], Proposal(), LENGTH),
        ({}, (*PROMPT, *[1] * 50), Proposal(), LENGTH),
        ({}, PROMPT, chain(*[1] * 128), "128 nodes"),
        (ROOTS, PROMPT, Proposal(), "49 roots"),
        (BIASED, PROMPT, Proposal(), "logit_bias"),
        ({"prompt": DEEP, "max_tokens": 12}, DEEP, chain(*[1] * 13), "context of 512"),
    ],
)
async def test_what_does_not_exist_or_fit_is_refused(target, options, tokens, proposal, reason):
    with pytest.raises(InvalidRequest, match=reason):
        await target.verify(TokenSequence(session(**options), tokens), proposal)


async def test_a_refused_call_leaves_the_session_as_it_was(target):
    await target.verify(TokenSequence(session(), PROMPT), Proposal())
    with pytest.raises(InvalidRequest):
        await target.verify(TokenSequence(session(), PROMPT), chain(tiny.VOCAB))
    verdict = await target.verify(TokenSequence(session(), PROMPT), Proposal())
    assert verdict.tokens == await plain(target, 1)


async def test_more_than_fits_is_refused(target):
    with pytest.raises(PromptTooLong, match="context of 512"):
        await target.verify(TokenSequence(session(max_tokens=500), PROMPT), Proposal())
    for name in "abc":
        await target.verify(TokenSequence(session(name), PROMPT), Proposal())
    with pytest.raises(CapacityError):
        await target.verify(TokenSequence(session("d"), PROMPT), Proposal())
