"""Rounds as a profile would have drafted them over recorded replies.

Stop policies and CaPE are the real ones, and a greedy or coupled reply does not depend on what is
drafted, so the tokens of every round are those of a real run. Only their time is a model. A replay
runs the real loop, planner and lookup as well: slower, but with copies.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from slipstream.bench.calibrate.traces import DraftTrace, TracePosition
from slipstream.core.draft.cape import Chain, NodeBudget, cape_tree
from slipstream.core.draft.ngram_draft import LookupDraft
from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import iterated
from slipstream.core.loop import decode
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.settings import resolve
from slipstream.core.policy.stop import StopSignal, make_stop
from slipstream.core.row_costs import RowCosts, step_worth
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import (
    FinishReason,
    NodeStats,
    Plan,
    Proposal,
    Shape,
    StopPolicy,
    Verdict,
)

SCORED = frozenset({StopPolicy.DECISION, StopPolicy.COST})
"""Policies that run the decision model, where there is one."""
_DRAFTER = "glide"
"""A drafter that takes every setting."""


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Milliseconds on one machine: of a token of plain decoding, and of the parts of a round.

    `one_ms` is the target's forward of one token, `rows` that of more, over it; `overhead_ms` is
    what a round takes beside its forwards. `first_ms` is a proposal of one token, `step_ms` what
    every further one adds, `score_ms` what the decision model adds to each.
    """

    plain_ms: float
    one_ms: float
    rows: RowCosts
    overhead_ms: float
    first_ms: float
    step_ms: float
    score_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("plain_ms", "one_ms", "first_ms", "step_ms"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InvalidRequest(f"{name} is {value}, but must be above 0")

    def forward_ms(self, rows: int) -> float:
        """Return the time to verify so many tokens."""
        return self.one_ms * self.rows.of(rows)

    def round_ms(self, outcome: "RoundOutcome", *, is_scored: bool) -> float:
        """Return the time of a round in which so much was drafted."""
        draft_ms = 0.0
        if outcome.depth:
            draft_ms = self.first_ms + (outcome.depth - 1) * self.step_ms
            draft_ms += outcome.depth * self.score_ms * is_scored
        return draft_ms + self.forward_ms(1 + outcome.num_nodes) + self.overhead_ms

    @property
    def step_cost(self) -> float:
        """Return a draft step over a token of plain decoding."""
        return self.step_ms / self.plain_ms

    def stakes(self, count: int, speed: float) -> "Stakes":
        """Return those of rounds of up to `count` nodes, where so many tokens come about in the
        time of a plain one."""
        scale = speed * self.one_ms / self.plain_ms
        prices = tuple(scale * cost for cost in self.rows.nodes(count))
        return Stakes(prices, step_worth(speed * self.step_cost, prices))


@dataclass(frozen=True, slots=True)
class Stakes:
    """Demands of mode `auto` on a proposal, in tokens: `row_prices` and `worth` of a `Plan`."""

    prices: tuple[float, ...] = ()
    worth: float = 0.0


FREE = Stakes()
"""Those of speculation that is forced."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One round: the tokens that became final, and the chain and tree that were drafted."""

    num_tokens: int
    depth: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """Result of all rounds of some replies."""

    num_tokens: int
    num_rounds: int
    ms: float
    plain_ms: float

    @property
    def tokens_per_round(self) -> float:
        """Return final tokens per round, plain rounds included."""
        return self.num_tokens / self.num_rounds

    @property
    def speed(self) -> float:
        """Return tokens in the time that plain decoding takes for one."""
        return self.num_tokens * self.plain_ms / self.ms


Rounds = Callable[[Profile, DraftTrace, Stakes], Iterator[RoundOutcome]]
"""Function that yields the rounds of a reply."""


def rounds_of(profile: Profile, trace: DraftTrace, stakes: Stakes = FREE) -> Iterator[RoundOutcome]:
    """Yield the rounds of one reply after the first, which is the prompt's."""
    at = 1
    while at < len(trace.tokens):
        depth = min(profile.max_depth, profile.max_nodes, trace.session.max_tokens - at - 1)
        chain = drafted(profile, trace, at, stakes.worth)[: max(depth, 0)]
        tree, wanted = tree_of(profile, chain, trace.temperature, stakes.prices), trace.tokens[at:]
        num_tokens = min(_num_accepted(tree, wanted) + 1, len(wanted))
        yield RoundOutcome(num_tokens, len(chain), len(tree))
        at += num_tokens


def simulate(
    profile: Profile, traces: Sequence[DraftTrace], costs: RoundCosts, *, rounds: Rounds = rounds_of
) -> Simulated:
    """Run a profile over the replies. Raises `InvalidRequest` where they hold no round."""
    # What time is worth is what it brings otherwise: tokens at the profile's own speed.
    speed = max(_simulated(profile, traces, costs, rounds, 1.0).speed, 1.0)
    return _simulated(profile, traces, costs, rounds, speed)


def _simulated(
    profile: Profile,
    traces: Sequence[DraftTrace],
    costs: RoundCosts,
    rounds: Rounds,
    speed: float,
) -> Simulated:
    stakes = costs.stakes(profile.max_nodes, speed)
    outcomes = [outcome for trace in traces for outcome in rounds(profile, trace, stakes)]
    if not outcomes:
        raise InvalidRequest("the replies are too short: each has but one token")
    is_scored = profile.stop in SCORED
    return Simulated(
        sum(outcome.num_tokens for outcome in outcomes),
        len(outcomes),
        sum(costs.round_ms(outcome, is_scored=is_scored) for outcome in outcomes),
        costs.plain_ms,
    )


def drafted(profile: Profile, trace: DraftTrace, at: int, worth: float) -> Sequence[TracePosition]:
    """Return the chain behind `at` tokens of the reply, up to where the policy stops, or a path
    that is less likely than `worth`."""
    calibration = profile.calibration_at(trace.temperature)
    stop = make_stop(
        profile.stop,
        profile.threshold_at(trace.temperature),
        max_depth=profile.max_depth,
        cost_ratio=profile.step_cost or None,
        calibration=calibration,
        is_sampled=trace.temperature > 0,
    )
    is_scored = profile.stop in SCORED
    chain, path_prob = trace.chains[at - 1], 1.0
    for depth, guess in enumerate(chain, 1):
        score = guess.score if is_scored else None
        path_prob *= calibration.probability(guess.top_prob) if score is None else score
        signal = StopSignal(depth, guess.top_prob, guess.entropy, score, path_prob)
        if stop.should_stop(signal) or path_prob < worth:
            return chain[:depth]
    return chain


def _num_accepted(tree: TokenTree, wanted: Sequence[int]) -> int:
    """Return how many of the reply's next tokens are a path of the tree."""
    at, accepted = ROOT, 0
    for token in wanted:
        at = next((node for node in tree.children(at) if tree.tokens[node] == token), ROOT)
        if at == ROOT:
            break
        accepted += 1
    return accepted


def tree_of(
    profile: Profile,
    chain: Sequence[TracePosition],
    temperature: float,
    prices: tuple[float, ...],
) -> TokenTree:
    """Return the tree that is proposed of a drafted chain: itself, or with its candidates."""
    if profile.shape is not Shape.CAPE:
        return TokenTree.chain([guess.tokens[0] for guess in chain])
    width = max(profile.cape_table)
    drafted = Chain(
        [guess.tokens[0] for guess in chain],
        [guess.tokens[1 : 1 + width] for guess in chain],
        [guess.top_prob for guess in chain],
        [acceptance(profile, guess, temperature) for guess in chain],
        [guess.probs[1 : 1 + width] for guess in chain],
    )
    return cape_tree(drafted, NodeBudget(profile.max_nodes, profile.cape_table, prices))


def acceptance(profile: Profile, guess: TracePosition, temperature: float) -> float:
    """Return the estimated probability that the guess's first candidate is kept."""
    if profile.stop in SCORED and guess.score is not None:
        return guess.score
    return profile.calibration_at(temperature).probability(guess.top_prob)


def replayed(profile: Profile, trace: DraftTrace, stakes: Stakes = FREE) -> Iterator[RoundOutcome]:
    """Yield the rounds of one reply after the first, copies and all."""
    options = SpeculationOptions(mode=Mode.FORCED)
    settings = resolve(
        options, profile, drafter=_DRAFTER, has_decision_model=True, temperature=trace.temperature
    )
    draft, target = LookupDraft(_Draft(profile, trace, stakes)), _Target(trace)
    sequence = TokenSequence(trace.session, trace.prompt)
    rounds = iterated(decode(draft, target, Planner(settings), sequence, clock=lambda: 0.0))
    next(rounds)  # the prompt's own
    for at in rounds:
        depth = max(at.proposal.drafted.depths(), default=0)
        yield RoundOutcome(len(at.verdict.tokens), depth, len(at.proposal.tree))


class _Draft:
    """Proposes what was recorded."""

    def __init__(self, profile: Profile, trace: DraftTrace, stakes: Stakes) -> None:
        self._profile, self._trace, self._stakes = profile, trace, stakes

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        at = len(sequence) - len(self._trace.prompt)
        chain = drafted(self._profile, self._trace, at, self._stakes.worth)
        chain = chain[: min(plan.max_depth, plan.max_nodes)]
        shaped = replace(self._profile, shape=plan.shape)
        tree = tree_of(shaped, chain, self._trace.temperature, self._stakes.prices)
        return Proposal(tree, stats=_stats(tree, chain))

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`; nothing is held."""


def _stats(tree: TokenTree, chain: Sequence[TracePosition]) -> tuple[NodeStats, ...]:
    """Return the statistics of each node, which stands at its depth in the chain."""
    guesses = [chain[depth - 1] for depth in tree.depths()]
    return tuple(
        NodeStats(at.top_prob, at.probs[at.tokens.index(token)], at.entropy, at.score)
        for token, at in zip(tree.tokens, guesses, strict=True)
    )


class _Target:
    """Verifies by the recorded reply."""

    def __init__(self, trace: DraftTrace) -> None:
        self._trace = trace

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`."""
        rest = self._trace.tokens[len(sequence) - len(self._trace.prompt) :]
        accepted = _num_accepted(proposal.tree, rest)
        tokens = rest[: accepted + 1]
        reason = FinishReason.STOP if len(tokens) == len(rest) else None
        return Verdict(tokens, min(accepted, len(tokens)), reason)

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`; nothing is held."""
