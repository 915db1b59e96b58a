"""A calibration from prompts to a profile, in stages: measure, record, sweep, race."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.bench.calibrate.simulate import RoundCosts
from slipstream.bench.calibrate.sweep import Evidence, Tried, finalists, with_copies
from slipstream.bench.calibrate.traces import DraftTrace, TraceRecorder, fit_calibration
from slipstream.bench.cost import CostPlan, measure_cost
from slipstream.bench.engines import MethodEngines
from slipstream.bench.harness import Advance, SamplingPlan
from slipstream.bench.methods import PLAIN, Method, Numerics, parse_method
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.speed import SpeedPlan, run_speed
from slipstream.bench.speed_figures import MethodComparison, figures
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.policy.profile import Profile
from slipstream.core.row_costs import RowCosts
from slipstream.core.types import SamplingParams, Session
from slipstream.drafting.build import DraftModel
from slipstream.options import option
from slipstream.text.prompts import encode_prompt

BEFORE = "before"
"""Name of the profile that the draft had."""
FIGURES = ("tokens_per_s", "ratio", "ratio_decode", "mean_acceptance_length", "tokens")


RECORDING_SHARE = 0.45
"""Share of the time in which prompts are recorded; the sweep is short, timing has the rest."""
_CONTEXT = 200
_ROWS = (*range(1, 9), 12, 16, 24, 32)
"""Forwards that are timed: kernels that take so many rows at once make steps of any number."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Plan of a calibration: its extent, and how replies are drawn."""

    max_new_tokens: int = option(
        64, "Maximum number of tokens of a reply; more than 64 add little."
    )
    minutes: float = option(
        8.0,
        "Minutes for everything. With fewer, fewer prompts are recorded and timed, and costs are"
        " timed less often; the sweep itself is a simulation and takes seconds.",
    )
    temperature: float = option(
        1.0, "Temperature of the sampled replies; greedy ones are recorded beside them."
    )
    seed: int = option(0, "Seed of the sampled replies.")
    depth: int = option(
        8,
        "Longest chain that is tried, at most the lag that the draft was trained for. More than"
        " twice the tokens per round is of no use.",
    )
    finalists: int = option(
        4, "Settings that run against the clock, the best of each policy first."
    )
    numerics: Numerics = option("invariant", "invariant, as is served by default, or fast.")
    questions: tuple[Question, ...] = ()

    def __post_init__(self) -> None:
        limits = (("max_new_tokens", 8, 4096), ("depth", 1, 14), ("finalists", 1, 16))
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


def measure(plan: CalibrationPlan, engines: MethodEngines) -> tuple[RoundCosts, dict[str, Any]]:
    """Measure what forwards, draft steps and plain decoding cost here."""
    limit = engines.engine("fast").model.context_length
    timing = CostPlan(
        context=min(_CONTEXT, limit // 2),
        rows=",".join(map(str, _ROWS)),
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
) -> tuple[tuple[DraftTrace, ...], tuple[DraftTrace, ...]]:
    """Record greedy and sampled replies to as many prompts as there is time for, at least one."""
    engine = engines.engine(plan.numerics)
    recorder = TraceRecorder(engine.target, model, depth=plan.depth_of(model))
    traces: tuple[list[DraftTrace], list[DraftTrace]] = ([], [])
    for number, question in enumerate(in_turn(plan.questions)):
        if number and not is_time_left():
            break
        prompt = encode_prompt(engine.text, question.turns[0])
        session = Session(
            "trace",
            len(prompt),
            plan.max_new_tokens,
            stop_token_ids=engine.facts.stop_token_ids,
        )
        for sampling, kind in zip(plan.samplings, traces, strict=True):
            kind.append(recorder.record(replace(session, sampling=sampling), prompt))
        advance("recording")
    return tuple(traces[0]), tuple(traces[1])


def fitted(base: Profile, evidence: Evidence) -> Profile:
    """Return `base` with fitted calibrations, and costs as measured where it runs.

    A machine's measured curve tells more than any two numbers here, which would stand in its place.
    """
    return replace(
        base,
        step_cost=None,
        row_cost=None,
        calibration=fit_calibration(evidence.greedy),
        calibration_sampled=fit_calibration(evidence.sampled),
    )


def best_of(tried: Sequence[Tried], evidence: Evidence, count: int) -> list[Tried]:
    """Return the settings to run against the clock, each with the lookup that suits it."""
    return [with_copies(item, evidence) for item in finalists(tried, count)]


def _costs(measured: dict[str, Any], numerics: str) -> RoundCosts:
    forwards, draft = measured["forward_ms"], measured["draft"]
    one = forwards["fast"]["1"]
    plain = max(measured["plain_ms_per_token"]["plain"] or one, one)
    own = [(int(rows), ms) for rows, ms in forwards[numerics].items()]
    return RoundCosts(
        plain_ms=plain,
        one_ms=own[0][1],
        rows=RowCosts.rising(own),
        overhead_ms=plain - one,
        first_ms=draft["first_ms"],
        step_ms=max(draft["more_ms"], 1e-6),
        score_ms=draft["score_ms"],
    )


@dataclass(frozen=True, slots=True)
class Timed:
    """A profile and its real figures (see `bench.figures`), greedy and sampled."""

    name: str
    profile: Profile
    greedy: Mapping[str, Any]
    sampled: Mapping[str, Any]

    @property
    def ratio(self) -> float:
        """Return the speed of decoding over plain decoding's, of both kinds of requests."""
        ratios = [part["ratio_decode"] or 0.0 for part in (self.greedy, self.sampled)]
        return math.sqrt(ratios[0] * ratios[1])


@dataclass(frozen=True, slots=True)
class Race:
    """Profiles by name that run against the clock, and the prompts that they run on."""

    plan: CalibrationPlan
    entries: Mapping[str, Profile]
    questions: tuple[Question, ...]

    @property
    def methods(self) -> tuple[Method, ...]:
        """Return the entries behind the fastest plain decoding."""
        numerics = self.plan.numerics
        entries = [Method(name, "best", numerics, SpeculationOptions()) for name in self.entries]
        return (parse_method(PLAIN), *entries)

    @property
    def num_steps(self) -> int:
        """Return the conversations of the whole race."""
        return 2 * len(self.methods) * (len(self.questions) + 1)

    def within(self, seconds: float, evidence: Evidence) -> "Race":
        """Return the race on as many of its prompts as that time allows, at least two.

        Goes by the length of the recorded replies, and takes no entry to be faster than plain
        decoding, which leaves room for prompts to be read.
        """
        num_tokens = evidence.num_tokens / len(evidence.greedy)
        question_s = num_tokens * evidence.costs.plain_ms / 1000
        count = math.floor(seconds / (question_s * len(self.methods))) - 1  # one warms up
        return replace(self, questions=in_turn(self.questions)[: max(count, 2)])


def race_entries(before: Profile | None, best: Sequence[Tried]) -> dict[str, Profile]:
    """Return profiles by name; the draft's own is among them, so that nothing gets worse unseen."""
    named = {} if before is None else {BEFORE: before}
    return named | {item.name: item.profile for item in best}


def run_race(
    race: Race, engines: MethodEngines, model: DraftModel, *, advance: Advance
) -> list[Timed]:
    """Run all on the same prompts, in turn; the fastest first, the earlier of equals."""
    for method in race.methods[1:]:
        engines.tune(method, model.drafter(race.entries[method.name]))
    greedy, sampled = (
        _race_figures(race, engines.under(sampling), sampling, advance)
        for sampling in race.plan.samplings
    )
    timed = [
        Timed(name, profile, greedy[name], sampled[name]) for name, profile in race.entries.items()
    ]
    return sorted(timed, key=lambda item: -item.ratio)


def _race_figures(
    race: Race, engines: MethodEngines, sampling: SamplingParams, advance: Advance
) -> dict[str, dict[str, Any]]:
    """Return figures by method. Another benchmark compares the tokens with plain decoding's."""
    speed = SpeedPlan(
        race.plan.max_new_tokens,
        sampling=SamplingPlan(sampling.temperature, sampling.seed),
        methods=race.methods,
        questions=race.questions,
    )
    outputs = run_speed(speed, engines, advance=advance)
    plain, found = outputs[PLAIN], {}
    for method in race.methods:
        of = figures(MethodComparison(method, outputs[method.name], plain, plain))
        found[method.name] = {key: of[key] for key in FIGURES}
    return found
