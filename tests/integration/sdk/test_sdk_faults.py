"""The SDK against routers that fail: typed errors, second tries, cancellation, credentials."""

import gc

import pytest
from grpc import StatusCode

from slipstream.client import AsyncClient, Client, errors
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.status import code_of
from slipstream.rpc.v1 import generation_pb2 as pb
from support.network.bad_routers import Failing, Scripted, done, first_chunk, opened, register
from support.services.background import served

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
ON_THE_WIRE = [at for at in KINDS if code_of(at("")) is not StatusCode.INTERNAL]
ON_THE_WIRE.remove(errors.NoRoom)  # which engines catch
ON_THE_WIRE.append(errors.InternalError)


@pytest.fixture(scope="module")
def failing():
    servicer = Failing(errors.InternalError())
    with served(register(servicer)) as servicer.address:
        yield servicer


@pytest.mark.parametrize("error", ON_THE_WIRE, ids=lambda error: error.__name__)
async def test_an_error_is_the_same_on_the_other_side(failing, error, kind):
    failing.error = error(f"a {error.__name__} of 3, but at most 2 — really")
    async with opened(kind(failing.address, retries=False)) as client:
        for call in (client.generate, client.stream, client.tokenize):
            with pytest.raises(error) as raised:
                await done(call("hello"))
            assert (type(raised.value), str(raised.value)) == (error, str(failing.error))


GONE = errors.Unavailable("about to stop")


async def test_what_is_unavailable_is_tried_again(kind):
    for times in (1, 3):
        flaky = Failing(GONE, times=times)
        with served(register(flaky)) as address:
            async with opened(kind(address)) as client:
                assert (await done(client.generate("hello"))).text == "done"
        assert flaky.num_calls == times + 1


FINAL = [(kind, True) for kind in (errors.CapacityError, errors.InternalError, errors.SessionBusy)]


@pytest.mark.parametrize(("error", "retries"), [*FINAL, (errors.Unavailable, False)])
def test_nothing_else_is_tried_again_and_nothing_at_all_where_that_is_asked(error, retries):
    failing = Failing(error("no"))
    with (
        served(register(failing)) as address,
        Client(address, retries=retries) as client,
        pytest.raises(error),
    ):
        client.generate("hello")
    assert failing.num_calls == 1


@pytest.fixture
def silent():
    servicer = Scripted(first_chunk(), hangs=True)
    with served(register(servicer)) as address:
        servicer.address = address
        yield servicer


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_a_stream_that_is_left_is_cancelled(silent, is_closed):
    with Client(silent.address) as client:
        stream = client.stream("hello")
        next(stream)
        if is_closed:
            stream.close()
            assert list(stream) == []
        del stream
        gc.collect()
        assert silent.cancelled.wait(30)


async def test_a_silent_router_is_given_up_at_the_deadline(silent, kind):
    async with opened(kind(silent.address, timeout_s=0.5)) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"longer than its 0\.5 s"):
            await done(client.stream("hello"))
    assert silent.cancelled.wait(30)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [first_chunk()],
        [pb.GenerateStreamResponse(finish=pb.FinishInfo())],
        [pb.GenerateStreamResponse(finish=pb.FinishInfo(reason=99))],
    ],
)
async def test_an_answer_that_is_none_is_the_routers_fault(messages, kind):
    with served(register(Scripted(*messages))) as address:
        async with opened(kind(address)) as client:
            with pytest.raises(errors.InternalError, match="the router"):
                await done(client.stream("hello"))


async def test_callers_with_tokens_of_their_own_share_a_connection(silent):
    async with AsyncClient(silent.address, token="first", model="tiny") as client:
        other = client.with_token("other")
        for caller, shown in ((client, "Bearer first"), (other, "Bearer other")):
            await anext(caller.stream("hello"))
            assert silent.metadata["authorization"] == shown
        await anext(client.with_token(None).stream("hello"))
        assert "authorization" not in silent.metadata
        await other.aclose()
        with pytest.raises(errors.SessionClosed):
            await anext(client.stream("hello"))
    elsewhere = AsyncClient("router.example:50051")
    with pytest.raises(errors.InvalidRequest, match="in the clear"):
        elsewhere.with_token("secret")


def test_a_token_does_not_travel_in_the_clear(kind):
    for address in ("router.example:50051", "10.0.0.1:50051", "dns:///router:50051"):
        with pytest.raises(errors.InvalidRequest, match="in the clear"):
            kind(address, token="secret")
    kind("router.example:50051", token="secret", tls=False)
    kind("router.example:50051", token="secret", tls=True)
    for address in ("localhost:1", "127.0.0.1:1", "[::1]:1", "dns:///localhost:1", "unix:/a"):
        kind(address, token="secret")


NOWHERE = [(at, {}) for at in ("", "router", "router:0", "a b:1", "http://router:1")]
FORBIDDEN = [{name: "two\nlines"} for name in ("token", "model")]
FORBIDDEN += [{"timeout_s": at} for at in (0, float("inf"))]
NOWHERE += [("localhost:1", at) for at in FORBIDDEN]


@pytest.mark.parametrize(("address", "options"), NOWHERE)
def test_a_router_that_can_not_be_is_refused(kind, address, options):
    with pytest.raises(errors.InvalidRequest):
        kind(address, **options)


async def test_a_router_with_a_certificate_is_trusted_by_its_authority_alone(origin, kind):
    answering, tls = Failing(GONE, times=0), origin.server("router", is_mutual=False)
    with served(register(answering), ServerOptions(tls=tls)) as address:
        async with opened(kind(address, tls=origin.stranger(), token="secret")) as client:
            assert (await done(client.generate("hello"))).text == "done"
        for distrusting in ({}, {"tls": True}):
            with (
                Client(address, retries=False, **distrusting) as client,
                pytest.raises(errors.Unavailable),
            ):
                client.generate("hello")
    assert answering.num_calls == 1
