"""Log-probabilities of tokens. Values.

Log-probabilities are the model's own: log-softmax of the raw logits at temperature 1, before bias,
penalties, grammar and truncation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipstream.core.errors import check

MAX_LOGPROBS = 20
"""Likeliest tokens of a position that can be asked for."""
MAX_PROMPT_LOGPROBS = 65_536


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens of a position; `text` are its bytes, where they are known."""

    token_id: int
    logprob: float
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the output, and the likeliest of its position: by value, then by id."""

    logprob: float
    top: tuple[TopLogprob, ...] = ()
    text: bytes = b""
    """The token's bytes, where they are known; they need not be whole characters."""

    def __post_init__(self) -> None:
        for value in (self.logprob, *(other.logprob for other in self.top)):
            check(value <= 0, "a log-probability", value, "0 or less")


Logprobs = tuple[TokenLogprob | None, ...]
"""One for each token; None for what was final before this call, whose positions are not known."""


def with_texts(
    logprobs: Logprobs, token_ids: Sequence[int], token_bytes: Callable[[int], bytes]
) -> Logprobs:
    """Return the same with the bytes of all tokens; `token_ids` are those that were chosen."""
    return tuple(
        None
        if item is None
        else TokenLogprob(
            item.logprob,
            tuple(replace(other, text=token_bytes(other.token_id)) for other in item.top),
            token_bytes(token),
        )
        for item, token in zip(logprobs, token_ids, strict=True)
    )
