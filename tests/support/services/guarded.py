"""A whole cluster in this process with certificates on every connection, and a relay on each."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.client import AsyncClient
from slipstream.options import build
from slipstream.rpc.server import Server
from slipstream_draft.app import load_draft
from slipstream_draft.config import DraftConfig
from slipstream_draft.servicer import SERVICE as DRAFT
from slipstream_draft.servicer import register as register_draft
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig
from slipstream_target.config import TargetConfig
from slipstream_target.servicer import SERVICE as TARGET
from slipstream_target.servicer import register as register_target
from support.network.certificates import Certificates
from support.network.relay import Relay
from support.services import fleet

ANYWHERE = "127.0.0.1:0"
NAMED = {"tls_client_names": ("router",)}


@dataclass
class Guarded:
    """A router, a target and a draft; where they are reached, and what is between them."""

    made: Certificates | None
    hops: dict[str, Relay] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    target: Server | None = None

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

    async def hop(self, stack: AsyncExitStack, name: str, port: int) -> str:
        """The address of a new relay to a port."""
        self.hops[name] = await stack.enter_async_context(Relay(f":{port}", keeps=True))
        self.ports |= {port, self.hops[name].port}
        return self.address(name)


@asynccontextmanager
async def guarded(model: Path, made: Certificates | None, **router: Any) -> AsyncIterator[Guarded]:
    """A cluster of a model and its GliDe draft; plaintext without certificates."""
    at = Guarded(made)
    async with AsyncExitStack() as stack:
        target = await _target(stack, at, model)
        draft = await _draft(stack, at, model)
        config = {"draft_round_timeout_s": 30.0, **at.serving("router"), **at.calling("router")}
        replicas = {"targets": (target,), "drafts": (draft,)}
        running = Router(build(RouterConfig, address=ANYWHERE, **replicas, **{**config, **router}))
        port = await running.start()
        stack.push_async_callback(running.stop, 0)
        await at.hop(stack, "client", port)
        await running.ready()
        yield at


async def _target(stack: AsyncExitStack, at: Guarded, model: Path) -> str:
    servicer = fleet.target_servicer(model)
    stack.push_async_callback(servicer.close)
    names = NAMED | {"tls_draft_names": ("draft",)} if at.made else {}
    config = build(TargetConfig, address=ANYWHERE, **at.serving("target"), **names)
    at.target = Server(config.server_options(), {TARGET: register_target(servicer)})
    port = await at.target.start(serving=False)
    stack.push_async_callback(at.target.stop, 0)
    servicer.advertise(await at.hop(stack, "draft to target", port))
    address = await at.hop(stack, "router to target", port)
    await at.target.set_serving(True)
    return address


async def _draft(stack: AsyncExitStack, at: Guarded, model: Path) -> str:
    config = build(
        DraftConfig,
        address=ANYWHERE,
        draft=str(fleet.glide_of(model)),
        target_model=str(model),
        dtype="float32",
        kv_wait_ms=5000,
        **at.serving("draft"),
        **at.calling("draft"),
        **(NAMED if at.made else {}),
    )
    servicer = load_draft(config)
    stack.push_async_callback(servicer.close)
    server = Server(config.server_options(), {DRAFT: register_draft(servicer)})
    port = await server.start()
    stack.push_async_callback(server.stop, 0)
    return await at.hop(stack, "router to draft", port)
