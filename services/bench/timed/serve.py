"""`python -m slipstream.bench.timed.serve ROLE RECORDING`: a target or a draft over timed models.

Everything is the real service but the network: engine, thread, queue, steps, streams, leases.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer, decoders, models

from slipstream.bench.timed.models import LAYOUT, TimedModel, TimedScorer
from slipstream.bench.timed.script import Script
from slipstream.core.profile import Profile
from slipstream.core.request import DraftFacts
from slipstream.core.types import Shape, StopPolicy
from slipstream.draft.build import Drafter
from slipstream.draft.describe import describe
from slipstream.draft.engine import LocalDraft
from slipstream.draft.feeds import KvFeeds
from slipstream.draft.servicer import SERVICE as DRAFT
from slipstream.draft.servicer import DraftServicer, DraftSettings
from slipstream.draft.servicer import register as register_draft
from slipstream.models.causal import CausalModel
from slipstream.models.kv_layout import KEY_BLOCK
from slipstream.models.pool import KvPool
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.leases import LeaseLimits
from slipstream.rpc.process import say_ready
from slipstream.rpc.protocol import PROTOCOL_VERSION, new_incarnation
from slipstream.rpc.server import Register, Server, ServerOptions
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.sizing.recording import Recording, read_recording
from slipstream.target.batcher import BatchLimits
from slipstream.target.describe import layout_to_pb
from slipstream.target.engine import LocalTarget
from slipstream.target.memory import KvMemory
from slipstream.target.metering import FixedMeter
from slipstream.target.schedule import RowBudget
from slipstream.target.servicer import SERVICE as TARGET
from slipstream.target.servicer import TargetServicer
from slipstream.target.servicer import register as register_target
from slipstream.text.tokenizer import TextTokenizer

MODEL = "timed"
MAX_SESSIONS = 128
MAX_ROWS = 256
"""Of a step, and what every session is offered: recorded rounds are not to be cut."""
_PAGES = 1024
_GRACE_S = 1.0


def main(argv: Sequence[str]) -> None:
    """Serve until told to stop."""
    role, path = argv
    torch.set_num_threads(1)
    asyncio.run(_serve(role, read_recording(Path(path))))


async def _serve(role: str, recording: Recording) -> None:
    made: dict[str, tuple[TargetServicer | DraftServicer, Register]] = {}
    if role == "target":
        target = target_servicer(recording)
        made[TARGET] = target, register_target(target)
    else:
        draft = draft_servicer(recording)
        made[DRAFT] = draft, register_draft(draft)
    [(service, (servicer, register))] = made.items()
    server = Server(ServerOptions("127.0.0.1:0", grace_s=_GRACE_S), {service: register})
    try:
        port = await server.start(serving=False)
        address = f"127.0.0.1:{port}"
        if isinstance(servicer, TargetServicer):
            servicer.advertise(address)
        await server.set_serving(True)
        await server.serve_until_stopped(ready=lambda: say_ready(address))
    finally:
        await servicer.close()


def target_servicer(recording: Recording) -> TargetServicer:
    """A target whose forwards take the recorded time. Made on the event loop."""
    script, devices = Script(recording), recording.devices
    model = cast(CausalModel, TimedModel(script, devices))
    pool = KvPool(LAYOUT, _PAGES, scratch_rows=MAX_ROWS)
    # No prompt is to find its beginning there: the recording says what prompts cost.
    memory = KvMemory(pool, limit=_PAGES * KEY_BLOCK, max_cached_pages=0)
    engine = LocalTarget(model, memory, FixedMeter(MAX_ROWS), max_sessions=MAX_SESSIONS)
    tokenizer = _tokenizer(script)
    about = target_pb2.DescribeTargetResponse(
        identity=common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id=MODEL,
            tokenizer_hash=tokenizer.vocab_hash,
            vocab_size=script.vocab_size,
            incarnation=new_incarnation(),
        ),
        layout=layout_to_pb(LAYOUT),
        context_length=model.context_length,
        numerics="invariant",
        dtype="float32",
        max_sessions=MAX_SESSIONS,
        tokenizer=target_pb2.Tokenizer(json=tokenizer.parts().json),
    )
    curve = devices.curve()
    rows = RowBudget(MAX_ROWS, devices.tile or RowBudget().tile, seconds=curve.seconds)
    limits = LeaseLimits(max_sessions=MAX_SESSIONS)
    return TargetServicer(engine, about, limits, batch=BatchLimits(rows, MAX_SESSIONS))


def draft_servicer(recording: Recording) -> DraftServicer:
    """A draft whose passes take the recorded time. Made on the event loop."""
    script = Script(recording)
    depth = max(script.max_depth, 1)
    profile = Profile(Shape.CHAIN, StopPolicy.SVIP, max_depth=depth, max_nodes=depth)
    engine = LocalDraft(TimedScorer(script, recording.devices), profile=profile)
    drafter = Drafter(
        engine,
        DraftFacts("vanilla", profile),
        tokenizer_hash=_tokenizer(script).vocab_hash,
        vocab_size=script.vocab_size,
    )
    about = describe(
        drafter, MODEL, target=None, incarnation=new_incarnation(), max_sessions=MAX_SESSIONS
    )
    settings = DraftSettings(limits=LeaseLimits(max_sessions=MAX_SESSIONS))
    feeds = KvFeeds(ChannelOptions(), torch.device("cpu"))
    return DraftServicer(drafter, feeds, about, settings)


def _tokenizer(script: Script) -> TextTokenizer:
    """A word for every token."""
    vocab = {f"w{token}": token for token in range(script.vocab_size)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    backend.decoder = decoders.WordPiece()
    parts = json.dumps(json.loads(backend.to_str())).encode()
    return TextTokenizer.from_parts(parts, "", {})


if __name__ == "__main__":
    main(sys.argv[1:])
