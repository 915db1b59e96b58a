"""The narrow interface: a draft proposes, a target verifies, neither knows where the other is."""

from typing import Protocol

from slipstream.core.types import Delta, Plan, Proposal, Session, Verdict


class Draft(Protocol):
    """Guesses how a session goes on."""

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """Guess what follows the session's tokens.

        `delta` tells the tokens that became final since the last call; a repeated call with
        the same delta changes nothing. Raises `SessionOutOfSync` when it starts above the
        tokens that the draft holds.
        """
        ...

    async def release(self, session_id: str) -> None:
        """Free everything held for the session; unknown ids are fine."""
        ...


class Target(Protocol):
    """Decides how a session goes on."""

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """Make the next tokens final, reading along `proposal` as far as it is right.

        Verifying an empty proposal is plain decoding, and with the prompt as delta it is
        prefill. Raises `SessionOutOfSync` when the delta starts above the tokens held, and
        `InvalidRequest` when delta, proposal and parameters can't be honoured.
        """
        ...

    async def release(self, session_id: str) -> None:
        """Free everything held for the session; unknown ids are fine."""
        ...
