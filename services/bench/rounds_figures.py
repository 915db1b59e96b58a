"""From single requests to what a round costs, embedded and distributed. Pure; knows no clock."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.identity import differences, positions
from slipstream.bench.statistics import quotient
from slipstream.core.results import Result, Timings

EMBEDDED = "embedded"
"""What the others are measured against: both engines in one process."""
PARTS = (
    "draft_engine",
    "kv_wait",
    "draft_service",
    "draft_wire",
    "target_engine",
    "target_service",
    "target_wire",
    "serialisation",
    "rest",
)
"""What a round's time goes to."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its caller saw it.

    `wall_s` is from the call to the last token; `others_cpu_s` the processor time that processes
    with no part in it used meanwhile, None where they can't be seen.
    """

    question_id: int | str
    result: Result
    wall_s: float
    others_cpu_s: float | None = None

    @property
    def num_rounds(self) -> int:
        """Rounds after the first, which reads the prompt."""
        speculation = self.result.stats.speculation
        return speculation.num_spec_steps + speculation.num_plain_steps


Samples = Mapping[str, Sequence[Sample]]
"""By the name of who answered."""


def rounds_figures(samples: Samples) -> dict[str, dict[str, Any]]:
    """Per name: speed, identity, and the parts of a round in milliseconds."""
    embedded = samples[EMBEDDED]
    return {name: _figures(name, of, embedded) for name, of in samples.items()}


def _figures(name: str, of: Sequence[Sample], embedded: Sequence[Sample]) -> dict[str, Any]:
    num_rounds = sum(sample.num_rounds for sample in of)
    different = _different(of, embedded)
    timings = [sample.result.stats.timings for sample in of]
    parts = embedded_parts(timings) if name == EMBEDDED else distributed_parts(timings)
    return {
        "tokens_per_s": _rate(of),
        "ratio": quotient(_rate(of), _rate(embedded)),
        "decode_tokens_per_s": _decode_rate(of),
        "ratio_decode": quotient(_decode_rate(of), _decode_rate(embedded)),
        "requests": len(of),
        "tokens": sum(len(sample.result.token_ids) for sample in of),
        "rounds": num_rounds,
        "drafted_tokens": sum(at.result.stats.speculation.num_draft_tokens for at in of),
        "fallbacks": _fallbacks(of),
        "identical": len(of) - len(different),
        "differences": different,
        "prefill_ms": 1000 * sum(at.prefill_s for at in timings) / len(of),
        "outside_ms": 1000 * sum(map(_outside_s, of)) / len(of),
        "others_cpu_share": quotient(_sum_others(of), sum(at.wall_s for at in of)),
        "round_ms": {part: 1000 * s / max(num_rounds, 1) for part, s in parts.items()},
    }


def embedded_parts(timings: Sequence[Timings]) -> dict[str, float]:
    """Seconds by what they went to, where an engine's call is the engine's work."""
    draft_s, verify_s = _sum(timings, "draft_s"), _sum(timings, "verify_s")
    total_s = _sum(timings, "decode_s")
    parts = dict.fromkeys(PARTS, 0.0)
    rest_s = total_s - draft_s - verify_s
    return parts | {"draft_engine": draft_s, "target_engine": verify_s, "rest": rest_s}


def distributed_parts(timings: Sequence[Timings]) -> dict[str, float]:
    """Seconds by what they went to; the parts add up to all of decoding.

    The router keeps one figure for turning values into bytes and back on both of its wires; half
    of it is taken off either.
    """
    draft_s, verify_s = _sum(timings, "draft_s"), _sum(timings, "verify_s")
    draft_service_s = _sum(timings, "draft_service_s")
    draft_engine_s, kv_wait_s = _sum(timings, "draft_engine_s"), _sum(timings, "kv_wait_s")
    target_service_s = _sum(timings, "target_service_s")
    target_engine_s = _sum(timings, "target_engine_s")
    serialisation_s = _sum(timings, "serialisation_s")
    return {
        "draft_engine": draft_engine_s,
        "kv_wait": kv_wait_s,
        "draft_service": draft_service_s - draft_engine_s - kv_wait_s,
        "draft_wire": draft_s - draft_service_s - serialisation_s / 2,
        "target_engine": target_engine_s,
        "target_service": target_service_s - target_engine_s,
        "target_wire": verify_s - target_service_s - serialisation_s / 2,
        "serialisation": serialisation_s,
        "rest": _sum(timings, "decode_s") - draft_s - verify_s,
    }


def _different(of: Sequence[Sample], embedded: Sequence[Sample]) -> list[dict[str, Any]]:
    """Questions whose tokens are not those of the embedded engine, and where they part."""
    outputs, expected = (
        [(sample.question_id, sample.result.token_ids) for sample in samples]
        for samples in (of, embedded)
    )
    return positions(differences(outputs, dict(expected)))


def _fallbacks(of: Sequence[Sample]) -> dict[str, int]:
    """Rounds in which no draft answered, by reason."""
    counts: Counter[str] = Counter()
    for sample in of:
        counts.update(sample.result.stats.speculation.fallbacks)
    return dict(counts)


def _outside_s(sample: Sample) -> float:
    """What the caller waited for that is neither prompt nor rounds: the way to the router."""
    timings = sample.result.stats.timings
    return sample.wall_s - timings.prefill_s - timings.decode_s


def _rate(of: Sequence[Sample]) -> float | None:
    """Tokens per second as callers see it, prefill included."""
    tokens = sum(len(sample.result.token_ids) for sample in of)
    return quotient(tokens, sum(sample.wall_s for sample in of))


def _decode_rate(of: Sequence[Sample]) -> float | None:
    """Tokens after the first, which is prefill's, per second of decoding."""
    tokens = sum(max(len(sample.result.token_ids) - 1, 0) for sample in of)
    return quotient(tokens, sum(sample.result.stats.timings.decode_s for sample in of))


def _sum_others(of: Sequence[Sample]) -> float | None:
    seen = [sample.others_cpu_s for sample in of if sample.others_cpu_s is not None]
    return sum(seen) if seen else None


def _sum(timings: Sequence[Timings], name: str) -> float:
    return float(sum(getattr(at, name) for at in timings))
