"""Acceptance by a draft's confidence, from recorded replies. Pure and deterministic.

A calibration is a monotone curve, a CaPE table the number of runner-ups that pay for their rows.
"""

from collections.abc import Iterator, Sequence

from slipstream.bench.calibrate.traces import Guess, Trace
from slipstream.core.cape import PAPER_TABLE
from slipstream.core.stop import Calibration

NUM_POINTS = 11
"""Points of a calibration: by tenths, which some hundred tokens suffice for."""
_PRIOR = 2.0
"""Tokens that each point is given beforehand, which take the draft at its word."""
_LEAST = 25
"""Slots in a band of confidence below which the paper's number of runner-ups stays."""


def fit_calibration(traces: Sequence[Trace]) -> Calibration:
    """Acceptance by confidence: bins around evenly spaced points, then made monotone."""
    hits = [_PRIOR * point / (NUM_POINTS - 1) for point in range(NUM_POINTS)]
    counts = [_PRIOR] * NUM_POINTS
    for guess, token in _slots(traces):
        point = round(min(guess.top_prob, 1.0) * (NUM_POINTS - 1))
        counts[point] += 1
        hits[point] += guess.tokens[0] == token
    shares = [hit / count for hit, count in zip(hits, counts, strict=True)]
    return Calibration(tuple(round(share, 4) for share in monotone(shares, counts)))


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The ascending sequence nearest to `values` in weighted squares (pool adjacent violators)."""
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
    """Runner-ups by tenths of confidence: as many as bring more tokens than their rows cost.

    A leaf that is right brings one more token, the target's own behind it. Its row takes the time
    in which `row_cost` * `speed` tokens come about, `speed` being tokens per token of plain
    decoding. Where there are too few slots to tell, the paper's number stays.
    """
    slots = list(_slots(traces))
    num_bands = len(PAPER_TABLE)
    bands: list[list[tuple[Guess, int]]] = [[] for _ in range(num_bands)]
    for guess, token in slots:
        bands[min(int(guess.top_prob * num_bands), num_bands - 1)].append((guess, token))
    return tuple(
        _num_paying(band, row_cost * speed) if len(band) >= _LEAST else default
        for band, default in zip(bands, PAPER_TABLE, strict=True)
    )


def _num_paying(band: Sequence[tuple[Guess, int]], price: float) -> int:
    """The most runner-ups of which even the last brings more than `price` tokens a slot.

    Shares are made to fall with the rank, as they do but for noise.
    """
    width = min(len(guess.tokens) for guess, _ in band)
    shares = [
        sum(guess.tokens[rank] == token for guess, token in band) / len(band)
        for rank in range(1, width)
    ]
    falling = [-value for value in monotone([-share for share in shares], [1.0] * len(shares))]
    return sum(share > price for share in falling)


def _slots(traces: Sequence[Trace]) -> Iterator[tuple[Guess, int]]:
    """Yield every position that is reached, with the token that the target put there."""
    for trace in traces:
        for start in range(len(trace.chains)):
            yield from trace.reached(start)
