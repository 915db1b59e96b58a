"""Real targets, drafts and a router in this process, over loopback, on tiny models."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from slipstream.client import AsyncClient
from slipstream.engine.thread import EngineThread
from slipstream.models.loading import load_model
from slipstream.options import build
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.security import ClientTls
from slipstream.rpc.server import Server, ServerOptions
from slipstream.rpc.service_options import SessionOptions
from slipstream.rpc.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    generation_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
)
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.build import TargetLimits, build_target
from slipstream_draft.__main__ import load_draft
from slipstream_draft.config import DraftConfig
from slipstream_draft.servicer import SERVICE as DRAFT
from slipstream_draft.servicer import register as register_draft
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig
from slipstream_target.__main__ import describe
from slipstream_target.servicer import SERVICE as TARGET
from slipstream_target.servicer import TargetServicer
from slipstream_target.servicer import register as register_target
from support.models.tiny_checkpoint import change_config, save_checkpoint, save_draft, tiny_llama

LIMIT_S = 60
MAX_LAG = 8
CONTEXT = 4096
ANYWHERE = ServerOptions("127.0.0.1:0")
PATIENT = {"draft_round_timeout_s": 30.0, "replica_timeout_s": 60.0}
"""Options of a router: a busy machine makes no draft late and no replica lost."""


def save_models(folder: Path, name: str = "tiny", *, seed: int = 0) -> Path:
    """A target's directory, with untrained GliDe weights for it beside."""
    target = save_checkpoint(folder / name)
    tiny_llama(seed=seed).save_pretrained(target)
    change_config(target, max_position_embeddings=CONTEXT)
    vocab = torch.arange(259)
    save_draft(target, glide_of(target), vocab=vocab, layers=(0, 1), max_lag=MAX_LAG)
    return target


def glide_of(target: Path) -> Path:
    """The weights that `save_models` put beside a target."""
    return target.parent / f"{target.name}-glide"


class Worker:
    """A target or a draft that can be stopped and started again at its address."""

    def __init__(
        self, make: Callable, service: str, register: Callable, options: ServerOptions = ANYWHERE
    ) -> None:
        self._make, self._service, self._register = make, service, register
        self._options = options
        self._running: tuple[Server, object] | None = None
        self.address = options.address

    def twin(self) -> "Worker":
        """Another replica of the same model."""
        return Worker(self._make, self._service, self._register, self._options)

    async def start(self) -> str:
        servicer = self._make()
        options = replace(self._options, address=self.address)
        server = Server(options, {self._service: self._register(servicer)})
        port = await server.start(serving=False)
        self.address = f"127.0.0.1:{port}"
        if isinstance(servicer, TargetServicer):
            servicer.about.advertised_address = self.address
        await server.set_serving(True)
        self._running = (server, servicer)
        return self.address

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop; a request that is served longer than the grace is cut off. May be repeated."""
        if self._running is None:
            return
        server, servicer = self._running
        self._running = None
        await server.stop(grace_s)
        await servicer.close()

    async def load(self):
        return await load_of(self._service, self.address)


async def load_of(service: str, address: str, tls: ClientTls | None = None):
    """Return the load that a target or a draft at an address reports."""
    async with connect(address, ChannelOptions(tls)) as channel:
        if service == TARGET:
            target = target_pb2_grpc.TargetServiceStub(channel)
            return (await target.GetTargetLoad(target_pb2.GetTargetLoadRequest())).load
        draft = draft_pb2_grpc.DraftServiceStub(channel)
        return (await draft.GetDraftLoad(draft_pb2.GetDraftLoadRequest())).load


def target_servicer(
    folder: Path,
    *,
    dtype: str = "float32",
    limits: SessionOptions | None = None,
    hidden_layers: tuple[int, ...] = (),
) -> TargetServicer:
    """A target of a model, to be served and closed."""
    loaded = load_model(str(folder), dtype=dtype, device="cpu")
    built = build_target(loaded, limits=TargetLimits(hidden_layers=hidden_layers))
    about = describe(loaded, built, max_sessions=64)
    target = BatchedTarget(built.target, EngineThread("target"))
    return TargetServicer(target, about, limits or SessionOptions())


def target_worker(folder: Path, **options: Any) -> Worker:
    """A target of a directory's model; `options` are those of `target_servicer`."""
    return Worker(lambda: target_servicer(folder, **options), TARGET, register_target)


def draft_worker(draft: str, target: Path, *, dtype: str = "float32", **options: Any) -> Worker:
    """A draft by name, for a directory's model; `options` are others of its configuration."""
    config = build(DraftConfig, draft=draft, target_model=str(target), dtype=dtype, **options)
    return Worker(lambda: load_draft(config), DRAFT, register_draft)


@asynccontextmanager
async def running(*workers: Worker):
    """Workers for as long as needed; they are stopped last started first."""
    async with AsyncExitStack() as stack:
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        yield


@asynccontextmanager
async def stub_of(address: str):
    """The public API of a router without the SDK, which refuses much by itself."""
    async with connect(address, ChannelOptions()) as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)


@asynccontextmanager
async def router_over(targets, drafts=(), **config):
    """A router over replicas, given as workers or as what a configuration says; its address.

    A busy machine makes no draft late and no replica lost.
    """
    fields = {"address": "127.0.0.1:0", **PATIENT, **config}
    router = Router(build(RouterConfig, targets=_named(targets), drafts=_named(drafts), **fields))
    port = await router.start()
    try:
        await asyncio.wait_for(router.ready(), LIMIT_S)
        yield f"127.0.0.1:{port}"
    finally:
        await router.stop(0)


@asynccontextmanager
async def routed(targets, drafts=(), *, token=None, **config):
    """A client of a router over replicas; those that are workers are ready by then, all of them."""
    async with (
        router_over(targets, drafts, **config) as address,
        AsyncClient(address, token=token, retries=False) as client,
    ):
        client.address = address
        given = {"target": targets, "draft": drafts}
        wanted = {role: len(at) for role, at in given.items() if at and not isinstance(at[0], str)}
        await until(client, lambda info: all(num_ready(info, at) == wanted[at] for at in wanted))
        yield client


async def until(client, holds, limit_s: float = LIMIT_S):
    """Return the router's description of its replicas, once the condition holds."""
    return await eventually(client.server_info, holds, limit_s)


async def eventually(ask: Callable[[], Awaitable], holds, limit_s: float = LIMIT_S):
    """The answer, once it holds what it should; asked again until the time is up."""
    answer = None
    try:
        async with asyncio.timeout(limit_s):
            while not holds(answer := await ask()):
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"after {limit_s} s it still is {answer}") from None
    return answer


def num_ready(info, role: str) -> int:
    return sum(at.role == role and at.state == "ready" for at in info.replicas)


def _named(replicas) -> tuple[str, ...]:
    return tuple(at if isinstance(at, str) else at.address for at in replicas)
