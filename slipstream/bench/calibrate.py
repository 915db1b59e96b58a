"""Calibration of a draft: recorded replies, and the settings that are fastest in replays of them.

Greedy requests and sampled ones share the form of a proposal; each has its best threshold.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from slipstream.bench.harness import Advance, SamplingPlan
from slipstream.bench.methods import MethodEngines
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.replay import (
    WIDTH,
    MachineCosts,
    Recorder,
    Recording,
    outcomes,
    pace,
    shipped,
)
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import fit_calibration
from slipstream.core.request.request import Ask, make_request
from slipstream.core.types import Shape, StopPolicy
from slipstream.options import check_bounds, group, option
from slipstream.text.prompts import encode_prompt

BEFORE = "before"
"""Name of the profile that the draft had."""
NUM_SHOWN = 4
"""Best settings that are shown beside those with copies."""
LOOKUPS = (1, 3)
"""Shortest matches behind which text is copied."""
_THRESHOLDS: Mapping[StopPolicy, tuple[float | None, ...]] = {
    StopPolicy.FIXED: (None,),
    StopPolicy.SVIP: (0.2, 0.3, 0.4, 0.6),
    StopPolicy.DECISION: (0.2, 0.4, 0.6),
    StopPolicy.COST: (None, 0.05, 0.1, 0.2),
}
_MAX_NODES = 31
_SESSION = "calibration"


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Plan of a calibration: its extent, and how replies are drawn."""

    max_new_tokens: int = option(
        64, "Maximum number of tokens of a reply; more than 64 add little.", least=8, most=4096
    )
    minutes: float = option(
        8.0, "Minutes after which no further prompt is recorded.", least=1e-3, most=1440
    )
    sampling: SamplingPlan = group(
        SamplingPlan,
        temperature=option(1.0, "Temperature of the sampled replies; greedy ones run beside them."),
        seed=option(0, "Seed of the sampled replies."),
    )
    depth: int = option(
        8,
        "Longest chain that is tried, at most the lag that the draft was trained for. More than"
        " twice the tokens per round is of no use.",
        least=1,
        most=14,
    )
    questions: tuple[Question, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.sampling.temperature == 0:
            raise InvalidRequest("temperature is 0, but greedy replies are calibrated in any case")

    @property
    def samplings(self) -> tuple[SamplingPlan, SamplingPlan]:
        """Return the greedy one and the sampled one."""
        return SamplingPlan(), self.sampling


Stage = Callable[[str, int], AbstractContextManager[Advance]]
"""Context of a stage that this text announces, of so many steps."""
Recordings = tuple[list[Recording], list[Recording]]
"""Greedy replies and sampled ones."""


def settings(base: Profile, *, depth: int, has_decision_model: bool) -> list[Profile]:
    """Return every policy with its thresholds, as a chain and with leaves; `base` has the rest."""
    found = []
    for stop, thresholds in _THRESHOLDS.items():
        if stop is StopPolicy.DECISION and not has_decision_model:
            continue
        depths = {min(2, depth), min(4, depth), depth} if stop is StopPolicy.FIXED else {depth}
        shapes = (Shape.CHAIN, Shape.CAPE)
        for max_depth, threshold, shape in product(sorted(depths), thresholds, shapes):
            form = replace(base, shape=shape, max_depth=max_depth, max_nodes=_MAX_NODES)
            both = replace(form, stop=stop, threshold=threshold, threshold_sampled=threshold)
            found.append(both)
    return found


def name_of(profile: Profile) -> str:
    """Return the policy with its thresholds, depth, shape and copies."""
    thresholds = [f"{value:g}" for value in (profile.threshold, profile.threshold_sampled) if value]
    stop = "=".join([profile.stop.value, *(["/".join(thresholds)] if thresholds else [])])
    copies = f" lookup={profile.lookup}" if profile.lookup else ""
    return f"{stop} depth={profile.max_depth} {profile.shape.value}{copies}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A profile and its speeds over plain decoding in replays, greedy and sampled."""

    name: str
    profile: Profile
    greedy: float
    sampled: float

    @property
    def ratio(self) -> float:
        """Return the speed over both kinds of requests."""
        return math.sqrt(self.greedy * self.sampled)


def combined(found: Sequence[Replayed]) -> list[Profile]:
    """Return a profile for each form, with its fastest thresholds; the fastest profile first."""
    forms: dict[tuple[Any, ...], list[Replayed]] = {}
    for item in found:
        profile = item.profile
        forms.setdefault((profile.stop, profile.shape, profile.max_depth), []).append(item)
    best = []
    for items in forms.values():
        greedy = max(items, key=lambda item: item.greedy)
        sampled = max(items, key=lambda item: item.sampled)
        profile = replace(greedy.profile, threshold_sampled=sampled.profile.threshold_sampled)
        best.append((greedy.greedy * sampled.sampled, profile))
    return [profile for _, profile in sorted(best, key=lambda item: -item[0])]


class Calibration:
    """A run of a plan, on the draft of some engines."""

    def __init__(self, plan: CalibrationPlan, engines: MethodEngines, stage: Stage) -> None:
        self.model, self._engine = engines.draft_model(), engines.engine
        self._plan, self._stage = plan, stage
        self._depth = min(plan.depth, self.model.scorer.max_lag or plan.depth)
        self.recordings, self.costs = self._recorded()

    def run(self, before: Profile | None) -> list[Replayed]:
        """Return the best settings, the fastest first, and `before`, the draft's own profile."""
        model = self.model
        greedy, sampled = (fit_calibration(outcomes(of)) for of in self.recordings)
        # A machine's measured curve tells more than any two costs, which would stand in its place.
        base = replace(before or model.untuned_profile(), step_cost=None, row_cost=None, lookup=0)
        base = replace(base, calibration=greedy, calibration_sampled=sampled)
        tried = settings(base, depth=self._depth, has_decision_model=model.decision is not None)
        best = combined(self._replayed({name_of(profile): profile for profile in tried}))
        last = [*best[:NUM_SHOWN], *(replace(best[0], lookup=shortest) for shortest in LOOKUPS)]
        named = {} if before is None else {BEFORE: before}
        found = self._replayed(named | {name_of(profile): profile for profile in last})
        return sorted(found, key=lambda item: -item.ratio)

    def _replayed(self, profiles: Mapping[str, Profile]) -> list[Replayed]:
        costs, found = self.costs, []
        with self._stage(f"replaying {len(profiles)} settings", len(profiles)) as advance:
            for name, profile in profiles.items():
                rounds = [[shipped(one, profile, costs) for one in of] for of in self.recordings]
                found.append(Replayed(name, profile, *(pace(of, costs) for of in rounds)))
                advance(name)
        return found

    def _recorded(self) -> tuple[Recordings, MachineCosts]:
        """Return greedy and sampled replies to as many prompts as there is time for, at least one,
        with what the draft proposes at every token; and costs as they were meanwhile."""
        plan, model, engine = self._plan, self.model, self._engine
        end_s = time.monotonic() + 60 * plan.minutes
        drafter = model.drafter(Profile(max_depth=self._depth, cape_table=(WIDTH - 1,)))
        stop = StopPolicy.FIXED if model.decision is None else StopPolicy.DECISION
        recorder = Recorder(drafter.draft, engine.target, self._depth, stop, time.perf_counter)
        found: Recordings = ([], [])
        with self._stage("recording what the draft proposes", len(plan.questions)) as advance:
            for question in in_turn(plan.questions):
                prompt = encode_prompt(engine.text, question.turns[0])
                for sampling, of in zip(plan.samplings, found, strict=True):
                    ask = Ask(sampling.params(), plan.max_new_tokens)
                    request = make_request(_SESSION, prompt, ask, engine.facts, drafter.facts)
                    of.append(recorder.record(request.session, prompt))
                advance("recording")
                if time.monotonic() > end_s:
                    break
        return found, recorder.costs(drafter.facts.step_s)
