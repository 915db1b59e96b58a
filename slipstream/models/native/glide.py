"""A draft's pass in native code, over the same pool of keys and values as torch's.

Matrices are kept in the 4-bit blocks of their file, or else the large ones in 8 bits: a draft's
scores only propose, and a step reads every weight.
What a token may see is given by positions and slots, without masks.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import BFLOAT16, CPU, FLOAT32, Array
from slipstream.models.eagle.eagle_weights import EMBEDDING, EagleWeights
from slipstream.models.format.rope import rotary_tables
from slipstream.models.glide.glide_config import EagleConfig, GlideConfig
from slipstream.models.glide.glide_scorer import GlideState, SessionStep
from slipstream.models.glide.glide_weights import GlideWeights, rows_digest
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.kv.batch import Batch
from slipstream.models.kv.pool import HOST, KvLayout
from slipstream.models.native.library import NativeShape, NotNative
from slipstream.models.native.model import CrossKv, NativeModel
from slipstream.models.native.weights import (
    Q4_1,
    BlockWeights,
    Weights,
    as_float32,
    eight_bits,
    exact,
    plain,
)
from slipstream.models.scorer import Scores

_LOG = logging.getLogger("slipstream.models")
_DraftWeights = GlideWeights | EagleWeights
_SMALL = 1 << 16
"""Elements of a weight up to which fewer bits gain nothing: converting the row costs as much."""


class NativeGlide:
    """Layers and head of one draft. `weight_bytes` is what its weights take, `engine` names the
    kernels, and the blocks of weights that were rounded to 4 bits. Where it `scores_others`, rows
    of the embedding are the head's for tokens outside of the trimmed one.

    A token's bits depend on what it sees and the weights alone, not on threads, the processor or
    the tokens beside it.
    """

    buffers = HOST
    scores_others = False

    def __init__(self, weights: GlideWeights, target: TargetParts, layout: KvLayout) -> None:
        """Copy the weights. Raises `NotNative`."""
        _require_native(layout)
        self._target, self._layout = target, layout
        self._num_others = len(weights.config.target_layers)
        shape = {"layers": weights.config.num_layers, "num_cross": self._num_others}
        self.model = NativeModel(_shape(weights.config, layout, **shape), target.embedding)
        head = _head(weights, target.head_rows(weights.vocab))
        self.model.set_head(as_float32(weights.tensors["norm.weight"]), head)
        for index in range(weights.config.num_layers):
            self.model.set_layer(index, _blocks(weights, f"layers.{index}"))
        self.weight_bytes = self.model.weight_bytes
        self.scores_others = target.is_tied
        self.engine = f"native {self.model.kernels}"
        if weights.blocks is not None:
            self.engine += " Q4_1" if head.kind == Q4_1 else " Q4_1+Q8_0"

    def reach(self, length: int) -> None:
        self.model.set_rotary(*self._target.rotary(length))

    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        """Scores of the rows of the steps that go on, step by step; `hidden` is float32."""
        batch, cross = self.laid_out(steps)
        pool, num_kept = steps[0].state.cache.pool, sum(step.num_kept for step in steps)
        cross.make_outputs(num_kept)
        hidden = self.model.forward(pool, batch, num_kept=num_kept, cross=cross)
        return Scores(self.model.logits(hidden), hidden, cross.outputs)

    def laid_out(self, steps: Sequence[SessionStep]) -> tuple[Batch, CrossKv]:
        """Return the tokens of steps, and what they read: those that go on come first."""
        batch, cross = Batch(), CrossKv()
        is_reading = any(step.state.target_kv for step in steps)
        others = [self._others(step.state) if is_reading else () for step in steps]
        splits = [len(step.tokens) - step.num_kept for step in steps]
        each = [*zip(steps, others, strict=True)]
        chosen = [range(split, len(step.tokens)) for step, split in zip(steps, splits, strict=True)]
        for (step, own), part in zip([*each, *each], [*chosen, *map(range, splits)], strict=True):
            step.add_to(batch, part)
            cross.num_read += map(step.num_read, part)
            cross.places += [*own] * len(part)
        if steps[0].features is not None:
            given: list[Any] = [step.features for step in steps]
            parts = [own[split:] for own, split in zip(given, splits, strict=True)]
            parts += [own[:split] for own, split in zip(given, splits, strict=True)]
            cross.features = np.concatenate(parts)
        return batch, cross

    def _others(self, state: GlideState) -> Sequence[int]:
        """Return a session's entry of `CrossKv.places`; nothing may be read without
        keys. Addresses take long to read, and are kept while the buffers are the same.

        Raises `ModelError` for keys that are not of the target's form.
        """
        if not state.target_kv:
            return [0, 0, 0, 0] * self._num_others
        length = state.num_read
        if state.addresses is None:
            num_heads = self._target.num_kv_heads
            state.target_kv = [self._readable(given, length) for given in state.target_kv]
            shape = (2 * num_heads, length, self._target.head_dim)
            shapes = {buffer[:, :length].shape for buffer in state.target_kv}
            if shapes != {shape} or len(state.target_kv) != self._num_others:
                raise ModelError(f"the target's keys and values are {shapes}, but must be {shape}")
            state.addresses = []
            for buffer in state.target_kv:
                first, stride = buffer.ctypes.data, buffer.strides[0]
                values = first + num_heads * stride
                state.addresses += [first, values, stride // buffer.itemsize, length]
        state.addresses[3::4] = [length] * self._num_others
        return state.addresses

    def _readable(self, given: Any, length: int) -> Array:
        """Return a buffer, or a copy of its first positions where those of a head are not beside
        each other, or of another type."""
        found = _array(given)
        if found.dtype == self._layout.dtype and found[:1].flags.c_contiguous:
            return found
        return np.ascontiguousarray(found[:, :length].astype(self._layout.dtype, copy=False))


class NativeEagle(NativeGlide):
    """Layer and head of one EAGLE-3 head, and what makes features of the target's states."""

    def __init__(self, weights: EagleWeights, target: TargetParts, layout: KvLayout) -> None:
        """Copy the weights. Raises `NotNative`."""
        _require_native(layout)
        config, tensors = weights.config, weights.tensors
        self._target, self._layout, self._config = target, layout, config
        flags = {"norms_residual": config.norms_residual, "norms_output": config.norms_output}
        shape = _shape(config, layout, layers=1, num_cross=0, has_features=1, **flags)
        own = tensors.get(EMBEDDING)
        self.model = NativeModel(shape, target.embedding if own is None else plain(own))
        head = _small([tensors["lm_head.weight"]], [None])[0]
        self.model.set_head(as_float32(tensors["norm.weight"]), head)
        self.model.set_feature_norm(as_float32(tensors["midlayer.hidden_norm.weight"]))
        attention = _attention(weights, "midlayer.input_layernorm", "midlayer.self_attn", "qkv")
        mlp = _mlp(weights, "midlayer.post_attention_layernorm", "midlayer.mlp")
        self.model.set_layer(0, [attention, mlp])
        names = [name for name in tensors if name.startswith(("fc_norm.", "input_norm."))]
        self._norms = {name: as_float32(tensors[name]) for name in names}
        self._fusion = _fusion(weights)
        self.weight_bytes = self.model.weight_bytes + self._fusion.weight_bytes
        self.engine = f"native {self.model.kernels}"

    def reach(self, length: int) -> None:
        self.model.set_rotary(*rotary_tables(self._config.rotary, length))

    def fused(self, states: Sequence[Any], slots: Sequence[int]) -> Array:
        if not states:
            return np.zeros((1, self._config.hidden_size), np.float32)
        kept = (as_float32(_array(state)[:, slots]) for state in states)
        parts = [np.concatenate(list(halves), -1) for halves in kept]
        parts = [self._normed(part, f"fc_norm.{number}") for number, part in enumerate(parts)]
        return self._fusion.logits(self._normed(np.concatenate(parts, -1), "input_norm"))

    def joined(self, rows: Sequence[Array]) -> Array:
        return np.stack(rows)

    def _normed(self, values: Array, name: str) -> Array:
        """Return values behind a norm; as they are where there is none of this name."""
        if (weight := self._norms.get(f"{name}.weight")) is None:
            return values
        squares = np.square(values).mean(-1, keepdims=True) + self._config.rms_norm_eps
        found: Array = weight * (values / np.sqrt(squares))
        return found


def _fusion(weights: EagleWeights) -> NativeModel:
    """Return a model of no layers, whose head makes features of states side by side."""
    [matrix] = _linears(weights, "fc")
    width = matrix.num_inputs
    shape = NativeShape(layers=0, hidden=width, heads=1, key_heads=1, head_dim=2, mlp=1)
    model = NativeModel(shape, plain(np.zeros((1, width), np.float32)))
    model.set_head(np.ones(width, np.float32), matrix)
    return model


def _require_native(layout: KvLayout) -> None:
    if layout.device != CPU or layout.dtype not in (BFLOAT16, FLOAT32):
        raise NotNative(f"{layout.dtype.name} on {layout.device} has no native kernels")


def _array(values: Any) -> Array:
    """Return a buffer on the host as an array."""
    if isinstance(values, np.ndarray):
        return values
    from slipstream.models.torch.arrays import as_array

    found: Array = as_array(values)
    return found


def _shape(config: GlideConfig | EagleConfig, layout: KvLayout, **others: int) -> NativeShape:
    return NativeShape(
        hidden=config.hidden_size,
        heads=config.num_heads,
        key_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp=config.intermediate_size,
        keys_are_bfloat16=layout.dtype == BFLOAT16,
        norm_epsilon=config.rms_norm_eps,
        attention_scale=config.head_dim**-0.5,
        **others,
    )


def _blocks(weights: GlideWeights, layer: str) -> Iterable[BlockWeights]:
    yield _attention(weights, f"{layer}.self_norm", f"{layer}.self_attn", "qkv")
    for index in range(len(weights.config.target_layers)):
        yield _attention(weights, f"{layer}.cross.{index}.norm", f"{layer}.cross.{index}", "q")
    yield _mlp(weights, f"{layer}.mlp_norm", f"{layer}.mlp")


def _mlp(weights: _DraftWeights, norm: str, mlp: str) -> BlockWeights:
    return BlockWeights(
        as_float32(weights.tensors[f"{norm}.weight"]),
        _linears(weights, f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        _linears(weights, f"{mlp}.down_proj")[0],
    )


def _attention(weights: _DraftWeights, norm: str, attention: str, projections: str) -> BlockWeights:
    tensors = weights.tensors
    norms = (tensors.get(f"{attention}.{kind}_norm.weight") for kind in "qk")
    query_norm, key_norm = (None if own is None else as_float32(own) for own in norms)
    return BlockWeights(
        as_float32(tensors[f"{norm}.weight"]),
        _linears(weights, *(f"{attention}.{kind}_proj" for kind in projections)),
        _linears(weights, f"{attention}.o_proj")[0],
        query_norm,
        key_norm,
    )


def _linears(weights: _DraftWeights, *names: str) -> list[Weights]:
    """Return linears of one input: their blocks where there are any."""
    biases = [weights.tensors.get(f"{name}.bias") for name in names]
    blocks = weights.blocks
    own = weights.tensors if blocks is None else blocks.linears
    matrices = [own[f"{name}.weight"] for name in names]
    if blocks is None:
        return _small(matrices, biases)
    kept = (None if bias is None else as_float32(bias) for bias in biases)
    return [Weights(Q4_1, *pair) for pair in zip(matrices, kept, strict=True)]


def _head(weights: GlideWeights, rows: Array) -> Weights:
    """Return the head, whose rows [V_d, d] are the target's: its blocks if they are of these."""
    blocks = weights.blocks
    if blocks is None:
        return _small([rows], [None])[0]
    if rows_digest(rows) == blocks.head_sha256:
        return Weights(Q4_1, blocks.head)
    _LOG.info("the draft's head is kept in 8 bits: its blocks are of another target's head")
    return _small([rows], [None])[0]


def _small(matrices: Sequence[Array], biases: Sequence[Array | None]) -> list[Weights]:
    """Return weights that are large together in 8 bits, those that gain nothing by it exactly."""
    is_small = sum(matrix.size for matrix in matrices) <= _SMALL
    return list(map(exact if is_small else eight_bits, matrices, biases))
