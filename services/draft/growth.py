"""One proposal as it grows: a tree that needs scores and gets candidates.

A grower is a generator: it yields the step that it needs next, so that its caller can compute
the steps of many sessions together.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slipstream.core.policy.stop import Stop, StopSignal
from slipstream.core.request.profile import Profile
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Plan, Proposal, Session, SparseDistribution, Verification
from slipstream.draft.reader import CandidateReader, CandidateRows, Candidates
from slipstream.models.glide.glide_chains import MAX_NEW_TOKENS, ChainRequest, GlideChains
from slipstream.models.scorer import Ask, Grow, KvView, Sync

T = TypeVar("T")

CHUNK = 256
"""Most tokens of a prefix that one step computes: other sessions wait for no more."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """The scores that a session needs next, and how candidates are read from their rows.

    `num_tokens` is how many it computes. Without `rows` none are scored, but for a
    `ChainRequest`, which has its candidates already.
    """

    ask: Ask | ChainRequest
    num_tokens: int
    rows: CandidateRows | None


Steps = Generator[DraftStep, list[Candidates], T]
"""Yields steps and is sent the candidates of each row."""
ProposalSteps = Steps[Proposal]


@dataclass(frozen=True, slots=True)
class Prefix:
    """A session's tokens, the first `num_same` of which its `state` in the draft model holds.

    `view` is what is read of the target. `lag` is how many tokens before the last one it lacks: -1
    where it has the last one's keys as well, as behind target-initialised roots. `chains` computes
    whole chains on a device.
    """

    state: Any
    tokens: Sequence[int]
    num_same: int
    view: KvView | None
    lag: int = 0
    chains: GlideChains | None = None


@dataclass(frozen=True, slots=True)
class DepthLimit:
    """Limit of the depth of a session's next proposal, whatever the plan says, and its reason."""

    max_depth: int = 1 << 30
    reason: str = "lag"


class Growth:
    """A tree that grows behind a session's tokens."""

    def __init__(
        self,
        session: Session,
        prefix: Prefix,
        *,
        reader: CandidateReader,
        profile: Profile,
        limit: DepthLimit,
    ) -> None:
        self.session = session
        self.max_depth = limit.max_depth
        self.limit_reason = limit.reason
        self._prefix = prefix
        self._reader = reader
        self.cape_table = profile.cape_table
        self._calibration = profile.calibration_at(session.sampling.temperature)
        self._depths: list[int] = []

    def can_follow(self, stop: Stop) -> bool:
        """Return whether a device computes a chain with this policy at once."""
        chains, session = self._prefix.chains, self.session
        if chains is None or session.verification is not Verification.EXACT:
            return False
        return chains.fits(session.sampling, stop, session.stop_token_ids)

    def limit(self, plan: Plan) -> int:
        """Return the length of the longest path that a plan allows."""
        return min(plan.max_depth, plan.max_nodes, self.max_depth)

    def follow(self, plan: Plan, stop: Stop, count: int) -> Steps[list[Candidates]]:
        """Return up to `count` candidates of each position of a whole chain, which is as long as
        plan and `stop` let it be."""
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
        return (yield DraftStep(ask, max(len(at.tokens) - done, 1) + limit - 1, None))

    def _catch_up(self, rest: int) -> Steps[int]:
        """Have all but up to `rest` tokens of the prefix computed; return how many are then."""
        at, done = self._prefix, self._prefix.num_same
        while len(at.tokens) - done > rest:
            count = min(CHUNK, len(at.tokens) - 1 - done)
            done += count
            part = Sync(at.state, at.tokens[:done], at.view, is_scored=False)
            yield DraftStep(part, count, None)
        return done

    def hold(self, *, rows: CandidateRows | None = None) -> Steps[list[Candidates]]:
        """Have the prefix computed, and return the candidates behind it if `rows` reads them."""
        at = self._prefix
        done = yield from self._catch_up(CHUNK)
        last = Sync(at.state, at.tokens, at.view, is_scored=rows is not None)
        return (yield DraftStep(last, max(len(at.tokens) - done, 1), rows))

    def first(self, count: int) -> Steps[Candidates]:
        """Return up to `count` candidates behind the prefix."""
        [candidates] = yield from self.hold(rows=self._rows([0], count))
        return candidates

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], count: int
    ) -> Steps[list[Candidates]]:
        """Return the candidates below new nodes, whose indices continue those grown before."""
        depths = [1 if parent == ROOT else self._depths[parent] + 1 for parent in parents]
        self._depths += depths
        ask = Grow(self._prefix.state, tokens, parents)
        return (yield DraftStep(ask, len(tokens), self._rows(depths, count)))

    @property
    def num_grown(self) -> int:
        """Number of nodes so far."""
        return len(self._depths)

    def _rows(self, depths: Sequence[int], count: int) -> CandidateRows:
        num_tokens, lag = len(self._prefix.tokens), self._prefix.lag
        positions = [num_tokens + depth for depth in depths]
        return CandidateRows(self._reader, positions, [lag + depth for depth in depths], count)

    def ends_with(self, token: int) -> bool:
        """Return whether nothing can follow `token`."""
        return token in self.session.stop_token_ids

    def acceptance(self, at: Candidates) -> float:
        """Return the estimated probability that the target accepts the first candidate."""
        return self._calibration.probability(at.top_prob) if at.score is None else at.score

    def signal(self, at: Candidates, depth: int, path_prob: float) -> StopSignal:
        """Return the signal of a stop policy once a candidate was appended at `depth`."""
        return StopSignal(depth, at.top_prob, at.entropy, at.score, path_prob)

    def distributions(
        self, tree: TokenTree, distributions: Mapping[int, SparseDistribution | None]
    ) -> tuple[SparseDistribution | None, ...]:
        """Return `Proposal.distributions`, by parent; empty where candidates are no draws."""
        if self.session.verification is Verification.EXACT:
            return ()
        return tuple(distributions.get(node) for node in range(ROOT, len(tree)))
