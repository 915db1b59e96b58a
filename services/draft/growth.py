"""One round's drafting: a tree in the making, which asks for scores and is given slots.

A grower is a generator: it yields the step that it needs next, so that its caller can take
the steps of many sessions together. Knows neither who drives it nor how slots are read.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slipstream.core.policy.stop import Stop, StopSignal
from slipstream.core.request.profile import Profile
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Plan, Proposal, Session, SparseDistribution, Verification
from slipstream.draft.following import Chains
from slipstream.draft.slots import Reading, Slot, SlotReader
from slipstream.models.glide.glide_chains import MAX_NEW_TOKENS, ChainRequest
from slipstream.models.scorer import Ask, Grow, KvView, Sync

T = TypeVar("T")

CHUNK = 256
"""Tokens of a prefix that one step computes: what others wait for, at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a session needs next: its model's scores, and how their rows are to be read.

    `num_tokens` is how many it computes. Without a `reading` no rows are scored, but for a
    `ChainRequest`, which brings its slots along.
    """

    ask: Ask | ChainRequest
    num_tokens: int
    reading: Reading | None


Growing = Generator[Step, list[Slot], T]
"""Yields steps and is sent their slots, a row each."""
Grown = Growing[Proposal]


@dataclass(frozen=True, slots=True)
class Prefix:
    """A session's tokens, the first `num_same` of which its `state` in the draft model holds.

    `view` is what is read of the target. `lag` is how many tokens before the last one it lacks: -1
    where it has the last one's keys as well, as behind target-initialised roots. `chains` follows
    whole chains where there is a device for it.
    """

    state: Any
    tokens: Sequence[int]
    num_same: int
    view: KvView | None
    lag: int = 0
    chains: Chains | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """Bound on the depth of a session's next proposal, whatever the plan says, and what sets it."""

    max_depth: int = 1 << 30
    ended_by: str = "lag"


class Growth:
    """A tree in the making behind a session's tokens."""

    def __init__(
        self,
        session: Session,
        prefix: Prefix,
        *,
        reader: SlotReader,
        profile: Profile,
        reach: Reach,
    ) -> None:
        self.session = session
        self.reach = reach
        self.max_depth = reach.max_depth
        self._prefix = prefix
        self._reader = reader
        self.cape_table = profile.cape_table
        self._calibration = profile.calibration_at(session.sampling.temperature)
        self._depths: list[int] = []

    def can_follow(self, stop: Stop) -> bool:
        """Whether a device follows a chain with this policy on its own."""
        chains, session = self._prefix.chains, self.session
        is_exact = session.verification is Verification.EXACT
        if chains is None or not is_exact:
            return False
        return chains.fits(session.sampling, stop, session.stop_token_ids)

    def limit(self, plan: Plan) -> int:
        """The longest path that a plan allows."""
        return min(plan.max_depth, plan.max_nodes, self.max_depth)

    def follow(self, plan: Plan, stop: Stop, count: int) -> Growing[list[Slot]]:
        """The slots of a whole chain, as long as plan and `stop` let it be, each with up to `count`
        candidates."""
        at, limit = self._prefix, self.limit(plan)
        done = yield from self._catch_up(MAX_NEW_TOKENS)
        ask = ChainRequest(
            at.state,
            at.tokens,
            at.view,
            self.session.sampling,
            stop,
            limit,
            count,
            self.session.stop_token_ids,
            self._calibration,
            at.lag,
            self._reader.score is not None,
            plan.worth,
        )
        slots = yield Step(ask, max(len(at.tokens) - done, 1) + limit - 1, None)
        return slots

    def _catch_up(self, rest: int) -> Growing[int]:
        """Have all but up to `rest` tokens of the prefix computed; how many are then."""
        at, done = self._prefix, self._prefix.num_same
        while len(at.tokens) - done > rest:
            count = min(CHUNK, len(at.tokens) - 1 - done)
            done += count
            yield Step(Sync(at.state, at.tokens[:done], at.view, is_scored=False), count, None)
        return done

    def hold(self, *, reading: Reading | None = None) -> Growing[list[Slot]]:
        """Have the prefix computed, and the slot behind it read if it is to be."""
        at = self._prefix
        done = yield from self._catch_up(CHUNK)
        last = Sync(at.state, at.tokens, at.view, is_scored=reading is not None)
        slots = yield Step(last, max(len(at.tokens) - done, 1), reading)
        return slots

    def first(self, count: int) -> Growing[Slot]:
        """The slot behind the prefix, with up to `count` candidates."""
        [slot] = yield from self.hold(reading=self._reading([0], count))
        return slot

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], count: int
    ) -> Growing[list[Slot]]:
        """The slots below new nodes, whose indices continue those grown before."""
        depths = [1 if parent == ROOT else self._depths[parent] + 1 for parent in parents]
        self._depths += depths
        ask = Grow(self._prefix.state, tokens, parents)
        slots = yield Step(ask, len(tokens), self._reading(depths, count))
        return slots

    @property
    def num_grown(self) -> int:
        """Nodes so far."""
        return len(self._depths)

    def _reading(self, depths: Sequence[int], count: int) -> Reading:
        num_tokens, lag = len(self._prefix.tokens), self._prefix.lag
        return Reading(
            self._reader,
            [num_tokens + depth for depth in depths],
            [lag + depth for depth in depths],
            count,
        )

    def ends_with(self, token: int) -> bool:
        """Whether nothing can follow `token`."""
        return token in self.session.stop_token_ids

    def acceptance(self, slot: Slot) -> float:
        """Estimated chance that the target keeps the slot's first candidate."""
        if slot.score is not None:
            return slot.score
        return self._calibration.probability(slot.top_prob)

    def signal(self, slot: Slot, depth: int, path_prob: float) -> StopSignal:
        """What a stop policy looks at after a token of `slot` was appended at `depth`."""
        return StopSignal(depth, slot.top_prob, slot.entropy, slot.score, path_prob)

    def distributions(
        self, tree: TokenTree, distributions: Mapping[int, SparseDistribution | None]
    ) -> tuple[SparseDistribution | None, ...]:
        """`Proposal.distributions`, by parent; empty where candidates are no draws."""
        if self.session.verification is Verification.EXACT:
            return ()
        return tuple(distributions.get(node) for node in range(ROOT, len(tree)))
