"""Cost of a round, embedded and distributed: both answer the same questions in turn."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from slipstream.bench.harness import WARMUP_TOKENS, Advance, SamplingPlan, require_at_least, rotated
from slipstream.bench.questions import Question
from slipstream.bench.report import Figures
from slipstream.bench.statistics import SpeculationCounts, differences, positions, quotient
from slipstream.client import Client
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.results import Result, Timings
from slipstream.core.round import Clock
from slipstream.core.stop_reasons import AHEAD
from slipstream.options import group, option

EMBEDDED = "embedded"
"""Baseline: both engines in one process."""
PARTS = {
    "draft_engine": "draft engine",
    "kv_wait": "draft waits for keys and values",
    "draft_service": "draft service, rest",
    "draft_wire": "wire to the draft",
    "target_engine": "target engine",
    "target_service": "target service, rest",
    "target_wire": "wire to the target",
    "serialisation": "serialisation",
    "rest": "loop, text and the rest of the router",
}
"""Parts of a round's time, and their labels."""
Samples = Mapping[str, Sequence["RoundsSample"]]
"""Samples by the name of the engine."""
ByName = Mapping[str, Figures]
"""Figures by the name of the engine."""


@dataclass(frozen=True, slots=True)
class RoundsSample:
    """Request as its caller saw it; `wall_s` is from the call to the last token."""

    question_id: int | str
    result: Result
    wall_s: float


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """Plan of a comparison; every round drafts, so that all parts of a round are seen."""

    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    warmup: int = option(1, "Short unmeasured replies of each engine first.")
    sampling: SamplingPlan = group(SamplingPlan)
    questions: tuple[Question, ...] = ()

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=2, warmup=0)


@dataclass(frozen=True, slots=True)
class RoundsEngine:
    """Client of an engine, or of services; with `overlap` its draft goes on while the target
    verifies."""

    client: Client
    overlap: bool = False


def check_same_model(embedded: ModelInfo, routed: ModelInfo) -> None:
    """Raise `InvalidRequest` unless the tokens of both must be the same."""
    for name in ("model", "tokenizer_hash", "numerics", "dtype"):
        ours, theirs = getattr(embedded, name), getattr(routed, name)
        if ours != theirs:
            raise InvalidRequest(f"{name} is {ours!r} here, but {theirs!r} at the router")


def run_rounds(
    plan: RoundsPlan,
    engines: Mapping[str, RoundsEngine],
    *,
    advance: Advance,
    clock: Clock = time.perf_counter,
) -> dict[str, list[RoundsSample]]:
    """Return every answer of all engines; each question goes through all before the next.

    The order moves on by one from question to question.
    """
    for _ in range(plan.warmup):
        for name, engine in engines.items():
            short = replace(plan, max_new_tokens=min(plan.max_new_tokens, WARMUP_TOKENS))
            _ask(engine, plan.questions[0], short, clock)
            advance(name)
    samples: dict[str, list[RoundsSample]] = {name: [] for name in engines}
    names = tuple(engines)
    for turn, question in enumerate(plan.questions):
        for name in rotated(names, turn):
            samples[name].append(_ask(engines[name], question, plan, clock))
            advance(name)
    return samples


def _ask(engine: RoundsEngine, question: Question, plan: RoundsPlan, clock: Clock) -> RoundsSample:
    start = clock()
    result = engine.client.generate(
        question.turns[0],
        max_tokens=plan.max_new_tokens,
        sampling=plan.sampling.params(),
        speculation=SpeculationOptions(mode=Mode.FORCED, overlap=engine.overlap),
    )
    return RoundsSample(question.question_id, result, clock() - start)


def rounds_figures(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return, by name: speed, identity, and the parts of a round in milliseconds."""
    embedded = samples[EMBEDDED]
    return {name: _figures(name, of, embedded) for name, of in samples.items()}


def _figures(
    name: str, of: Sequence[RoundsSample], embedded: Sequence[RoundsSample]
) -> dict[str, Any]:
    counts = SpeculationCounts.of(sample.result.stats.speculation for sample in of)
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
        "rounds": counts.rounds,
        "drafted_tokens": counts.drafted,
        "ahead_share": _num_ahead(of) / max(counts.rounds, 1),
        "fallbacks": dict(counts.fallbacks),
        "identical": len(of) - len(different),
        "differences": different,
        "prefill_ms": 1000 * sum(timing.prefill_s for timing in timings) / len(of),
        "outside_ms": 1000 * sum(map(_outside_s, of)) / len(of),
        "round_ms": {part: 1000 * s / max(counts.rounds, 1) for part, s in parts.items()},
    }


def _num_ahead(of: Sequence[RoundsSample]) -> int:
    """Return the rounds whose proposal was there before the draft was asked for it."""
    return sum(sample.result.stats.speculation.stop_reasons.get(AHEAD, 0) for sample in of)


def embedded_parts(timings: Sequence[Timings]) -> dict[str, float]:
    """Return the seconds of each part, where an engine's call is the engine's work."""
    seconds = _sums(timings)
    parts = dict.fromkeys(PARTS, 0.0)
    return parts | {
        "draft_engine": seconds["draft_s"],
        "target_engine": seconds["verify_s"],
        "rest": seconds["decode_s"] - seconds["draft_s"] - seconds["verify_s"],
    }


def distributed_parts(timings: Sequence[Timings]) -> dict[str, float]:
    """Return the seconds of each part; they add up to all of decoding.

    The router keeps one figure for turning values into bytes and back on both of its wires; half
    of it is taken off either.
    """
    of = _sums(timings)
    half_s = of["serialisation_s"] / 2
    return {
        "draft_engine": of["draft_engine_s"],
        "kv_wait": of["kv_wait_s"],
        "draft_service": of["draft_service_s"] - of["draft_engine_s"] - of["kv_wait_s"],
        "draft_wire": of["draft_s"] - of["draft_service_s"] - half_s,
        "target_engine": of["target_engine_s"],
        "target_service": of["target_service_s"] - of["target_engine_s"],
        "target_wire": of["verify_s"] - of["target_service_s"] - half_s,
        "serialisation": of["serialisation_s"],
        "rest": of["decode_s"] - of["draft_s"] - of["verify_s"],
    }


def _sums(timings: Sequence[Timings]) -> dict[str, float]:
    """Return every timing, of all requests together."""
    names = (field.name for field in fields(Timings))
    return {name: float(sum(getattr(timing, name) for timing in timings)) for name in names}


def _different(
    of: Sequence[RoundsSample], embedded: Sequence[RoundsSample]
) -> list[dict[str, Any]]:
    """Return the questions whose tokens are not those of the embedded engine, and where."""
    outputs, expected = (
        [(sample.question_id, sample.result.token_ids) for sample in samples]
        for samples in (of, embedded)
    )
    return positions(differences(outputs, dict(expected)))


def _outside_s(sample: RoundsSample) -> float:
    """Return what the caller waited for beside prompt and rounds: the way to the router."""
    timings = sample.result.stats.timings
    return sample.wall_s - timings.prefill_s - timings.decode_s


def _rate(of: Sequence[RoundsSample]) -> float | None:
    """Return tokens per second as callers see it, prefill included."""
    tokens = sum(len(sample.result.token_ids) for sample in of)
    return quotient(tokens, sum(sample.wall_s for sample in of))


def _decode_rate(of: Sequence[RoundsSample]) -> float | None:
    """Return tokens after the first, which is prefill's, per second of decoding."""
    tokens = sum(max(len(sample.result.token_ids) - 1, 0) for sample in of)
    return quotient(tokens, sum(sample.result.stats.timings.decode_s for sample in of))
