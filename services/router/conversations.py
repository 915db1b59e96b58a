"""Sessions that go on from turn to turn: their final tokens and where they ran. In memory.

Knows no engine: whoever takes a turn says what became of it. The clock is an argument.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest, SessionBusy, SessionExists, SessionNotFound
from slipstream.core.request import SessionRef
from slipstream.core.timing import Clock


@dataclass(slots=True)
class Conversation:
    """One session. `tokens` are what was said so far, all of it final."""

    session_id: str
    model: str
    fence: int
    """Grows from turn to turn, also over restarts of the router."""
    tokens: tuple[int, ...] = ()
    tokenizer_hash: str | None = None
    """Of the numbering that the tokens are of."""
    target: str | None = None
    """Address of the replica that may hold its keys; so for the draft's."""
    draft: str | None = None
    is_busy: bool = False
    used_at: float = 0.0

    def say(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Keep a turn. One that was never answered was never said."""
        if output:
            self.tokens = (*prompt, *output)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many sessions are remembered, and for how long without a turn."""

    max_sessions: int = 10_000
    ttl_s: float = 3600.0


class Conversations:
    """The sessions of one router."""

    def __init__(self, bounds: Bounds, *, clock: Clock, next_fence: Callable[[], int]) -> None:
        """`next_fence` gives a number that no earlier turn of any session had."""
        self._bounds = bounds
        self._clock = clock
        self._next_fence = next_fence
        self._all: OrderedDict[str, Conversation] = OrderedDict()
        """The longest unused first."""

    def __len__(self) -> int:
        self._expire()
        return len(self._all)

    def model_of(self, ref: SessionRef) -> str | None:
        """The session's model; None for one that is to begin. Raises `SessionNotFound`."""
        self._expire()
        known = self._all.get(ref.session_id)
        if known is not None:
            return known.model
        if not ref.create:
            raise _not_found(ref.session_id)
        return None

    @contextmanager
    def turn(self, ref: SessionRef, model: str) -> Iterator[Conversation]:
        """Have the session for one turn. One that is begun, and then says nothing, never was.

        Raises `SessionExists`, `SessionNotFound`, `SessionBusy`, and `InvalidRequest` for a session
        with another model.
        """
        conversation = self._begin(ref, model)
        conversation.is_busy = True
        conversation.fence = self._next_fence()
        try:
            yield conversation
        finally:
            conversation.is_busy = False
            conversation.used_at = self._clock()
            if conversation.tokens:
                self._all.move_to_end(ref.session_id)
            else:
                del self._all[ref.session_id]

    def delete(self, session_id: str) -> Conversation:
        """Forget a session; what there was of it. Raises `SessionNotFound` and `SessionBusy`."""
        conversation = self._idle(session_id)
        conversation.fence = self._next_fence()
        return self._all.pop(session_id)

    def _begin(self, ref: SessionRef, model: str) -> Conversation:
        self._expire()
        if not ref.create:
            conversation = self._idle(ref.session_id)
            if conversation.model != model:
                raise InvalidRequest(
                    f"session {ref.session_id} is with model {conversation.model}, not {model}"
                )
            return conversation
        if ref.session_id in self._all:
            raise SessionExists(f"session {ref.session_id} exists already")
        self._make_room()
        conversation = Conversation(ref.session_id, model, 0, used_at=self._clock())
        self._all[ref.session_id] = conversation
        return conversation

    def _idle(self, session_id: str) -> Conversation:
        self._expire()
        conversation = self._all.get(session_id)
        if conversation is None:
            raise _not_found(session_id)
        if conversation.is_busy:
            raise SessionBusy(f"session {session_id} is busy with another request")
        return conversation

    def _expire(self) -> None:
        oldest = self._clock() - self._bounds.ttl_s
        for session_id, conversation in list(self._all.items()):
            if conversation.used_at > oldest:
                break
            if not conversation.is_busy:
                del self._all[session_id]

    def _make_room(self) -> None:
        """Forget the longest unused session when there are too many; running ones stay."""
        if len(self._all) < self._bounds.max_sessions:
            return
        idle = (name for name, at in self._all.items() if not at.is_busy)
        unused = next(idle, None)
        if unused is not None:
            del self._all[unused]


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"there is no session {session_id[:80]!r}")
