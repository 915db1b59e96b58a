"""Kinds of files that a model is loaded from: weights, configurations, tokenizers, drafts.

A file that loads has to compute: a forward reads all that was taken of it.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np

from fuzz.files.kinds import Kind
from fuzz.files.mutations import json_values, some_bytes
from fuzz.files.weights_mutations import gguf, halves, safetensors
from slipstream.models.decision import (
    DECISION_NAME,
    NUM_STATS,
    DecisionModel,
    load_decision,
    save_decision,
)
from slipstream.models.dtypes import FLOAT32
from slipstream.models.format.folder import SHARD_INDEX, WEIGHTS, reading
from slipstream.models.format.tokenizer import _read
from slipstream.models.glide.glide_config import CONFIG_NAME, WEIGHTS_NAME
from slipstream.models.glide.glide_files import save_blocks
from slipstream.models.glide.glide_weights import (
    BLOCKS_NAME,
    HEAD,
    GlideBlocks,
    block_shapes,
    read_parameters,
    rows_digest,
)
from slipstream.models.glide.load import load_glide, load_parts
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.kv.batch import Batch, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvPool
from slipstream.models.loaded import find_source, find_sources
from slipstream.models.loading import causal_model, load_model
from slipstream.models.machine import Measurements
from slipstream.models.native.library import NotNative
from slipstream.models.native.model import NativeDecoder
from slipstream.models.native.source import WeightSource
from slipstream.models.scorer import KvView, Sync
from slipstream.models.torch.loading import load_target_parts
from support.models import tiny_checkpoint, tiny_gguf

GGUF, SECOND = "model.gguf", "model-00002-of-00002.gguf"
TEXT = "Hello, wörld! 123  <|end|>\n\tfor (i = 0; i < 10; ++i) {}"
BLOCKS = {
    "attn_q": "Q4_0",
    "attn_k": "Q8_0",
    "attn_v": "Q5_1",
    "attn_output": "Q5_0",
    "ffn_gate": "IQ4_NL",
    "ffn_up": "Q4_1",
    "ffn_down": "MXFP4",
}
LARGE_BLOCKS = {
    "attn_q": "Q2_K",
    "attn_k": "Q3_K",
    "attn_v": "Q4_K",
    "attn_output": "Q5_K",
    "ffn_gate": "Q6_K",
    "ffn_up": "IQ4_XS",
    "ffn_down": "BF16",
}
"""Types of matrices in files, which together have all that are read."""


@cache
def _checkpoint() -> Path:
    """Return an intact target, with a draft and all of its files in the folder `draft`."""
    folder = Path(tempfile.mkdtemp()) / "target"
    tiny_checkpoint.save_checkpoint(folder)
    draft = tiny_checkpoint.save_draft(folder, folder / "draft")
    width = json.loads((draft / CONFIG_NAME).read_text())["hidden_size"]
    noise = np.random.default_rng(0)
    shapes = {
        "hidden.weight": (6, width),
        "hidden.bias": (6,),
        "stats.weight": (6, NUM_STATS),
        "out.weight": (2, 4),
    }
    weights = {name: noise.random(shape, np.float32) for name, shape in shapes.items()}
    save_decision(DecisionModel(weights), draft)
    own, parts = read_parameters(draft), load_parts(str(folder)).parts
    blocks = {name: np.full(at, 17, np.uint8) for name, at in block_shapes(own.config).items()}
    save_blocks(
        GlideBlocks(blocks, blocks.pop(HEAD), rows_digest(parts.head_rows(own.vocab))), draft
    )
    return folder


def _file(*names: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [_checkpoint().joinpath(*names).read_bytes()]


@cache
def _ggufs() -> Sequence[bytes]:
    """Return files of several families, in plain types and all blocks."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / GGUF
        small = lambda name: BLOCKS.get(name, "Q8_0")  # noqa: E731
        large = lambda name: LARGE_BLOCKS.get(name, "F16")  # noqa: E731
        found = [
            tiny_gguf.write(path, lambda _: "F32", "llama", 32).read_bytes(),
            *(tiny_gguf.write(path, small, at, 64).read_bytes() for at in ("llama", "qwen2")),
            tiny_gguf.write(path, small, "qwen3", 32, is_tied=False).read_bytes(),
        ]
        return [*found, *found, tiny_gguf.write(path, large).read_bytes()]


def _cache_in(folder: Path) -> None:
    os.environ["SLIPSTREAM_CACHE"] = str(folder / "cache")


def _target_in(folder: Path) -> None:
    _cache_in(folder)
    copytree(_checkpoint(), folder, dirs_exist_ok=True)


def _forward(source: WeightSource) -> None:
    """Compute some tokens with the weights of a source, as an engine does."""
    layout = source.outline().layout
    with reading(source.name):
        decoder = NativeDecoder(source, layout)
    pool = KvPool(layout, 1, scratch_rows=1)
    cache = KvCache(pool, limit=source.architecture.context_length)
    tokens = [token % source.architecture.vocab_size for token in (0, 7, 259)]
    for token in tokens[: cache.limit]:
        cache.reserve(cache.count + 1)
        batch = Batch.of([Part(cache, [token])])
        hidden, _ = decoder.forward(pool, batch)
        cache.keep(batch.slots)
        decoder.logits(hidden)


def _sources(path: Path) -> tuple[Path, Path | None]:
    return find_sources(Path(_name(path)))


def _source(path: Path) -> None:
    """Load weights for native code, in the way of a target, and of a draft's target."""
    folder, file = _sources(path)
    try:
        _forward(find_source(folder, file, "auto", "cpu"))
        find_source(folder, file, "auto", "cpu", has_layers=False)
    except NotNative:  # torch takes it
        return


def _name(path: Path) -> str:
    return str(path if path.suffix == ".gguf" or path.is_dir() else path.parent)


def _whole(path: Path) -> None:
    """Load a target with all that belongs to it, and compare it with transformers' own."""
    causal_model(load_model(_name(path)).model)


def _in_torch(path: Path) -> None:
    load_target_parts(_name(path))


def _tokenizer(path: Path) -> None:
    """Load a tokenizer, and write and read a text."""
    tokenizer = _read(*_sources(path))
    tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=True))


@cache
def _parts() -> TargetParts:
    return load_parts(str(_checkpoint())).parts


def _draft(path: Path) -> None:
    scorer = load_glide(path.parent, _parts())
    state = scorer.open(16)
    buffer = np.zeros((2 * scorer.layout.num_kv_heads, 4, scorer.layout.head_dim), FLOAT32)
    layers = dict.fromkeys(scorer.config.target_layers, buffer)
    scores = scorer.score([Sync(state, [1, 2, 3, 4, 5], KvView(4, layers))])
    decision = load_decision(path.parent, hidden_size=scorer.hidden_size)
    if decision is not None:
        decision.score(scores.hidden, np.ones((1, NUM_STATS), np.float32))


def _draft_in(folder: Path, *without: str) -> None:
    _cache_in(folder)
    copytree(_checkpoint() / "draft", folder, dirs_exist_ok=True)
    for name in without:
        (folder / name).unlink()


def _measured(path: Path) -> None:
    kept = Measurements(path)
    kept.get("speed")
    kept.recall("speed", lambda: 1.0, is_valid=lambda value: isinstance(value, float))
    assert isinstance(Measurements(path).get("speed"), float)


_MEASURED: Mapping[str, Any] = {
    "machine": {"processor": "P", "threads": 1},
    "measured": {"speed": 2.5, "dtype_seconds": {"float32": 0.1, "bfloat16": None}, "x": [1, True]},
}
_MEASURED_JSON = [json.dumps(_MEASURED).encode()]
_OTHER = "other.safetensors"
_INDEX_JSON = [json.dumps({"metadata": {}, "weight_map": {"x": _OTHER, "y": _OTHER}}).encode()]


def _split_in(folder: Path) -> None:
    _cache_in(folder)
    (folder / SECOND.replace("00002", "00001", 1)).write_bytes(halves(_ggufs()[1])[0])


def _index_in(folder: Path) -> None:
    _target_in(folder)
    (folder / WEIGHTS).rename(folder / _OTHER)


KINDS = (
    Kind("GGUF", GGUF, _ggufs, gguf, _source, _cache_in),
    Kind("GGUF second part", SECOND, lambda: [halves(_ggufs()[1])[1]], gguf, _source, _split_in),
    Kind("GGUF target", GGUF, _ggufs, gguf, _whole, _cache_in),
    Kind("GGUF tokenizer", GGUF, lambda: _ggufs()[:3], gguf, _tokenizer, _cache_in),
    Kind("safetensors", WEIGHTS, _file(WEIGHTS), safetensors, _source, _target_in),
    Kind("safetensors for torch", WEIGHTS, _file(WEIGHTS), safetensors, _in_torch, _target_in),
    Kind("config.json", CONFIG_NAME, _file(CONFIG_NAME), json_values, _source, _target_in),
    Kind(
        "config.json for torch", CONFIG_NAME, _file(CONFIG_NAME), json_values, _in_torch, _target_in
    ),
    Kind("shard index", SHARD_INDEX, lambda: _INDEX_JSON, json_values, _whole, _index_in),
    *(
        Kind(name, name, _file(name), json_values, _tokenizer, _target_in)
        for name in ("tokenizer.json", "tokenizer_config.json")
    ),
    *(
        Kind(f"draft {what}", name, _file("draft", name), mutate, _draft, _draft_in)
        for what, name, mutate in (
            ("config.json", CONFIG_NAME, json_values),
            ("blocks", BLOCKS_NAME, safetensors),
        )
    ),
    Kind(
        "draft weights",
        WEIGHTS_NAME,
        _file("draft", WEIGHTS_NAME),
        safetensors,
        _draft,
        lambda folder: _draft_in(folder, BLOCKS_NAME, DECISION_NAME),
    ),
    Kind("decision", DECISION_NAME, _file("draft", DECISION_NAME), safetensors, _draft, _draft_in),
    Kind("measurements", "m.json", lambda: _MEASURED_JSON, json_values, _measured),
    Kind("measurements in bytes", "m.json", lambda: _MEASURED_JSON, some_bytes, _measured),
)
