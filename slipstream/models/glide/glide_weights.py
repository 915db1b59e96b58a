"""GliDe weights on disk: one safetensors file and its config, checked against each other, and the
same weights in 4-bit blocks where `slipstream train quantise` has put them beside it.

Refuses anything pickled, and weights that belong to another target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from slipstream.core.errors import ModelMismatch, WeightsError
from slipstream.models.dtypes import BFLOAT16, Array
from slipstream.models.format.digests import bytes_digest, weights_digest
from slipstream.models.format.folder import reading, shown
from slipstream.models.glide.glide_config import WEIGHTS_NAME, GlideConfig, read_config
from slipstream.models.glide.target_parts import TargetParts

VOCAB = "vocab"
"""The name of the head's token ids in the file."""
BLOCKS_NAME = "model.q4_1.safetensors"
HEAD = "head.weight"
DRAFT_SHA256, HEAD_SHA256 = "draft_sha256", "head_sha256"
"""Names of the digests in the file of blocks, each [32] uint8."""
BLOCK = 32
"""Weights of a Q4_1 block: a scale and a minimum in float16, and 4 bits for each weight."""
BLOCK_BYTES = 20
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class GlideBlocks:
    """The linears of a draft in Q4_1 blocks by the names of `GlideModel`'s parameters, each
    [outputs, inputs / 32 * 20] uint8; `head` [V_d, d / 32 * 20] is of the target's head rows whose
    `rows_digest` is `head_sha256`."""

    linears: Mapping[str, Array]
    head: Array
    head_sha256: bytes


@dataclass(frozen=True, slots=True)
class GlideWeights:
    """The trained weights of a draft by the names of `GlideModel`'s parameters; vocab [V_d] int64
    holds the target id of each head column, ascending. `blocks` are the same weights in 4 bits,
    for native code."""

    config: GlideConfig
    tensors: Mapping[str, Array]
    vocab: Array
    blocks: GlideBlocks | None = None


def read_glide(directory: Path) -> GlideWeights:
    """Read the weights in a directory, with their blocks if there are any; WeightsError when they
    are missing or broken, or the blocks were made of other weights."""
    weights = read_parameters(directory)
    return replace(weights, blocks=_read_blocks(directory, weights.config))


def read_parameters(directory: Path) -> GlideWeights:
    """Read the weights in a directory without their blocks; WeightsError when they are missing or
    broken."""
    config = read_config(directory)
    tensors = read_arrays(directory / WEIGHTS_NAME)
    vocab = tensors.pop(VOCAB, None)
    if vocab is None or vocab.dtype != np.int64 or vocab.shape != (config.head_size,):
        raise WeightsError(f"{directory} has no int64 vocab of {config.head_size} ids")
    rising = bool((vocab[1:] > vocab[:-1]).all())
    if not rising or int(vocab[0]) < 0 or int(vocab[-1]) >= config.vocab_size:
        raise WeightsError(
            f"the vocab in {directory} is not ascending within 0..{config.vocab_size - 1}"
        )
    wanted = dict(glide_shapes(config))
    odd = sorted(set(tensors) ^ set(wanted))
    odd += [n for n in set(tensors) & set(wanted) if tensors[n].shape != wanted[n]]
    if odd:
        raise WeightsError(f"the weights in {directory} do not fit their config: {shown(odd)}")
    return GlideWeights(config, tensors, vocab)


def rows_digest(rows: Array) -> bytes:
    """Return the SHA-256 of a head's rows [V_d, d] in bfloat16.

    Files of one model in several element types round to the same bfloat16 numbers.
    """
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(rows.astype(BFLOAT16))
    return bytes.fromhex(bytes_digest(narrow.tobytes()))


def block_shapes(config: GlideConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of all that is kept in blocks, the head included; WeightsError for
    inputs that are no whole blocks."""
    linears = {name: shape for name, shape in glide_shapes(config) if len(shape) > 1}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (outputs, inputs) in {
        **linears,
        HEAD: (config.head_size, config.hidden_size),
    }.items():
        if inputs % BLOCK:
            raise WeightsError(
                f"{name} has {inputs} inputs, but Q4_1 blocks need a multiple of {BLOCK}"
            )
        shapes[name] = (outputs, inputs // BLOCK * BLOCK_BYTES)
    return shapes


def _read_blocks(directory: Path, config: GlideConfig) -> GlideBlocks | None:
    path = directory / BLOCKS_NAME
    if not path.exists():
        return None
    tensors = read_arrays(path)
    digests = dict.fromkeys((DRAFT_SHA256, HEAD_SHA256), (_DIGEST_BYTES,))
    wanted: dict[str, tuple[int, ...]] = {**block_shapes(config), **digests}
    odd = sorted(set(tensors) ^ set(wanted))
    odd += sorted(
        name
        for name in set(tensors) & set(wanted)
        if tensors[name].shape != wanted[name] or tensors[name].dtype != np.uint8
    )
    if odd:
        raise WeightsError(f"{path} does not fit the draft's config: {shown(odd)}")
    if tensors.pop(DRAFT_SHA256).tobytes().hex() != weights_digest(directory / WEIGHTS_NAME):
        raise WeightsError(
            f"{path} was made of other weights of this draft: run `slipstream train quantise`"
            " again, or delete it"
        )
    head, head_sha256 = tensors.pop(HEAD), tensors.pop(HEAD_SHA256)
    return GlideBlocks(tensors, head, head_sha256.tobytes())


def read_arrays(path: Path) -> dict[str, Array]:
    """Read a safetensors file; WeightsError when it is missing or broken."""
    with reading(path):
        return load_file(path)


def glide_shapes(config: GlideConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every parameter of `GlideModel`."""
    yield "norm.weight", (config.hidden_size,)
    for index in range(config.num_layers):
        for name, shape in _layer_shapes(config):
            yield f"layers.{index}.{name}", shape


def _layer_shapes(config: GlideConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    queries, keys = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
    attentions = {"self_attn": {"q": queries, "k": keys, "v": keys}}
    attentions |= {f"cross.{index}": {"q": queries} for index in range(len(config.target_layers))}
    for name, projections in attentions.items():
        for which, size in projections.items():
            yield f"{name}.{which}_proj.weight", (size, hidden)
            if config.attention_bias:
                yield f"{name}.{which}_proj.bias", (size,)
        yield f"{name}.o_proj.weight", (hidden, queries)
        norms = [which for which in projections if which != "v"] if config.qk_norm else []
        for which in norms:
            yield f"{name}.{which}_norm.weight", (config.head_dim,)
        yield ("self_norm.weight" if name == "self_attn" else f"{name}.norm.weight"), (hidden,)
    yield "mlp_norm.weight", (hidden,)
    for which in ("gate", "up"):
        yield f"mlp.{which}_proj.weight", (mlp, hidden)
    yield "mlp.down_proj.weight", (hidden, mlp)


def check_target(config: GlideConfig, parts: TargetParts) -> None:
    """ModelMismatch unless the weights' config fits the target."""
    for name in ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
        ours, theirs = getattr(config, name), getattr(parts, name)
        if ours != theirs:
            raise ModelMismatch(f"the draft's {name} is {ours!r:.60}, the target's {theirs}")
    if parts.tokenizer_hash not in (None, config.tokenizer_hash):
        raise ModelMismatch(
            f"the draft was trained with tokenizer {shown([config.tokenizer_hash[:12]])}, "
            f"the target's is {str(parts.tokenizer_hash)[:12]}"
        )
    if max(config.target_layers, default=0) >= parts.num_layers:
        raise ModelMismatch(
            f"the draft reads target layer {max(config.target_layers)!r:.60}, "
            f"the target has {parts.num_layers} layers"
        )
