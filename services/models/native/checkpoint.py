"""Weights of a model directory, read in place, or of a transformers model, for native code.

What has another form than the native forward computes is refused with a reason.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource, check_tensors
from slipstream.models.native.weights import BFLOAT16, Weights, exact
from slipstream.models.store.digests import bytes_digest
from slipstream.models.store.safetensors_file import Safetensors
from slipstream.models.target.architecture import EMBEDDING, HEAD, parse
from slipstream.models.target.fast_modules import is_usual_norm
from slipstream.models.target.rope import Rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


CONFIG = "config.json"


class Checkpoint(WeightSource):
    """A directory with config.json and safetensors in the names of transformers."""

    def __init__(self, folder: Path, dtype: torch.dtype, *, has_layers: bool = True) -> None:
        """Check that all is there; `has_layers` False leaves the layers out.

        Raises `NotNative` for a model of another form, `WeightsError` for files that are broken
        or not of the model's shape.
        """
        self.folder, self.dtype = folder, dtype
        self.name = str(folder)
        self.config = read_config(folder)
        self.architecture = parse(self.config)
        self._files = Safetensors(folder)
        self._embedding, self._head = self._tables()
        self.is_tied = self._embedding == self._head
        check_tensors(self, has_layers=has_layers)
        self._check_types(name for name, _ in self.architecture.tensors() if name in self._files)
        self.rotary = self.architecture.rotary()

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._files.shape(self._stored(name))

    def matrix(self, name: str) -> Weights:
        stored = self._files.tensor(self._stored(name))
        if stored.dtype == torch.bfloat16:  # which loses nothing in float32 either
            return Weights(BFLOAT16, stored)
        return exact(stored.to(self.dtype), None)

    def dense(self, name: str) -> Tensor:
        return self._table if self._stored(name) == self._embedding else self._dense(name)

    def reference(self) -> "PreTrainedModel":
        from transformers import AutoConfig

        from slipstream.models.target.reference import lent_model

        model: PreTrainedModel = lent_model(
            self, AutoConfig.from_pretrained(self.folder, local_files_only=True)
        )
        return model

    def identity(self) -> str:
        from slipstream.models.store.digests import weights_digest

        config = json.dumps(self.config, sort_keys=True).encode()
        return f"{weights_digest(self.folder)} {bytes_digest(config)}"

    def release(self, layer: int) -> None:
        self._files.release(name for name, _ in self.architecture.layer(layer))

    @cached_property
    def _table(self) -> Tensor:
        """The embedding, once in memory for all who read it."""
        return self._dense(self._embedding)

    def _dense(self, name: str) -> Tensor:
        return self._files.tensor(self._stored(name)).to(self.dtype)

    def _check_types(self, names: Iterable[str]) -> None:
        odd = [name for name in names if not self._files.is_plain(name)]
        if odd:
            raise NotNative(f"{odd[0]} is quantised")

    def _stored(self, name: str) -> str:
        return {EMBEDDING: self._embedding, HEAD: self._head}.get(name, name)

    def _tables(self) -> tuple[str, str]:
        """The names of embedding and head, which are one where the model ties them."""
        there = [name for name in (EMBEDDING, HEAD) if name in self._files]
        if not there:
            raise NotNative("its weights have other names")
        if not self.architecture.is_tied:
            return EMBEDDING, HEAD
        if len(there) == 2 and not self._are_equal(*there):
            return EMBEDDING, HEAD
        return there[0], there[0]

    def _are_equal(self, one: str, other: str) -> bool:
        if self._files.shape(one) != self._files.shape(other):
            return False
        return torch.equal(self._files.tensor(one), self._files.tensor(other))


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return config.json of a directory. Raises `NotNative` where it is none."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NotNative(f"its config.json can't be read ({error})") from None
    if not isinstance(config, dict):
        raise NotNative("its config.json is no object")
    return config


class InMemory(WeightSource):
    """A transformers model; its layers are empty once they have been released."""

    def __init__(self, model: "PreTrainedModel") -> None:
        """Raise `NotNative` for a model that is not a decoder of the usual form."""
        self._model: Any = model
        if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
            raise NotNative(f"{model.dtype} on {model.device.type} has no native kernels")
        self.architecture = parse(model.config.get_text_config().to_dict())
        _check_modules(model)
        self.name, self.dtype = type(model).__name__, model.dtype
        own: Any = self._model.base_model.rotary_emb
        self.rotary = Rotary(own.inv_freq.float(), own.attention_scaling)
        ends = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        self.is_tied = ends[0].weight is ends[1].weight

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self._find(name)
        return None if found is None else tuple(found.shape)

    def matrix(self, name: str) -> Weights:
        return exact(self.dense(name), None)

    def dense(self, name: str) -> Tensor:
        weight = self._find(name)
        assert weight is not None
        return weight.detach()

    def reference(self) -> "PreTrainedModel":
        model: PreTrainedModel = self._model
        return model

    def release(self, layer: int) -> None:
        self._model.base_model.layers[layer] = nn.Identity()

    def _find(self, name: str) -> Tensor | None:
        try:
            weight: Tensor | None = self._model.get_parameter(name)
        except AttributeError:
            return None
        return weight


def _check_modules(model: Any) -> None:
    body = model.base_model
    parts = {"embed_tokens", "layers", "norm", "rotary_emb"}
    if {name for name, _ in body.named_children()} != parts:
        raise NotNative(f"{type(model).__name__} has parts besides layers and norms")
    if not is_usual_norm(body.norm):
        raise NotNative(f"its norm is a {type(body.norm).__name__}")
    for layer in body.layers:
        _check_layer(layer)


def _check_layer(layer: nn.Module) -> None:
    parts = {name for name, _ in layer.named_children()}
    if parts != {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}:
        raise NotNative(f"its layers consist of {', '.join(sorted(parts))}")
    block: Any = layer.self_attn
    mlp: Any = layer.mlp
    known = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
    names = {name for name, child in block.named_children() if child is not None}
    if not names <= known or not {"q_proj", "o_proj"} <= names:
        raise NotNative(f"its attention consists of {', '.join(sorted(names))}")
    if not _is_silu(getattr(mlp, "act_fn", None)):
        raise NotNative("its MLP is not gated by SiLU")
    linears = [block.q_proj, block.k_proj, block.v_proj, block.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if not all(type(linear) is nn.Linear for linear in linears):
        raise NotNative("its projections are no plain ones")
    named = (getattr(block, name, None) for name in ("q_norm", "k_norm"))
    norms = [norm for norm in named if norm is not None]
    if not all(map(is_usual_norm, [layer.input_layernorm, *norms])):
        raise NotNative("its norms are not RMS norms")
    if any(norm.weight.numel() != block.head_dim for norm in norms):
        raise NotNative("its norms of queries and keys reach over several heads")


def _is_silu(activation: object) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"
