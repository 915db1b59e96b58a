"""What a drafter needs from a draft model: scores after a prefix, then after tree nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(slots=True)
class Scores:
    """Raw scores of R slots: `logits` [R, V_d] float32, `hidden` [R, d] after the final norm."""

    logits: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class KvView:
    """The target's keys and values as a draft may read them: positions 0..count-1, no further.

    `layers` maps a target layer to (keys, values), each [kv_heads, capacity, head_dim], keys
    after rotary embedding.
    """

    count: int
    layers: Mapping[int, tuple[Tensor, Tensor]]


class Scorer(Protocol):
    """A draft model that scores a prefix and grows a token tree behind it."""

    @property
    def vocab(self) -> Tensor | None:
        """[V_d] int64, target id of each column, ascending; None for the target's vocabulary."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width d of the hidden states."""
        ...

    @property
    def max_lag(self) -> int | None:
        """Largest staleness + depth the weights were trained for; None for no limit."""
        ...

    def open(self, capacity: int) -> Any:
        """State of one session with room for `capacity` tokens, tree nodes included."""
        ...

    def sync(self, state: Any, tokens: Sequence[int], view: KvView | None) -> Scores:
        """Hold exactly `tokens`, drop any tree; scores [1] of the slot after the last token."""
        ...

    def grow(self, state: Any, tokens: Sequence[int], parents: Sequence[int]) -> Scores:
        """Append nodes below earlier ones (-1: below the last token); their scores, [R]."""
        ...

    def num_bytes(self, state: Any) -> int:
        """Bytes of the state's keys and values."""
        ...

    def close(self, state: Any) -> None:
        """Free the state."""
        ...
