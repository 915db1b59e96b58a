"""`python -m slipstream_target`: the target as a process."""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slipstream.core.errors import BAD_INPUT, FAILED
from slipstream.core.request.server_info import ReplicaRole
from slipstream.engine.thread import EngineThread
from slipstream.models.dtypes import choose_dtype
from slipstream.models.format.digests import hub_commit, weights_digest
from slipstream.models.kv.pool import KvLayout
from slipstream.models.loaded import LoadedModel, parse_device
from slipstream.models.loading import load_model, sizes_of
from slipstream.models.threads import Cores, load_on
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.kv import DTYPE, dtype_of
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.rpc.protocol import PROTOCOL_VERSION, new_incarnation
from slipstream.rpc.server import Server
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.state.factory import announced_in
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments, Telemetry, sampled
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.build import BuiltTarget, build_target
from slipstream_target.config import TargetConfig
from slipstream_target.servicer import SERVICE, TargetServicer, register

if TYPE_CHECKING:
    from slipstream_target.tensor_parallel import WorkerProcesses

_LOG = logging.getLogger("slipstream.target")


def main(argv: Sequence[str]) -> int:
    """Serve until stopped; return the process's exit code."""
    return run_service("target", TargetConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: TargetConfig, telemetry: Telemetry) -> None:
    async with AsyncExitStack() as stack:
        driver = None
        if config.tensor_parallel > 1:
            from slipstream_target.tensor_parallel import start_workers

            # The dtype is decided once, so that all ranks agree on it.
            dtype = choose_dtype(config.compute.dtype, parse_device(config.compute.device)).name
            config = replace(config, compute=replace(config.compute, dtype=dtype))
            driver = stack.enter_context(start_workers(config, _lost))
        servicer = _load(config, driver, telemetry)
        stack.push_async_callback(servicer.close)
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start(serving=False)
        address = with_port(config.listen.address, port)
        reached = config.replica.advertised_address or address
        servicer.about.advertised_address = reached
        incarnation = servicer.about.identity.incarnation
        await server.set_serving(True)
        async with (
            announced_in(config.store, ReplicaRole.TARGET, reached, incarnation),
            sampled(telemetry.instruments, partial(sample, servicer)),
        ):
            await server.serve_until_stopped(
                ready=lambda: say_ready(address), broken=servicer.target.failed_steps.too_many
            )


def _lost(reason: str, is_input: bool) -> None:
    """End the process at once: a thread may wait for the lost rank for ever."""
    sys.stderr.write(f"error: {reason}\n")
    sys.stderr.flush()
    os._exit(BAD_INPUT if is_input else FAILED)


def sample(servicer: TargetServicer, instruments: Instruments) -> None:
    """Record the present load, and the totals since the start. About once a second."""
    target, load, put, total = servicer.target, servicer.load(), instruments.put, instruments.total
    put(catalog.KV_USED, load.kv_bytes)
    put(catalog.KV_CAPACITY, load.kv_capacity_bytes)
    put(catalog.KV_CACHED, load.kv_cached_bytes)
    put(catalog.KV_STREAMS, load.num_kv_streams)
    put(catalog.SESSIONS, load.num_sessions, {"state": "active"})
    put(catalog.SESSIONS, load.num_parked, {"state": "parked"})
    put(catalog.WAITING, load.num_waiting)
    put(catalog.ROWS_IN_FLIGHT, target.tokens_in_flight)
    put(catalog.ROWS_FREE, target.tokens_free)
    put(catalog.DRAFT_WAIT_SHARE, target.spent.waiting_share())
    for activity, seconds in target.spent.totals().items():
        total(catalog.TARGET_TIME, seconds, {"state": activity.value})
    total(catalog.KV_SENT, load.kv_streamed_bytes)


def _load(
    config: TargetConfig, driver: "WorkerProcesses | None", telemetry: Telemetry
) -> TargetServicer:
    def load() -> tuple[BuiltTarget, target_pb2.DescribeTargetResponse]:
        team = driver.join() if driver else None
        loaded = load_model(
            config.model,
            dtype=config.compute.dtype,
            device=config.compute.device,
            num_ranks=config.tensor_parallel,
        )
        built = build_target(
            loaded,
            numerics=config.numerics,
            limits=config.target_limits(sizes_of(loaded.model).layout.num_layers),
            team=team,
            tool_format=config.tool_format,
            has_defaults=config.sampling_defaults == "model",
        )
        if built.target.grammars is not None:
            built.target.grammars.prepare()
        return built, describe(loaded, built, max_sessions=config.sessions.max_sessions)

    thread = EngineThread("target")
    built, about = load_on(
        thread.call, load, Cores(config.rank_threads(), config.compute.pin_threads)
    )
    _LOG.info("model %s, incarnation %s", about.identity.model_id, about.identity.incarnation)
    _LOG.info("memory: %s", built.memory)
    _LOG.info("sampling defaults: %s", dict(built.facts.sampling_defaults) or "none")
    target = BatchedTarget(built.target, thread, built.budget, max_waiting=config.max_waiting)
    return TargetServicer(target, about, config.sessions, telemetry)


def describe(
    loaded: LoadedModel, built: BuiltTarget, *, max_sessions: int
) -> target_pb2.DescribeTargetResponse:
    """Return all but the address, which is known later. A new incarnation each time.

    Raises `ModelMismatch` for a tokenizer, `InvalidRequest` for an element type, not to be sent.
    """
    facts, model = built.facts, built.model
    text = loaded.tokenizer
    digest, commit = weights_digest(loaded.path), hub_commit(loaded.path)
    _LOG.info("%s has the weights %s%s", facts.model_id, digest, commit and f" of commit {commit}")
    return message_of(
        target_pb2.DescribeTargetResponse,
        facts,
        identity=common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id=facts.model_id,
            tokenizer_hash=loaded.tokenizer_hash,
            vocab_size=facts.vocab_size,
            incarnation=new_incarnation(),
            weights_digest=digest,
            revision=commit,
            numbering=text.table.numbering,
        ),
        layout=layout_to_pb(model.layout),
        stop_token_ids=sorted(facts.stop_token_ids),
        numerics=model.numerics,
        engine=model.engine.split()[0],
        dtype=model.weights_type,
        max_sessions=max_sessions,
        tokenizer=message_of(target_pb2.Tokenizer, text.parts()),
        memory=common_pb2.Memory(**built.memory.account()),
        sampling_defaults=common_pb2.SamplingParams(**facts.sampling_defaults),  # type: ignore[arg-type]
    )


def layout_to_pb(layout: KvLayout) -> common_pb2.KvLayout:
    """Return the shape of a model's keys and values."""
    return message_of(common_pb2.KvLayout, layout, dtype=DTYPE.to_pb(dtype_of(layout.dtype)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
