"""Check of our forward of a model on a few tokens, when the model is loaded.

Native code gives the same bits on all processors, so that known weights have the digest of their
forward in the package. Others are compared with transformers' own forward, where it is installed.
Weights in files are checked once for each machine: a later start trusts the result while the files,
what computes them and the versions stay the same. The reference of native code has the weights of a
layer in memory only while the layer runs.
"""

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import FP8, Array
from slipstream.models.format.architecture import ModelSizes
from slipstream.models.format.digests import bytes_digest, file_digest, weights_digest
from slipstream.models.format.folder import brief
from slipstream.models.loaded import device_name
from slipstream.models.machine import has_torch, this_machine
from slipstream.models.native import library
from slipstream.models.native.source import WeightSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slipstream.models.torch.ranks import Ranks

_LOG = logging.getLogger("slipstream.models")
SAMPLE_TOKENS = 24
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.08, "float16": 0.02, FP8: 0.3}
_CHECKED, _ALONE = "as transformers", "not compared"
FORWARDS = Path(__file__).parent.parent / "data" / "forwards.json"
"""Digests of forwards, which `make forwards` writes."""


class ReferenceCheck:
    """Check of our forward of a model, by a recorded digest or by transformers' own forward."""

    def __init__(
        self,
        model: "WeightSource | PreTrainedModel",
        vocab_size: int,
        mark: str | None,
        ranks: "Ranks | None" = None,
    ) -> None:
        """Compute transformers' hidden states, before anything of the model is changed; not where
        an earlier start has checked the same weights, by the `mark` of rank 0, where the package
        has their digest, or where native code computes and transformers is not installed.
        """
        self._model, self._mark = model, mark
        key = record_key(model) if isinstance(model, WeightSource) else ""
        self._recorded = known_forwards().get(key, {}).get("forward_sha256")
        self._expected: tuple[Array, Array] | None = None
        known = None if mark is None else this_machine().get(mark)
        self._is_known = known == _CHECKED or (known == _ALONE and not has_torch())
        if ranks is not None and not isinstance(model, WeightSource):
            self._is_known = ranks.agree(self._is_known, model.device)
        is_alone = isinstance(model, WeightSource) and not has_torch()
        if not (self._is_known or self._recorded or is_alone):
            from slipstream.models.torch.transformers_model import computed_states

            own = model.reference() if isinstance(model, WeightSource) else model
            own.requires_grad_(False).eval()
            self._expected = computed_states(own, sample_tokens(vocab_size))

    def check(self, sample: Callable[[], tuple[Array, Array]], sizes: ModelSizes) -> None:
        """Raise `ModelError` where `sample()`, our hidden states and last logits, fails, has what
        is no number, or is not as recorded or as transformers computes it."""
        if self._is_known:
            return
        name = sizes.name
        try:
            found = sample()
        except ModelError as error:
            raise ModelError(f"{name} can't be served: {error}") from None
        except Exception as error:  # modelling code has many forms
            reason = f"its modelling code can't run over our cache ({brief(error)})"
            raise ModelError(f"{name} can't be served: {reason}") from error
        if (fault := self._fault(found, sizes)) is not None:
            raise ModelError(f"{name} can't be served: {fault}")
        if is_alone := not (self._recorded or self._expected):
            _LOG.warning(
                "the forward of %s is not compared with transformers', which is not installed: pip"
                " install 'slipstream[torch]' has it compared at the next start",
                name,
            )
        if self._mark is not None:
            this_machine().keep(self._mark, _ALONE if is_alone else _CHECKED)

    def _fault(self, found: tuple[Array, Array], sizes: ModelSizes) -> str | None:
        """Return what is wrong with our hidden states and logits; None for nothing."""
        if isinstance(self._model, WeightSource):
            hidden = (self._expected or found)[0].astype(np.float32)
            if not (np.isfinite(hidden).all() and hidden.any()):
                return _without_numbers(self._model)
        if self._recorded is not None:
            if forward_digest(found) == self._recorded:
                return None
            return f"native code of set {library.kernels()} gives other numbers than were recorded"
        for what, share, limit in differences(found, self._expected or found, sizes.weights_type):
            if not share < limit:
                return f"{what} differ from transformers' own by {share:.2g} (limit {limit})"
        return None


def differences(
    found: tuple[Array, Array], expected: tuple[Array, Array], weights_type: str
) -> list[tuple[str, float, float]]:
    """Return for hidden states and logits their name, by what share they differ, and the limit."""
    shares = []
    for what, own, other in zip(("hidden states", "logits"), found, expected, strict=True):
        limit = _TOLERANCE.get(FP8 if weights_type == FP8 else other.dtype.name, 0.02)
        exact = other.astype(np.float32)
        share = np.linalg.norm(own.astype(np.float32) - exact) / np.linalg.norm(exact)
        shares.append((what, float(share), limit))
    return shares


def forward_digest(found: tuple[Array, Array]) -> str:
    """Return the SHA-256 of hidden states and logits, in little-endian float32."""
    return bytes_digest(b"".join(part.astype("<f4").tobytes() for part in found))


def record_key(source: WeightSource) -> str:
    """Return the name of a forward in the file of `FORWARDS`: weights, architecture, types."""
    weights = str(source.identity()).split(maxsplit=1)[0]
    return f"{weights} {source.architecture.digest()[:16]} {source.weights_type()}"


@cache
def known_forwards() -> dict[str, Any]:
    """Return the file of `FORWARDS`."""
    found: dict[str, Any] = json.loads(FORWARDS.read_text(encoding="utf-8"))
    return found


def _without_numbers(source: WeightSource) -> str:
    names = (name for name, _ in source.architecture.tensors())
    odd = next((name for name in names if not np.isfinite(source.dense(name)).all()), None)
    if odd is None:
        return f"weights of the types {source.weights_type()} are too large for its hidden states"
    return f"{source.title(odd)} has weights that are no numbers"


def sample_tokens(vocab_size: int) -> list[int]:
    """Return random token ids, the same ones at every call."""
    tokens: list[int] = np.random.default_rng(0).integers(vocab_size, size=SAMPLE_TOKENS).tolist()
    return tokens


def mark_of(
    model: "WeightSource | PreTrainedModel", path: Path | None, computed: str
) -> str | None:
    """Return the name under which it is kept that a forward was compared: by the weights, which are
    those in `path` for a model of transformers, and by what has `computed` it; None for weights in
    memory."""
    if isinstance(model, WeightSource):
        identity, numbers = model.identity(), f"{model.weights_type()} {_native()}"
        return None if identity is None else f"forward of {identity} {numbers}"
    if path is None:
        return None
    config = bytes_digest(model.config.to_json_string().encode())  # has transformers' version
    return f"forward of {weights_digest(path)} {config} {device_name(str(model.device))} {computed}"


@cache
def _native() -> str:
    return f"{library.kernels()} {file_digest(library.PATH)[:16]}"
