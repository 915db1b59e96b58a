"""How a request outlives the connections that carry it: whether and when it is sent again. Pure.

Knows no network, and neither clock nor chance of its own; what counts as broken is said to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.client.surface import Call
from slipstream.core.results import Chunk

SHORTEST_TIMEOUT_S = 0.001


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request that broke is sent again while nothing new of its answer comes.

    Pauses double from the first to the longest, and are cut by chance by up to a half.
    """

    unanswered_s: float = 5.0
    """Where nothing has come yet: the address may be wrong, and the caller should know soon."""
    begun_s: float = 30.0
    """Where something has: what is lost then is more than a try."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0


NO_PATIENCE = Patience(0.0, 0.0)


class Tries:
    """One request's time: how much is left, and whether it is worth another try."""

    def __init__(
        self,
        timeout_s: float | None,
        patience: Patience,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        """`clock` is in seconds, `draw` gives numbers from 0 to 1."""
        self.timeout_s = timeout_s
        self._patience = patience
        self._clock = clock
        self._draw = draw
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._limit_s = patience.unanswered_s
        self._next_pause_s = patience.first_pause_s
        self._broke_at: float | None = None
        self._was_taken = False

    def left_s(self) -> float | None:
        """Seconds that the next call may take; None is without end."""
        if self._deadline is None:
            return None
        return max(self._deadline - self._clock(), SHORTEST_TIMEOUT_S)

    def trust(self) -> None:
        """The address is right: something that is to go on has come from there before."""
        self._limit_s = self._patience.begun_s

    def takes_back(self) -> bool:
        """Whether to send a request again that was taken over: once, as another caller may be at it
        who does the same."""
        is_first, self._was_taken = not self._was_taken, True
        return is_first

    def progressed(self) -> None:
        """Something new has come."""
        self.trust()
        self._next_pause_s = self._patience.first_pause_s
        self._broke_at = None

    def pause_s(self) -> float | None:
        """The call broke: seconds until the next one; None where there is to be none."""
        now = self._clock()
        if self._broke_at is None:
            self._broke_at = now
        end = self._broke_at + self._limit_s
        if self._deadline is not None:
            end = min(end, self._deadline)
        pause_s = self._next_pause_s * (1 - self._draw() / 2)
        if now + pause_s > end:
            return None
        self._next_pause_s = min(2 * self._next_pause_s, self._patience.longest_pause_s)
        return pause_s


class Resuming:
    """A stream over as many calls as it takes: each asks for what the ones before did not bring."""

    def __init__(self, call: Call, tries: Tries) -> None:
        self.tries = tries
        self.is_finished = False
        """Whether the last chunk has come."""
        self._call = call
        session = call.generation.session
        if session is not None and not session.create:
            tries.trust()
        self._num_received = call.generation.num_received
        self._has_prompt = False
        self._is_sent = False

    @property
    def request_id(self) -> str:
        """Names the request."""
        return self._call.request_id

    @property
    def num_received(self) -> int:
        """Tokens that the caller holds."""
        return self._num_received

    def next_call(self) -> Call:
        """What to send now: all as it was, but for what is held and for the time that is left."""
        if self._is_sent:
            self._call.watch.resumed(self._num_received)
        self._is_sent = True
        generation = replace(self._call.generation, num_received=self._num_received)
        return replace(self._call, generation=generation, timeout_s=self.tries.left_s())

    def received(self, chunk: Chunk) -> Chunk | None:
        """The chunk as the caller is to see it; None for one that says nothing new."""
        if chunk.token_ids:
            self._num_received += len(chunk.token_ids)
            self.tries.progressed()
        self.is_finished = chunk.finish_reason is not None
        if chunk.prompt is None or not self._has_prompt:
            self._has_prompt = self._has_prompt or chunk.prompt is not None
            return chunk
        is_empty = not (chunk.token_ids or chunk.text or self.is_finished)
        return None if is_empty else replace(chunk, prompt=None)
