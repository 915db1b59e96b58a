"""The draft as an engine: sessions, the model's state, and the shape of proposals. No wire."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from slipstream.core.errors import InvalidRequest
from slipstream.core.history import apply_delta, num_same
from slipstream.core.options import MAX_NODES
from slipstream.core.planner import Profile
from slipstream.core.stop import Stop, make_stop
from slipstream.core.types import Delta, Plan, Proposal, Session, Shape, StopPolicy
from slipstream.draft.chains import grow_cape, grow_chain
from slipstream.draft.dynamic import grow_dynamic
from slipstream.draft.growth import Growth, Prefix
from slipstream.draft.slots import Score, SlotReader
from slipstream.draft.trees import grow_fork, grow_product
from slipstream.models.scorer import KvView, Scorer

_GROWERS: Mapping[Shape, Callable[[Growth, Plan, Stop], Proposal]] = {
    Shape.CHAIN: grow_chain,
    Shape.CAPE: grow_cape,
    Shape.DYNAMIC: grow_dynamic,
    Shape.PRODUCT: grow_product,
    Shape.FORK: grow_fork,
}


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
    tokens: list[int]
    state: Any
    capacity: int


class LocalDraft:
    """`core.ports.Draft` over a draft model in this process."""

    def __init__(
        self,
        scorer: Scorer,
        feed: Feed | None = None,
        *,
        decision: Score | None = None,
        profile: Profile | None = None,
    ) -> None:
        """`decision` is the decision model's; `profile` holds what was calibrated."""
        self._scorer = scorer
        self._feed = feed
        self._decision = decision
        self._profile = profile or Profile()
        self._held: dict[str, _Held] = {}

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        held = self._update(session, delta)
        if self._feed is None:
            return self._propose(session, plan, held, None)
        view = self._feed.source.view(session.session_id, self._feed.layers)
        proposal = self._propose(session, plan, held, view)
        return replace(proposal, staleness=_staleness(held, view))

    def num_same(self, session_id: str, delta: Delta) -> int:
        """Leading tokens of those held for the session that `delta` leaves as they are.

        Raises `SessionOutOfSync` when it starts above them.
        """
        held = self._held.get(session_id)
        return num_same(held.tokens if held else [], delta)

    def kv_bytes(self, session_id: str) -> int:
        """Bytes of the draft model's own keys and values of a session."""
        held = self._held.get(session_id)
        return 0 if held is None else self._scorer.num_bytes(held.state)

    @property
    def num_kv_bytes(self) -> int:
        """The same of all sessions."""
        return sum(self.kv_bytes(session_id) for session_id in list(self._held))

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        held = self._held.pop(session_id, None)
        if held is not None:
            self._scorer.close(held.state)

    def _propose(self, session: Session, plan: Plan, held: _Held, view: KvView | None) -> Proposal:
        max_depth = self._max_depth(len(held.tokens), view)
        if max_depth < 1 or plan.max_depth < 1 or plan.max_nodes < 1:
            return Proposal(stopped_by="lag" if max_depth < 1 else "none")
        first = self._scorer.sync(held.state, held.tokens, view)
        growth = Growth(
            session,
            Prefix(self._scorer, held.state, len(held.tokens), first, _staleness(held, view)),
            reader=SlotReader(session, self._scorer.vocab, self._score(plan)),
            profile=self._profile,
            max_depth=max_depth,
        )
        return _GROWERS[plan.shape](growth, plan, self._stop(plan, session.sampling.temperature))

    def _update(self, session: Session, delta: Delta) -> _Held:
        held = self._held.get(session.session_id)
        tokens, _ = apply_delta(held.tokens if held else [], delta)
        if not tokens:
            raise InvalidRequest("a draft needs at least one token to go on from")
        needed = session.num_prompt_tokens + session.max_tokens + MAX_NODES
        if held is None or held.capacity < needed:
            if held is not None:  # a later turn needs more room; the prefix is scored anew
                self._scorer.close(held.state)
            held = _Held(tokens, self._scorer.open(needed), needed)
            self._held[session.session_id] = held
        held.tokens = tokens
        return held

    def _max_depth(self, num_tokens: int, view: KvView | None) -> int:
        """The deepest slot whose distance to the newest target key was trained for."""
        if self._scorer.max_lag is None or view is None:
            return 1 << 30
        staleness = num_tokens - 1 - view.count
        return self._scorer.max_lag - staleness

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
            cost_ratio=self._profile.step_cost,
            calibration=self._profile.calibration_at(temperature),
        )


def _staleness(held: _Held, view: KvView | None) -> int:
    """Positions by which the target's keys lag behind what could be known of them."""
    return 0 if view is None else max(len(held.tokens) - 1 - view.count, 0)
