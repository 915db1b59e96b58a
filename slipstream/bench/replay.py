"""Replay of recorded replies on a model of time: planners that know more or less.

What is accepted is that of real rounds: tokens of `exact` verification do not depend on the draft,
so that a reply and the draft's candidates behind each of its tokens make any round of it.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from slipstream.core.draft.ngram_draft import LookupDraft
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import DraftFacts, Profile, resolve
from slipstream.core.ports import Draft, Target
from slipstream.core.round import Clock
from slipstream.core.row_costs import Offer, RowCosts
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import FinishReason, Plan, Proposal, Session, Shape, StopPolicy, Verdict
from slipstream.drafting.engine import stop_of, uses_decision
from slipstream.drafting.growers import GROWERS
from slipstream.drafting.growth import DepthLimit, DraftSession, Growth
from slipstream.drafting.reader import CandidateReader
from slipstream.models.scorer import Candidates

WIDTH = 8
"""Candidates of a position that are recorded."""
FIRST_TOKENS = 20
"""Tokens at the start of a request that are looked at apart."""
CURVES: Mapping[str, RowCosts] = {
    "AVX2": RowCosts.rising(((1, 9.0), (2, 10.1), (4, 12.8), (8, 18.0), (16, 28.5), (32, 52.2))),
    "AVX-512": RowCosts.rising(((1, 9.4), (2, 10.9), (4, 12.0), (8, 14.0), (16, 18.9), (32, 32.2))),
    "AMX": RowCosts.straight(0.009),
}
"""Forwards of smollm2-135m in bfloat16 on processors of two cores, by tokens."""


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """Costs of a machine in seconds: of a plain round, of a draft step, of a proposal beside its
    steps and of looking copies up; `rows` are those of batched tokens."""

    round_s: float
    rows: RowCosts
    step_s: float
    start_s: float = 0.0
    lookup_s: float = 1e-4

    def proposal(self, num_steps: int) -> float:
        """Return the seconds of a proposal; 0 without a step."""
        return self.start_s + num_steps * self.step_s if num_steps else 0.0

    def verification(self, num_nodes: int) -> float:
        """Return the seconds in which so many draft tokens are verified."""
        return self.round_s * self.rows.of(1 + num_nodes)

    def offer(self) -> Offer:
        """Return a target's offer, by what it knows of its costs."""
        return Offer(MAX_NODES + 1, self.round_s, self.rows)


@dataclass(frozen=True, slots=True)
class Recording:
    """A reply, and the draft's candidates behind each of its tokens but the last: of the first,
    second … position of a chain."""

    session: Session
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    positions: tuple[tuple[Candidates, ...], ...]

    def ranks(self, place: int) -> Iterator[tuple[Candidates, int | None]]:
        """Yield the positions of a chain behind `place` tokens, and the rank of the reply's token
        among the candidates of each, None for none, up to the first that is not the best."""
        for token, found in zip(self.tokens[place:], self.positions[place - 1], strict=False):
            rank = found.tokens.index(token) if token in found.tokens else None
            yield found, rank
            if rank != 0:
                return


class Recorder:
    """Recorder of replies, behind each token of which the draft proposes a chain of `depth`."""

    def __init__(
        self, draft: Draft, target: Target, depth: int, stop: StopPolicy, clock: Clock
    ) -> None:
        """The draft's profile has `WIDTH` candidates of each position; `stop` is `fixed`, or
        `decision` for the scores of its model."""
        self._draft, self._target, self._clock, self._depth = draft, target, clock, depth
        threshold = None if stop is StopPolicy.FIXED else 0.0
        self._plan = Plan(depth, MAX_NODES, Shape.CAPE, stop, threshold)
        self._taken_s: list[float] = []
        self._offer: Offer | None = None

    def record(self, session: Session, prompt: Sequence[int]) -> Recording:
        """Return the reply to a prompt, in plain rounds."""
        sequence, positions = TokenSequence(session, prompt), []
        while True:
            verdict = finished(self._target.verify(sequence, Proposal()))
            sequence.append(verdict.tokens)
            self._offer = verdict.offer or self._offer
            if verdict.finish_reason is not None:
                break
            start_s = self._clock()
            positions.append(_positions(finished(self._draft.propose(sequence, self._plan))))
            self._taken_s.append(self._clock() - start_s)
        for port in (self._draft, self._target):
            finished(port.release(session.session_id))
        tokens = tuple(sequence.tokens[len(prompt) :])
        return Recording(session, tuple(prompt), tokens, tuple(positions))

    def costs(self, step_s: float | None) -> MachineCosts:
        """Return what the target offered last, and what proposals took beside steps of `step_s`
        seconds; None: as long as they took."""
        offer = self._offer
        assert offer is not None and offer.round_s and offer.costs, "a local target measures them"
        taken_s = statistics.median(self._taken_s or [0.0])
        step_s = step_s or taken_s / self._depth
        start_s = max(taken_s - self._depth * step_s, 0.0)
        return MachineCosts(offer.round_s, offer.costs, step_s, start_s)


def _positions(proposal: Proposal) -> tuple[Candidates, ...]:
    levels: dict[int, list[int]] = {}
    for node, depth in enumerate(proposal.tree.depths()):
        levels.setdefault(depth, []).append(node)
    found = []
    for nodes in levels.values():
        stats = [proposal.stats[node] for node in nodes]
        tokens, probs = (proposal.tree.tokens[node] for node in nodes), (of.prob for of in stats)
        numbers = stats[0].top_prob, stats[0].entropy, stats[0].score
        found.append(Candidates(tuple(tokens), tuple(probs), *numbers))
    return tuple(found)


Timeline = list[tuple[int, float]]
"""Tokens and seconds of each round but the prefill."""


class _Replay:
    """Both ports of a request whose reply is recorded, and its clock."""

    def __init__(self, recording: Recording, profile: Profile, costs: MachineCosts) -> None:
        self._recording, self._profile, self._costs = recording, profile, costs
        self._copies, self._held = LookupDraft(self), DraftSession()
        self.now_s = 0.0

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        if plan.lookup is not None:
            self.now_s += self._costs.lookup_s
            return await self._copies.propose(sequence, plan)
        session, self._held.synced.tokens = sequence.session, sequence.tokens
        reader, is_scored = CandidateReader(session, None), uses_decision(plan)
        state = session, self._held, sequence.tokens, len(sequence), None, 0, None, reader
        growth = Growth(*state, self._profile, DepthLimit())
        grower = GROWERS[plan.shape](growth, plan, stop_of(plan, session, self._profile))
        place = len(sequence) - len(self._recording.prompt)
        next(grower)
        for number, found in enumerate(self._recording.positions[place - 1], 1):
            try:
                grower.send([found if is_scored else replace(found, score=None)])
            except StopIteration as done:
                self.now_s += self._costs.proposal(number)
                proposal: Proposal = done.value
                return proposal
        raise AssertionError("a chain was recorded to its end")

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        place = len(sequence) - len(self._recording.prompt)
        if place:
            self.now_s += self._costs.verification(len(proposal.tree))
        rest = self._recording.tokens[place:]
        num_accepted = len(proposal.tree.matching(rest))
        tokens = rest[: num_accepted + 1]
        reason = FinishReason.LENGTH if len(tokens) == len(rest) else None
        return Verdict(tokens, num_accepted, reason, offer=self._costs.offer())

    async def release(self, session_id: str) -> None:
        """Hold on to what is recorded."""


def outcomes(recordings: Sequence[Recording]) -> Iterator[tuple[float, bool]]:
    """Yield the draft's confidence at each position behind an accepted path, and whether its best
    candidate is right."""
    for recording in recordings:
        for place in range(1, len(recording.tokens)):
            yield from ((found.top_prob, rank == 0) for found, rank in recording.ranks(place))


def shipped(recording: Recording, profile: Profile, costs: MachineCosts) -> Timeline:
    """Return the rounds of the planner and growers as they are, with a profile."""
    longest = max(map(len, recording.positions), default=1)
    profile = replace(profile, max_depth=min(profile.max_depth, longest))
    facts = DraftFacts("glide", profile, has_decision_model=True, step_s=costs.step_s)
    session, replay = recording.session, _Replay(recording, profile, costs)
    settings = resolve(SpeculationOptions(), facts, temperature=session.sampling.temperature)
    planner = Planner(settings, num_prompt_tokens=len(recording.prompt))
    sequence, last_s = TokenSequence(session, recording.prompt), 0.0
    found: Timeline = []
    rounds = decode(replay, replay, planner, sequence, clock=lambda: replay.now_s)
    for round_ in iterated(rounds):
        if round_.index:
            found.append((len(round_.verdict.tokens), replay.now_s - last_s))
        last_s = replay.now_s
    return found


Leaf = tuple[int, int | None]
"""Depth of a candidate, from 0, and its rank."""


def best_shape(
    recordings: Sequence[Recording], costs: MachineCosts, max_nodes: int
) -> tuple[int, set[Leaf]]:
    """Return the steps and candidates of the chain with leaves that brings the most tokens in its
    time, always the same one; 0 steps where none beats plain rounds."""
    leaves: Counter[Leaf] = Counter()
    for recording in recordings:
        for place in range(1, len(recording.tokens)):
            leaves.update(enumerate(rank for _, rank in recording.ranks(place)))
    ranked = [(leaf, hits) for leaf, hits in leaves.most_common() if leaf[1] is not None]
    num_places = sum(len(recording.tokens) - 1 for recording in recordings)
    best, best_pace = (0, set[Leaf]()), 1.0 / costs.round_s
    for depth in range(1, len({leaf[0] for leaf, _ in ranked}) + 1):
        shape, tokens = set[Leaf](), 1.0
        for leaf, hits in [one for one in ranked if one[0][0] < depth][:max_nodes]:
            shape.add(leaf)
            tokens += hits / num_places
            own = tokens / (costs.verification(len(shape)) + costs.proposal(depth))
            if own > best_pace:
                best, best_pace = (depth, set(shape)), own
    return best


def fixed_shape(
    recording: Recording, steps: int, shape: set[Leaf], costs: MachineCosts
) -> Timeline:
    """Return the rounds of a planner that always proposes this shape."""
    place, last, found = 1, len(recording.tokens), []
    while place < last:
        ranks = enumerate(rank for _, rank in recording.ranks(place))
        num_kept = sum(1 for _ in takewhile(shape.__contains__, ranks))
        num_tokens = min(num_kept + 1, last - place)
        found.append((num_tokens, costs.verification(len(shape)) + costs.proposal(steps)))
        place += num_tokens
    return found


def clairvoyant(recording: Recording, costs: MachineCosts) -> Timeline:
    """Return the rounds of a planner that knows the reply: it drafts and verifies what is accepted,
    as far as that is the shortest way to the end."""
    last = len(recording.tokens)
    ways: dict[int, tuple[float, Timeline]] = {last: (0.0, [])}
    for place in range(last - 1, 0, -1):
        most = sum(rank is not None for _, rank in recording.ranks(place))
        tries = []
        for num_kept in range(min(most, last - place - 1) + 1):
            rest_s, rest = ways[place + num_kept + 1]
            taken_s = costs.verification(num_kept) + costs.proposal(num_kept)
            tries.append((rest_s + taken_s, [(num_kept + 1, taken_s), *rest]))
        ways[place] = min(tries)
    return ways[1][1]


def paces(
    recordings: Sequence[Recording], profile: Profile, costs: MachineCosts, first: float = math.inf
) -> tuple[float, float, float]:
    """Return the speeds on the same replies, see `pace`, of the planner as it is, of the better of
    plain rounds and the best fixed shape, and of a planner that knows the replies."""
    steps, shape = best_shape(recordings, costs, profile.max_nodes)
    ways = (
        [shipped(recording, profile, costs) for recording in recordings],
        [fixed_shape(recording, steps, shape, costs) for recording in recordings],
        [clairvoyant(recording, costs) for recording in recordings],
    )
    ours, ranks, best = (pace(timelines, costs, first) for timelines in ways)
    return ours, max(ranks, 1.0), best


def pace(timelines: Sequence[Timeline], costs: MachineCosts, first: float = math.inf) -> float:
    """Return the speed of rounds over plain decoding, up to the round with token `first`."""
    num_tokens, taken_s = 0, 0.0
    for timeline in timelines:
        most = num_tokens + first
        for tokens, seconds in timeline:
            if num_tokens < most:
                num_tokens, taken_s = num_tokens + tokens, taken_s + seconds
    return num_tokens * costs.round_s / taken_s if taken_s else 1.0
