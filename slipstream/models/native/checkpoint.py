"""Weights of a model directory, read in place, for native code.

What has another form than the native forward computes is refused with a reason, and weights that
are quantised in another way than FP8 by name.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models.dtypes import BFLOAT16, CPU, Q8, Array
from slipstream.models.format.architecture import EMBEDDING, HEAD, parse
from slipstream.models.format.digests import bytes_digest, weights_digest
from slipstream.models.format.families import account_fields, require_read
from slipstream.models.format.folder import reading, shown
from slipstream.models.format.safetensors_file import FP8, Safetensors
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource, check_tensors
from slipstream.models.native.weights import Weights, as_float32, eight_bits, of_type

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger("slipstream.models")
CONFIG = "config.json"
_BODY = "model."
_BODIES = (_BODY, "language_model.model.", "model.language_model.")
"""Prefixes of names in files of text alone, and of text and images in older and newer style."""
_IMAGES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..*")
_SCALES = ("_scale_inv", "_scale")
"""Endings that the names of scales add to that of their weight in FP8."""
_ROUNDED = re.compile(r".*\.(input|activation|output|k|v)_scale")
_QUANTISED = ("quantization_config", "compression_config")
_QUANTISED_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files of ModelOpt, AutoGPTQ and AutoAWQ that say how weights are quantised."""
_FP8 = {"fp8", "fbgemm_fp8", "FP8", "modelopt FP8", "compressed-tensors float-quantized"}


class Checkpoint(WeightSource):
    """A directory with config.json and safetensors in the names of transformers."""

    def __init__(
        self, folder: Path, dtype: np.dtype[Any], *, is_coded: bool = False, has_layers: bool = True
    ) -> None:
        """Check that all is there; `is_coded` gives matrices as `eight_bits`, `has_layers` False
        leaves the layers out.

        Raises `NotNative` for a model of another form, `WeightsError` for files that are broken
        or not of the model's shape.
        """
        self.folder, self.dtype, self._is_coded = folder, dtype, is_coded
        self.name = str(folder)
        self.config = read_config(folder)
        self._is_fp8 = is_fp8(folder, self.config)
        self.architecture = parse(self.config)
        account_fields(self.config)
        self._files = Safetensors(folder)
        self._body = next(
            (prefix for prefix in _BODIES if f"{prefix}norm.weight" in self._files), _BODY
        )
        self._embedding, self._head = self._tables()
        self.is_tied = self._embedding == self._head
        check_tensors(self, has_layers=has_layers)
        names = map(self._named, (HEAD, *dict(self.architecture.tensors())))
        own = {name for name in names if name in self._files}
        self._check_types(own)
        own |= {scale for name in own if (scale := self._scale_of(name))}
        others = (name for name in self._files.names() if name not in own)
        if self._is_fp8:  # activations, keys and values are not rounded here
            others = (name for name in others if not _ROUNDED.fullmatch(name))
        if self._body != _BODY:
            others = (name for name in others if not _IMAGES.fullmatch(name))
        require_read(others, self.name, self.config["model_type"])
        self.rotaries = self.architecture.rotaries()
        if any(rope["rope_type"] == "longrope" for rope in self.architecture.ropes):
            _LOG.info(
                "%s is served for %d positions: longer texts have other rotary factors, also for"
                " what has been cached",
                *(self.name, self.architecture.context_length),
            )

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._files.shape(self._stored(name))

    def matrix(self, name: str) -> Weights:
        stored = self._tensor(self._stored(name))
        if stored.dtype != BFLOAT16:  # which loses nothing in float32 either
            stored = stored.astype(self.dtype, copy=False)
        return eight_bits(stored) if self._is_coded else of_type(stored, self.dtype)

    def dense(self, name: str) -> Array:
        stored = self._stored(name)
        return self._table if stored == self._embedding else self._dense(stored)

    def reference(self, *, is_lent: bool = True, device: str = CPU) -> "PreTrainedModel":
        """See `WeightSource.reference`; with tensors of its own where they are not lent."""
        from transformers import AutoConfig

        from slipstream.models.torch.transformers_model import model_of

        config = AutoConfig.from_pretrained(self.folder, local_files_only=True).get_text_config()
        model: PreTrainedModel = model_of(self, config, is_lent=is_lent, device=device)
        return model

    def weights_type(self) -> str:
        return Q8 if self._is_coded else super().weights_type()

    def identity(self) -> str:
        config = json.dumps(self.config, sort_keys=True).encode()
        return f"{weights_digest(self.folder)} {bytes_digest(config)}"

    def release(self, layer: int) -> None:
        self._files.release(self._named(name) for name, _ in self.architecture.layer(layer))

    @cached_property
    def _table(self) -> Array:
        """The embedding, once in memory for all who read it."""
        return self._dense(self._embedding)

    def _dense(self, stored: str) -> Array:
        return self._tensor(stored).astype(self.dtype, copy=False)

    def _tensor(self, stored: str) -> Array:
        """Return a tensor in place; one in FP8 times its scales, float32. Raises `WeightsError` for
        scales of another shape than the weights'."""
        found, name = self._files.tensor(stored), self._scale_of(stored)
        if name is None:
            return found
        scale = as_float32(self._files.tensor(name))
        scale = scale.reshape(*scale.shape, *[1] * (2 - scale.ndim))
        block = _block(self.config.get(_QUANTISED[0]) or {})
        for axis, (size, length) in enumerate(zip(found.shape, block, strict=True)):
            if scale.ndim > 2 or scale.shape[axis] not in (1, -(-size // length)):
                raise WeightsError(
                    f"{name} has the shape {list(scale.shape)}, but {stored} {list(found.shape)} in"
                    f" blocks of {list(block)}"
                )
            if scale.shape[axis] > 1:
                scale = scale.repeat(length, axis)
        return as_float32(found) * scale[: found.shape[0], : found.shape[1]]

    def _scale_of(self, stored: str) -> str | None:
        """Return the name of the scales of a tensor in FP8; None where it has none."""
        if not self._is_fp8 or self._files.is_plain(stored):
            return None
        return next((stored + end for end in _SCALES if stored + end in self._files), None)

    def _check_types(self, names: Iterable[str]) -> None:
        odd = [name for name in names if not self._files.is_plain(name)]
        self._files.require_floats(odd)
        if odd and not self._is_fp8:
            raise NotNative(f"{odd[0]} is quantised")
        for name in odd:
            if self._files.tensor(name).dtype == FP8 and self._scale_of(name) is None:
                raise WeightsError(f"the weights in {self.name} lack the scales of {name}, in FP8")

    def _stored(self, name: str) -> str:
        return {EMBEDDING: self._embedding, HEAD: self._head}.get(name) or self._named(name)

    def _named(self, name: str) -> str:
        """The name of a tensor in the files."""
        if name == HEAD:
            return self._body.removesuffix(_BODY) + HEAD if self._body == _BODIES[1] else HEAD
        return self._body + name.removeprefix(_BODY)

    def _tables(self) -> tuple[str, str]:
        """The names of embedding and head, which are one where the model ties them."""
        both = self._named(EMBEDDING), self._named(HEAD)
        there = [name for name in both if name in self._files]
        if not there:
            raise NotNative("its weights have other names")
        if not self.architecture.is_tied:
            return both
        if len(there) == 2 and not np.array_equal(self._tensor(both[0]), self._tensor(both[1])):
            return both
        return there[0], there[0]


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return config.json of a directory. Raises `NotNative` where it is none."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NotNative(f"its config.json can't be read ({error})") from None
    if not isinstance(config, dict):
        raise NotNative("its config.json is no object")
    return config


def is_fp8(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether the weights of a directory are FP8 numbers with scales.

    Raises `ModelError` for weights that are quantised in another way, `WeightsError` for a file
    that can't be read.
    """
    found = dict(_quantisations(folder, config))
    for place, how in found.items():
        if how not in _FP8:
            raise ModelError(
                f"the weights in {folder} are quantised by {shown([how])} ({place}), which are not"
                " computed here: take the model in bfloat16, in FP8 or as a GGUF file"
            )
    return bool(found)


def _block(about: Mapping[str, Any]) -> Sequence[int]:
    """Return the rows and columns that have a scale in common, as DeepSeek's files or those of
    compressed-tensors have them; 1 each without blocks."""
    groups = (about.get("config_groups") or {}).values()
    own = [(group.get("weights") or {}).get("block_structure") for group in groups]
    return next(filter(None, [about.get("weight_block_size"), *own]), (1, 1))


def _quantisations(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each place that says that weights are quantised, and how."""
    for part in (config, config.get("text_config")):
        for field in _QUANTISED:
            if isinstance(part, dict) and part.get(field) is not None:
                yield f"{field} of {CONFIG}", _method(part[field])
    for name in _QUANTISED_FILES:
        if (folder / name).is_file():
            with reading(folder / name):
                yield name, _method(json.loads((folder / name).read_text(encoding="utf-8")))


def _method(found: Any) -> str:
    own = found.get("quantization", found) if isinstance(found, dict) else found
    if not isinstance(own, dict):
        return f"{own!r:.60}"
    named = [own.get(key) for key in ("quant_method", "quant_algo", "format")]
    return " ".join(map(str, filter(None, named))) or "an unnamed method"
