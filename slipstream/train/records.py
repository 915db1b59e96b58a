"""Outcomes of drafted tokens: a row for each position of real rounds, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.decision import NUM_STATS


@dataclass(frozen=True, slots=True)
class Records:
    """N positions whose path from the round's start was accepted.

    hidden [N, d] bfloat16: the draft's states; stats [N, 4] float32: see `slot_stats`, of the row
    that candidates were ranked by; accepted [N] bool: what the round made of the token;
    is_greedy [N] bool: how the round was decoded; prompt [N] int64: its prompt.
    """

    hidden: Tensor
    stats: Tensor
    accepted: Tensor
    is_greedy: Tensor
    prompt: Tensor

    def __post_init__(self) -> None:
        count = len(self.hidden)
        odd = [name for name in names() if len(getattr(self, name)) != count]
        if odd or self.hidden.ndim != 2 or self.stats.shape != (count, NUM_STATS):
            raise TrainingError(
                f"records of {count} positions do not fit: {', '.join(odd) or 'shape'}"
            )

    @property
    def confidence(self) -> Tensor:
        """Return the draft's top-1 probabilities, [N]."""
        return self.stats[:, 0].sigmoid()

    def __len__(self) -> int:
        return len(self.hidden)

    def rows(self, keep: Tensor) -> "Records":
        """Return the positions where `keep` [N] bool holds."""
        return Records(**{name: getattr(self, name)[keep] for name in names()})


def names() -> tuple[str, ...]:
    """Return the columns."""
    return tuple(field.name for field in fields(Records))


def no_records(hidden_size: int) -> Records:
    """Return the records of no position."""
    empty = torch.empty(0, hidden_size, dtype=torch.bfloat16)
    truth = torch.empty(0, dtype=torch.bool)
    return Records(empty, torch.empty(0, NUM_STATS), truth, truth, truth.long())


def joined(parts: Sequence[Records]) -> Records:
    """Return all positions of `parts`; TrainingError when there are no parts."""
    if not parts:
        raise TrainingError("no prompt was recorded: there was no time for one")
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names()}
    return Records(**columns)
