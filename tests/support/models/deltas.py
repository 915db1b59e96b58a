"""Drafts whose caller says piece by piece what becomes final, as the messages of a stream do."""

from slipstream.core.sequence import TokenSequence


class ByDeltas:
    """A draft, called with a session and a delta in place of a sequence."""

    def __init__(self, port):
        self._port = port
        self._sequences = {}

    def _sequence(self, session, delta):
        known = self._sequences.get(session.session_id)
        if known is None or known.session != session:
            known = TokenSequence(session, known.tokens if known else ())
        known = self._sequences[session.session_id] = delta.applied(known)
        return known

    async def propose(self, session, delta, plan):
        return await self._port.propose(self._sequence(session, delta), plan)

    async def release(self, session_id):
        self._sequences.pop(session_id, None)
        await self._port.release(session_id)
