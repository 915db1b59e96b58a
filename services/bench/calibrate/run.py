"""A calibration from prompts to a profile, in stages: measure, record, sweep, time.

Knows no options and no terminal; the clock comes in.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.bench.calibrate.fit import fit_calibration, fit_cape
from slipstream.bench.calibrate.record import Recorder, Request
from slipstream.bench.calibrate.simulate import Costs, simulate
from slipstream.bench.calibrate.sweep import (
    Evidence,
    Tried,
    finalists,
    sweep,
    with_copies,
)
from slipstream.bench.calibrate.timed import Race
from slipstream.bench.calibrate.traces import Trace
from slipstream.bench.cost import CostPlan, measure_cost
from slipstream.bench.engines import MethodEngines
from slipstream.bench.harness import Advance
from slipstream.bench.methods import Numerics
from slipstream.bench.questions import Question, in_turn
from slipstream.core.cape import PAPER_TABLE
from slipstream.core.errors import InvalidRequest
from slipstream.core.profile import Profile
from slipstream.core.types import SamplingParams
from slipstream.draft.build import DraftModel
from slipstream.text.prompts import encode_prompt

Clock = Callable[[], float]

RECORDING_SHARE = 0.45
"""Share of the time in which prompts are recorded; the sweep is short, timing has the rest."""
_CONTEXT = 200


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Plan of a calibration.

    `minutes` is what all stages together should take, `temperature` that of the sampled replies,
    `depth` the longest chain tried, and `num_finalists` run against the clock.
    """

    questions: tuple[Question, ...]
    max_new_tokens: int = 64
    minutes: float = 8.0
    temperature: float = 1.0
    seed: int = 0
    depth: int = 8
    num_finalists: int = 4
    numerics: Numerics = "invariant"

    def __post_init__(self) -> None:
        limits = (("max_new_tokens", 8, 4096), ("depth", 1, 14), ("num_finalists", 1, 16))
        for name, least, most in limits:
            if not least <= getattr(self, name) <= most:
                value = getattr(self, name)
                raise InvalidRequest(f"{name} is {value}, but must be from {least} to {most}")
        if not 0 < self.minutes <= 24 * 60:
            raise InvalidRequest(
                f"minutes is {self.minutes:g}, but must be above 0 and at most 1440"
            )
        if self.temperature == 0:
            raise InvalidRequest("temperature is 0, but greedy replies are calibrated in any case")
        if not self.questions:
            raise InvalidRequest("a calibration needs at least 1 prompt")
        SamplingParams(temperature=self.temperature, seed=self.seed)

    @property
    def num_timings(self) -> int:
        """Return how often each cost is timed: less often where there is little time."""
        return min(12, max(3, int(6 * self.minutes)))

    @property
    def samplings(self) -> tuple[SamplingParams, SamplingParams]:
        """Return greedy and sampled parameters."""
        return SamplingParams(), SamplingParams(temperature=self.temperature, seed=self.seed)

    def depth_of(self, model: DraftModel) -> int:
        """Return the longest chain that the draft was trained for as well."""
        lag = model.scorer.max_lag
        return self.depth if lag is None else min(self.depth, lag)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Replies of both kinds to the same prompts."""

    greedy: tuple[Trace, ...]
    sampled: tuple[Trace, ...]

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all replies together."""
        return sum(len(trace.tokens) for trace in (*self.greedy, *self.sampled))

    @property
    def num_replies(self) -> int:
        """Return the replies of both kinds together."""
        return len(self.greedy) + len(self.sampled)


def measure(plan: CalibrationPlan, engines: MethodEngines) -> tuple[Costs, dict[str, Any]]:
    """Measure what forwards, draft steps and plain decoding cost here."""
    limit = engines.engine("fast").model.context_length
    timing = CostPlan(
        context=min(_CONTEXT, limit // 2),
        rounds=plan.num_timings,
        plain_tokens=min(32, limit // 4, plan.max_new_tokens),
        plain_rounds=-(-plan.num_timings // 4),
        plain=("plain", "plain+invariant"),
    )
    text = "\n".join(turn for question in plan.questions for turn in question.turns)
    measured = measure_cost(timing, engines, text, has_draft=True)
    return _costs(measured, plan.numerics), measured


def record(
    plan: CalibrationPlan,
    engines: MethodEngines,
    model: DraftModel,
    *,
    is_time_left: Callable[[], bool],
    advance: Advance,
) -> Recorded:
    """Record replies to as many prompts as there is time for, at least one, fairly by category."""
    engine = engines.engine(plan.numerics)
    recorder = Recorder(engine.target, model, depth=plan.depth_of(model))
    traces: tuple[list[Trace], list[Trace]] = ([], [])
    for number, question in enumerate(in_turn(plan.questions)):
        if number and not is_time_left():
            break
        prompt = encode_prompt(engine.text, question.turns[0])
        for sampling, kind in zip(plan.samplings, traces, strict=True):
            asked = Request(prompt, sampling, plan.max_new_tokens, engine.facts.stop_token_ids)
            kind.append(recorder.record(asked))
        advance("recording")
    return Recorded(tuple(traces[0]), tuple(traces[1]))


def fitted(base: Profile, recorded: Recorded, costs: Costs) -> tuple[Profile, Evidence]:
    """Return `base` with measured costs, calibrations and CaPE table, and what a sweep goes by."""
    evidence = Evidence(recorded.greedy, recorded.sampled, costs)
    known = replace(
        base,
        step_cost=round(costs.step_cost, 5),
        row_cost=round(costs.row_cost(), 5),
        calibration=fit_calibration(recorded.greedy),
        calibration_sampled=fit_calibration(recorded.sampled),
    )
    both = (*recorded.greedy, *recorded.sampled)
    speed = max(simulate(known, both, costs).speed, 1.0)
    table = fit_cape(both, row_cost=known.row_cost or 0.0, speed=speed)
    return replace(known, cape_table=table), evidence


def swept(profile: Profile, evidence: Evidence, *, depth: int) -> Iterator[Tried]:
    """Simulate every setting; `profile` is a fitted one."""
    tables = {"paper": PAPER_TABLE, "measured": profile.cape_table}
    return sweep(profile, tables, evidence, depth=depth)


def best_of(tried: Sequence[Tried], evidence: Evidence, count: int) -> list[Tried]:
    """Return the settings to run against the clock, each with the lookup that suits it."""
    return [with_copies(item, evidence) for item in finalists(tried, count)]


def affordable(race: Race, seconds: float, recorded: Recorded, costs: Costs) -> Race:
    """Return the race on as many of its prompts as it can be run on in that time, at least two.

    Goes by the length of the recorded replies, and takes no entry to be faster than plain
    decoding, which leaves room for prompts to be read.
    """
    per_question = recorded.num_tokens / len(recorded.greedy) * costs.plain_ms / 1000
    count = math.floor(seconds / (per_question * len(race.methods()))) - 1  # one warms up
    return replace(race, questions=in_turn(race.questions)[: max(count, 2)])


def _costs(measured: dict[str, Any], numerics: str) -> Costs:
    forwards, draft = measured["forward_ms"], measured["draft"]
    one = forwards["fast"]["1"]
    plain = max(measured["plain_ms_per_token"]["plain"] or one, one)
    return Costs(
        plain_ms=plain,
        verify_ms=tuple((int(rows), ms) for rows, ms in forwards[numerics].items()),
        overhead_ms=plain - one,
        first_ms=draft["first_ms"],
        step_ms=max(draft["more_ms"], 1e-6),
        score_ms=draft["score_ms"],
    )
