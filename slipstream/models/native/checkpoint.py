"""Weights of a model directory, read in place, for native code.

What has another form than the native forward computes is refused with a reason.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.models.dtypes import BFLOAT16, Q8, Array
from slipstream.models.format.architecture import EMBEDDING, HEAD, parse
from slipstream.models.format.digests import bytes_digest, weights_digest
from slipstream.models.format.families import account_fields, require_read
from slipstream.models.format.safetensors_file import Safetensors
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource, check_tensors
from slipstream.models.native.weights import Weights, eight_bits, of_type

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger("slipstream.models")
CONFIG = "config.json"
_BODY = "model."
_BODIES = (_BODY, "language_model.model.", "model.language_model.")
"""Prefixes of names in files of text alone, and of text and images in older and newer style."""
_IMAGES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..*")


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
        self.architecture = parse(self.config)
        account_fields(self.config)
        self._files = Safetensors(folder)
        self._body = next(
            (prefix for prefix in _BODIES if f"{prefix}norm.weight" in self._files), _BODY
        )
        self._embedding, self._head = self._tables()
        self.is_tied = self._embedding == self._head
        check_tensors(self, has_layers=has_layers)
        own = {self._named(name) for name in (HEAD, *dict(self.architecture.tensors()))}
        self._check_types(name for name in own if name in self._files)
        others = (name for name in self._files.names() if name not in own)
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
        stored = self._files.tensor(self._stored(name))
        if stored.dtype != BFLOAT16:  # which loses nothing in float32 either
            stored = stored.astype(self.dtype, copy=False)
        return eight_bits(stored) if self._is_coded else of_type(stored, self.dtype)

    def dense(self, name: str) -> Array:
        stored = self._stored(name)
        return self._table if stored == self._embedding else self._dense(stored)

    def reference(self) -> "PreTrainedModel":
        from transformers import AutoConfig

        from slipstream.models.torch.transformers_model import model_of

        config = AutoConfig.from_pretrained(self.folder, local_files_only=True)
        model: PreTrainedModel = model_of(self, config.get_text_config(), is_lent=True)
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
        return self._files.tensor(stored).astype(self.dtype, copy=False)

    def _check_types(self, names: Iterable[str]) -> None:
        odd = [name for name in names if not self._files.is_plain(name)]
        if odd:
            raise NotNative(f"{odd[0]} is quantised")

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
        if len(there) == 2 and not self._are_equal(*there):
            return both
        return there[0], there[0]

    def _are_equal(self, one: str, other: str) -> bool:
        if self._files.shape(one) != self._files.shape(other):
            return False
        return np.array_equal(self._files.tensor(one), self._files.tensor(other))


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return config.json of a directory. Raises `NotNative` where it is none."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NotNative(f"its config.json can't be read ({error})") from None
    if not isinstance(config, dict):
        raise NotNative("its config.json is no object")
    return config
