"""The store of sessions: one protocol, in memory or in Redis, with the same checks and errors.

Every operation is atomic. Writes carry the fence of a lease, and one that is not the newest is
refused: two processes can never both go on with a session. Times are the store's own.
A session without tokens is there only for as long as it is held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.errors import (
    CapacityError,
    InvalidRequest,
    PermissionDenied,
    RequestExists,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    SessionOutOfSync,
    SessionTaken,
    SlipstreamError,
    check,
)
from slipstream.core.request.request import SessionRef, check_name
from slipstream.options import Bounded, option


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that wants to run."""

    session_id: str
    request_id: str
    """Unique within the session."""
    digest: str
    """Digest of the whole request; the same request again has the same."""
    owner: str
    """API key of the caller; a session belongs to the one that began it."""
    holder: str
    """The attempt, as PROCESS-NUMBER: of a process's attempts, the one with the higher number is
    newer."""
    model: str
    """The requested model; empty for that of the session, which must then exist."""
    create: bool
    """Permission to begin the session."""
    ttl_s: float
    """Time for which the session is kept from its last use on."""
    is_alone: bool = False
    """True for a single request: only itself can come back to the session."""
    takes_over: bool = True
    """True to end the lease of another attempt at the request, unless that one is newer and of the
    same process. Otherwise there must be none that was not given back."""
    after: str = ""
    """Id of the request that must be the session's newest one with tokens, but for one that never
    ended; empty for any."""

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for names that are not in order: they become keys and lines."""
        SessionRef(self.session_id)
        names = self.request_id, self.owner, self.holder, self.model, self.digest, self.after
        for name in names:
            check_name("a name in a claim", name)
        check(self.ttl_s > 0, "a session's ttl_s", self.ttl_s, "above 0")

    def refused(self, why: str, *, model: str = "") -> SlipstreamError:
        """Return the error of the claim; `model` is the session's."""
        if why == "request":
            return RequestExists(f"request id {self.request_id!r} is that of another request")
        name = f"request {self.request_id!r}" if self.is_alone else f"session {self.session_id}"
        if why == "model":
            return InvalidRequest(f"{name} is with model {model}, not {self.model}")
        return _ERRORS[why](name)


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The newest request of a session."""

    request_id: str
    digest: str
    num_prompt_tokens: int = 0
    """Tokens of the session before this request's output; 0 until any of that is kept."""
    ending: str | None = None
    """Ending as JSON; None while the request runs."""


@dataclass(frozen=True, slots=True)
class Record:
    """A session. `tokens` are all that is final, the newest request's output included."""

    session_id: str
    owner: str
    model: str
    fence: int
    """Fence of the newest lease; grows with every one."""
    turn: StoredTurn
    tokens: tuple[int, ...] = ()
    tokenizer_hash: str | None = None
    arithmetic: str | None = None
    """Weights, element type and numerics that the tokens come of; None for any."""
    target: str | None = None
    """Address of the replica that may hold its keys; so for the draft's."""
    draft: str | None = None

    @property
    def output(self) -> tuple[int, ...]:
        start = self.turn.num_prompt_tokens
        return self.tokens[start:] if start else ()


@dataclass(frozen=True, slots=True)
class StoreLease:
    """The right to write to a session, until another one has a higher fence."""

    session_id: str
    fence: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a claim. Without a lease the request has ended as the record has it."""

    record: Record
    lease: StoreLease | None


@dataclass(frozen=True, slots=True)
class Opening:
    """Record of a request's start, with its first tokens, which begin with those of its prompt."""

    num_prompt_tokens: int
    tokenizer_hash: str
    arithmetic: str = ""
    """Weights, element type and numerics that the tokens come of; empty for any."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """Tokens that became final: the session's from position `start` on and, with the last of them,
    how the request ended."""

    start: int
    tokens: tuple[int, ...]
    opening: Opening | None = None
    ending: str | None = None

    def check_within(self, bounds: "Bounds") -> None:
        """Raise `CapacityError` for more than is kept, `InvalidRequest` for nonsense."""
        num_tokens = self.start + len(self.tokens)
        if num_tokens > bounds.max_tokens:
            raise CapacityError(
                f"the session has {num_tokens} tokens, but at most {bounds.max_tokens} are kept"
            )
        ids = self.tokens
        if self.start < 0 or (ids and not (min(ids) >= 0 and max(ids) < 1 << 32)):
            raise InvalidRequest("a token's id or position is below 0 or above 32 bits")
        opening = self.opening
        if opening is not None and not 0 < opening.num_prompt_tokens <= num_tokens:
            raise InvalidRequest(
                f"a prompt of {opening.num_prompt_tokens} tokens opens a session of {num_tokens}"
            )
        size = len((self.ending or "").encode())
        if size > bounds.max_text_bytes:
            raise CapacityError(
                f"a request's text has {size} bytes, but at most {bounds.max_text_bytes} are kept"
            )


@dataclass(frozen=True, slots=True)
class Bounds(Bounded):
    """Limits of what a store keeps."""

    max_sessions: int = option(
        10_000,
        "Sessions and requests kept in memory; an idle one of the API key with most goes first.",
        above=0,
    )
    max_sessions_bytes: int = option(
        256 << 20,
        "Memory for them, in bytes, and as much again for writes that wait for a silent store.",
        above=0,
    )
    lease_s: float = option(
        15.0,
        "How long a session stays locked after its router has stopped renewing its lease.",
        above=0,
    )
    max_tokens: int = 1 << 20
    max_text_bytes: int = 1 << 18
    """Most bytes of how a request ended."""
    max_past: int = 64
    """Earlier requests of a session whose ids are remembered."""


class SessionStore(Protocol):
    """Sessions. A store that does not answer raises `Unavailable` in every operation."""

    async def acquire(self, claim: Claim) -> Grant:
        """Return a lease and the session, or the record of how the request ended.

        The request that is the session's newest goes on, also while another attempt runs it: that
        one loses its lease, as `Claim.takes_over` says. With another request the session must be
        idle, its newest request have ended, given back or not, or the lease have run out. Of a
        newest request that never ended nothing stays where `Claim.after` names the one before it.
        Raises `SessionTaken` (another attempt keeps its lease), `SessionNotFound`, `SessionExists`
        (to be begun, but there), `SessionBusy`, `PermissionDenied` (another owner's),
        `RequestExists` (the id is that of another request), and `InvalidRequest` for a session
        with another model.
        """

    async def append(self, lease: StoreLease, update: SessionUpdate) -> None:
        """Keep what became final, and renew the lease. What is kept already is not kept twice.

        Raises `SessionTaken` when another lease is newer, `SessionOutOfSync` when `update` starts
        above what is kept or is not what is kept there, or the store lost the session or lease
        (to acquire it again, with `create`, shows what is kept), `CapacityError` for too much.
        """

    async def renew(self, lease: StoreLease) -> None:
        """Renew the lease. Raises `SessionTaken`, and `SessionOutOfSync` once it is lost."""

    async def release(self, lease: StoreLease, *, target: str | None, draft: str | None) -> None:
        """Give the session back; its keys and values are parked at the addresses.

        One that has no tokens is forgotten, and so is the id of a request that kept nothing: it was
        refused, and may be corrected. Nothing happens when another lease is newer.
        """

    async def delete(self, session_id: str, owner: str) -> Record:
        """Forget a session; return its record, under a fence above all that it had.

        Raises `SessionNotFound`, `SessionBusy` and `PermissionDenied`.
        """

    async def count(self) -> int | None:
        """Return the number of sessions; None where it is not known."""

    async def aclose(self) -> None:
        """End connections. May be repeated."""


_ERRORS: dict[str, Callable[[str], SlipstreamError]] = {
    "absent": lambda name: SessionNotFound(f"there is no {name}"),
    "exists": lambda name: SessionExists(f"{name} exists already"),
    "busy": lambda name: SessionBusy(f"{name} is busy with another request"),
    "moved": lambda name: SessionOutOfSync(f"{name} has gone on since with another request"),
    "owner": lambda name: PermissionDenied(f"{name} belongs to another key"),
    "taken": lambda name: SessionTaken(f"{name} has been taken over by another request"),
    "lost": lambda name: SessionOutOfSync(f"the store knows nothing of this lease of {name}"),
    "gap": lambda name: SessionOutOfSync(f"tokens come above those that are kept of {name}"),
    "differs": lambda name: SessionOutOfSync(f"what comes is not what is kept of {name}"),
}


def session_refused(why: str, session_id: str) -> SlipstreamError:
    return _ERRORS[why](f"session {session_id}")
