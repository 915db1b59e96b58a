"""The best profiles of a sweep against the clock, in turn with plain decoding. Prints nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.calibrate.sweep import Tried
from slipstream.bench.engines import MethodEngines
from slipstream.bench.figures import Comparison, figures
from slipstream.bench.methods import PLAIN, Method, Numerics, parse_method
from slipstream.bench.questions import Question
from slipstream.bench.speed import SpeedPlan, run_speed
from slipstream.core.options import SpeculationOptions
from slipstream.core.profile import Profile
from slipstream.core.types import SamplingParams
from slipstream.draft.build import DraftModel

BEFORE = "before"
"""Stands for the profile that the draft had."""
FIGURES = ("tokens_per_s", "ratio", "ratio_decode", "mean_acceptance_length", "tokens")


@dataclass(frozen=True, slots=True)
class Timed:
    """A profile and its real figures (see `bench.figures`), greedy and sampled."""

    name: str
    profile: Profile
    greedy: Mapping[str, Any]
    sampled: Mapping[str, Any]

    @property
    def ratio(self) -> float:
        """Speed of decoding over plain decoding's, of both kinds of requests."""
        ratios = [part["ratio_decode"] or 0.0 for part in (self.greedy, self.sampled)]
        return math.sqrt(ratios[0] * ratios[1])


@dataclass(frozen=True, slots=True)
class Race:
    """Profiles that run against the clock, and on what. `samplings` are greedy and sampled."""

    entries: Mapping[str, Profile]
    questions: tuple[Question, ...]
    samplings: tuple[SamplingParams, SamplingParams]
    max_new_tokens: int
    numerics: Numerics

    def methods(self) -> tuple[Method, ...]:
        """Return the entries behind the fastest plain decoding."""
        entries = [
            Method(name, "best", self.numerics, SpeculationOptions()) for name in self.entries
        ]
        return (parse_method(PLAIN), *entries)

    @property
    def num_steps(self) -> int:
        """Return the conversations of the whole race."""
        return 2 * len(self.methods()) * (len(self.questions) + 1)


def entries(before: Profile | None, best: Sequence[Tried]) -> dict[str, Profile]:
    """Profiles by name; the draft's own goes along, so that nothing gets worse unseen."""
    named = {} if before is None else {BEFORE: before}
    return named | {item.name: item.profile for item in best}


def race(
    plan: Race, engines: MethodEngines, model: DraftModel, *, advance: Callable[[str], None]
) -> list[Timed]:
    """Run all on the same prompts, in turn; the fastest first, the earlier of equals."""
    methods = plan.methods()
    for method in methods[1:]:
        engines.tune(method, model.drafter(plan.entries[method.name]))
    greedy, sampled = (
        _figures(plan, engines.under(sampling), sampling, advance) for sampling in plan.samplings
    )
    timed = [
        Timed(name, profile, greedy[name], sampled[name]) for name, profile in plan.entries.items()
    ]
    return sorted(timed, key=lambda item: -item.ratio)


def _figures(
    plan: Race, engines: MethodEngines, sampling: SamplingParams, advance: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Return figures by entry. Another benchmark compares the tokens with plain decoding's."""
    methods = plan.methods()
    speed = SpeedPlan(methods, plan.questions, sampling, plan.max_new_tokens)
    outputs = run_speed(speed, engines, advance=advance)
    plain = outputs[PLAIN]
    all_of = {
        method.name: figures(Comparison(method, outputs[method.name], plain, plain))
        for method in methods
    }
    return {name: {key: of[key] for key in FIGURES} for name, of in all_of.items()}
