"""Laws of a cluster with TLS on every hop: nothing is read on the way, and nobody else let in."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest

from slipstream.client import AsyncClient
from slipstream.core import errors
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.options import build
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.security import ClientTls
from slipstream_draft.__main__ import load_draft
from slipstream_draft.config import DraftConfig
from slipstream_draft.servicer import SERVICE as DRAFT
from slipstream_draft.servicer import register as register_draft
from slipstream_target.config import TargetConfig
from slipstream_target.servicer import SERVICE as TARGET
from slipstream_target.servicer import register as register_target
from support.network.certificates import Certificates
from support.network.key_files import key, write_keys
from support.network.relay import Relay
from support.services import fleet

NAMED = {"tls_client_names": ("router",)}


@dataclass
class Guarded:
    """A router, a target and a draft; where they are reached, and what is between them."""

    made: Certificates | None
    hops: dict[str, Relay] = field(default_factory=dict)

    def client(self, **options: Any) -> AsyncClient:
        """One that shows a certificate where that is asked for."""
        tls = None if self.made is None else self.made.client("client")
        return AsyncClient(self.address("client"), **{"tls": tls, "retries": False, **options})

    def serving(self, role: str) -> dict[str, Path]:
        """A service's options, if there is TLS."""
        if self.made is None:
            return {}
        cert, key = self.made.cert(role), self.made.key(role)
        return {"tls_cert": cert, "tls_key": key, "tls_client_ca": self.made.ca}

    def calling(self, role: str) -> dict[str, Path]:
        """Likewise for those that call others."""
        if self.made is None:
            return {}
        files = {"peer_cert": self.made.cert(role), "peer_key": self.made.key(role)}
        return {"peer_ca": self.made.ca, **files}

    def address(self, hop: str) -> str:
        """Return the address of a relay, by a name that certificates have."""
        return f"localhost:{self.hops[hop].port}"

    async def hop(self, stack: AsyncExitStack, name: str, to: str) -> str:
        """The address of a new relay to another one."""
        self.hops[name] = await stack.enter_async_context(Relay(to, keeps=True))
        return self.address(name)


@asynccontextmanager
async def guarded(model: Path, made: Certificates | None, **router: Any) -> AsyncIterator[Guarded]:
    """A cluster of a model and its GliDe draft; plaintext without certificates."""
    at = Guarded(made)
    async with AsyncExitStack() as stack:
        target, draft = await _target(stack, at, model), await _draft(stack, at, model)
        config = {**at.serving("router"), **at.calling("router"), **router}
        address = await stack.enter_async_context(fleet.router_over([target], [draft], **config))
        await at.hop(stack, "client", address)
        yield at


async def _target(stack: AsyncExitStack, at: Guarded, model: Path) -> str:
    servicer = fleet.target_servicer(model)
    names = NAMED | {"tls_draft_names": ("draft",)} if at.made else {}
    options = build(TargetConfig, **at.serving("target"), **names).server_options()
    worker = fleet.Worker(lambda: servicer, TARGET, register_target, options)
    await stack.enter_async_context(fleet.running(worker))
    servicer.about.advertised_address = await at.hop(stack, "draft to target", worker.address)
    return await at.hop(stack, "router to target", worker.address)


async def _draft(stack: AsyncExitStack, at: Guarded, model: Path) -> str:
    config = build(
        DraftConfig,
        draft=str(fleet.glide_of(model)),
        target_model=str(model),
        dtype="float32",
        kv_wait_ms=5000,
        **at.serving("draft"),
        **at.calling("draft"),
        **(NAMED if at.made else {}),
    )
    options = config.server_options()
    worker = fleet.Worker(lambda: load_draft(config), DRAFT, register_draft, options)
    await stack.enter_async_context(fleet.running(worker))
    return await at.hop(stack, "router to draft", worker.address)


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


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path / "keys.toml", key("alice", TOKEN))


@pytest.mark.parametrize("is_safe", [False, True])
async def test_without_tls_all_can_be_read_and_with_it_nothing(folder, origin, keys, is_safe):
    made = origin if is_safe else None
    async with guarded(folder, made, key_file=keys) as at, at.client(token=TOKEN) as client:
        result, session = await say(client)
    assert result.stats.speculation.num_draft_tokens > 0
    for name, words in SPOKEN.items():
        streams = at.hops[name].streams
        assert at.hops[name].num_bytes > 1000
        said = [*words, session] if name == "client" else words
        found = [word for word in said if any(word in stream for stream in streams)]
        assert found == ([] if is_safe else said)


async def test_engines_answer_routers_alone(folder, origin, other):
    code = grpc.StatusCode
    callers = {
        origin.stranger(): code.UNAVAILABLE,
        other.client("router"): code.UNAVAILABLE,
        ClientTls(origin.ca, other.cert("router"), other.key("router")): code.UNAVAILABLE,
        None: code.UNAVAILABLE,
        origin.client("client"): code.PERMISSION_DENIED,
        origin.client("draft"): code.PERMISSION_DENIED,
        origin.client("router"): code.OK,
    }
    async with guarded(folder, origin) as at:
        for (hop, method), (tls, refused) in product(LOAD.items(), callers.items()):
            async with connect(at.address(hop), ChannelOptions(tls=tls)) as channel:
                assert await channel.unary_unary(method)(b"").code() is refused


async def test_all_certificates_are_replaced_while_everything_runs(tmp_path, folder, origin, other):
    mine = Certificates(shutil.copytree(origin.folder, tmp_path / "mine"))
    async with guarded(folder, mine) as at, at.client() as client:
        before, _ = await say(client)
        mine.replace(other, *sorted(path.name for path in other.folder.iterdir()))
        assert (await say(client))[0].token_ids == before.token_ids
        async with (
            at.client(tls=other.client("client")) as newcomer,
            at.client(tls=origin.client("client")) as stranger,
        ):
            assert (await say(newcomer))[0].token_ids == before.token_ids
            with pytest.raises(errors.Unavailable):
                await stranger.server_info()
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
