"""Measures every point beside plain decoding of as many sessions, in turn. Prints nothing."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from statistics import median

from slipstream.bench.breakeven.costs import (
    Calls,
    DraftCost,
    devices,
    time_draft,
    time_steps,
)
from slipstream.bench.breakeven.crowd import Lengths, Ran, Way, run_crowd
from slipstream.bench.breakeven.oracle import Delay, Luck, OracleDraft, Wait, typical
from slipstream.bench.breakeven.plan import BreakEvenPlan, Point
from slipstream.bench.breakeven.stand import Stand
from slipstream.core.errors import InvalidRequest
from slipstream.core.loop import decode
from slipstream.core.ngram_draft import NGRAM, NgramDraft
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.planner import Planner, Settings
from slipstream.core.request import DraftFacts, draft_settings
from slipstream.core.timing import Clock, TimedTarget
from slipstream.core.types import Session, Shape, StopPolicy
from slipstream.sizing.recording import Devices

Answers = dict[tuple[int, ...], tuple[int, ...]]
Subject = Point | int
"""A point with the oracle, or the number of sessions that the stand's own draft drafts for."""


@dataclass(slots=True)
class Tally:
    """What came of one subject's runs: its speed over that of the plain run beside it, of each
    pair, and the tokens and rounds of all of them."""

    ratios: list[float] = field(default_factory=list)
    tokens: float = 0.0
    rounds: float = 0.0
    num_same: int = 0
    num_outputs: int = 0

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds

    def add(self, ran: Ran, plain: Ran, known: Sequence[tuple[int, ...]]) -> None:
        """Count a pair; `known` are the outputs that both should have."""
        self.ratios.append(ran.tokens_per_s / plain.tokens_per_s)
        self.tokens += ran.tokens
        self.rounds += ran.rounds
        for output, answer in zip(ran.outputs, known, strict=True):
            self.num_same += output == answer[: len(output)]
            self.num_outputs += 1


@dataclass(frozen=True, slots=True)
class Measured:
    """What everything costs, and what came of it."""

    devices: Devices
    points: dict[Point, Tally]
    real: dict[int, Tally]
    """Of the stand's own draft, by the number of sessions."""


@dataclass(frozen=True, slots=True)
class Times:
    """The clock, and how to let time pass."""

    clock: Clock
    wait: Wait


async def run_break_even(
    stand: Stand, plan: BreakEvenPlan, times: Times, *, advance: Callable[[str], None]
) -> Measured:
    """All of a plan. `advance` is told of every run, and before that of what costs are timed.

    Raises `InvalidRequest` where no answer is as long as the plan asks for.
    """
    advance("answers")
    answers, calls = await _answers(stand, plan, times.clock)
    stand = replace(stand, prompts=tuple(answers))
    advance("costs")
    found = await _devices(stand, plan, calls, times.clock)
    bench = _Bench(stand, plan, times, answers, found.curve().seconds(1))
    points: dict[Point, Tally] = {point: Tally() for point in plan.sweeps.distinct()}
    crowds = plan.sweeps.crowds if stand.real is not None else ()
    real: dict[int, Tally] = {sessions: Tally() for sessions in crowds}
    tallies: list[tuple[Subject, Tally]] = [*points.items(), *real.items()]
    for number in range(plan.num_pairs):
        for turn, (subject, tally) in enumerate(tallies):
            run = number * len(tallies) + turn
            await bench.pair(subject, tally, run, plain_first=(number + turn) % 2 == 0)
            advance(f"pair {number + 1}")
    return Measured(found, points, real)


class _Bench:
    """Runs pairs of crowds."""

    def __init__(
        self, stand: Stand, plan: BreakEvenPlan, times: Times, answers: Answers, plain_s: float
    ) -> None:
        self._stand, self._plan, self._times = stand, plan, times
        self._answers = answers
        self._plain_s = plain_s
        self._plain = Way(NgramDraft(), _plain_settings())

    async def pair(self, subject: Subject, tally: Tally, number: int, *, plain_first: bool) -> None:
        """One run of the subject and a plain one. Prompts and luck go by the number."""
        sessions = subject if isinstance(subject, int) else subject.setting.sessions
        prompts = self._stand.prompts_of(number, sessions)
        names = [f"drafted-{number}-{at}" for at in range(sessions)]
        ways = [("drafted", self._way(subject, names)), ("plain", self._plain)]
        found: dict[str, Ran] = {}
        for name, at in reversed(ways) if plain_first else ways:
            found[name] = await run_crowd(
                self._stand.target,
                at,
                prompts,
                Lengths(self._plan.num_tokens, self._plan.longest),
                name=f"{name}-{number}",
                clock=self._times.clock,
            )
            self._stand.steps.clear()
        known = [self._answers[prompt] for prompt in prompts]
        tally.add(found["drafted"], found["plain"], known)

    def _way(self, subject: Subject, session_ids: Sequence[str]) -> Way:
        depth, num_tokens = self._plan.depth, self._plan.num_tokens
        if isinstance(subject, int):
            assert self._stand.real is not None, "only asked where there is one"
            return Way(self._stand.real.draft, _chain_settings(depth, self._stand.real.facts))
        setting = subject.setting
        luck = Luck(subject.acceptance, self._plan.seed)
        oracle = OracleDraft(
            self._answers,
            typical(luck, session_ids, depth=depth, num_tokens=num_tokens),
            Delay(setting.cost_ratio * self._plain_s, setting.rtt_s),
            vocab_size=self._stand.vocab_size,
            wait=self._times.wait,
        )
        return Way(oracle, _chain_settings(depth, NGRAM))


async def _devices(stand: Stand, plan: BreakEvenPlan, calls: Calls, clock: Clock) -> Devices:
    rounds = plan.cost_rounds
    steps = await time_steps(stand, plan.sizes(), rounds, longest=plan.longest)
    # Without a draft of its own there is the one that is imagined in the middle of the sweeps.
    draft = DraftCost(max(plan.sweeps.base.setting.cost_ratio * steps[1, 1], 1e-6), 0.0)
    if stand.real is not None:
        most = max(plan.sweeps.crowds)
        draft = await time_draft(stand, depth=plan.depth, sessions=most, rounds=rounds, clock=clock)
    return devices(steps, calls, draft)


async def _answers(stand: Stand, plan: BreakEvenPlan, clock: Clock) -> tuple[Answers, Calls]:
    """What plain decoding says to each prompt, of those that it says enough to; and what rounds
    take beside the steps."""
    answers: Answers = {}
    calls: list[Calls] = []
    for number, prompt in enumerate(stand.prompts):
        said, call = await _answer(stand, prompt, plan.longest, f"answer-{number}", clock)
        if not stand.stop_token_ids & set(said[: plan.num_tokens]):
            answers[prompt] = said
        calls.append(call)
    if not answers:
        raise InvalidRequest(
            f"none of the answers to {len(stand.prompts)} prompts has {plan.num_tokens} tokens"
        )
    return answers, Calls(
        median(call.wire_s for call in calls), median(call.router_s for call in calls)
    )


async def _answer(
    stand: Stand, prompt: tuple[int, ...], count: int, name: str, clock: Clock
) -> tuple[tuple[int, ...], Calls]:
    target = TimedTarget(stand.target, clock)
    session = Session(name, len(prompt), count)
    rounds = decode(NgramDraft(), target, Planner(_plain_settings()), session, prompt)
    async with aclosing(rounds):
        said = list((await anext(rounds)).verdict.tokens)
        stand.steps.clear()
        before_s, began = target.spent.elapsed_s, clock()
        said += [token async for at in rounds for token in at.verdict.tokens]
    wall_s, waited_s = clock() - began, target.spent.elapsed_s - before_s
    stepping_s = sum(step.seconds for step in stand.steps)
    await stand.target.release(name)
    num = count - 1
    return tuple(said), Calls((waited_s - stepping_s) / num, (wall_s - waited_s) / num)


def _plain_settings() -> Settings:
    return draft_settings(SpeculationOptions(mode=Mode.OFF), NGRAM)


def _chain_settings(depth: int, facts: DraftFacts) -> Settings:
    """A chain of the same length in every round, whatever comes of it."""
    options = SpeculationOptions(
        mode=Mode.FORCED,
        shape=Shape.CHAIN,
        stop=StopPolicy.FIXED,
        max_draft_tokens=depth,
        max_nodes=depth,
        lookup=False,
    )
    return draft_settings(options, facts)
