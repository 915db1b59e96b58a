"""Weights in the blocks of a GGUF file, as the native forward takes them: none is dequantised."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slipstream.core.errors import WeightsError
from slipstream.models.architecture import EMBEDDING, HEAD, parse
from slipstream.models.native.library import NotNative, library
from slipstream.models.native.source import WeightSource, check_tensors
from slipstream.models.native.weights import KINDS, Weights, exact
from slipstream.models.rope import Rotary
from slipstream.models.store.gguf_checkpoint import FAMILIES, PLAIN, GgufCheckpoint, GgufRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GgufSource(WeightSource):
    """The weights of a GGUF file."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        """Checks that all is there. Raises `WeightsError` for a broken file, `NotNative` for one
        that native code can't read."""
        checkpoint = GgufCheckpoint(path)
        if checkpoint.family not in FAMILIES:
            family = checkpoint.family or "no family"
            raise NotNative(f"GGUF files of {family} have no native reader")
        self._checkpoint = checkpoint
        self.path, self.name, self.dtype = path, path.name, dtype
        self.architecture = parse(checkpoint.config)
        self.is_tied = self.architecture.is_tied
        check_tensors(self)
        check_types(self)
        own, factors = self.architecture.rotary(), checkpoint.rope_factors
        frequencies = own.inv_freq if factors is None else own.inv_freq / factors
        self.rotary = Rotary(frequencies, own.attention_scaling)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See `WeightSource.shape`."""
        return self._checkpoint.shape(name) if self._checkpoint.has(name) else None

    def type_of(self, name: str) -> str:
        """A tensor's type, by transformers' name."""
        return self._checkpoint.type_of(name)

    def matrix(self, name: str) -> Weights:
        """See `WeightSource.matrix`."""
        return _kept(self._checkpoint.rows(name))

    def vector(self, name: str) -> Tensor:
        """See `WeightSource.vector`; norms and biases stay as exact as the file has them."""
        return self._checkpoint.rows(name).values.float().contiguous()

    def dense(self, name: str) -> Tensor:
        """See `WeightSource.dense`."""
        return self._table if name == EMBEDDING else dense(self._checkpoint.rows(name), self.dtype)

    def embedding(self) -> Weights:
        """See `WeightSource.embedding`."""
        return self.matrix(EMBEDDING)

    def reference(self) -> "PreTrainedModel":
        """See `WeightSource.reference`."""
        from transformers import AutoConfig

        from slipstream.models.reference import lent_model

        try:
            config = AutoConfig.for_model(**self._checkpoint.config)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise WeightsError(f"{self.name} does not describe a model ({error})") from error
        model = lent_model(self, config)
        if self._checkpoint.rope_factors is not None:
            model.base_model.rotary_emb.inv_freq /= self._checkpoint.rope_factors
        found: PreTrainedModel = model
        return found

    def identity(self) -> str:
        """See `WeightSource.identity`."""
        from slipstream.models.store.digests import weights_digest

        return weights_digest(self.path)

    def weights_type(self) -> str:
        """See `WeightSource.weights_type`; all types, that of the most weights first."""
        return "+".join(self._checkpoint.matrix_types())

    @cached_property
    def _table(self) -> Tensor:
        """The embedding one by one, once in memory for all who read it."""
        return dense(self._checkpoint.rows(EMBEDDING), self.dtype)


def check_types(source: GgufSource) -> None:
    """Raises `NotNative` for weights of a type without kernels, or of several types where a
    product needs one."""
    stacks = [[EMBEDDING], *([] if source.is_tied else [[HEAD]])]
    for at in range(source.architecture.num_layers):
        attention, mlp = (f"model.layers.{at}.{part}" for part in ("self_attn", "mlp"))
        stacks += [[f"{attention}.{part}_proj.weight" for part in "qk"]]
        stacks += [[f"{attention}.{part}_proj.weight"] for part in "vo"]
        stacks += [[f"{mlp}.{part}_proj.weight" for part in ("gate", "up")]]
        stacks += [[f"{mlp}.down_proj.weight"]]
    for stack in stacks:
        types = {source.type_of(name) for name in stack}
        if unknown := types - {*KINDS, *PLAIN}:
            raise NotNative(
                f"{stack[0]} has weights of type {unknown.pop()}, which have no native kernels"
            )
        if len(types) > 1 and not types <= set(PLAIN):
            raise NotNative(f"{' and '.join(stack)} are of the types {', '.join(sorted(types))}")


def dense(rows: GgufRows, dtype: torch.dtype) -> Tensor:
    """A tensor's weights one by one."""
    if rows.type in PLAIN:
        return rows.values.to(dtype)
    kept = _kept(rows)
    out = torch.empty(len(kept.matrix), kept.num_inputs)
    library().slipstream_dequantise(kept.kind, kept.matrix.data_ptr(), out.numel(), out.data_ptr())
    return out.to(dtype)


def _kept(rows: GgufRows) -> Weights:
    if rows.type in PLAIN:
        return exact(rows.values if rows.type == "BF16" else rows.values.float(), None)
    return Weights(KINDS[rows.type], rows.values)
