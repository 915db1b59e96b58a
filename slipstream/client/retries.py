"""Retries: whether and when a request whose connection broke is sent again. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.client.call import ClientCall
from slipstream.core.request.results import Chunk

SHORTEST_TIMEOUT_S = 0.001


@dataclass(frozen=True, slots=True)
class RetryTimeouts:
    """Limits of the time in which a request is sent again while nothing new of its answer comes.

    Pauses double from the first to the longest, and are cut at random by up to a half.
    """

    unanswered_s: float = 5.0
    """Limit before anything has come: the address may be wrong, and the error should come soon."""
    begun_s: float = 30.0
    """Limit after something has: a failure then loses more."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0


NO_RETRIES = RetryTimeouts(0.0, 0.0)


@dataclass(eq=False)
class Retries:
    """One request's time: how much is left, and whether it is sent again.

    `clock` is in seconds, `draw` gives numbers from 0 to 1.
    """

    timeout_s: float | None
    timeouts: RetryTimeouts
    clock: Callable[[], float]
    draw: Callable[[], float]
    _broke_at: float | None = None
    _was_taken: bool = False

    def __post_init__(self) -> None:
        self._deadline = None if self.timeout_s is None else self.clock() + self.timeout_s
        self._limit_s = self.timeouts.unanswered_s
        self._next_pause_s = self.timeouts.first_pause_s

    def left_s(self) -> float | None:
        """Return the seconds that the next call may take; None is without end."""
        if self._deadline is None:
            return None
        return max(self._deadline - self.clock(), SHORTEST_TIMEOUT_S)

    def trust(self) -> None:
        """Take the address for right: something that is to go on has come from there before."""
        self._limit_s = self.timeouts.begun_s

    def takes_back(self) -> bool:
        """Return whether to send a request again that was taken over: only once, as another
        client may be doing the same."""
        is_first, self._was_taken = not self._was_taken, True
        return is_first

    def progressed(self) -> None:
        self.trust()
        self._next_pause_s = self.timeouts.first_pause_s
        self._broke_at = None

    def pause_s(self) -> float | None:
        """Return the seconds from a break to the next call; None where there is to be none."""
        now = self.clock()
        if self._broke_at is None:
            self._broke_at = now
        end = self._broke_at + self._limit_s
        if self._deadline is not None:
            end = min(end, self._deadline)
        pause_s = self._next_pause_s * (1 - self.draw() / 2)
        if now + pause_s > end:
            return None
        self._next_pause_s = min(2 * self._next_pause_s, self.timeouts.longest_pause_s)
        return pause_s


class StreamProgress:
    """A stream over several calls: each requests what the ones before did not bring."""

    def __init__(self, call: ClientCall, retries: Retries) -> None:
        self.retries = retries
        self.is_finished = False
        """True once the last chunk has come."""
        self.request_id = call.request_id
        self._call = call
        session = call.generation.session
        if session is not None and not session.create:
            retries.trust()
        self.num_received = call.generation.num_received
        self._has_prompt = False

    def next_call(self) -> ClientCall:
        """Return what to send now: the request, less what is held and the time that has passed."""
        generation = replace(self._call.generation, num_received=self.num_received)
        return replace(self._call, generation=generation, timeout_s=self.retries.left_s())

    def received(self, chunk: Chunk) -> Chunk | None:
        """Return the chunk as the caller is to see it; None for one that has nothing new."""
        if chunk.token_ids:
            self.num_received += len(chunk.token_ids)
            self.retries.progressed()
        self.is_finished = chunk.finish_reason is not None
        if chunk.prompt is None or not self._has_prompt:
            self._has_prompt = self._has_prompt or chunk.prompt is not None
            return chunk
        is_empty = not (chunk.token_ids or chunk.text or self.is_finished)
        return None if is_empty else replace(chunk, prompt=None)
