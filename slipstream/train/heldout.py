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
        if generated.shape[1] < CHAIN:
            return
        # A chain that begins at s predicts its token at depth i from position s + i with the newest
        # i keys hidden, those from s on.
        alive = generated.unfold(1, CHAIN, 1).all(-1)
        self._chains += int(alive.sum())
        for depth in range(CHAIN):
            alive = alive & matches[depth, :, depth : depth + alive.shape[1]]
            self._alive[depth] += alive.sum()

    def result(self) -> Heldout:
        """Return the shares so far; 0 where nothing was counted."""
        rates = self._hits / max(1, self._positions)
        return Heldout(tuple(rates.tolist()), tuple((self._alive / max(1, self._chains)).tolist()))
