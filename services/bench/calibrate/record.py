"""Recorder of replies, and of what a draft proposes at every position in them.

The target answers; then, with its keys and values still there, the draft proposes behind each token
of the answer as if the round had begun there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.bench.calibrate.traces import Guess, Trace
from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.options import MAX_NODES, SpeculationOptions
from slipstream.core.planner import Planner
from slipstream.core.profile import Profile
from slipstream.core.request import draft_settings
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, Session, Shape, StopPolicy
from slipstream.draft.build import DraftModel
from slipstream.draft.engine import KvSource
from slipstream.models.scorer import KvView
from slipstream.target.engine import LocalTarget

WIDTH = 8
"""Candidates recorded for each position, beside the best."""
_NEVER = 1e-300
"""Cost ratio at which the policy that runs the decision model does not stop."""


@dataclass(slots=True)
class _Past:
    """Keys and values of a session as they were when it had fewer tokens."""

    source: KvSource
    count: int = 0

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """See `KvSource.view`."""
        return replace(self.source.view(session_id, layers), count=self.count)


class Recorder:
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

    def record(self, session: Session, prompt: tuple[int, ...]) -> Trace:
        """Answer a prompt, then draft behind every token of the answer."""
        try:
            reply = self._answer(session, prompt)
            chains = self._chains(session, prompt, reply)
        finally:
            for engine in (self._target, self._recording, self._answering.draft):
                finished(engine.release(session.session_id))
        return Trace(reply, chains, session, prompt)

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
    ) -> tuple[tuple[Guess, ...], ...]:
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


def guesses(proposal: Proposal) -> tuple[Guess, ...]:
    """Return the positions of a chain with leaves, each with its candidates by rank."""
    depths = proposal.tree.depths()
    positions: list[list[int]] = [[] for _ in range(max(depths, default=0))]
    for node, depth in enumerate(depths):
        positions[depth - 1].append(node)
    return tuple(_guess(proposal, nodes) for nodes in positions)


def _guess(proposal: Proposal, nodes: Sequence[int]) -> Guess:
    tokens = tuple(proposal.tree.tokens[node] for node in nodes)
    probs = tuple(proposal.stats[node].prob for node in nodes)
    best = proposal.stats[nodes[0]]
    return Guess(tokens, probs, best.top_prob, best.entropy, best.score)
