"""Keys at a real router: who comes in, within which limits, and whose sessions are whose."""

from contextlib import aclosing, asynccontextmanager

import grpc
import pytest

from slipstream.client import AsyncClient
from slipstream.core.errors import LimitExceeded, PermissionDenied, Unauthenticated
from slipstream.rpc.service_options import SessionOptions
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream_target.servicer import SERVICE as TARGET
from slipstream_target.servicer import register as register_target
from support.network.key_files import key, write_keys
from support.network.streams import refusal
from support.services.fleet import Worker, eventually, routed, running, stub_of, target_servicer
from support.state.redis_server import redis_server

ALICE, BOB = "slip_alice-token", "slip_bob-token"


@pytest.fixture
def keys(tmp_path):
    """A file in which Alice has limits, and Bob none."""

    def written(**limits):
        both = key("alice", ALICE, **limits), key("bob", BOB)
        return write_keys(tmp_path / "keys.toml", *both)

    return written


@asynccontextmanager
async def two(served, key_file, **config):
    async with (
        routed([served], token=ALICE, key_file=key_file, **config) as alice,
        AsyncClient(alice.address, token=BOB, retries=False) as bob,
    ):
        yield alice, bob


async def test_a_client_at_its_concurrency_limit_gets_a_retry_time(served, keys):
    async with two(served, keys(max_concurrent=1)) as (alice, bob):
        async with aclosing(alice.stream("hello", max_tokens=3000)) as running:
            await anext(running)
            with pytest.raises(LimitExceeded, match="'alice' may have 1 requests running") as told:
                await alice.generate("hello", max_tokens=3)
            assert told.value.retry_after_s == 1
            shown = (("authorization", f"Bearer {ALICE}"),)
            asked = pb.GenerateRequest(generation={"prompt": {"text": "x"}})
            async with stub_of(alice.address) as stub:
                refused = await refusal(stub.Generate(asked, metadata=shown))
            assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
            assert (await bob.generate("hello", max_tokens=3)).token_ids
            with pytest.raises(LimitExceeded):
                await alice.tokenize("hello")
        assert await eventually(lambda: goes(alice), lambda result: result is not None)


async def goes(client):
    """The result of a request, unless it is refused for a limit."""
    try:
        return await client.generate("hello", max_tokens=3)
    except LimitExceeded:
        return None


async def test_tokens_of_a_text_that_is_only_tokenized_are_counted_too(served, keys):
    async with two(served, keys(tokens_per_minute=20)) as (alice, bob):
        assert len(await alice.tokenize("hello " * 10)) > 20
        for ask in (alice.tokenize, alice.generate):
            with pytest.raises(LimitExceeded, match="20 tokens per minute"):
                await ask("hello")
        assert await bob.tokenize("hello")


async def test_a_session_belongs_to_the_key_that_began_it(served, keys):
    async with two(served, keys()) as (alice, bob), alice.session() as session:
        await session.generate("hello", max_tokens=3)
        other = bob.session(session.session_id)
        with pytest.raises(PermissionDenied):
            await other.generate("hello", max_tokens=3)
        with pytest.raises(PermissionDenied):
            await other.aclose()
        await session.generate("and more", max_tokens=3)


async def test_a_key_that_parks_many_sessions_takes_nothing_that_another_key_has_parked(
    folder, keys
):
    servicer = target_servicer(folder, limits=SessionOptions(max_sessions=4))
    target = Worker(lambda: servicer, TARGET, register_target)
    async with running(target), two(target, keys()) as (alice, bob), bob.session() as kept:
        await kept.generate("hello", max_tokens=3)
        for _ in range(8):
            session = alice.session()
            await session.generate("hello", max_tokens=3)
        parked = servicer._leases._parked
        assert kept.session_id in parked
        assert len(parked) == 4
        assert len({at.owner for at in parked.values()}) == 2
        assert {"alice", "bob"}.isdisjoint(at.owner for at in parked.values())


async def test_a_key_that_is_revoked_opens_nothing_more_and_what_runs_goes_on(served, keys):
    file = keys()
    async with two(served, file) as (alice, bob):
        async with aclosing(alice.stream("hello", max_tokens=400)) as running:
            chunks = [await anext(running)]
            write_keys(file, key("bob", BOB))
            await eventually(lambda: is_let_in(alice), lambda may: not may)
            chunks += [chunk async for chunk in running]
        assert sum(len(chunk.token_ids) for chunk in chunks) == 400
        assert await is_let_in(bob)


async def is_let_in(client):
    try:
        await client.models()
    except Unauthenticated:
        return False
    return True


async def test_routers_with_one_redis_count_together_and_without_it_each_alone(served, keys):
    config = {"key_file": keys(requests_per_minute=2), "token": ALICE, "store_timeout_s": 2.0}
    with redis_server() as server:
        config["store_url"] = server.url
        async with routed([served], **config) as one, routed([served], **config) as other:
            for client in (one, other):
                assert await goes(client)
            assert await goes(one) is await goes(other) is None
            server.kill()
            assert [bool(await goes(one)) for _ in range(3)] == [True, True, False]
            assert await goes(other)
