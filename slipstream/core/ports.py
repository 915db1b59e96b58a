"""The two ports: a draft proposes, a target verifies, and neither depends on where the other is."""

from typing import Protocol

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, Verdict


class Draft(Protocol):
    """Proposes how a sequence goes on."""

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """Return a tree of tokens that may follow the sequence.

        An engine compares the sequence with the tokens that it holds and computes what is new, so
        a repeated call changes nothing.
        """

    async def release(self, session_id: str) -> None:
        """Free everything held for the session; unknown ids are fine."""


class Target(Protocol):
    """Decides how a sequence goes on."""

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """Return the tokens that become final: the proposal's as far as it is right, and one more.

        The caller appends them to the sequence. Verifying an empty proposal is plain decoding, and
        of a new sequence it is prefill. Raises `InvalidRequest` when sequence, proposal and
        parameters can't be honoured.
        """

    async def release(self, session_id: str) -> None:
        """Free everything held for the session; unknown ids are fine."""
