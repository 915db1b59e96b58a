"""Records replies and what a draft makes of every position in them. Knows ports, not their files.

The target answers as it would; then, with its keys and values still there, the draft proposes
behind each token of the answer as if the round had begun there.
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
from slipstream.core.types import Plan, Proposal, SamplingParams, Session, Shape, StopPolicy
from slipstream.draft.build import DraftModel
from slipstream.draft.engine import KvSource
from slipstream.models.scorer import KvView
from slipstream.target.engine import LocalTarget

WIDTH = 8
"""Runner-ups recorded for each slot."""
_NEVER = 1e-300
"""A cost ratio at which the policy that asks the decision model does not stop."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to answer."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int]

    def session(self, name: str) -> Session:
        """Return the request as a session, for either engine."""
        return Session(
            name,
            len(self.prompt),
            self.max_tokens,
            self.sampling,
            stop_token_ids=self.stop_token_ids,
        )


@dataclass(slots=True)
class _Past:
    """A session's keys and values as they were when it had fewer tokens."""

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

    def record(self, request: Request) -> Trace:
        """Answer a prompt, then draft behind every token of the answer."""
        session = request.session("trace")
        try:
            reply = self._answer(session, request.prompt)
            chains = self._chains(session, request.prompt, reply)
        finally:
            for engine in (self._target, self._recording, self._answering.draft):
                finished(engine.release(session.session_id))
        return Trace(
            reply,
            chains,
            request.sampling.temperature,
            request.max_tokens,
            request.prompt,
            request.stop_token_ids,
            request.sampling.seed,
        )

    def _answer(self, session: Session, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The target's own tokens: whatever is drafted, they are those of plain decoding."""
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
    """A chain that is stopped by nothing, with all of its runner-ups."""
    nodes = depth * (1 + WIDTH)
    return Plan(max(depth, 0), max(nodes, 0), Shape.CAPE, StopPolicy.COST, threshold=_NEVER)


def guesses(proposal: Proposal) -> tuple[Guess, ...]:
    """The slots of a chain with leaves, each with its candidates by rank."""
    depths = proposal.tree.depths()
    slots: list[list[int]] = [[] for _ in range(max(depths, default=0))]
    for node, depth in enumerate(depths):
        slots[depth - 1].append(node)
    return tuple(
        Guess(
            tuple(proposal.tree.tokens[node] for node in nodes),
            tuple(proposal.stats[node].prob for node in nodes),
            proposal.stats[nodes[0]].top_prob,
            proposal.stats[nodes[0]].entropy,
            proposal.stats[nodes[0]].score,
        )
        for nodes in slots
    )
