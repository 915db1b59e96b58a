"""Streams that break off and go on by the SDK itself: against routers that break them, and over
connections to a real one that are cut anywhere."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from slipstream.client import AsyncClient, Client, ClientTls, SamplingParams, errors
from slipstream.client.connection import Connection
from slipstream.client.remote import RemoteBackend
from slipstream.client.retries import RetryTimeouts
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.server import ServerOptions
from support.network.bad_routers import Breaking, Failing, done, opened, register
from support.network.relay import Relay
from support.services.background import served
from support.services.fleet import routed, running, target_worker

GONE = errors.Unavailable("about to stop")


def impatient(kind, address):
    """A client that soon gives its router up."""
    timeouts = RetryTimeouts(unanswered_s=0.3, begun_s=0.6)
    to = Connection(address, ChannelOptions(), timeouts)
    return kind.of(RemoteBackend(to, 60, to.channel(is_blocking=kind is Client)))


@pytest.mark.parametrize("call", ["stream", "generate", "tokenize"])
async def test_tries_come_to_an_end(kind, call):
    gone = Failing(GONE)
    with served(register(gone)) as address:
        async with opened(impatient(kind, address)) as client:
            with pytest.raises(errors.Unavailable, match="about to stop"):
                await done(getattr(client, call)("hello"))
    assert gone.num_calls > 1


TAKEN = errors.SessionTaken("by an attempt that was left behind")


async def test_a_stream_that_was_taken_over_goes_on_where_it_was_but_once(kind):
    breaking = Breaking(TAKEN, [3, 20])
    with served(register(breaking)) as address:
        async with opened(kind(address)) as client:
            assert_whole(await done(client.stream("hello", request_id="mine")))
    assert [asked.num_received_tokens for asked in breaking.asked] == [0, 3]
    with served(register(Breaking(TAKEN, [3, 4, 20]))) as address:
        async with opened(kind(address)) as client:
            with pytest.raises(errors.SessionTaken):
                await done(client.stream("hello", request_id="mine"))


BROKEN = [GONE, errors.Cancelled("by the router")]


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
async def test_a_stream_that_breaks_goes_on_where_it_was(error, kind):
    for nums in ([3, 0, 5, 1, 20], [19, 0, 1], [20]):
        breaking = Breaking(error, nums)
        with served(register(breaking)) as address:
            async with opened(kind(address)) as client:
                assert_whole(await done(client.stream("hello", request_id="mine")))
        assert len(breaking.asked) == len(nums)
        for before, after in pairwise(breaking.asked):
            assert after.num_received_tokens >= before.num_received_tokens
            after.num_received_tokens = before.num_received_tokens
            assert after == before


def assert_whole(chunks):
    """All there is to say, once; what is known at the beginning, at the beginning only."""
    assert "".join(chunk.text for chunk in chunks) == "abcdefghijklmnopqrst"
    assert [token for chunk in chunks for token in chunk.token_ids] == list(range(20))
    assert [chunk.prompt is None for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [chunk.finish_reason is None for chunk in chunks[-2:]] == [True, False]


async def test_a_stream_that_breaks_for_good_names_its_request(kind):
    breaking = Breaking(GONE, [2, 0])
    with served(register(breaking)) as address:
        async with opened(impatient(kind, address)) as client:
            stream = client.stream("hello")
            with pytest.raises(errors.Unavailable) as raised:
                await done(stream)
            assert raised.value.request_id == stream.request_id
            assert not stream.is_open
    assert len(breaking.asked) > 1


def test_nothing_is_sent_again_after_the_client_was_closed():
    breaking = Breaking(GONE, [2, 0])
    with served(register(breaking)) as address, ThreadPoolExecutor() as thread:
        client = Client(address)
        stream = client.stream("hello")
        rest = thread.submit(list, stream)
        while len(breaking.asked) < 3:
            pass
        client.close()
        with pytest.raises(errors.Cancelled):
            rest.result()
        assert not stream.is_open


async def test_requests_take_turns_on_several_routers_and_leave_out_one_that_is_gone():
    first, second = Failing(GONE, times=0), Failing(GONE, times=0)
    with served(register(first)) as one:
        with served(register(second)) as two, Client(f"{one},{two}") as client:
            while not (first.num_calls and second.num_calls):
                assert client.generate("hello").text == "done"
        num_calls = second.num_calls
        with Client(f"{one},{two}", retries=False) as client:
            assert [client.generate("hello").text for _ in range(6)] == ["done"] * 6
        async with AsyncClient(f"{one},{two}", retries=False) as client:
            assert (await client.generate("hello")).text == "done"
    assert second.num_calls == num_calls


def test_several_routers_with_tls_share_a_name(origin):
    guarded = ServerOptions(tls=origin.server("router", is_mutual=False))
    first, second = Failing(GONE, times=0), Failing(GONE, times=0)
    with served(register(first), guarded) as one, served(register(second), guarded) as two:
        with pytest.raises(errors.InvalidRequest, match="certificates share"):
            Client(f"{one},{two}", tls=ClientTls(origin.ca))
        with Client(f"{one},{two}", tls=ClientTls(origin.ca, name="localhost")) as client:
            while not (first.num_calls and second.num_calls):
                assert client.generate("hello").text == "done"
        with (
            Client(one, tls=ClientTls(origin.ca, name="elsewhere"), retries=False) as client,
            pytest.raises(errors.Unavailable, match="no connection to ip"),
        ):
            client.generate("hello")
    with pytest.raises(errors.InvalidRequest, match="a host's name"):
        ClientTls(origin.ca, name="two words")


async def test_the_rest_of_a_stream_can_be_asked_for_by_hand():
    breaking = Breaking(GONE, [20])
    with served(register(breaking)) as address, Client(address) as client:
        chunks = list(client.stream("hello", request_id="mine", num_received=17))
        assert "".join(chunk.text for chunk in chunks) == "rst"
        assert chunks[0].prompt is not None
        with pytest.raises(errors.InvalidRequest, match="request_id"):
            client.stream("hello", num_received=17)
        with pytest.raises(errors.InvalidRequest, match="always the whole"):
            client.generate("hello", request_id="mine", num_received=17)
        with client.session() as session, pytest.raises(errors.InvalidRequest, match="the whole"):
            session.generate("hello", request_id="mine", num_received=17)
        for wrong in (-1, 1.5, 300):
            with pytest.raises(errors.InvalidRequest, match="num_received is"):
                client.stream("hello", request_id="mine", num_received=wrong)


LENGTH = 40
LAWS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0, seed=7)}


@asynccontextmanager
async def cut(model):
    """A client of a router, and a way there that can be cut."""
    worker = target_worker(model)
    async with running(worker), routed([worker]) as client, Relay(client.address) as way:
        yield client, way


def places(seed, num):
    """Where to cut: in what is said before anything else, in tokens, in the end of an answer."""
    draws = random.Random(seed)
    return [draws.choice([draws.randint(0, 150), draws.randint(150, 2500)]) for _ in range(num)]


def said(chunks):
    """Text and tokens, the last chunk having said why they end."""
    assert chunks[-1].finish_reason is not None
    assert [chunk.prompt is None for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    text = "".join(chunk.text for chunk in chunks)
    return text, tuple(token for chunk in chunks for token in chunk.token_ids)


@pytest.mark.parametrize("law", LAWS)
async def test_an_answer_that_is_cut_anywhere_is_whole(model, law, kind):
    options = {"max_tokens": LENGTH, "sampling": LAWS[law]}

    async def come_to(ask):
        """What a call of either client comes to, beside the router on this loop."""
        if kind is Client:
            return await asyncio.to_thread(lambda: asyncio.run(done(ask("once upon", **options))))
        return await done(ask("once upon", **options))

    async with cut(model) as (direct, way), opened(kind(way.address)) as client:
        expected = await direct.generate("once upon", **options)
        for seed in range(6):
            way.cuts(places(seed, 4))
            assert said(await come_to(client.stream)) == (expected.text, expected.token_ids)
        way.cuts(places(0, 4))
        assert (await come_to(client.generate)).token_ids == expected.token_ids
        assert way.num_cuts > 6


async def test_the_turns_of_a_session_that_is_cut_anywhere_are_whole(model):
    prompts = ["once upon", "a time", "there was"]
    options = {"max_tokens": LENGTH, "sampling": LAWS["sampled"]}

    async def conversation(client):
        async with client.session() as session:
            return [(await session.generate(text, **options)).token_ids for text in prompts]

    async with cut(model) as (direct, way), AsyncClient(way.address) as client:
        expected = await conversation(direct)
        for seed in range(3):
            way.cuts(places(seed, 9))
            assert await conversation(client) == expected
        assert way.num_cuts > 6
