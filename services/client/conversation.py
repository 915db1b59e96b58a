"""A session as its client sees it: its name, whether its first turn has been, and what runs."""

import secrets
from dataclasses import replace
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from slipstream.client.surface import Call
from slipstream.core.errors import SessionBusy, SessionClosed, SessionError, SessionNotFound
from slipstream.core.request import SessionRef

# A router takes a moment to learn that a stream was left, and its session is busy until then; and
# what a store that was away has missed is there a moment after it is back.
PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Answer(Protocol):
    """The answer to a turn, on its way or at its end."""

    @property
    def is_open(self) -> bool:
        """Whether it is on its way."""
        ...


A = TypeVar("A", bound=Answer)


def new_session_id() -> str:
    """A name that is hard to guess."""
    return secrets.token_hex(16)


class Conversation(Generic[A]):
    """One session: begun by its first turn, or by somebody else before."""

    def __init__(self, session_id: str, is_begun: bool) -> None:
        self.session_id = SessionRef(session_id).session_id
        self.is_begun = is_begun
        self._is_used = is_begun
        self._is_known = False
        self._is_closed = False
        self._answers: WeakSet[A] = WeakSet()

    def begun(self, answer: A) -> None:
        """The engines have taken a turn."""
        self.is_begun = self._is_known = True
        self._answers.add(answer)

    @property
    def running(self) -> list[A]:
        """Answers to this client's own turns that are on their way."""
        return [answer for answer in self._answers if answer.is_open]

    def may_pass(self, error: SessionError) -> bool:
        """Whether the same request may be taken in a moment, where this one was refused."""
        if isinstance(error, SessionNotFound):
            return self._is_known and not self._is_closed
        return isinstance(error, SessionBusy) and not self.running

    def ref(self) -> SessionRef:
        """What the next request says of its session. Raises `SessionClosed`."""
        if self._is_closed:
            raise SessionClosed(f"session {self.session_id} is closed")
        self._is_used = True
        return SessionRef(self.session_id, create=not self.is_begun)

    def resumed(self, call: Call) -> Call:
        """The call again, after the engines said that the session is there already.

        The id is this client's own, so it was begun by a turn whose answer got lost.
        """
        self.is_begun = True
        return replace(call, generation=replace(call.generation, session=self.ref()))

    def close(self) -> bool:
        """Whether engines may hold anything of it that is to be freed now."""
        was_open, self._is_closed = not self._is_closed, True
        return was_open and self._is_used
