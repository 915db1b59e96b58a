"""A plain step beside the time that reading the weights takes, and the cost of rows and sessions.

The weights are random ones of a model's shapes: times do not depend on their values.
"""

import resource
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.core.errors import InvalidRequest
from slipstream.core.tree import TokenTree
from slipstream.models.causal import CausalModel
from slipstream.models.dtypes import CPU, choose_dtype
from slipstream.models.kv.batch import Part
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.loaded import parse_device
from slipstream.models.loading import causal_model
from slipstream.models.machine import best_seconds
from slipstream.models.memory import wait_for
from slipstream.models.native.checkpoint import CONFIG, read_config
from slipstream.models.torch.arrays import torch_dtype

MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama-3-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
}
"""Published sizes: fields of each one's config.json."""

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SESSIONS = (1, 2, 4, 8, 16, 32, 64)
_CONTEXT = 300
_COPIED = {False: 1 << 30, True: 1 << 27}
"""Bytes that are copied, by whether that is on a CPU."""


def measure_floors(shape: str, *, dtype: str, device: str, numerics: str) -> dict[str, Any]:
    """Return times in milliseconds of a random model of a shape: `MODELS`, or a
    directory with a config.json. Raises `InvalidRequest` for another."""
    place = parse_device(device)
    model, read = _random_model(shape, dtype, place, numerics)
    context = min(_CONTEXT, model.context_length - max(_ROWS))
    rows, sessions = _forwards(model, context)
    bandwidth = _bandwidth(place)
    plain_s, kv = rows[1], context * model.layout.bytes_per_token
    floor_s = (read + kv) / bandwidth
    return {
        "shape": shape,
        "engine": model.engine,
        "dtype": model.dtype.name,
        "bandwidth": bandwidth,
        "read_bytes": read,
        "floor_ms": 1000 * floor_s,
        "plain_ms": 1000 * plain_s,
        "of_floor": floor_s / plain_s,
        "rows_ms": {count: 1000 * seconds for count, seconds in rows.items()},
        "sessions_ms": {count: 1000 * seconds for count, seconds in sessions.items()},
        "context": context,
        "memory": memory_use(place),
        "accounted": {"weights": model.weight_bytes, "workspace": model.workspace_bytes(256)},
    }


def _random_model(shape: str, dtype: str, device: str, numerics: str) -> tuple[CausalModel, int]:
    """Return a model, and the bytes of the weights that a step reads."""
    fields = dict(MODELS.get(shape, {}))
    if not fields:
        if not (Path(shape) / CONFIG).is_file():
            raise InvalidRequest(
                f"the shape is {shape!r}, but must be {', '.join(MODELS)} or a directory with a"
                " config.json"
            )
        fields = dict(read_config(Path(shape)))
    config = AutoConfig.for_model(**fields)
    with torch.device(device):
        made = AutoModelForCausalLM.from_config(
            config, dtype=torch_dtype(choose_dtype(dtype, device))
        ).eval()
    head, embedding = (
        embedding.weight
        for embedding in (made.get_output_embeddings(), made.get_input_embeddings())
    )
    read = sum(weight.nbytes for weight in made.parameters())
    read -= 0 if head is embedding else embedding.nbytes
    return causal_model(made, numerics=numerics), read


def _forwards(model: CausalModel, context: int) -> Iterator[dict[int, float]]:
    """Yield seconds of a forward, logits included, of so many tokens of one session, and then of
    one token of each of so many sessions."""
    pages, more = (-(-count // BLOCK_SIZE) for count in (context + 1, max(_ROWS)))
    pool = model.pool(max(_SESSIONS) * pages + more)
    caches = [model.open_in(pool) for _ in range(max(_SESSIONS))]
    for cache in caches:
        model.prefill(cache, [1] * context)
    caches[0].reserve(context + max(_ROWS))

    def run_rows(count: int) -> None:
        _compute(model, [Part(caches[0], [1], TokenTree.chain([1] * (count - 1)))])

    def run_sessions(count: int) -> None:
        _compute(model, [Part(cache, [1]) for cache in caches[:count]])

    yield _timed(run_rows, _ROWS)
    yield _timed(run_sessions, _SESSIONS)


def _compute(model: CausalModel, parts: list[Part]) -> None:
    model.logits(model.forward(parts)[0])
    wait_for(model.device)


def _timed(run: Callable[[int], None], counts: tuple[int, ...]) -> dict[int, float]:
    seconds = best_seconds([partial(run, count) for count in counts])
    return dict(zip(counts, seconds, strict=True))


def memory_use(device: str) -> dict[str, Any]:
    """Return the most bytes that tensors, and the allocator, have taken on a GPU; on a CPU the
    most that the process has."""
    if device != "cpu":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    return {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}


def _bandwidth(device: str) -> float:
    """Return bytes per second of a large copy, read and written."""
    source = torch.zeros(_COPIED[device == CPU], dtype=torch.uint8, device=device)
    into = torch.empty_like(source)

    def copy() -> None:
        into.copy_(source)
        wait_for(device)

    return 2 * source.nbytes / best_seconds([copy], passes=10)[0]
