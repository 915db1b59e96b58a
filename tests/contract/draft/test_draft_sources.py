"""A draft dials no address but those that it was allowed, whoever names it."""

import asyncio

import grpc
import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan
from slipstream.rpc.v1 import draft_pb2, target_pb2_grpc
from slipstream_draft.kv_sources import ANYWHERE, KvSources
from slipstream_target.servicer import SERVICE
from support.services.scripted_keys import LIMIT_S, PROMPT, SESSION, Script
from support.services.tiny_services import draft_place, is_empty, serving, until

PLAN = Plan(max_depth=4, max_nodes=12)


def feed_at(address):
    return draft_pb2.KvFeed(address=address, session_id="s", incarnation="one", credential="key")


@pytest.mark.parametrize(
    ("patterns", "address", "kind"),
    [
        (ANYWHERE, "unix:{path}", errors.InvalidRequest),
        (("localhost:*",), "127.0.0.1:{port}", errors.PermissionDenied),
    ],
)
async def test_a_forbidden_source_is_never_dialled(models, tmp_path, patterns, address, kind):
    dialled = []

    async def answer(reader, writer):
        dialled.append(writer)
        writer.close()

    path = tmp_path / "s"
    async with (
        await asyncio.start_unix_server(answer, path),
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        draft_place(models, "glide", sources=KvSources(patterns)) as drafts,
    ):
        port = server.sockets[0].getsockname()[1]
        feed = feed_at(address.format(path=path, port=port))
        with pytest.raises(kind):
            await drafts.remote(lambda: feed).propose(TokenSequence(SESSION, PROMPT), PLAN)
        assert drafts.receivers.num_channels == 0
        await until(lambda: is_empty(drafts))
    assert dialled == []


@pytest.mark.parametrize("prefix", ["", "dns:///"])
async def test_a_source_that_is_allowed_is_read(models, prefix):
    script = Script([grpc.StatusCode.NOT_FOUND])

    def register(server):
        target_pb2_grpc.add_TargetServiceServicer_to_server(script, server)

    async with serving({SERVICE: register}) as address:
        sources = KvSources((address,))
        async with draft_place(models, "glide", sources=sources) as drafts:
            draft = drafts.remote(lambda: feed_at(prefix + address))
            await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
            await drafts.receivers.wait("s", 1, LIMIT_S)
            await draft.release("s")
    assert [asked.credential for asked in script.asked] == ["key"]
