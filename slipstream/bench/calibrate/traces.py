"""Chains that a draft proposes after every token of a reply: recording them, and a fit to them.

The target answers; then, with its keys and values still there, the draft proposes behind each token
of the answer as if the round had begun there.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import Calibration
from slipstream.core.request.request import draft_settings
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import Plan, Proposal, Session, Shape, StopPolicy
from slipstream.drafting.build import DraftModel
from slipstream.drafting.engine import KvSource
from slipstream.models.scorer import KvView
from slipstream.verifying.engine import LocalTarget

NUM_POINTS = 11
"""Points of a calibration: by tenths, which some hundred tokens suffice for."""
_PRIOR = 2.0
"""Tokens that each point is given beforehand, accepted as often as the draft is confident."""
WIDTH = 8
"""Candidates recorded for each position, beside the best."""
_NEVER = 1e-300
"""Cost ratio at which the policy that runs the decision model does not stop."""


@dataclass(frozen=True, slots=True)
class TracePosition:
    """One position of a drafted chain: candidates, the best first, and the draft's statistics.

    `probs` are the candidates' own, `top_prob` and `entropy` (nats) those of the row that they
    were ranked by, as in `NodeStats`; `score` is the decision model's, None without one.
    """

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    top_prob: float
    entropy: float
    score: float | None = None

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.probs):
            raise InvalidRequest(
                f"a guess has {len(self.tokens)} candidates and {len(self.probs)} probabilities"
            )


@dataclass(frozen=True, slots=True)
class DraftTrace:
    """A finished reply to a session's prompt, and a chain drafted behind each token but the last.

    `chains[i]` continues `tokens[: i + 1]`, each position after the best candidates of those
    before, whatever the reply has there. It is as deep as was recorded, and ends early where
    nothing could follow.
    """

    tokens: tuple[int, ...]
    chains: tuple[tuple[TracePosition, ...], ...]
    session: Session
    prompt: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.chains) != len(self.tokens) - 1:
            raise InvalidRequest(
                f"a reply of {len(self.tokens)} tokens has {len(self.chains)} chains"
            )

    @property
    def temperature(self) -> float:
        """Return the temperature at which the reply was drawn."""
        return self.session.sampling.temperature

    def reached(self) -> Iterator[tuple[TracePosition, int]]:
        """Yield the positions of all chains up to the first wrong one, with the reply's tokens.

        Behind a wrong one the target's token is unknown.
        """
        for start, chain in enumerate(self.chains, 1):
            for guess, token in zip(chain, self.tokens[start:], strict=False):
                yield guess, token
                if guess.tokens[0] != token:
                    break


def fit_calibration(traces: Sequence[DraftTrace]) -> Calibration:
    """Return acceptance by confidence: bins around evenly spaced points, then made monotone."""
    hits = [_PRIOR * point / (NUM_POINTS - 1) for point in range(NUM_POINTS)]
    counts = [_PRIOR] * NUM_POINTS
    for guess, token in (reached for trace in traces for reached in trace.reached()):
        point = round(min(guess.top_prob, 1.0) * (NUM_POINTS - 1))
        counts[point] += 1
        hits[point] += guess.tokens[0] == token
    shares = [hit / count for hit, count in zip(hits, counts, strict=True)]
    return Calibration(tuple(round(share, 4) for share in monotone(shares, counts)))


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the ascending sequence nearest in weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = pools[-2:]
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools[-2:] = [(mean, total, low_size + high_size)]
    return [value for value, _, size in pools for _ in range(size)]


@dataclass(slots=True)
class _Past:
    """Keys and values of a session as they were when it had fewer tokens."""

    source: KvSource
    count: int = 0

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """See `KvSource.view`."""
        return replace(self.source.view(session_id, layers), count=self.count)


class TraceRecorder:
    """Recorder of traces of one pair of models in this process."""

    def __init__(self, target: LocalTarget, model: DraftModel, *, depth: int) -> None:
        """`depth` is that of the recorded chains."""
        if not 1 <= depth <= MAX_NODES // (1 + WIDTH):
            limit = MAX_NODES // (1 + WIDTH)
            raise InvalidRequest(f"the depth is {depth}, but must be from 1 to {limit}")
        self._target = target
        self._depth = depth
        self._past = _Past(target)
        self._answering = model.drafter(model.untuned_profile())
        profile = Profile(row_cost=0.0, cape_table=(WIDTH,))
        self._recording = model.draft(profile, source=self._past)

    def record(self, session: Session, prompt: tuple[int, ...]) -> DraftTrace:
        """Answer a prompt, then draft behind every token of the answer."""
        try:
            reply = self._answer(session, prompt)
            chains = self._chains(session, prompt, reply)
        finally:
            for engine in (self._target, self._recording, self._answering.draft):
                finished(engine.release(session.session_id))
        return DraftTrace(reply, chains, session, prompt)

    def _answer(self, session: Session, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return the target's tokens: whatever is drafted, they are those of plain decoding."""
        facts = self._answering.facts
        settings = draft_settings(
            SpeculationOptions(), facts, temperature=session.sampling.temperature
        )
        sequence, draft = TokenSequence(session, prompt), self._answering.draft
        rounds = decode(draft, self._target, Planner(settings), sequence, clock=time.perf_counter)
        return tuple(token for at in iterated(rounds) for token in at.verdict.tokens)

    def _chains(
        self, session: Session, prompt: tuple[int, ...], reply: tuple[int, ...]
    ) -> tuple[tuple[TracePosition, ...], ...]:
        chains, sequence = [], TokenSequence(session, prompt)
        for count, token in enumerate(reply[:-1], 1):
            sequence.append((token,))
            depth = min(self._depth, session.max_tokens - count - 1)
            self._past.count = len(sequence) - 1
            proposal = finished(self._recording.propose(sequence, _plan(depth)))
            chains.append(guesses(proposal))
        return tuple(chains)


def _plan(depth: int) -> Plan:
    """Return a chain that no policy stops, with all of its candidates."""
    nodes = depth * (1 + WIDTH)
    return Plan(max(depth, 0), max(nodes, 0), Shape.CAPE, StopPolicy.COST, threshold=_NEVER)


def guesses(proposal: Proposal) -> tuple[TracePosition, ...]:
    """Return the positions of a chain with leaves, each with its candidates by rank."""
    depths = proposal.tree.depths()
    positions: list[list[int]] = [[] for _ in range(max(depths, default=0))]
    for node, depth in enumerate(depths):
        positions[depth - 1].append(node)
    return tuple(_guess(proposal, nodes) for nodes in positions)


def _guess(proposal: Proposal, nodes: Sequence[int]) -> TracePosition:
    tokens = tuple(proposal.tree.tokens[node] for node in nodes)
    probs = tuple(proposal.stats[node].prob for node in nodes)
    best = proposal.stats[nodes[0]]
    return TracePosition(tokens, probs, best.top_prob, best.entropy, best.score)
