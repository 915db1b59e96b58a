"""The draft as an engine: sessions, the model's state, and the shape of proposals. No wire.

Drafts of many sessions go forward together, a step of each at a time. Knows neither threads nor
which of them are to go together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from slipstream.core import errors
from slipstream.core.policy.prices import DEFAULT_STEP_COST
from slipstream.core.policy.stop import CONTEXT, Stop, make_stop
from slipstream.core.request.options import MAX_NODES
from slipstream.core.request.profile import Profile
from slipstream.core.sequence import SyncedTokens, TokenSequence
from slipstream.core.types import Plan, Proposal, Session, Shape, StopPolicy
from slipstream.draft.drafting import Drafting
from slipstream.draft.following import Chains, followed_slots
from slipstream.draft.growers import grow_cape, grow_chain, grow_dynamic, grow_fork, grow_product
from slipstream.draft.growth import Grown, Growth, Prefix, Reach, Step
from slipstream.draft.slots import Score, Slot, SlotReader, read_each
from slipstream.engine.thread import internal_errors
from slipstream.models.glide.glide_chains import ChainRequest
from slipstream.models.kv.pool import KvPool
from slipstream.models.scorer import KvView, Scorer

_GROWERS: Mapping[Shape, Callable[[Growth, Plan, Stop], Grown]] = {
    Shape.CHAIN: grow_chain,
    Shape.CAPE: grow_cape,
    Shape.DYNAMIC: grow_dynamic,
    Shape.PRODUCT: grow_product,
    Shape.FORK: grow_fork,
}

NUM_PAGES = 64
"""Memory of a draft without a budget: pages for some 8,000 tokens."""

NO_ROOM = "memory"
"""`Proposal.stopped_by` of a session that there is no room for now."""


class KvSource(Protocol):
    """Where a GliDe draft reads the target's keys and values of a session."""

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """The final positions of some target layers; none where nothing is known yet."""
        ...


@dataclass(frozen=True, slots=True)
class Feed:
    """The target layers that a draft reads, and where from."""

    source: KvSource
    layers: tuple[int, ...]


@dataclass(slots=True)
class _Held:
    """A session; `state` is None while there is no room for its keys and values."""

    synced: SyncedTokens = field(default_factory=SyncedTokens)
    state: Any = None
    capacity: int = 0
    drafting: Drafting | None = None
    is_parked: bool = False

    @property
    def tokens(self) -> list[int]:
        """Return the session's tokens."""
        return self.synced.tokens


class LocalDraft:
    """`core.ports.Draft` over a draft model in this process."""

    def __init__(
        self,
        scorer: Scorer,
        feed: Feed | None = None,
        *,
        decision: Score | None = None,
        profile: Profile | None = None,
        pool: KvPool | None = None,
        chains: Chains | None = None,
    ) -> None:
        """`decision` is the decision model's; `profile` holds what was calibrated; `pool`, which is
        the scorer's, is the memory of all sessions, by default a small one; `chains` follows whole
        chains where there is a device for it."""
        self._scorer = scorer
        self._feed = feed
        self._decision = decision
        self._profile = profile or Profile()
        self.pool = pool or scorer.pool(NUM_PAGES)
        self._held: dict[str, _Held] = {}
        self._chains = chains

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        drafting = self.begin(sequence, plan)
        while not drafting.is_done:
            self.step([drafting])
        return drafting.result()

    def begin(self, sequence: TokenSequence, plan: Plan) -> Drafting:
        """Take the sequence in and begin to draft. What was under way for the session ends.

        Raises `InvalidRequest` for a sequence without tokens.
        """
        held = self._update(sequence)
        grower = self._grow(sequence.session, plan, held)
        held.drafting = Drafting(sequence.session_id, grower)
        return held.drafting

    def step(self, draftings: Sequence[Drafting]) -> bool:
        """Take one step of each that is not done, in one pass; return whether the pass succeeded.

        What fails of one session ends its drafting alone; while one is refused, the others stay
        where they are. Where the pass fails, it ends all of them with an `InternalError`, and their
        sessions' keys and values are computed anew.
        """
        open_ = [(drafting, drafting.step) for drafting in draftings if drafting.step is not None]
        chains = [pair for pair in open_ if isinstance(pair[1].ask, ChainRequest)]
        others = [pair for pair in open_ if not isinstance(pair[1].ask, ChainRequest)]
        taken = self._take(chains, self._follow), self._take(others, self._score_each)
        return all(taken)

    def abandon(self, drafting: Drafting) -> None:
        """End one whose proposal no caller waits for."""
        drafting.fail(_abandoned(drafting.session_id))

    def num_same(self, sequence: TokenSequence) -> int:
        """Return how many leading tokens held for the session are those of the sequence."""
        held = self._held.get(sequence.session_id)
        return 0 if held is None else held.synced.num_same(sequence)

    def kv_bytes(self, session_id: str) -> int:
        """Bytes of the draft model's own keys and values of a session."""
        held = self._held.get(session_id)
        return 0 if held is None or held.state is None else self._scorer.num_bytes(held.state)

    @property
    def num_kv_bytes(self) -> int:
        """The same of all sessions."""
        return sum(self.kv_bytes(session_id) for session_id in list(self._held))

    def park(self, session_id: str) -> None:
        """Nothing comes for the session for a while: its keys and values give way to others'."""
        held = self._held.pop(session_id, None)
        if held is not None:
            held.is_parked = True
            self._held[session_id] = held  # the last one to give way

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        held = self._held.pop(session_id, None)
        if held is not None:
            self._abandon(held)
            self._empty(held)

    def _abandon(self, held: _Held) -> None:
        if held.drafting is not None:
            self.abandon(held.drafting)

    def _take(
        self,
        open_: Sequence[tuple[Drafting, Step]],
        find: Callable[[Sequence[Step]], list[list[Slot] | Exception]],
    ) -> bool:
        if not open_:
            return True
        try:
            with internal_errors("draft"):
                found = find([step for _, step in open_])
        except errors.InternalError as error:
            return self._refuse(open_) or self._fail(open_, error)
        for (drafting, _), slots in zip(open_, found, strict=True):
            drafting.take(slots)
        return True

    def _score_each(self, steps: Sequence[Step]) -> list[list[Slot] | Exception]:
        asks = [step.ask for step in steps if not isinstance(step.ask, ChainRequest)]
        scores = self._scorer.score(asks)
        readings = [step.reading for step in steps if step.reading is not None]
        slots = iter(read_each(scores, readings))
        return [[] if step.reading is None else next(slots) for step in steps]

    def _follow(self, steps: Sequence[Step]) -> list[list[Slot] | Exception]:
        assert self._chains is not None, "only chains make such steps"
        asks = [step.ask for step in steps if isinstance(step.ask, ChainRequest)]
        return followed_slots(self._chains, asks)

    def _refuse(self, open_: Sequence[tuple[Drafting, Step]]) -> bool:
        """End those that could never be computed; return whether there are any."""
        num_refused = 0
        for drafting, step in open_:
            try:
                ask = step.ask
                self._scorer.check(ask.sync if isinstance(ask, ChainRequest) else ask)
            except errors.SlipstreamError as refusal:
                drafting.fail(refusal)
                num_refused += 1
        return num_refused > 0

    def _fail(self, open_: Sequence[tuple[Drafting, Step]], error: errors.InternalError) -> bool:
        for drafting, _ in open_:
            drafting.fail(error)
            self._empty(self._held[drafting.session_id])
        return False

    def _grow(self, session: Session, plan: Plan, held: _Held) -> Grown:
        """What is proposed, step by step."""
        view = None
        if self._feed is not None:
            view = self._feed.source.view(session.session_id, self._feed.layers)
        lag = 0 if view is None else len(held.tokens) - 1 - view.count
        reach = self._reach(len(held.tokens), lag)
        if reach.max_depth < 1 or plan.max_depth < 1 or plan.max_nodes < 1:
            proposal = Proposal(stopped_by=reach.ended_by if reach.max_depth < 1 else "none")
        elif not self._make_room(held, self._num_slots(session)):
            proposal = Proposal(stopped_by=NO_ROOM)
        else:
            num_same = self._scorer.num_same(held.state, held.tokens)
            prefix = Prefix(held.state, held.tokens, num_same, view, lag, self._chains)
            reader = SlotReader(session, self._scorer.vocab, self._score(plan))
            growth = Growth(session, prefix, reader=reader, profile=self._profile, reach=reach)
            stop = self._stop(plan, session.sampling.temperature)
            proposal = yield from _GROWERS[plan.shape](growth, plan, stop)
        return proposal if self._feed is None else replace(proposal, staleness=max(lag, 0))

    def _update(self, sequence: TokenSequence) -> _Held:
        if not len(sequence):
            raise errors.InvalidRequest("a draft needs at least one token to go on from")
        held = self._held.setdefault(sequence.session_id, _Held())
        self._abandon(held)
        held.synced.take(sequence)
        held.is_parked = False
        return held

    def _make_room(self, held: _Held, needed: int) -> bool:
        """Have room for that many tokens, parked sessions giving way, or none; whether there is."""
        if held.capacity >= needed:
            return True
        self._empty(held)  # a later turn needs more room; the prefix is scored anew
        parked = (one for one in self._held.values() if one.is_parked and one.state is not None)
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
        """Places that a request may come to need: its tokens and a tree behind them."""
        num_tokens = session.num_prompt_tokens + session.max_tokens
        return min(num_tokens, self._scorer.context_length or num_tokens) + MAX_NODES

    def _empty(self, held: _Held) -> None:
        if held.state is not None:
            self._scorer.close(held.state)
        held.state, held.capacity = None, 0

    def _reach(self, num_tokens: int, lag: int) -> Reach:
        """The deepest slot whose distance to the newest target key was trained for, and whose
        path is within the draft's context."""
        max_lag, context_length = self._scorer.max_lag, self._scorer.context_length
        reach = Reach()
        if max_lag is not None and self._feed is not None:
            reach = Reach(max_lag - lag)
        if context_length is not None and context_length + 1 - num_tokens < reach.max_depth:
            reach = Reach(context_length + 1 - num_tokens, CONTEXT)
        return reach

    def _score(self, plan: Plan) -> Score | None:
        """The decision model, where its score decides: it costs a part of every draft step.

        A dynamic tree reads ten slots a level and asks `cost` about one of them.
        """
        is_cost = plan.stop is StopPolicy.COST and plan.shape is not Shape.DYNAMIC
        return self._decision if is_cost or plan.stop is StopPolicy.DECISION else None

    def _stop(self, plan: Plan, temperature: float) -> Stop:
        return make_stop(
            plan.stop,
            plan.threshold,
            max_depth=plan.draft_depth or plan.max_depth,
            cost_ratio=self._profile.step_cost or plan.worth or DEFAULT_STEP_COST,
            calibration=self._profile.calibration_at(temperature),
        )


def _abandoned(session_id: str) -> errors.Cancelled:
    return errors.Cancelled(f"session {session_id} waits for no proposal any more")
