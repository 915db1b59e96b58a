"""A target service with random weights and keys and values of a given shape, as a process.

`python -m slipstream.bench.kv_server LAYERS KV_HEADS HEAD_DIM POSITIONS`: all of a real target but
its weights. Knows nothing of what is measured.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.engine.thread import EngineThread
from slipstream.models.causal import CausalModel
from slipstream.models.cores import Cores, load_on
from slipstream.models.kv_layout import KEY_BLOCK, round_up
from slipstream.rpc.leases import LeaseLimits
from slipstream.rpc.protocol import PROTOCOL_VERSION, new_incarnation
from slipstream.rpc.server import Server, ServerOptions
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.target.describe import layout_to_pb
from slipstream.target.engine import LocalTarget
from slipstream.target.memory import KvMemory
from slipstream.target.metering import FixedMeter
from slipstream.target.servicer import SERVICE, TargetServicer, register

HOST = "127.0.0.1"
VOCAB_SIZE = 64
_HIDDEN_SIZE = 64
_ROOM = 4096
"""Positions beside those of the snapshot, for rounds."""


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop."""
    asyncio.run(_serve(*map(int, argv)))
    return 0


async def _serve(layers: int, kv_heads: int, head_dim: int, positions: int) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN_SIZE,
        intermediate_size=_HIDDEN_SIZE,
        num_hidden_layers=layers,
        num_attention_heads=kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=positions + _ROOM,
    )
    thread = EngineThread("target")
    model = load_on(thread.call, lambda: _model(config), Cores(1))
    num_pages = round_up(positions + _ROOM, KEY_BLOCK) // KEY_BLOCK
    memory = KvMemory(model.pool(num_pages), limit=model.context_length)
    target = LocalTarget(model, memory, FixedMeter(1))
    servicer = TargetServicer(target, _about(model), LeaseLimits(), thread=thread)
    try:
        server = Server(ServerOptions(f"{HOST}:0"), {SERVICE: register(servicer)})
        port = await server.start()
        sys.stdout.write(f"ready {HOST}:{port}\n")
        sys.stdout.flush()
        await server.serve_until_stopped()
    finally:
        await servicer.close()


def _model(config: LlamaConfig) -> CausalModel:
    torch.manual_seed(0)
    weights: Any = LlamaForCausalLM(config)
    return CausalModel(weights.to(torch.bfloat16))


def _about(model: CausalModel) -> target_pb2.DescribeTargetResponse:
    return target_pb2.DescribeTargetResponse(
        identity=common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id="random",
            vocab_size=model.vocab_size,
            incarnation=new_incarnation(),
        ),
        layout=layout_to_pb(model.layout),
        context_length=model.context_length,
        numerics=model.numerics,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
