"""Values of stored sessions: claims, leases, records and updates. They depend on no store."""

import json
from dataclasses import asdict, dataclass

from slipstream.core.request.request import Request


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
    """Whether the session may be begun."""
    ttl_s: float
    """How long the session is remembered from its last use on."""
    is_alone: bool = False
    """Whether it is a request on its own: only itself can come back to the session."""
    takes_over: bool = True
    """Whether the lease of another attempt at the request ends, unless that one is newer and of the
    same process. Otherwise there must be none that was not given back."""
    after: str = ""
    """Id of the request that must be the session's newest one with tokens, but for one that never
    ended; empty for any."""


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The newest request of a session."""

    request_id: str
    digest: str
    num_prompt_tokens: int = 0
    """Tokens of the session before this request's output; 0 until any of that is kept."""
    params: str = ""
    """How it samples, as JSON, for people who look into the store."""
    ending: str | None = None
    """How it ended, as JSON; None while it has not."""


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
    """Hash of the tokenizer that the tokens are of."""
    arithmetic: str | None = None
    """Weights, element type and numerics that the tokens come of; None for any."""
    target: str | None = None
    """Address of the replica that may hold its keys; so for the draft's."""
    draft: str | None = None

    @property
    def output(self) -> tuple[int, ...]:
        """Final tokens of the newest request's output."""
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
    params: str
    tokenizer_hash: str
    arithmetic: str = ""
    """Weights, element type and numerics that the tokens come of; empty for any."""

    @classmethod
    def of(cls, request: Request, tokenizer_hash: str, *, arithmetic: str = "") -> "Opening":
        """Return the opening of a request that is about to run."""
        session = request.session
        params = {
            "sampling": asdict(session.sampling),
            "max_tokens": session.max_tokens,
            "stop": request.stop,
            "verification": session.verification,
        }
        return cls(len(request.tokens), json.dumps(params), tokenizer_hash, arithmetic)


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """Tokens that became final: the session's from position `start` on and, with the last of them,
    how the request ended."""

    start: int
    tokens: tuple[int, ...]
    opening: Opening | None = None
    ending: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what a store keeps."""

    lease_s: float = 15.0
    """How long a session stays busy for others when its holder does not renew."""
    max_sessions: int = 10_000
    """Most sessions in memory; an idle one of the owner with the most goes first."""
    max_bytes: int = 256 << 20
    """Most bytes of all together, likewise."""
    max_tokens: int = 1 << 20
    """Most tokens of a session."""
    max_text_bytes: int = 1 << 18
    """Most bytes of a request's parameters, and of how it ended."""
    max_past: int = 64
    """Earlier requests of a session whose ids are remembered."""
