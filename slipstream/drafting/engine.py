"""The draft as an engine: sessions, the model's state, and the shape of proposals.

Requests of many sessions go forward together, a step of each at a time; the caller chooses which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.core import errors
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import Stop, make_stop
from slipstream.core.round import CONTEXT, NO_ROOM
from slipstream.core.row_costs import DEFAULT_STEP_COST
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import Plan, Proposal, Session, Shape, StopPolicy, Verification
from slipstream.drafting import reader
from slipstream.drafting.growers import GROWERS
from slipstream.drafting.growth import (
    DepthLimit,
    DraftRequest,
    DraftSession,
    DraftStep,
    Growth,
    ProposalSteps,
)
from slipstream.drafting.reader import CandidateReader, chain_candidates, read_each
from slipstream.engine.thread import InternalErrors
from slipstream.models.kv.pool import KvPool
from slipstream.models.scorer import Candidates, ChainRequest, Chains, KvView, Scorer, read

NUM_PAGES = 64
"""Memory of a draft without a budget: pages for some 8,000 tokens."""


class KvSource(Protocol):
    """Source of a session's keys and values of the target, which a GliDe draft reads."""

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """Return the final positions of some target layers; none where none are there yet."""


@dataclass(frozen=True, slots=True)
class TargetKv:
    """The target layers whose keys and values a draft reads, and their source."""

    source: KvSource
    layers: tuple[int, ...]


class LocalDraft:
    """`core.ports.Draft` over a draft model in this process."""

    def __init__(
        self,
        scorer: Scorer,
        target_kv: TargetKv | None = None,
        *,
        decision: reader.Score | None = None,
        profile: Profile | None = None,
        pool: KvPool | None = None,
        chains: Chains | None = None,
    ) -> None:
        """`decision` is the decision model's; `profile` holds what was calibrated; `pool`, which is
        the scorer's, is the memory of all sessions, by default a small one; `chains` computes whole
        chains."""
        self._scorer = scorer
        self._target_kv = target_kv
        self._decision = decision
        self._profile = profile or Profile()
        self.pool = pool or scorer.pool(NUM_PAGES)
        self._sessions: dict[str, DraftSession] = {}
        self.chains = chains

    def prepare(self) -> None:
        """Make ready what would take its time within the first requests."""
        (self.chains or self._scorer).prepare(self.pool)

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        request = self.begin(DraftRequest(sequence, plan))
        while not request.is_done:
            self.step([request])
        return request.result()

    def begin(self, request: DraftRequest) -> DraftRequest:
        """Hold the request's sequence, begin to draft, and return the request.

        A request under way for the session ends. Raises `InvalidRequest` for a sequence without
        tokens.
        """
        sequence = request.sequence
        if not len(sequence):
            raise errors.InvalidRequest("a draft needs at least one token to go on from")
        if (held := self._sessions.get(sequence.session_id)) is None:
            held = self._sessions[sequence.session_id] = DraftSession()
        self._end(held)
        held.synced.take(sequence)
        held.is_parked = False
        request.begin(self._grow(sequence.session, request.plan, held))
        held.request = request
        return request

    def step(self, requests: Sequence[DraftRequest]) -> bool:
        """Compute one step of each that is not done, in one pass; return whether that succeeded.

        An error of one session ends its request alone; while one is refused, the others stay
        where they are. A pass that fails ends all of them with an `InternalError`, and their
        sessions' keys and values are computed anew.
        """
        steps = [(request, request.step) for request in requests if request.step is not None]
        chains = [pair for pair in steps if isinstance(pair[1].ask, ChainRequest)]
        others = [pair for pair in steps if not isinstance(pair[1].ask, ChainRequest)]
        taken = self._take(chains, self._follow), self._take(others, self._score_each)
        return all(taken)

    def abandon(self, request: DraftRequest) -> None:
        """End a request that no caller waits for."""
        session_id = request.session_id
        request.fail(errors.Cancelled(f"session {session_id} waits for no proposal any more"))

    def num_same(self, sequence: TokenSequence) -> int:
        """Return how many leading tokens held for the session are those of the sequence."""
        held = self._sessions.get(sequence.session_id)
        return 0 if held is None else held.synced.num_same(sequence)

    def kv_bytes(self, session_id: str) -> int:
        """Return the bytes of the draft model's own keys and values of a session."""
        held = self._sessions.get(session_id)
        return 0 if held is None or held.state is None else self._scorer.num_bytes(held.state)

    @property
    def num_kv_bytes(self) -> int:
        """Bytes of the draft model's own keys and values of all sessions."""
        return sum(self.kv_bytes(session_id) for session_id in list(self._sessions))

    def park(self, session_id: str) -> None:
        """Let the session's keys and values give way to those of others, until it goes on."""
        held = self._sessions.pop(session_id, None)
        if held is not None:
            held.is_parked = True
            self._sessions[session_id] = held  # the last one to give way

    async def release(self, session_id: str) -> None:
        held = self._sessions.pop(session_id, None)
        if held is not None:
            self._end(held)
            self._empty(held)

    def _end(self, held: DraftSession) -> None:
        if held.request is not None and not held.request.is_done:
            self.abandon(held.request)

    def _take(
        self,
        steps: Sequence[tuple[DraftRequest, DraftStep]],
        compute: Callable[[Sequence[DraftStep]], list[list[Candidates] | Exception]],
    ) -> bool:
        if not steps:
            return True
        try:
            with InternalErrors("draft"):
                found = compute([step for _, step in steps])
        except errors.InternalError as error:
            return self._refuse(steps) or self._fail(steps, error)
        for (request, _), candidates in zip(steps, found, strict=True):
            request.take(candidates)
        return True

    def _score_each(self, steps: Sequence[DraftStep]) -> list[list[Candidates] | Exception]:
        asks = [step.ask for step in steps if not isinstance(step.ask, ChainRequest)]
        scores = self._scorer.score(asks)
        found = iter(read_each(scores, [step.rows for step in steps if step.rows is not None]))
        return [[] if step.rows is None else next(found) for step in steps]

    def _follow(self, steps: Sequence[DraftStep]) -> list[list[Candidates] | Exception]:
        assert self.chains is not None, "only chains make such steps"
        asks = [step.ask for step in steps if isinstance(step.ask, ChainRequest)]
        return [chain_candidates(chain) for chain in self.chains.follow(asks)]

    def _refuse(self, steps: Sequence[tuple[DraftRequest, DraftStep]]) -> bool:
        """End the requests that could never be computed; return whether there are any."""
        num_refused = 0
        for request, step in steps:
            try:
                ask = step.ask
                self._scorer.check(ask.sync if isinstance(ask, ChainRequest) else ask)
            except errors.SlipstreamError as refusal:
                request.fail(refusal)
                num_refused += 1
        return num_refused > 0

    def _fail(
        self, steps: Sequence[tuple[DraftRequest, DraftStep]], error: errors.InternalError
    ) -> bool:
        for request, _ in steps:
            request.fail(error)
            self._empty(self._sessions[request.session_id])
        return False

    def _grow(self, session: Session, plan: Plan, held: DraftSession) -> ProposalSteps:
        view = None
        if self._target_kv is not None:
            view = self._target_kv.source.view(session.session_id, self._target_kv.layers)
        lag = 0 if view is None else view.lag(len(held.tokens))
        prompt = session.num_prompt_tokens
        skipped = 0 if view is None else self._scorer.num_unread(view, prompt)
        limit = self._depth_limit(len(held.tokens), lag)
        if limit.max_depth < 1 or plan.max_depth < 1 or plan.max_nodes < 1:
            proposal = Proposal(stopped_by=limit.reason if limit.max_depth < 1 else "none")
        elif not self._make_room(held, self._num_slots(session) - skipped):
            proposal = Proposal(stopped_by=NO_ROOM)
        else:
            tokens = read(held.tokens, skipped)
            self._scorer.skip(held.state, skipped)
            score = self._decision if uses_decision(plan) else None
            reader = CandidateReader(session, self._scorer.vocab, score)
            num_same = self._scorer.num_same(held.state, tokens)
            own = session, held, tokens, num_same, view, lag, self.chains, reader
            growth = Growth(*own, self._profile, limit)
            stop = stop_of(plan, session, self._profile)
            proposal = yield from GROWERS[plan.shape](growth, plan, stop)
        return proposal if view is None else replace(proposal, staleness=max(lag, 0))

    def _make_room(self, held: DraftSession, needed: int) -> bool:
        """Return whether there is room for so many tokens, for which parked sessions give way."""
        if held.capacity >= needed:
            return True
        self._empty(held)  # a later turn needs more room; the prefix is scored anew
        parked = (one for one in self._sessions.values() if one.is_parked and one.state is not None)
        while held.state is None:
            try:
                held.state, held.capacity = self._scorer.open(needed, self.pool), needed
            except errors.NoRoom:
                if (oldest := next(parked, None)) is None:
                    return False
                self._empty(oldest)
            except errors.CapacityError:  # however many give way
                return False
        return True

    def _num_slots(self, session: Session) -> int:
        """Return how many KV slots a request may need: for its tokens and a tree behind them."""
        num_tokens = session.num_prompt_tokens + session.max_tokens
        return min(num_tokens, self._scorer.context_length or num_tokens) + MAX_NODES

    def _empty(self, held: DraftSession) -> None:
        if held.state is not None:
            self._scorer.close(held.state)
        held.state, held.capacity = None, 0

    def _depth_limit(self, num_tokens: int, lag: int) -> DepthLimit:
        max_lag, context_length = self._scorer.max_lag, self._scorer.context_length
        limit = DepthLimit()
        if max_lag is not None and self._target_kv is not None:
            limit = DepthLimit(max_lag - lag)
        if context_length is not None and context_length + 1 - num_tokens < limit.max_depth:
            limit = DepthLimit(context_length + 1 - num_tokens, CONTEXT)
        return limit


def uses_decision(plan: Plan) -> bool:
    """Return whether the decision model's score decides: it costs a part of every draft step.

    A dynamic tree reads ten positions a level, of which `cost` looks at one.
    """
    is_cost = plan.stop is StopPolicy.COST and plan.shape is not Shape.DYNAMIC
    return is_cost or plan.stop is StopPolicy.DECISION


def stop_of(plan: Plan, session: Session, profile: Profile) -> Stop:
    """Return the stop policy of a round with its threshold."""
    sampling = session.sampling
    return make_stop(
        plan.stop,
        plan.threshold,
        max_depth=plan.draft_depth or plan.max_depth,
        cost_ratio=profile.step_cost or plan.worth or DEFAULT_STEP_COST,
        calibration=profile.calibration_at(sampling.temperature),
        is_sampled=session.verification is Verification.EXACT and not sampling.is_greedy,
    )
