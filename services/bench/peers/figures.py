"""From batches to the figures of every arm. Pure; knows no clock, process or terminal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.bench.peers.arms import BASE, BEST, REFERENCES, Arm
from slipstream.bench.peers.run import Record, Sample, named
from slipstream.bench.peers.wire import Answer

_RESAMPLES = 2000
_SEED = 9
Totals = NDArray[np.float64]
"""Tokens and seconds of every batch."""
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Seen:
    """The samples of one level by arm, each arm's in the order of the batches.

    Only batches that all arms have answered are among them.
    """

    concurrency: int
    arms: Mapping[str, Arm]
    samples: Mapping[str, tuple[Sample, ...]]

    def only(self, category: str) -> "Seen":
        """The batches of one category."""
        kept = {
            name: tuple(at for at in of if at.prompts[0].category == category)
            for name, of in self.samples.items()
        }
        return Seen(self.concurrency, self.arms, kept)


def peers_figures(record: Record, arms: Sequence[Arm], decode: Decode) -> dict[str, Any]:
    """`{"levels": [L], "skipped": {ARM: WHY}, "seats": {...}, "whole": BOOL}`.

    `decode` makes text of tokens, to compare with servers that send only text.
    """
    concurrencies = sorted({sample.concurrency for sample in record.samples})
    seen = [_seen(record, arms, concurrency) for concurrency in concurrencies]
    reference = _reference(seen)
    return {
        "whole": record.is_whole,
        "reference": reference.name,
        "levels": [_level(at, reference, decode) for at in seen if at.samples],
        "skipped": dict(record.skipped),
        "seats": dict(record.seats),
    }


def _seen(record: Record, arms: Sequence[Arm], concurrency: int) -> Seen:
    by_arm: dict[str, dict[int, Sample]] = {}
    for sample in record.samples:
        if sample.concurrency == concurrency:
            by_arm.setdefault(sample.arm, {})[sample.batch] = sample
    for name in list(by_arm):
        if named(name, concurrency) in record.skipped:
            del by_arm[name]
    common = set.intersection(*map(set, by_arm.values())) if by_arm else set()
    kept = {
        arm.name: tuple(by_arm[arm.name][batch] for batch in sorted(common))
        for arm in arms
        if arm.name in by_arm and common
    }
    return Seen(concurrency, {arm.name: arm for arm in arms}, kept)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the answers are compared with: those of one arm, by question."""

    name: str | None
    answers: Mapping[int | str, Answer]


def _reference(seen: Sequence[Seen]) -> _Expected:
    """The first of the references that has run, at the lowest concurrency that it ran at."""
    for name in REFERENCES:
        for at in seen:
            if name in at.samples:
                return _Expected(name, _by_question(at.samples[name]))
    return _Expected(None, {})


def _level(seen: Seen, reference: _Expected, decode: Decode) -> dict[str, Any]:
    """One L: figures of every arm, and what the best of ours is over each of the others."""
    batches = next(iter(seen.samples.values()))
    best = _best(seen)
    return {
        "concurrency": seen.concurrency,
        "prompts": sum(len(batch.prompts) for batch in batches),
        "batches": len(batches),
        "base": BASE if BASE in seen.samples else None,
        "best": best,
        "arms": {name: _arm(seen, name, reference, decode) for name in seen.samples},
        "best_over": {
            name: ratio(seen.samples[best], of)
            for name, of in seen.samples.items()
            if best is not None and not seen.arms[name].is_ours
        },
        "samples": [_shown(sample) for of in seen.samples.values() for sample in of],
    }


def _arm(seen: Seen, name: str, reference: _Expected, decode: Decode) -> dict[str, Any]:
    of, arm = seen.samples[name], seen.arms[name]
    wall_s = sum(sample.wall_s for sample in of)
    categories = dict.fromkeys(sample.prompts[0].category for sample in of)
    return {
        **_speed(seen, name),
        "tokens": sum(sample.num_tokens for sample in of),
        "tokens_per_forward": _per_forward(of) if seen.concurrency == 1 else None,
        "identity": _identity(of, reference, decode),
        "is_reference": name == reference.name and seen.concurrency == 1,
        "is_ours": arm.is_ours,
        "is_batching": arm.is_batching,
        "others_cpu_share": sum(sample.others_cpu_s for sample in of) / wall_s,
        "categories": {
            category: _speed(seen.only(category), name)
            for category in categories
            if seen.concurrency == 1
        },
    }


def _speed(seen: Seen, name: str) -> dict[str, Any]:
    base = seen.samples.get(BASE)
    return {
        "tokens_per_s": float(_rate(_totals(seen.samples[name]).sum(axis=0))),
        "ratio": None if base is None else ratio(seen.samples[name], base),
    }


def ratio(of: Sequence[Sample], base: Sequence[Sample]) -> dict[str, float | None]:
    """Tokens per second over those of the base, and where 95% of resampled ratios lie.

    Batches are drawn anew with replacement, both arms' together. A single one has no interval.
    """
    ours, theirs = _totals(of), _totals(base)
    value = float(_rate(ours.sum(axis=0)) / _rate(theirs.sum(axis=0)))
    if len(ours) < 2:
        return {"ratio": value, "low": None, "high": None}
    drawn = np.random.default_rng(_SEED).integers(len(ours), size=(_RESAMPLES, len(ours)))
    ratios = _rate(ours[drawn].sum(axis=1).T) / _rate(theirs[drawn].sum(axis=1).T)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {"ratio": value, "low": float(low), "high": float(high)}


def _best(seen: Seen) -> str | None:
    """The default of ours; where it does not run, the fastest of ours."""
    if BEST in seen.samples:
        return BEST
    ours = [name for name in seen.samples if seen.arms[name].is_ours]
    rates = {name: _rate(_totals(seen.samples[name]).sum(axis=0)) for name in ours}
    return max(rates, key=lambda name: float(rates[name]), default=None)


def _totals(of: Sequence[Sample]) -> Totals:
    return np.array([[sample.num_tokens, sample.wall_s] for sample in of], dtype=np.float64)


def _rate(totals: Totals) -> Any:
    tokens, seconds = totals
    return tokens / seconds


def _per_forward(of: Sequence[Sample]) -> float | None:
    """Tokens for each forward of the target, those that read prompts included."""
    counts = [answer.num_forwards for sample in of for answer in sample.answers]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    return sum(sample.num_tokens for sample in of) / sum(known)


def _identity(of: Sequence[Sample], reference: _Expected, decode: Decode) -> dict[str, Any] | None:
    """How many answers are the reference's, by tokens or by text; None without a reference."""
    found, expected = _by_question(of), reference.answers
    if not expected:
        return None
    is_text = any(answer.token_ids is None for answer in found.values())
    same = [_is_same(found[key], expected[key], decode) for key in found if key in expected]
    return {"same": sum(same), "of": len(same), "by": "text" if is_text else "tokens"}


def _by_question(of: Sequence[Sample]) -> dict[int | str, Answer]:
    return {
        prompt.question_id: answer
        for sample in of
        for prompt, answer in zip(sample.prompts, sample.answers, strict=True)
    }


def _is_same(answer: Answer, expected: Answer, decode: Decode) -> bool:
    if answer.token_ids is not None:
        return answer.token_ids == expected.token_ids
    return answer.text == decode(expected.token_ids or ())


def _shown(sample: Sample) -> dict[str, Any]:
    return {
        "arm": sample.arm,
        "questions": [prompt.question_id for prompt in sample.prompts],
        "wall_s": sample.wall_s,
        "others_cpu_s": sample.others_cpu_s,
        "tokens": [answer.num_tokens for answer in sample.answers],
        "forwards": [answer.num_forwards for answer in sample.answers],
    }
