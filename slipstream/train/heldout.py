"""Acceptance of a draft on text that it was not trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor

CHAIN = 5
"""Drafted tokens of a round whose length is measured."""


@dataclass(frozen=True, slots=True)
class Heldout:
    """Rates at generated positions under teacher forcing: `acceptance[i]` is the share whose
    likeliest token the draft proposes with the newest i keys hidden, `survival[i]` the share of
    chains, begun at every position, whose first i + 1 tokens are all accepted."""

    acceptance: tuple[float, ...]
    survival: tuple[float, ...]

    @property
    def length(self) -> float:
        """Return tokens per round: the accepted ones of a chain, and the target's own."""
        return 1 + sum(self.survival)


class HeldoutCounts:
    """Sums over batches for a `Heldout` of `num_lags` lags and chains of `CHAIN`."""

    def __init__(self, num_lags: int) -> None:
        self._hits, self._positions = torch.zeros(num_lags), 0
        self._alive, self._chains = torch.zeros(CHAIN), 0
        self.num_lags = max(num_lags, CHAIN)

    def add(self, matches: Tensor, generated: Tensor) -> None:
        """Add matches [num_lags, B, T] bool at generated positions [B, T] bool."""
        matches, generated = matches.cpu(), generated.cpu()
        self._hits += (matches & generated).sum((1, 2))[: len(self._hits)]
        self._positions += int(generated.sum())
        alive = chain_survival(matches, generated)
        self._alive += alive.sum((1, 2))
        self._chains += int(chain_starts(generated).sum())

    def result(self) -> Heldout:
        """Return the shares so far; 0 where nothing was counted."""
        rates = self._hits / max(1, self._positions)
        return Heldout(tuple(rates.tolist()), tuple((self._alive / max(1, self._chains)).tolist()))


def chain_starts(generated: Tensor) -> Tensor:
    """Return positions from which a whole chain is generated ones, [B, T - CHAIN + 1]."""
    return (
        generated.unfold(1, CHAIN, 1).all(-1) if generated.shape[1] >= CHAIN else generated[:, :0]
    )


def chain_survival(matches: Tensor, generated: Tensor) -> Tensor:
    """Return whether the chain begun at s is accepted up to each depth, [CHAIN, B, T - CHAIN + 1].

    Its token at depth i is predicted from position s + i with the newest i keys hidden, those
    from s on: matches[i, :, s + i].
    """
    alive, out = chain_starts(generated), []
    for depth in range(CHAIN):
        alive = alive & matches[depth, :, depth : depth + alive.shape[1]]
        out.append(alive)
    return torch.stack(out)
