"""A session as the target's engine holds it, and a verification of it on its way.

Values of the engine; what is done with them is in `engine.py`.
"""

from dataclasses import dataclass, field
from weakref import WeakSet

from slipstream.core.errors import SlipstreamError
from slipstream.core.sequence import SyncedTokens
from slipstream.core.tree import EMPTY
from slipstream.core.types import Proposal, Session, Verdict
from slipstream.core.types import Verification as Mode
from slipstream.models.batched_tokens import Part
from slipstream.models.cache import KvCache
from slipstream.target.grammar_follower import Follower
from slipstream.target.taps import KvTap


@dataclass(eq=False, slots=True)
class Held:
    """A session as the engine holds it: its final tokens, and keys of at most all but one."""

    synced: SyncedTokens = field(default_factory=SyncedTokens)
    cache: KvCache | None = None
    """None while the session is parked."""
    roots: tuple[int, ...] = ()
    """Target-initialised roots of the slot after the tokens."""
    taps: WeakSet[KvTap] = field(default_factory=WeakSet)
    """Readers of the cache elsewhere."""
    follower: Follower | None = None
    """Where the running request's output may go on, if it has to follow a grammar."""


@dataclass(eq=False, slots=True)
class Verification:
    """A verification under way. It ends with a verdict or an error of its own."""

    session: Session
    proposal: Proposal
    cache: KvCache
    held: Held
    num_cached: int
    verdict: Verdict | None = None
    error: SlipstreamError | None = None

    @property
    def tokens(self) -> list[int]:
        """The session's final tokens."""
        return self.held.synced.tokens

    @property
    def num_pending(self) -> int:
        """Final tokens whose keys and values are still to be computed; at least 1 until done."""
        return len(self.tokens) - self.cache.count

    @property
    def num_nodes(self) -> int:
        """Nodes of the tree, which join the last pending token."""
        return len(self.proposal.tree)

    @property
    def is_done(self) -> bool:
        """Whether there is a result."""
        return self.verdict is not None or self.error is not None

    def forced(self) -> tuple[int, ...]:
        """What the session's grammar forces behind the tokens held, where that can be of use."""
        held, session = self.held, self.session
        if held.follower is None or session.verification is not Mode.EXACT:
            return ()
        return held.follower.forced(self.tokens[session.num_prompt_tokens :])

    def result(self) -> Verdict:
        """The verdict. Raises the error that there is instead."""
        if self.error is not None:
            raise self.error
        assert self.verdict is not None, "nobody asks before it is done"
        return self.verdict


@dataclass(frozen=True, slots=True)
class Share:
    """What of a verification joins a forward: pending tokens, and the tree with the last one."""

    work: Verification
    num_pending: int

    @property
    def is_last(self) -> bool:
        """Whether the forward decides the verification."""
        return self.num_pending == self.work.num_pending

    @property
    def num_rows(self) -> int:
        """Rows that it adds to the forward."""
        return self.num_pending + (self.work.num_nodes if self.is_last else 0)

    def part(self) -> Part:
        """Its rows."""
        work = self.work
        start = work.cache.count
        tree = work.proposal.tree if self.is_last else EMPTY
        return Part(work.cache, work.tokens[start : start + self.num_pending], tree)
