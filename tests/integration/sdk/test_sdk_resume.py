"""Streams that break off and go on: by the SDK itself, against routers that break them."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from slipstream.client import AsyncClient, Client, ClientTls, errors
from slipstream.client.connection import Connection
from slipstream.client.remote import RemoteBackend
from slipstream.client.retries import RetryTimeouts
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.server import ServerOptions
from support.network.bad_routers import Breaking, Failing, register
from support.services.background import served

GONE = errors.Unavailable("about to stop")


def impatient(address, *, is_blocking):
    """A router that soon is given up."""
    timeouts = RetryTimeouts(unanswered_s=0.1, begun_s=0.4)
    to = Connection(address, ChannelOptions(), timeouts)
    return RemoteBackend(to, 10, to.channel(is_blocking=is_blocking))


async def test_tries_come_to_an_end():
    gone = Failing(GONE)
    with (
        served(register(gone)) as address,
        Client.of(impatient(address, is_blocking=True)) as client,
    ):
        for ask in (client.stream, client.generate, client.tokenize):
            before = gone.num_calls
            with pytest.raises(errors.Unavailable, match="about to stop"):
                ask("hello")
            assert gone.num_calls > before + 1


async def test_tries_come_to_an_end_for_asyncio():
    gone = Failing(GONE)
    with served(register(gone)) as address:
        async with AsyncClient.of(impatient(address, is_blocking=False)) as client:
            with pytest.raises(errors.Unavailable, match="about to stop"):
                await anext(client.stream("hello"))
            num_calls = gone.num_calls
            with pytest.raises(errors.Unavailable, match="about to stop"):
                await client.generate("hello")
    assert num_calls > 1
    assert gone.num_calls > num_calls + 1


TAKEN = errors.SessionTaken("by an attempt that was left behind")


async def test_a_stream_that_was_taken_over_goes_on_where_it_was_but_once():
    breaking = Breaking(TAKEN, [3, 20])
    with served(register(breaking)) as address:
        with Client(address) as client:
            assert_whole(list(client.stream("hello", request_id="mine")))
        assert [asked.num_received_tokens for asked in breaking.asked] == [0, 3]
        breaking.asked.clear()
        async with AsyncClient(address) as client:
            assert_whole([chunk async for chunk in client.stream("hello", request_id="mine")])
    breaking = Breaking(TAKEN, [3, 4, 20])
    with served(register(breaking)) as address:
        with Client(address) as client, pytest.raises(errors.SessionTaken):
            list(client.stream("hello", request_id="mine"))
        breaking.asked.clear()
        async with AsyncClient(address) as client:
            with pytest.raises(errors.SessionTaken):
                [chunk async for chunk in client.stream("hello", request_id="mine")]


BROKEN = [GONE, errors.Cancelled("by the router")]


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
async def test_a_stream_that_breaks_goes_on_where_it_was(error):
    for nums in ([3, 0, 5, 1, 20], [19, 0, 1], [20]):
        breaking = Breaking(error, nums)
        with served(register(breaking)) as address:
            with Client(address) as client:
                chunks = list(client.stream("hello", request_id="mine"))
            assert_whole(chunks)
            assert len(breaking.asked) == len(nums)
            breaking.asked.clear()
            async with AsyncClient(address) as client:
                assert_whole([chunk async for chunk in client.stream("hello", request_id="mine")])
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


async def test_a_stream_that_breaks_for_good_names_its_request():
    breaking = Breaking(GONE, [2, 0])
    with served(register(breaking)) as address:
        with Client.of(impatient(address, is_blocking=True)) as client:
            stream = client.stream("hello")
            with pytest.raises(errors.Unavailable) as raised:
                list(stream)
            assert raised.value.request_id == stream.request_id
            assert not stream.is_open
        assert len(breaking.asked) > 1
        breaking.asked.clear()
        async with AsyncClient.of(impatient(address, is_blocking=False)) as client:
            with pytest.raises(errors.Unavailable) as raised:
                [chunk async for chunk in client.stream("hello", request_id="mine")]
            assert raised.value.request_id == "mine"
        assert len(breaking.asked) > 1


def test_a_broken_stream_has_the_time_of_its_request_alone():
    with (
        served(register(Breaking(GONE, [2, 0]))) as address,
        Client(address) as client,
        pytest.raises((errors.Unavailable, errors.DeadlineExceeded)),
    ):
        list(client.stream("hello", timeout_s=0.3))


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
            pytest.raises(errors.Unavailable),
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
