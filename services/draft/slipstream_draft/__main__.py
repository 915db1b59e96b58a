"""`python -m slipstream_draft`: the draft service as a process."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import EAGLE, VANILLA
from slipstream.core.policy.profile import NGRAM
from slipstream.core.request.request import NO_DRAFTER
from slipstream.core.request.server_info import ReplicaRole
from slipstream.drafting.build import Drafter, DraftTarget, build_drafter
from slipstream.drafting.engine import LocalDraft
from slipstream.engine.thread import EngineThread
from slipstream.files import path_of
from slipstream.models.glide.load import load_parts
from slipstream.models.glide.target_parts import LoadedParts
from slipstream.models.loaded import parse_device
from slipstream.models.threads import Cores, load_on
from slipstream.ngrams.store_file import NgramStores
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.rpc.protocol import PROTOCOL_VERSION, new_incarnation
from slipstream.rpc.remote_draft import LAYOUT
from slipstream.rpc.server import Server
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.state.factory import announced_in
from slipstream.telemetry.metric import Telemetry, sampled
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_receivers import KvReceivers
from slipstream_draft.servicer import SERVICE, DraftServicer, register

_LOG = logging.getLogger("slipstream.draft")


def main(argv: Sequence[str]) -> int:
    """Serve until a signal stops it; return the process's exit code."""
    return run_service("draft", DraftConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: DraftConfig, telemetry: Telemetry) -> None:
    servicer = load_draft(config, telemetry)
    try:
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start()
        address = with_port(config.listen.address, port)
        reached = config.replica.advertised_address or address
        incarnation = servicer.about.identity.incarnation
        async with (
            announced_in(config.store, ReplicaRole.DRAFT, reached, incarnation),
            sampled(telemetry.instruments, servicer.sample),
        ):
            await server.serve_until_stopped(
                ready=lambda: say_ready(address), broken=servicer.broken
            )
    finally:
        await servicer.close()


def load_draft(config: DraftConfig, telemetry: Telemetry | None = None) -> DraftServicer:
    """Load what is configured, on the loop that will serve it. Raises what loading raises."""
    if config.draft == NO_DRAFTER:
        raise InvalidRequest("a draft service needs a draft; without one, start none")
    if config.draft != NGRAM.kind and not {*config.ngrams} <= {"auto", "none"}:
        raise InvalidRequest(f"ngrams is for the draft ngram, but the draft is {config.draft}")
    thread = EngineThread("draft")
    device = parse_device(config.compute.device)
    receivers = KvReceivers(config.to_targets(), device, config.sources())
    cores = Cores(config.compute.threads, config.compute.pin_threads)
    drafter, target = load_on(thread.call, lambda: _build(config, receivers), cores)
    if drafter.memory is not None and isinstance(drafter.draft, LocalDraft):
        _LOG.info("memory: %s", drafter.memory)
        if drafter.layers:
            receivers.budget.limit = drafter.memory.kv_bytes - drafter.draft.pool.num_bytes
    name, path = config.draft, path_of(config.draft.removeprefix(EAGLE))
    if path.is_dir():  # where it lies is not public
        name = (EAGLE if name.startswith(EAGLE) else "") + path.resolve().name
    about = describe(
        drafter,
        name,
        target=target,
        incarnation=new_incarnation(),
        max_sessions=config.sessions.max_sessions,
    )
    return DraftServicer(drafter, receivers, about, config, thread=thread, telemetry=telemetry)


def _build(config: DraftConfig, receivers: KvReceivers) -> tuple[Drafter, LoadedParts | None]:
    dtype, device = config.compute.dtype, config.compute.device
    stores = NgramStores(config.ngrams) if config.draft == NGRAM.kind else None
    if config.draft == NGRAM.kind or config.draft.startswith(VANILLA):
        alone = DraftTarget("", None, None, receivers, dtype, device, memory=config.memory())
        drafter = build_drafter(config.draft, alone, profile=config.profile)
        return replace(drafter, stores=stores), None
    loaded = load_parts(config.target_model, dtype=dtype, device=device)
    target = DraftTarget(
        loaded.model_id,
        None,
        loaded.parts,
        receivers,
        dtype,
        device,
        loaded.context_length,
        config.memory(is_mirroring=True),
    )
    drafter = build_drafter(config.draft, target, profile=config.profile)
    # A draft without keys to read goes with any target of the same tokenizer.
    return drafter, loaded if drafter.layers else None


def describe(
    drafter: Drafter, name: str, *, target: LoadedParts | None, incarnation: str, max_sessions: int
) -> draft_pb2.DescribeDraftResponse:
    """Return a description; `target` is None for a draft that reads no keys and values."""
    about = message_of(
        draft_pb2.DescribeDraftResponse,
        drafter.facts,
        identity=common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id=name,
            tokenizer_hash=drafter.tokenizer_hash or "",
            vocab_size=drafter.vocab_size or 0,
            incarnation=incarnation,
            numbering=drafter.numbering,
        ),
        target_layers=drafter.layers,
        max_sessions=max_sessions,
        memory=drafter.memory and common_pb2.Memory(**drafter.memory.account()),
        dtype=drafter.dtype,
    )
    if target is not None:
        about.target_model_id = target.model_id
        for field in LAYOUT:
            setattr(about.target_layout, field, getattr(target.parts, field))
    return about


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
