"""The interface of whatever computes a model's forward: native code, torch or CUDA graphs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from slipstream.core.errors import InvalidRequest
from slipstream.core.verify.draws import FindContenders
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import KvPool

Numerics = Literal["invariant", "fast"]
"""`fast`: a row's bits may depend on the other rows of a forward; `invariant`: they do not."""
_CHOICES = ("auto", "invariant", "fast")


def check_numerics(name: str) -> None:
    """Raise `InvalidRequest` unless a name is one of numerics, or auto: invariant wherever they are
    computed."""
    if name not in _CHOICES:
        raise InvalidRequest(f"numerics is {name!r}, but must be one of {', '.join(_CHOICES)}")


@dataclass(frozen=True, slots=True)
class RowRule:
    """Products of `min_rows` to `max_rows` rows give a row the same bits."""

    min_rows: int
    max_rows: int

    def intersect(self, other: "RowRule") -> "RowRule":
        """Return the row counts that both rules allow."""
        return RowRule(max(self.min_rows, other.min_rows), min(self.max_rows, other.max_rows))


ANY_ROWS = RowRule(1, 1 << 30)


class Decoder(Protocol):
    """The forward and the head of one model, over pools of keys and values of its own kind."""

    engine: str
    """`torch`, `cuda`, or `native` with the name of its kernels."""
    numerics: Numerics
    weight_bytes: int
    rule: RowRule
    """Numbers of tokens that are computed together."""
    contenders: FindContenders | None
    """Search for the tokens that a draw may take; None without one."""
    draws_on_device: bool
    """True if `forward` draws tokens where their logits are."""

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        """Return memory for caches; forwards over one that `lasts` may be captured."""

    def forward(
        self, pool: KvPool, batch: Batch, draws: Iterable[Draw] = ()
    ) -> tuple[Any, list[int]]:
        """Return final hidden states [n, d] in the order of inputs, and the tokens drawn; a device
        computes while `draws` are made.

        Keys and values are written to the batch's slots. States are an array of native code or a
        tensor of torch's, which the next forward with draws may overwrite.
        """

    def prepare(self, pool: KvPool) -> None:
        """Capture whatever forwards over a new pool may come, where forwards are captured."""
        return None

    def logits(self, hidden: Any) -> Any:
        """Return logits [rows, vocab] of hidden states [rows, d]."""

    def workspace_bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Return the most bytes that are kept besides weights, caches and one forward's own, whose
        rows take `row_bytes` and states `output_bytes`."""
        return 0
