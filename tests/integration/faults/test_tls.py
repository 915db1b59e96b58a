"""Laws of a cluster with TLS on every hop: nothing is read on the way, and nobody else let in."""

import shutil
from itertools import product

import grpc
import pytest

from slipstream.core import errors
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.security import ClientTls
from support.network.certificates import Certificates
from support.network.key_files import key, write_keys
from support.network.relay import captured
from support.services import fleet
from support.services.guarded import guarded

PROMPT = "the walrus of the north sings at dusk"
REQUEST = "a-request-that-anybody-would-recognise"
TOKEN = "open-sesame-0123456789"
PREFACE = b"PRI * HTTP/2"
SERVICE = b"slipstream.rpc.v1"
SPOKEN = {
    "client": [PREFACE, SERVICE, PROMPT.encode(), REQUEST.encode(), TOKEN.encode()],
    "router to target": [PREFACE, SERVICE],
    "router to draft": [PREFACE, SERVICE],
    "draft to target": [PREFACE, SERVICE],
}

LOAD = {
    "router to target": "/slipstream.rpc.v1.TargetService/GetTargetLoad",
    "router to draft": "/slipstream.rpc.v1.DraftService/GetDraftLoad",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path / "keys.toml", key("alice", TOKEN))


@pytest.mark.parametrize("is_safe", [False, True])
async def test_without_tls_all_can_be_read_and_with_it_nothing(model, origin, keys, is_safe):
    made = origin if is_safe else None
    with captured() as packets:
        async with guarded(model, made, key_file=keys) as at, at.client(token=TOKEN) as client:
            result, session = await say(client)
        on_the_wire = [] if packets is None else packets.of(at.ports)
    assert result.stats.speculation.num_draft_tokens > 0
    for name, words in SPOKEN.items():
        streams = at.hops[name].streams
        assert at.hops[name].num_bytes > 1000
        assert found(words, streams) == ([] if is_safe else words)
    if packets is not None:
        words = [*SPOKEN["client"], session]
        assert sum(map(len, on_the_wire)) > 4000
        assert found(words, on_the_wire) == ([] if is_safe else words)


async def test_a_client_without_certificate_or_token_is_refused_by_code(model, origin, other, keys):
    strange = ClientTls(origin.ca, other.cert("client"), other.key("client"))
    async with guarded(model, origin, key_file=keys) as at:
        for tls in (origin.stranger(), strange, other.client("client")):
            refused = await refusal(at.client(tls=tls, token=TOKEN))
            assert type(refused) is errors.Unavailable
            assert len(str(refused)) > 20
        for token in (None, "open-sesame"):
            refused = await refusal(at.client(token=token))
            assert type(refused) is errors.Unauthenticated
        assert await refusal(at.client(token=TOKEN)) is None


async def test_engines_answer_routers_alone(model, origin, other):
    code = grpc.StatusCode
    callers = {
        origin.stranger(): code.UNAVAILABLE,
        other.client("router"): code.UNAVAILABLE,
        origin.client("client"): code.PERMISSION_DENIED,
        origin.client("draft"): code.PERMISSION_DENIED,
        origin.client("router"): None,
    }
    async with guarded(model, origin) as at:
        for (hop, method), (tls, refused) in product(LOAD.items(), callers.items()):
            async with connect(at.address(hop), ChannelOptions(tls=tls)) as channel:
                assert await code_of(channel.unary_unary(method)(b"")) is refused


async def test_all_certificates_are_replaced_while_everything_runs(tmp_path, model, origin, other):
    mine = Certificates(shutil.copytree(origin.folder, tmp_path / "mine"))
    async with guarded(model, mine) as at, at.client() as client:
        before, _ = await say(client)
        mine.replace(other, *sorted(path.name for path in other.folder.iterdir()))
        assert (await say(client))[0].token_ids == before.token_ids
        async with at.client(tls=other.client("client")) as newcomer:
            assert (await say(newcomer))[0].token_ids == before.token_ids
            assert type(await refusal(at.client(tls=origin.client("client")))) is errors.Unavailable
            for role in ("target", "draft"):
                await reconnected(newcomer, at.hops[f"router to {role}"], role)
            after, _ = await say(newcomer)
    assert after.token_ids == before.token_ids
    assert after.stats.speculation.num_draft_tokens > 0


async def reconnected(client, relay, role):
    """Have a router lose its connection, and wait for it to have another."""
    num_before = relay.num_connections
    relay.cut()
    await fleet.until(
        client, lambda info: relay.num_connections > num_before and fleet.num_ready(info, role) == 1
    )


async def say(client):
    """A turn of a conversation, over every hop; what came of it, and the conversation's name."""
    async with client.session() as session:
        options = {"request_id": REQUEST, "speculation": SpeculationOptions(mode=Mode.FORCED)}
        result = await session.generate(PROMPT, max_tokens=16, **options)
        return result, session.session_id.encode()


def found(words, streams):
    return [word for word in words if any(word in stream for stream in streams)]


async def refusal(client):
    async with client:
        try:
            await client.server_info()
        except errors.SlipstreamError as error:
            return error


async def code_of(call):
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
