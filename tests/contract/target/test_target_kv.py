"""What a stream of keys and values promises: the cache's own bits, in order, and nobody waits."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from grpc import StatusCode

from slipstream.client.engine import WindowedKv
from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.rpc.kv import MAX_PAYLOAD_BYTES
from slipstream.rpc.leases import Lease
from slipstream_target.verify_stream import MAX_READERS, VerifyStream
from support.models import tiny
from support.network.streams import refusal
from support.services.served_target import IDENTITY, LIMIT_S, served_target, wide_model

PROMPT = tuple(tiny.tokens(20))
SESSION = Session("s", len(PROMPT), 50)
LONG = tuple(tiny.tokens(900))
INVALID = StatusCode.INVALID_ARGUMENT
SKIPPING = {"start": 5, "skip_from": 4, "skip_to": 9}


@pytest.fixture(scope="module")
def model():
    return tiny.causal(dtype=torch.bfloat16, hidden_layers=(0, 3))


@pytest.fixture(params=[(2, 0), (6, 3)], ids=["keys and values", "hidden states"])
def layers(request):
    return request.param


def same(mirror, cached):
    return all(
        np.array_equal(ours[:, : mirror.count], theirs)
        for ours, theirs in zip(mirror.layers, cached, strict=True)
    )


async def test_the_prefix_and_every_delta_are_the_cache_bit_for_bit(served, stream, layers):
    mirror = served.mirror(stream, layers)
    tokens = PROMPT
    for start in (0, *range(len(PROMPT), len(PROMPT) + 5)):
        verdict = await stream.verify(start, tokens[start:])
        await mirror.read_to(len(tokens))
        assert same(mirror, served.cached(stream, mirror))
        tokens = (*tokens, *verdict.tokens)
    assert mirror.frames == [(0, 20), *((at, 1) for at in range(20, 25))]


async def test_tokens_that_are_taken_back_are_replaced(served, stream, layers):
    tokens = await stream.rounds(PROMPT, 6)
    mirror = served.mirror(stream, layers)
    await mirror.read_to(len(tokens) - 1)
    other = (tokens[22] + 1) % tiny.VOCAB or 1
    await stream.verify(22, (other, 5))
    await mirror.read()
    assert mirror.frames == [(0, 25), (22, 2)]
    assert same(mirror, served.cached(stream, mirror))


async def test_a_reader_goes_on_from_what_it_holds(served, stream, layers):
    tokens = await stream.rounds(PROMPT, 3)
    first = served.mirror(stream, layers)
    await first.read_to(len(tokens) - 1)
    first.call.cancel()
    held = first.count
    await stream.verify(len(tokens) - 1, tokens[-1:])
    second = served.mirror(stream, layers, start=held)
    second.layers = first.layers
    await second.read_to(len(tokens))
    assert second.frames == [(held, 1)]
    assert same(second, served.cached(stream, second))


async def test_positions_that_a_reader_skips_are_not_sent(served, stream, layers):
    mirror = served.mirror(stream, layers, skipped=range(4, 16))
    await served.until(lambda load: load.num_kv_streams == 1)
    verdict = await stream.verify(0, PROMPT)
    await mirror.read_to(len(PROMPT))
    await stream.verify(len(PROMPT), tuple(verdict.tokens))
    await mirror.read_to(len(PROMPT) + 1)
    assert mirror.frames == [(0, 4), (16, 4), (20, 1)]
    for ours, theirs in zip(mirror.layers, served.cached(stream, mirror), strict=True):
        assert np.array_equal(ours[:, :4], theirs[:, :4])
        assert np.array_equal(ours[:, 16 : mirror.count], theirs[:, 16:])


@pytest.mark.parametrize(("count", "frames"), [(9, [(16, 5)]), (3, [(3, 1), (16, 5)])])
async def test_after_tokens_are_taken_back_what_is_skipped_stays_so(served, stream, count, frames):
    tokens = await stream.rounds(PROMPT, 6)
    mirror = served.mirror(stream, (0,), skipped=range(4, 16))
    await mirror.read_to(len(tokens) - 1)
    other = (tokens[count] + 1) % tiny.VOCAB or 1
    await stream.verify(count, (other, *tokens[count + 1 : 21]))
    for _ in frames:
        await mirror.read()
    assert mirror.frames == [(0, 4), (16, 9), *frames]


async def test_a_cached_prefix_and_a_windowed_copy_are_what_is_computed_anew(model, layers):
    tokens = tiny.tokens(400)
    engines = tiny.local_target(model), tiny.local_target(model)
    await engines[0].verify(TokenSequence(Session("a", 300, 5), tokens[:300]), Proposal())
    await engines[0].release("a")
    asked = TokenSequence(Session("b", 400, 5), tokens), Proposal()
    verdicts = [await engine.verify(*asked) for engine in engines]
    assert [verdict.num_cached for verdict in verdicts] == [300, 0]
    shared, anew = (engine.view("b", layers) for engine in engines)
    window = WindowedKv(engines[0], window=64).view("b", layers)
    read = [*range(128), *range(128 + window.skipped, 400)]
    assert window.skipped > 0
    for layer in layers:
        expected = anew.layers[layer][:, :400]
        assert np.array_equal(shared.layers[layer][:, :400], expected)
        assert np.array_equal(window.layers[layer][:, : len(read)], expected[:, read])


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"protocol_version": 0}, StatusCode.FAILED_PRECONDITION, "protocol_version 1"),
        ({"incarnation": "x"}, StatusCode.FAILED_PRECONDITION, "incarnation this process"),
        ({"incarnation": ""}, StatusCode.FAILED_PRECONDITION, IDENTITY.incarnation),
        ({"session_id": "t"}, StatusCode.NOT_FOUND, "session t"),
        ({"credential": ""}, StatusCode.PERMISSION_DENIED, "credential"),
        ({"credential": "ключ"}, StatusCode.PERMISSION_DENIED, "credential"),
        ({"layers": ()}, INVALID, "no layer"),
        ({"layers": (1, 1)}, INVALID, "1, 1"),
        ({"layers": (7,)}, INVALID, "layer 7 was asked for, but the model has 3"),
        ({"layers": (2, 3)}, INVALID, "below 3 are keys and values, the others hidden states"),
        ({"layers": (3, 4)}, StatusCode.FAILED_PRECONDITION, "of 0, 3: start the target with --"),
        ({"layers": (2**32 - 1,)}, INVALID, "layer 4294967295"),
        ({"encoding": 9}, INVALID, "encoding"),
        (SKIPPING, INVALID, "start is 5, but positions 4 to 8 are not read"),
        ({"start": 128, "skip_from": 128, "skip_to": 128}, StatusCode.OUT_OF_RANGE, "but 20"),
        ({"start": 21}, StatusCode.OUT_OF_RANGE, "position 21 on were asked for, but 20"),
        ({"start": 2**32 - 1}, StatusCode.OUT_OF_RANGE, "but 20 positions are held"),
    ],
)
async def test_an_unauthorized_reader_is_refused_and_disturbs_no_other(
    served, stream, fields, code, sentence
):
    await stream.verify(0, PROMPT)
    request = served.request(stream, **{"layers": (1,), **fields})
    status = await refusal(served.stub.StreamKv([request]).read())
    assert status.code() is code
    assert sentence in status.details()
    load = await served.load()
    assert (load.num_sessions, load.num_kv_streams, load.kv_streamed_bytes) == (1, 0, 0)
    assert (await stream.verify(0, PROMPT)).tokens


async def test_the_credential_of_an_earlier_request_and_more_readers_than_may_are_refused(served):
    old = await served.open(SESSION)
    await old.verify(0, PROMPT)
    await old.park()
    new = await served.open(SESSION)
    request = served.request(new, (1,), credential=old.credential)
    status = await refusal(served.stub.StreamKv([request]).read())
    assert status.code() is StatusCode.PERMISSION_DENIED
    await new.verify(0, PROMPT)
    mirrors = [served.mirror(new, (1,)) for _ in range(MAX_READERS)]
    for mirror in mirrors:
        await mirror.read_to(len(PROMPT))
    status = await refusal(served.mirror(new, (1,)).read())
    assert status.code() is StatusCode.RESOURCE_EXHAUSTED
    await new.end()


@pytest.mark.parametrize("end", ["end", "park", "cancel", "taken over"])
async def test_the_stream_ends_well_with_the_request(served, end):
    stream = await served.open(SESSION, fence=1)
    await stream.verify(0, PROMPT)
    mirror = served.mirror(stream, (1,))
    await mirror.read_to(len(PROMPT))
    if end == "taken over":
        stream = await served.open(SESSION, fence=2)
    elif end == "cancel":
        stream.call.cancel()
    else:
        await getattr(stream, end)()
    assert not await mirror.read()
    assert await mirror.call.code() is StatusCode.OK
    if end == "taken over":
        await stream.end()


async def test_a_reader_that_leaves_leaves_nothing_behind(served):
    stream = await served.open(SESSION)
    verdict = await stream.verify(0, PROMPT)
    mirror = served.mirror(stream, (1,))
    await mirror.read_to(len(PROMPT))
    mirror.call.cancel()
    await served.until(lambda load: load.num_kv_streams == 0)
    assert (await stream.verify(len(PROMPT), tuple(verdict.tokens))).tokens
    await stream.end()
    await served.until_empty()


async def test_verification_goes_on_while_a_reader_stalls_which_then_gets_everything():
    async with served_target(wide_model()) as served:
        stream = await served.open(Session("s", len(LONG), 100))
        verdict = await stream.verify(0, LONG)
        mirror = served.mirror(stream, (3, 0, 1, 2))
        await mirror.read()
        tokens = (*LONG, *verdict.tokens)
        for _ in range(20):  # nothing is read
            verdict = await stream.verify(len(tokens) - 1, tokens[-1:])
            tokens = (*tokens, *verdict.tokens)
        await mirror.read_to(len(tokens) - 1)
        assert same(mirror, served.cached(stream, mirror))
        step = mirror.form.max_positions
        assert max(count for _, count in mirror.frames) == step
        assert step * mirror.form.bytes_per_position <= MAX_PAYLOAD_BYTES
        await stream.end()


async def test_a_slice_that_is_replaced_while_it_is_copied_is_sent_as_it_is_then():
    """The copies' only thread is kept busy until the session has gone back by some tokens."""
    may_copy = threading.Event()
    asyncio.get_running_loop().set_default_executor(copies := ThreadPoolExecutor(1))
    copies.submit(may_copy.wait, LIMIT_S)
    async with served_target(wide_model()) as served:
        stream = await served.open(Session("s", len(LONG), 100))
        await stream.verify(0, LONG)
        mirror = served.mirror(stream, (1, 2))
        await served.until(lambda load: load.num_kv_streams == 1)
        await stream.verify(100, tuple(tiny.tokens(850, seed=1)))
        may_copy.set()
        await mirror.read_to(950)
        assert same(mirror, served.cached(stream, mirror))
        assert sum(count for _, count in mirror.frames) == 950
        await stream.end()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_slice_is_held_until_it_is_replaced_or_its_session_ends(model, is_replaced):
    engine = tiny.local_target(model)
    await engine.verify(TokenSequence(SESSION, PROMPT), Proposal())
    sender = engine.kv_sender("s", (0,), 0)
    piece = sender.take(100)
    tokens = (*PROMPT[:9], PROMPT[9] ^ 1) * 2 if is_replaced else (*PROMPT, 5, 6)
    await engine.verify(TokenSequence(SESSION, tokens), Proposal())
    assert sender.holds(piece) is not is_replaced
    await engine.release("s")
    assert not sender.holds(piece)


async def test_the_few_positions_of_a_verdict_are_taken_with_it_and_each_position_once(model):
    engine, text = tiny.local_target(model), TokenSequence(SESSION, PROMPT)
    text.append((await engine.verify(text, Proposal())).tokens)
    sender = engine.kv_sender("s", (0,), 0)
    sender.num_ahead = 2
    assert sender.is_behind and sender.taken_ahead() is None
    pieces = [sender.take(100)]
    for num_verdicts in (1, 2, 9):
        for _ in range(num_verdicts):
            text.append((await engine.verify(text, Proposal())).tokens)
        ahead = sender.taken_ahead() if num_verdicts == 1 else None
        pieces += filter(None, [ahead, sender.take(100), sender.take(100)])
    counts = [piece.count for piece in pieces]
    assert counts == [len(PROMPT), 1, 1, 1, 1, 8]
    assert [piece.start for piece in pieces] == [0, *itertools.accumulate(counts[:-1])]
    text.append((await engine.verify(text, Proposal())).tokens)
    back = TokenSequence(SESSION, (*PROMPT, PROMPT[0] ^ 1))
    await engine.verify(back, Proposal())  # what was taken ahead is gone
    assert (sender.taken_ahead() or sender.take(100)).start == len(PROMPT)


async def test_a_reader_that_stalls_for_good_does_not_outlive_its_session_for_long():
    request = VerifyStream(Lease("s", 0), SESSION, linger_s=0)

    async def stall():
        async with request.reader():
            request.end()
            await asyncio.Event().wait()

    with pytest.raises(errors.Unavailable, match="did not take"):
        await stall()
    async with request.reader():
        pass  # its place is free again
