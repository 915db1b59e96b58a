"""Chains that a device follows on its own: the steps of a whole round at once.

What the growers' steps are one by one, in one pass and one transfer. Knows no model's form.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from slipstream.core.policy.stop import Stop
from slipstream.core.types import SamplingParams
from slipstream.draft.slots import Slot, not_a_distribution
from slipstream.models.glide.glide_chains import ChainPosition, ChainRequest


class Chains(Protocol):
    """What follows chains; see `models.glide.glide_chains.GlideChains`."""

    def fits(self, sampling: SamplingParams, stop: Stop, ends: frozenset[int]) -> bool:
        """Whether such a chain can be followed."""
        ...

    def follow(self, asks: Sequence[ChainRequest]) -> list[list[ChainPosition]]:
        """The slots of each ask's chain."""
        ...


def followed_slots(chains: Chains, asks: Sequence[ChainRequest]) -> list[list[Slot] | Exception]:
    """The chains as slots, each as long as its policy let it be, or the error of one."""
    return [_slots(chain) for chain in chains.follow(asks)]


def _slots(chain: Sequence[ChainPosition]) -> list[Slot] | Exception:
    if any(math.isnan(one.top_prob) for one in chain):
        return not_a_distribution()
    return [Slot(one.tokens, one.probs, one.top_prob, one.entropy, one.score) for one in chain]
