"""Chains that a draft proposes after every token of a reply, and what is fitted to them.

A calibration is a monotone curve of acceptance by confidence, a CaPE table the number of candidates
that pay for their verification.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream.core.cape import PAPER_TABLE
from slipstream.core.errors import InvalidRequest
from slipstream.core.stop import Calibration
from slipstream.core.types import Session

NUM_POINTS = 11
"""Points of a calibration: by tenths, which some hundred tokens suffice for."""
_PRIOR = 2.0
"""Tokens that each point is given beforehand, accepted as often as the draft is confident."""
_LEAST = 25
"""Positions in a band of confidence below which the paper's number of candidates stays."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One position of a drafted chain: candidates, the best first, and the draft's statistics.

    `probs` are the candidates' own, `top_prob` and `entropy` (nats) those of the draft's
    distribution at temperature 1; `score` is the decision model's, None without one.
    """

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    top_prob: float
    entropy: float
    score: float | None = None

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.probs):
            raise InvalidRequest(
                f"a guess has {len(self.tokens)} candidates and {len(self.probs)} probabilities"
            )


@dataclass(frozen=True, slots=True)
class Trace:
    """A finished reply to a session's prompt, and a chain drafted behind each token but the last.

    `chains[i]` continues `tokens[: i + 1]`, each position after the best candidates of those
    before, whatever the reply has there. It is as deep as was recorded, and ends early where
    nothing could follow.
    """

    tokens: tuple[int, ...]
    chains: tuple[tuple[Guess, ...], ...]
    session: Session
    prompt: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.chains) != len(self.tokens) - 1:
            raise InvalidRequest(
                f"a reply of {len(self.tokens)} tokens has {len(self.chains)} chains"
            )

    @property
    def temperature(self) -> float:
        """Return the temperature at which the reply was drawn."""
        return self.session.sampling.temperature

    def reached(self) -> Iterator[tuple[Guess, int]]:
        """Yield the positions of all chains up to the first wrong one, with the reply's tokens.

        Behind a wrong one the target's token is unknown.
        """
        for start, chain in enumerate(self.chains, 1):
            for guess, token in zip(chain, self.tokens[start:], strict=False):
                yield guess, token
                if guess.tokens[0] != token:
                    break


def fit_calibration(traces: Sequence[Trace]) -> Calibration:
    """Return acceptance by confidence: bins around evenly spaced points, then made monotone."""
    hits = [_PRIOR * point / (NUM_POINTS - 1) for point in range(NUM_POINTS)]
    counts = [_PRIOR] * NUM_POINTS
    for guess, token in _reached(traces):
        point = round(min(guess.top_prob, 1.0) * (NUM_POINTS - 1))
        counts[point] += 1
        hits[point] += guess.tokens[0] == token
    shares = [hit / count for hit, count in zip(hits, counts, strict=True)]
    return Calibration(tuple(round(share, 4) for share in monotone(shares, counts)))


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the ascending sequence nearest in weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = pools[-2:]
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools[-2:] = [(mean, total, low_size + high_size)]
    return [value for value, _, size in pools for _ in range(size)]


def fit_cape(traces: Sequence[Trace], *, row_cost: float, speed: float) -> tuple[int, ...]:
    """Return candidates by tenths of confidence: as many as bring more tokens than they cost.

    A leaf that is right brings one more token, the target's own behind it. To verify it takes the
    time in which `row_cost` * `speed` tokens come about, `speed` being tokens per token of plain
    decoding. Where there are too few positions to tell, the paper's number stays.
    """
    num_bands = len(PAPER_TABLE)
    bands: list[list[tuple[Guess, int]]] = [[] for _ in range(num_bands)]
    for guess, token in _reached(traces):
        bands[min(int(guess.top_prob * num_bands), num_bands - 1)].append((guess, token))
    return tuple(
        _num_paying(band, row_cost * speed) if len(band) >= _LEAST else default
        for band, default in zip(bands, PAPER_TABLE, strict=True)
    )


def _num_paying(band: Sequence[tuple[Guess, int]], price: float) -> int:
    """Return the most candidates of which even the last brings more than `price` tokens.

    Shares are made to fall with the rank, as they do but for noise.
    """
    width = min(len(guess.tokens) for guess, _ in band)
    shares = [
        sum(guess.tokens[rank] == token for guess, token in band) / len(band)
        for rank in range(1, width)
    ]
    falling = [-value for value in monotone([-share for share in shares], [1.0] * len(shares))]
    return sum(share > price for share in falling)


def _reached(traces: Sequence[Trace]) -> Iterator[tuple[Guess, int]]:
    return (reached for trace in traces for reached in trace.reached())
