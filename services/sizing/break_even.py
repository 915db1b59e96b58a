"""Where drafting begins to pay: what a round costs, and how often drafts must be right for it.

The calculator says what a round costs, here it is asked about chains alone. Pure arithmetic.
"""

import math
from dataclasses import dataclass, replace

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.calculator import Pools, estimate
from slipstream.sizing.making import expected_tokens
from slipstream.sizing.recording import Devices, Work

_HALVINGS = 60
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Setting:
    """Chains of `depth` tokens for so many sessions at once, with a draft for each.

    A drafted token takes `cost_ratio` times a plain round of one session alone; every proposal is
    `rtt_s` on the way.
    """

    depth: int
    cost_ratio: float = 0.0
    rtt_s: float = 0.0
    sessions: int = 1

    def __post_init__(self) -> None:
        for name in ("depth", "sessions"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("cost_ratio", "rtt_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be 0 or more")

    def drafted_s(self, plain_s: float) -> float:
        """Seconds that a proposal takes, where a plain round takes so many."""
        return self.depth * self.cost_ratio * plain_s + self.rtt_s


@dataclass(frozen=True, slots=True)
class PayOff:
    """What a round of a setting costs: in plain rounds of as many sessions."""

    depth: int
    round_cost: float

    def speedup(self, acceptance: float) -> float:
        """Over plain decoding, where each drafted token is right with this chance.

        (1 - a^(d + 1)) / (1 - a) tokens for the price of a round. (Leviathan et al. 2023, "Fast
        Inference from Transformers via Speculative Decoding", theorem 3.8.)
        """
        return expected_tokens(acceptance, self.depth) / self.round_cost

    @property
    def acceptance(self) -> float | None:
        """From which on drafting pays; None where it never does."""
        return acceptance_of(self.round_cost, self.depth)


def pay_off(devices: Devices, setting: Setting) -> PayOff:
    """What rounds of the setting cost on these devices, whose own draft is left out."""
    drafted_s = setting.drafted_s(devices.curve().seconds(1))
    level_s = max(drafted_s / setting.depth, _LEAST_S)
    drafted = replace(devices, level_s=level_s, level_row_s=0.0)
    work = Work(setting.depth, setting.depth, 1.0)
    found = estimate(drafted, work, Pools(setting.sessions, 1, setting.sessions))
    return PayOff(setting.depth, found.break_even_final)


def acceptance_of(tokens: float, depth: int) -> float | None:
    """The chance of each drafted token with which rounds of `depth` make so many tokens final.

    0 for a single token or less; None where even drafts that are always right make fewer.
    """
    if tokens > depth + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, depth) < tokens else (low, middle)
    return 0.0 if tokens <= 1 else high
