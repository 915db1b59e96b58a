"""Laws of certificates: replaced while a server runs, half written, taken away, and by name."""

import shutil
import stat
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.core.errors import InvalidRequest, PermissionDenied, Unavailable
from slipstream.options import build
from slipstream.rpc.channel import ChannelOptions, Dialer, connect
from slipstream.rpc.security import ClientTls, ServerTls, named_callers
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import target_pb2, target_pb2_grpc
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_sources import Channels
from slipstream_router.config import RouterConfig
from support.network.streams import refusal
from support.services.background import serving

NAME = "slipstream.rpc.v1.TargetService"


class Answering(target_pb2_grpc.TargetServiceServicer):
    """Says something, so that one knows who came through."""

    async def GetTargetLoad(self, request, context):
        return target_pb2.GetTargetLoadResponse()

    async def StreamKv(self, requests, context):
        yield target_pb2.StreamKvResponse()

    async def Verify(self, requests, context):
        async for _ in requests:
            yield target_pb2.VerifyResponse()


@pytest.fixture
def mine(tmp_path, origin):
    folder = tmp_path / "mine"
    shutil.copytree(origin.folder, folder)
    return type(origin)(folder)


def answering(tls, **options):
    add = target_pb2_grpc.add_TargetServiceServicer_to_server
    return serving({NAME: lambda at: add(Answering(), at)}, ServerOptions(tls=tls, **options))


async def ask(address, tls):
    """A call over a connection of its own; the error that stands for its status."""
    async with connect(address, ChannelOptions(tls=tls)) as channel:
        try:
            stub = target_pb2_grpc.TargetServiceStub(channel)
            await stub.GetTargetLoad(target_pb2.GetTargetLoadRequest())
        except grpc.aio.AioRpcError as error:
            return error_from(error)


@pytest.mark.parametrize("role", ["router", "target", "draft", "redis", "client"])
def test_the_guide_s_certificates_hold_on_both_sides_and_their_keys_are_their_owner_s(origin, role):
    assert {stat.S_IMODE(origin.key(at).stat().st_mode) for at in ("ca", role)} == {0o600}
    verify = ["openssl", "verify", "-x509_strict", "-CAfile", origin.ca, "-verify_hostname", role]
    for side in ("sslserver", "sslclient"):
        subprocess.run([*verify, "-purpose", side, origin.cert(role)], check=True)


@pytest.mark.parametrize("broken", ["target.pem", "target.key", "ca.pem"])
async def test_half_written_files_change_nothing_and_are_logged_once(mine, origin, broken, caplog):
    async with answering(mine.server("target")) as address:
        path = mine.folder / broken
        path.write_bytes(path.read_bytes()[:-40])
        answers = [await ask(address, origin.client("router")) for _ in range(3)]
    assert answers == [None] * 3
    (record,) = [at for at in caplog.records if at.levelname == "WARNING"]
    assert "certificates stay as they were" in record.getMessage()
    assert broken in record.getMessage()


@pytest.mark.parametrize("config", [RouterConfig, DraftConfig])
async def test_a_client_that_names_a_host_takes_no_other_certificate(origin, config):
    """Though all of them are good for the address: one role can't stand in for another."""
    own = {"peer_cert": origin.cert("draft"), "peer_key": origin.key("draft")}
    needed = {"targets": ("a:1",)} if config is RouterConfig else {}
    dials = (
        build(config, peer_ca=origin.ca, **own, **needed, peer_target_name="target")
        .to_targets()
        .tls
    )
    answers = {}
    for role in ("target", "draft"):
        async with answering(origin.server(role)) as address:
            answers[role] = type(await ask(address, dials))
    assert answers == {"target": type(None), "draft": Unavailable}


def test_a_router_asks_targets_and_drafts_for_names_of_their_own(origin):
    names = {"peer_target_name": "target", "peer_draft_name": "draft"}
    config = build(RouterConfig, targets=("a:1",), peer_ca=origin.ca, **names)
    assert (config.to_targets().tls.name, config.to_drafts().tls.name) == ("target", "draft")
    for name in names:
        with pytest.raises(InvalidRequest, match="needs peer_ca"):
            build(RouterConfig, targets=("a:1",), **{name: "x"})


@pytest.mark.parametrize(
    ("cert", "key", "ca", "sentence"),
    [
        ("target.pem", "router.key", "ca.pem", "not a certificate and its private key"),
        ("target.key", "target.key", "ca.pem", "not a certificate and its private key"),
        ("target.pem", "target.key", "ca.key", "holds no certificates to trust"),
        ("target.pem", "target.key", "empty.pem", "holds no certificates to trust"),
        ("target.pem", "target.key", "none.pem", "none.pem can't be read"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_at_start(origin, cert, key, ca, sentence):
    at = origin.folder
    (at / "empty.pem").touch()
    with pytest.raises(InvalidRequest, match=sentence):
        ServerTls(at / cert, at / key, at / ca).credentials()
    with pytest.raises(InvalidRequest, match=sentence):
        ClientTls(str(at / ca), str(at / cert), at / key).credentials()


def test_a_dialer_waits_for_files_that_are_whole(mine, other, caplog):
    dial = Dialer(ChannelOptions(tls=mine.client("draft")))
    before = dial.stamp()
    mine.replace(other, "draft.pem")
    assert dial.stamp() == before
    mine.replace(other, "draft.key")
    assert dial.stamp() != before
    assert caplog.text.count("stay as they were") == 1


async def test_who_comes_after_a_change_has_a_channel_with_the_new_certificates(mine, other):
    async with answering(other.server("target")) as address:
        channels = Channels(ChannelOptions(tls=mine.client("draft")))
        async with channels.to(address) as old:
            mine.replace(other, "ca.pem", "draft.key", "draft.pem")
            async with channels.to(address) as new:
                assert new is not old
                stub = target_pb2_grpc.TargetServiceStub(new)
                assert [_ async for _ in stub.StreamKv([target_pb2.StreamKvRequest()])]
        assert len(channels._open) == 1
        async with channels.to(address) as again:
            assert again is new
        await channels.close()


async def test_a_draft_s_certificate_reads_keys_and_does_nothing_that_routers_do(origin):
    callers = named_callers(origin.ca, ("router",), StreamKv=("draft",))
    async with answering(origin.server("target"), callers=callers) as address:
        draft, router = origin.client("draft"), origin.client("router")
        assert await ask(address, router) is None
        refused = await ask(address, draft)
        async with connect(address, ChannelOptions(tls=draft)) as channel:
            stub = target_pb2_grpc.TargetServiceStub(channel)
            read = [_ async for _ in stub.StreamKv([target_pb2.StreamKvRequest()])]
            # A write would fail by itself where the stream has ended.
            verify = await refusal(stub.Verify().read())
            health = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest()
            )
        async with connect(address, ChannelOptions(tls=origin.client("client"))) as channel:
            stub = target_pb2_grpc.TargetServiceStub(channel)
            strange = await refusal(stub.StreamKv([target_pb2.StreamKvRequest()]).read())
    assert type(refused) is PermissionDenied
    assert "is for certificates of router, but the caller's is of draft" in str(refused)
    assert verify.code() is strange.code() is grpc.StatusCode.PERMISSION_DENIED
    assert len(read) == 1
    assert health.status == health_pb2.HealthCheckResponse.SERVING


def test_names_that_can_not_be_checked_are_refused(origin):
    with pytest.raises(InvalidRequest, match="tls_client_names needs tls_client_ca"):
        named_callers(None, ("router",))
    with pytest.raises(InvalidRequest, match="tls_client_names"):
        named_callers(origin.ca, (), StreamKv=("draft",))
