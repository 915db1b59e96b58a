"""A GliDe draft's pass in native code, over the same pool of keys and values as torch's.

Large matrices are kept in 8 bits: a draft's scores only propose, and a step reads every weight.
What a token may see is given by positions and slots, without masks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.models.glide.glide import GlideLayer, GlideModel, RmsNorm
from slipstream.models.glide.glide_state import GlideState, SessionStep
from slipstream.models.glide.target_parts import TargetParts, rotary_tables
from slipstream.models.kv.pool import KvLayout
from slipstream.models.native.library import NativeShape, NotNative
from slipstream.models.native.model import NativeModel, NativeTokens
from slipstream.models.native.weights import (
    BlockWeights,
    Weights,
    eight_bits,
    exact,
    in_turn,
    plain,
)
from slipstream.models.numerics.linears import SMALL, stacked_bias
from slipstream.models.scorer import Scores, on_host

_DTYPES = (torch.bfloat16, torch.float32)


class NativeGlide:
    """Layers and head of one draft. `weight_bytes` is what its weights take, `engine` names the
    kernels.

    A token's bits depend on what it sees and the weights alone, not on threads, the processor or
    the tokens beside it.
    """

    def __init__(
        self, model: GlideModel, head: Tensor, target: TargetParts, layout: KvLayout
    ) -> None:
        """Copy the weights; `head` [V_d, d] gives the scores. Raises `NotNative`."""
        _check(target, layout)
        self._target, self._layout = target, layout
        self._num_others = len(model.config.target_layers)
        self._model = NativeModel(_shape(model, layout), plain(target.embeddings))
        self._model.set_head(_norm(model.norm), _small(head, None))
        for index, layer in enumerate(model.layers):
            self._model.set_layer(index, _blocks(layer))
        self.weight_bytes = self._model.weight_bytes
        self.engine = f"native {self._model.kernels}"

    def reach(self, length: int) -> None:
        """Have rotary factors of positions 0..length-1."""
        tables = rotary_tables(self._target, length, dtype=torch.float32)
        self._model.set_rotary(*(table[:, : self._layout.head_dim // 2] for table in tables))

    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        """Scores of the rows of the steps that go on, step by step; `hidden` is float32."""
        rows, kept = NativeTokens(), sum(step.num_kept for step in steps)
        dense = [_dense(step.state.target_kv) for step in steps]
        others = [_others(kv, self._num_others) if any(dense) else [] for kv in dense]
        splits = [len(step.tokens) - step.num_kept for step in steps]
        for step, split, own in zip(steps, splits, others, strict=True):
            _add(rows, step, range(split, len(step.tokens)), own)
        for step, split, own in zip(steps, splits, others, strict=True):
            _add(rows, step, range(split), own)
        hidden = self._model.forward(steps[0].state.cache.pool, rows.batch(kept))
        return Scores(on_host(self._model.logits(hidden)), on_host(hidden))


def _add(rows: NativeTokens, step: SessionStep, chosen: range, others: Sequence[int]) -> None:
    """Add some of a step's tokens."""
    state, cache = step.state, step.state.cache
    table = cache.table(cache.num_slots).data_ptr()
    for at in chosen:
        place = step.start + at
        rows.tokens.append(step.tokens[at])
        rows.positions.append(step.positions[at])
        rows.slots.append(cache.slot(place))
        rows.tables.append(table)
        if step.first_node < 0 or state.is_chain:
            rows.in_table.append(place + 1)
            rows.add_line()
        else:
            base = len(state.tokens)
            rows.in_table.append(base)
            rows.add_line(cache.slot(base + node) for node in _line(state, step.first_node + at))
        rows.in_others.append(_num_read(step, at))
        rows.others += others


def _line(state: GlideState, node: int) -> list[int]:
    """The nodes above one, from the root's end on, and itself."""
    line = [node]
    while (parent := state.parents[line[-1]]) >= 0:
        line.append(parent)
    return line[::-1]


def _num_read(step: SessionStep, at: int) -> int:
    """Positions of the target that a token sees: of a prefix those before its own. Position 0 has
    none and reads itself, as in training, unless it is the last one, whose view may lack it."""
    if step.first_node >= 0:
        return step.num_read
    place, is_kept = step.start + at, at >= len(step.tokens) - step.num_kept
    return min(step.num_read, place if place or is_kept else 1)


Pairs = Sequence[tuple[Tensor, Tensor]]


def _dense(pairs: Pairs) -> Pairs:
    """The target's keys and values with both alike, and a head's positions beside each other."""
    return [
        (keys, values)
        if keys.stride() == values.stride() and keys.stride()[2:] == (keys.shape[3], 1)
        else (keys.contiguous(), values.contiguous())
        for keys, values in pairs
    ]


def _others(pairs: Pairs, count: int) -> list[int]:
    """Return what `NativeTokens.others` takes of one token; nothing may be read without pairs."""
    if not pairs:
        return [0, 0, 0] * count
    return [
        number
        for keys, values in pairs
        for number in (keys.data_ptr(), values.data_ptr(), keys.stride(1))
    ]


def _check(target: TargetParts, layout: KvLayout) -> None:
    if layout.device.type != "cpu" or layout.dtype not in _DTYPES:
        raise NotNative(f"{layout.dtype} on {layout.device.type} has no native kernels")
    if target.embeddings.dtype not in _DTYPES:
        raise NotNative(f"embeddings in {target.embeddings.dtype} have no native kernels")
    width = rotary_tables(target, 1, dtype=torch.float32)[0].shape[1]
    if width != layout.head_dim or width % 2:
        raise NotNative(f"{width} of a head's {layout.head_dim} elements are rotated")


def _shape(model: GlideModel, layout: KvLayout) -> NativeShape:
    at = model.config
    return NativeShape(
        layers=at.num_layers,
        hidden=at.hidden_size,
        heads=at.num_heads,
        key_heads=at.num_kv_heads,
        head_dim=at.head_dim,
        mlp=at.intermediate_size,
        others=len(at.target_layers),
        keys_are_bfloat16=layout.dtype == torch.bfloat16,
        norm_epsilon=at.rms_norm_eps,
        attention_scale=at.head_dim**-0.5,
    )


def _blocks(layer: GlideLayer) -> Iterable[BlockWeights]:
    own, mlp = layer.self_attn, layer.mlp
    yield _attention(layer.self_norm, own, [own.q_proj, own.k_proj, own.v_proj])
    for cross in layer.cross:
        yield _attention(cross.norm, cross, [cross.q_proj])
    # Gate and up projection are one matrix, a tile of each in turn: they are computed together.
    both = in_turn(mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())
    down = _small(mlp.down_proj.weight.detach(), None)
    yield BlockWeights(_norm(layer.mlp_norm), _small(both, None), down)


def _attention(norm: RmsNorm, attention: Any, linears: Sequence[nn.Linear]) -> BlockWeights:
    matrix = torch.cat([linear.weight.detach() for linear in linears])
    out = _small(attention.o_proj.weight.detach(), None)
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    query_norm, key_norm = (None if own is None else _norm(own) for own in norms)
    into = _small(matrix, stacked_bias(linears))
    return BlockWeights(_norm(norm), into, out, query_norm, key_norm)


def _norm(norm: RmsNorm) -> Tensor:
    return norm.weight.detach().float().contiguous()


def _small(matrix: Tensor, bias: Tensor | None) -> Weights:
    """Large weights in 8 bits, those that gain nothing by it exactly."""
    return exact(matrix, bias) if matrix.numel() <= SMALL else eight_bits(matrix, bias)
