"""Calibration of a draft: acceptance by confidence from real rounds, then settings by the clock.

Settings run on the same prompts in turn, first all of them on a few, then the best on many.
Greedy requests and sampled ones share the form of a proposal; each has its best threshold.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from slipstream.bench.engines import MethodEngines
from slipstream.bench.figures import sample_figures
from slipstream.bench.harness import Advance, SamplingPlan
from slipstream.bench.methods import PLAIN, Method, parse_method
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.speed import SpeedPlan, run_speed
from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import DraftFacts, Profile
from slipstream.core.policy.stop import fit_calibration
from slipstream.core.ports import Draft
from slipstream.core.request.request import Ask, make_request
from slipstream.core.round import Round
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Shape, StopPolicy
from slipstream.drafting.build import Drafter
from slipstream.options import check_bounds, group, option
from slipstream.text.prompts import encode_prompt

BEFORE = "before"
"""Name of the profile that the draft had."""
FIGURES = ("tokens_per_s", "ratio", "ratio_decode", "mean_acceptance_length", "tokens")
RECORDING_SHARE, FIRST_SHARE = 0.2, 0.45
"""Shares of the time: in which replies are recorded, and in which all settings run."""
LOOKUPS = (0, 1, 3)
"""Shortest matches behind which text is copied; 0 copies nothing."""
_THRESHOLDS: Mapping[StopPolicy, tuple[float | None, ...]] = {
    StopPolicy.FIXED: (None,),
    StopPolicy.SVIP: (0.2, 0.3, 0.4, 0.6),
    StopPolicy.DECISION: (0.2, 0.4, 0.6),
    StopPolicy.COST: (0.05, 0.1, 0.2),
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
        8.0,
        "Minutes for everything. With fewer, fewer prompts are recorded and timed.",
        least=1e-3,
        most=1440,
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
    finalists: int = option(4, "Settings that run on many prompts.", least=1, most=16)
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
Outcomes = list[tuple[float, bool]]
"""Confidence of each drafted token behind an accepted path, and whether it was accepted."""


def _outcomes(round_: Round) -> Iterator[tuple[float, bool]]:
    """Yield the outcomes of a chain up to the first wrong token; behind it none is known."""
    proposal = round_.proposal
    pairs = zip(proposal.tree.tokens, round_.verdict.tokens, proposal.stats, strict=False)
    for drafted, final, stats in pairs:
        yield stats.top_prob, drafted == final
        if drafted != final:
            return


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
class Timed:
    """A profile and its figures (see `figures.sample_figures`), greedy and sampled."""

    name: str
    profile: Profile
    greedy: Mapping[str, Any]
    sampled: Mapping[str, Any]

    @property
    def ratio(self) -> float:
        """Return the speed of decoding over plain decoding's, of both kinds of requests."""
        return math.sqrt(_ratio(self.greedy) * _ratio(self.sampled))


def _ratio(figures_of: Mapping[str, Any]) -> float:
    return float(figures_of["ratio_decode"] or 0.0)


def combined(timed: Sequence[Timed]) -> list[Profile]:
    """Return a profile for each form, with its fastest thresholds; the fastest profile first."""
    forms: dict[tuple[Any, ...], list[Timed]] = {}
    for item in timed:
        profile = item.profile
        forms.setdefault((profile.stop, profile.shape, profile.max_depth), []).append(item)
    best = []
    for items in forms.values():
        greedy = max(items, key=lambda item: _ratio(item.greedy))
        sampled = max(items, key=lambda item: _ratio(item.sampled))
        profile = replace(greedy.profile, threshold_sampled=sampled.profile.threshold_sampled)
        best.append((_ratio(greedy.greedy) * _ratio(sampled.sampled), profile))
    return [profile for _, profile in sorted(best, key=lambda item: -item[0])]


def finalists(before: Profile | None, best: Sequence[Profile], count: int) -> dict[str, Profile]:
    """Return the best profiles by name, the first of them with every lookup, and the draft's own,
    so that nothing gets worse unseen."""
    chosen = [*best[:count], *(replace(best[0], lookup=shortest) for shortest in LOOKUPS)]
    named = {} if before is None else {BEFORE: before}
    return named | {name_of(profile): profile for profile in chosen}


class Calibration:
    """A run of a plan, on the draft of some engines."""

    def __init__(self, plan: CalibrationPlan, engines: MethodEngines, stage: Stage) -> None:
        self.model = engines.draft_model()
        self.num_replies = self.num_tokens = self.num_timed = 0
        """Recorded replies and their tokens; prompts of the last race."""
        self._plan = plan
        self._engines = engines
        self._stage = stage
        self._depth = min(plan.depth, self.model.scorer.max_lag or plan.depth)
        self._begun_s = time.monotonic()

    def run(self, before: Profile | None) -> list[Timed]:
        """Return the finalists, the fastest first; `before` is the draft's own profile."""
        plan, model, seconds = self._plan, self.model, 60 * self._plan.minutes
        greedy, sampled = map(fit_calibration, self._recorded(RECORDING_SHARE * seconds))
        reply_s = max(self._elapsed_s / self.num_replies, 1e-6)
        # A machine's measured curve tells more than any two costs, which would stand in its place.
        base = replace(before or model.untuned_profile(), step_cost=None, row_cost=None)
        base = replace(base, calibration=greedy, calibration_sampled=sampled)
        tried = settings(base, depth=self._depth, has_decision_model=model.decision is not None)
        named = {name_of(profile): profile for profile in tried}
        first = self._race(named, seconds * FIRST_SHARE / reply_s)
        last = finalists(before, combined(first), plan.finalists)
        return self._race(last, (seconds - self._elapsed_s) / reply_s)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _recorded(self, seconds: float) -> tuple[Outcomes, Outcomes]:
        """Return the outcomes of whole chains, in greedy and in sampled replies to as many prompts
        as there is time for, at least one."""
        plan = self._plan
        found: tuple[Outcomes, Outcomes] = ([], [])
        profile = Profile(Shape.CHAIN, StopPolicy.FIXED, max_depth=self._depth)
        draft, facts = self.model.draft(profile), DraftFacts(self.model.kind, profile)
        with self._stage("recording how often the draft is right", len(plan.questions)) as advance:
            for question in in_turn(plan.questions):
                for sampling, outcomes in zip(plan.samplings, found, strict=True):
                    forced = SpeculationOptions(mode=Mode.FORCED)
                    ask = Ask(sampling.params(), plan.max_new_tokens, speculation=forced)
                    outcomes.extend(self._reply(question, ask, draft, facts))
                advance("recording")
                if self._elapsed_s > seconds:
                    break
        return found

    def _reply(self, question: Question, ask: Ask, draft: Draft, facts: DraftFacts) -> Outcomes:
        engine = self._engines.engine
        found: Outcomes = []
        prompt = encode_prompt(engine.text, question.turns[0])
        request = make_request(_SESSION, prompt, ask, engine.facts, facts)
        sequence, planner = TokenSequence(request.session, prompt), Planner(request.settings)
        rounds = decode(draft, engine.target, planner, sequence, clock=time.perf_counter)
        for round_ in iterated(rounds):
            found += _outcomes(round_)
            self.num_tokens += len(round_.verdict.tokens)
        self.num_replies += 1
        for port in (draft, engine.target):
            finished(port.release(_SESSION))
        return found

    def _race(self, entries: Mapping[str, Profile], num_replies: float) -> list[Timed]:
        """Run profiles by name on as many prompts as there is time for, in turn; return the fastest
        first, the earlier of equals. `bench speed` compares the tokens with plain decoding's."""
        plan, size = self._plan, 2 * (len(entries) + 1)
        # One prompt warms up.
        questions = in_turn(plan.questions)[: max(math.floor(num_replies / size) - 1, 1)]
        self.num_timed = len(questions)
        left_min = max(plan.minutes - self._elapsed_s / 60, 0)
        what = f"running {len(entries)} settings on {len(questions)} prompts"
        found, methods = [], self._methods(entries)
        with self._stage(
            f"{what}; {left_min:.1f} minutes left", size * (len(questions) + 1)
        ) as advance:
            for sampling in plan.samplings:
                speed = SpeedPlan(
                    plan.max_new_tokens, sampling=sampling, methods=methods, questions=questions
                )
                samples = run_speed(speed, self._engines, advance=advance)
                figures = {name: sample_figures(of, samples[PLAIN]) for name, of in samples.items()}
                found.append(
                    {name: {key: of[key] for key in FIGURES} for name, of in figures.items()}
                )
        greedy, sampled = found
        timed = [Timed(name, own, greedy[name], sampled[name]) for name, own in entries.items()]
        return sorted(timed, key=lambda item: -item.ratio)

    def _methods(self, entries: Mapping[str, Profile]) -> tuple[Method, ...]:
        drafts: dict[Any, Drafter] = {}
        for name, profile in entries.items():
            # What drafts hold of a profile is its calibration: most share one, and its memory.
            key = profile.cape_table, profile.calibration, profile.calibration_sampled
            shared = drafts.get(key) or drafts.setdefault(key, self.model.drafter(profile))
            facts = replace(shared.facts, profile=profile)
            self._engines.tune(name, replace(shared, facts=facts))
        own = (Method(name, "best", SpeculationOptions()) for name in entries)
        return (parse_method(PLAIN), *own)
