"""Requests of proposals, and a proposal as it grows: a tree that needs scores, gets candidates.

A grower is a generator: it yields the step that it needs next, so that its caller can compute
the steps of many sessions together.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import Calibration, Stop, StopSignal
from slipstream.core.sequence import SyncedTokens, TokenSequence
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Plan, Proposal, Session, SparseDistribution, Verification
from slipstream.drafting.reader import CandidateReader, CandidateRows
from slipstream.engine.thread import Done
from slipstream.models.scorer import Ask, Candidates, ChainRequest, Chains, Grow, KvView, Sync

T = TypeVar("T")


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


@dataclass(eq=False, slots=True)
class DraftRequest:
    """A proposal, from its arrival until it is there or has failed.

    The engine begins it with a grower, whose steps it computes together with those of others.
    `answer` is set where a caller on an event loop waits for it.
    """

    sequence: TokenSequence
    plan: Plan
    check: Callable[[], None] = lambda: None
    """Called on the engine's thread before it begins; may raise."""
    answer: "asyncio.Future[Done[Proposal]] | None" = None
    arrived: float = 0.0
    began: float = 0.0
    is_dropped: bool = False
    """No caller waits for it any more. Set on the event loop."""
    grower: ProposalSteps | None = None
    step: DraftStep | None = None
    """The step that it waits for, from its begin to its end."""
    proposal: Proposal | None = None
    error: Exception | None = None

    @property
    def session_id(self) -> str:
        return self.sequence.session_id

    @property
    def is_done(self) -> bool:
        """True once there is a result."""
        return self.proposal is not None or self.error is not None

    @property
    def num_tokens(self) -> int:
        """Most tokens that its next step computes."""
        return 0 if self.step is None else self.step.num_tokens

    def begin(self, grower: ProposalSteps) -> None:
        """Go up to the first step, if there is any. Raises nothing."""
        self.grower = grower
        self._advance(None)

    def take(self, found: list[Candidates] | Exception) -> None:
        """Go on with what its step has found, or end with the step's error."""
        if isinstance(found, Exception):
            self.fail(found)
        else:
            self._advance(found)

    def fail(self, error: Exception) -> None:
        """End without a proposal. Nothing changes where it is done."""
        if not self.is_done:
            self.step, self.error = None, error
            if self.grower is not None:
                self.grower.close()

    def result(self) -> Proposal:
        """Return the proposal. Raises the error that there is instead."""
        if self.error is not None:
            raise self.error
        assert self.proposal is not None, "the request is not done"
        return self.proposal

    def done(self, ended: float) -> Done[Proposal] | Exception:
        """Return the proposal with its times, or the error that there is instead."""
        if self.error is not None:
            return self.error
        return Done(self.result(), self.began - self.arrived, ended - self.began)

    def _advance(self, found: list[Candidates] | None) -> None:
        assert self.grower is not None
        self.step = None
        try:
            # A generator begins when None is sent.
            self.step = self.grower.send(found)  # type: ignore[arg-type]
        except StopIteration as done:
            self.proposal = done.value
        except Exception as error:
            self.error = error


CHUNK = 256
"""Most tokens of a prefix that one step computes: other sessions wait for no more."""


@dataclass(frozen=True, slots=True)
class DepthLimit:
    """Limit of the depth of a session's next proposal, beside the plan's, and its reason."""

    max_depth: int = 1 << 30
    reason: str = "lag"


@dataclass(slots=True)
class Growth:
    """A tree that grows behind a session's tokens, the first `num_same` of which its state has.

    `tokens` are those of the session that are read. `view` is what is read of the target. `lag` is
    how many tokens before the last one it lacks: -1 where it has the last one's keys as well, as
    behind target-initialised roots. `chains` computes whole chains.
    """

    session: Session
    held: "DraftSession"
    tokens: Sequence[int]
    num_same: int
    view: KvView | None
    lag: int
    chains: Chains | None
    reader: CandidateReader
    profile: Profile
    depth_limit: DepthLimit
    calibration: Calibration = field(init=False)
    depths: list[int] = field(default_factory=list)
    """Depth of each node so far."""

    def __post_init__(self) -> None:
        self.calibration = self.profile.calibration_at(self.session.sampling.temperature)

    @property
    def can_follow(self) -> bool:
        """Return whether a chain is computed at once."""
        session = self.session
        if self.chains is None or session.verification is not Verification.EXACT:
            return False
        return len(session.stop_token_ids) <= self.chains.max_ends

    def max_depth(self, plan: Plan) -> int:
        """Return the depth that plan and session allow."""
        return min(plan.max_depth, self.depth_limit.max_depth)

    def max_path(self, plan: Plan) -> int:
        """Return the length of the longest path that plan and session allow."""
        return min(plan.max_nodes, self.max_depth(plan))

    def limit_reason(self, depth: int) -> str:
        """Return the reason why a path ends at its greatest depth."""
        return self.depth_limit.reason if depth == self.depth_limit.max_depth else "depth"

    def follow(self, plan: Plan, stop: Stop, count: int) -> Steps[list[Candidates]]:
        """Return up to `count` candidates of each position of a whole chain, which is as long as
        plan and `stop` let it be."""
        chains, held, limit = self.chains, self.held, self.max_path(plan)
        assert chains is not None, "the caller has asked whether the chain fits"
        done = yield from self._catch_up(chains.max_new_tokens)
        sampling = self.session.sampling
        if sampling.top_k == 1:  # noise has no say
            sampling = replace(sampling, temperature=0.0)
        ask = ChainRequest(
            *(held.state, self.tokens, self.view, sampling, stop, limit, count),
            *(self.session.stop_token_ids, self.calibration, self.lag),
            *(self.reader.score is not None, plan.worth, held.tokens),
        )
        return (yield DraftStep(ask, max(len(self.tokens) - done, 1) + limit - 1, None))

    def _catch_up(self, rest: int) -> Steps[int]:
        """Compute all but up to `rest` tokens of the prefix; return how many are computed."""
        tokens, done = self.tokens, self.num_same
        while len(tokens) - done > rest:
            count = min(CHUNK, len(tokens) - 1 - done)
            done += count
            part = Sync(self.held.state, tokens[:done], self.view, is_scored=False)
            yield DraftStep(part, count, None)
        return done

    def hold(self, *, rows: CandidateRows | None = None) -> Steps[list[Candidates]]:
        """Compute the prefix; return the candidates behind it if `rows` reads them."""
        done = yield from self._catch_up(CHUNK)
        last = Sync(self.held.state, self.tokens, self.view, is_scored=rows is not None)
        return (yield DraftStep(last, max(len(self.tokens) - done, 1), rows))

    def first(self, count: int) -> Steps[Candidates]:
        """Return up to `count` candidates behind the prefix."""
        [candidates] = yield from self.hold(rows=self._rows([0], count))
        return candidates

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], count: int
    ) -> Steps[list[Candidates]]:
        """Return the candidates below new nodes, whose indices continue those grown before."""
        depths = [1 if parent == ROOT else self.depths[parent] + 1 for parent in parents]
        self.depths += depths
        ask = Grow(self.held.state, tokens, parents)
        return (yield DraftStep(ask, len(tokens), self._rows(depths, count)))

    def _rows(self, depths: Sequence[int], count: int) -> CandidateRows:
        num_tokens = len(self.held.tokens)
        positions = [num_tokens + depth for depth in depths]
        return CandidateRows(self.reader, positions, [self.lag + depth for depth in depths], count)

    def ends_with(self, token: int) -> bool:
        """Return whether nothing can follow `token`."""
        return token in self.session.stop_token_ids

    def acceptance(self, found: Candidates) -> float:
        """Return the estimated probability that the target accepts the first candidate."""
        return self.calibration.probability(found.top_prob) if found.score is None else found.score

    def signal(self, found: Candidates, depth: int, path_prob: float) -> StopSignal:
        """Return the signal of a stop policy once a candidate was appended at `depth`."""
        return StopSignal(depth, found.top_prob, found.entropy, found.score, path_prob)

    def distributions(
        self, tree: TokenTree, distributions: Mapping[int, SparseDistribution | None]
    ) -> tuple[SparseDistribution | None, ...]:
        """Return `Proposal.distributions`, by parent; empty where candidates are no draws."""
        if self.session.verification is Verification.EXACT:
            return ()
        return tuple(distributions.get(node) for node in range(ROOT, len(tree)))


@dataclass(slots=True)
class DraftSession:
    """A session's tokens; `state` is None while there is no room for its keys and values."""

    synced: SyncedTokens = field(default_factory=SyncedTokens)
    state: Any = None
    capacity: int = 0
    request: DraftRequest | None = None
    """The latest request, which another one ends."""
    is_parked: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.synced.tokens
