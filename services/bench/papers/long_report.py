"""Speed by the length of an output, and what that says of the claims. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.papers.measured import Measured
from slipstream.bench.papers.plan import MARKS, PIECE
from slipstream.bench.serve.distributions import median_interval

_FASTER = 1.05
"""What counts as faster; less may be the noise of one run."""

Piece = Mapping[str, Sequence[float]]


def speedup_at(of: Mapping[str, Piece], name: str, mark: int) -> float:
    """Speed of an arm over plain decoding's, both from the first token to `mark`."""
    ours, theirs = (_rate_at(of[arm], mark // PIECE - 1) for arm in (name, "plain"))
    return ours / theirs


def marks(of: Mapping[str, Piece]) -> list[int]:
    """The lengths that were reached."""
    return [mark for mark in MARKS if mark <= PIECE * len(of["plain"]["tokens"])]


def piecewise(of: Mapping[str, Piece], subject: str, base: str) -> list[float]:
    """Speed of subject over base, piece by piece."""
    pairs = zip(_rates(of[subject]), _rates(of[base]), strict=True)
    return [ours / theirs for ours, theirs in pairs]


def is_whole(measured: Measured) -> bool:
    """Whether all texts got as long as the paper's tables are compared up to."""
    return all(marks(measured.extra(at))[-1] == MARKS[-1] for at in ("0", "1"))


def is_lead_kept(measured: Measured) -> tuple[bool, str]:
    """Whether SVIP is ahead of a constant length at every mark of the sampled output."""
    of = measured.extra("1")
    leads = []
    for mark in marks(of):
        ours, theirs = (speedup_at(of, name, mark) for name in ("SVIP", "constant"))
        leads.append(ours / theirs)
    found = median_interval(piecewise(of, "SVIP", "constant"))
    assert found is not None
    places = ", ".join(f"{mark}: {lead:.2f}" for mark, lead in zip(marks(of), leads, strict=True))
    why = (
        f"Up to {marks(of)[-1]:,} tokens, SVIP over constant is at {places}; piece by piece"
        f" {found.median:.3f}x ({found.low:.3f} to {found.high:.3f})."
    )
    return min(leads) > 1, why


def is_repetition_faster(measured: Measured) -> tuple[bool, str]:
    """Whether the greedy output repeats itself more than the sampled one, and gets faster."""
    of, sampled = measured.extra("0"), measured.extra("1")
    first, last = (speedup_at(of, "SVIP", mark) for mark in (marks(of)[0], marks(of)[-1]))
    repeats, others = of["plain"]["repeated"][-1], sampled["plain"]["repeated"][-1]
    why = (
        f"{repeats:.0%} of the greedy output had been there before ({others:.0%} of the sampled"
        f" one), and SVIP's speed-up goes from {first:.2f} at {marks(of)[0]} tokens to"
        f" {last:.2f} at {marks(of)[-1]}."
    )
    return repeats > others and last > _FASTER * first, why


def long_rows(of: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Per arm, its speed-up at every mark."""
    return tuple(
        (name, *(f"{speedup_at(of, name, mark):.2f}" for mark in marks(of)))
        for name in of
        if name != "plain"
    )


def _rate_at(part: Piece, at: int) -> float:
    return part["tokens"][at] / part["seconds"][at]


def _rates(part: Piece) -> list[float]:
    tokens, seconds = [0, *part["tokens"]], [0, *part["seconds"]]
    return [
        (tokens[at + 1] - tokens[at]) / (seconds[at + 1] - seconds[at])
        for at in range(len(tokens) - 1)
    ]
