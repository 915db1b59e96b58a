"""Why a store says no, in sentences: the same ones wherever sessions are kept."""

from collections.abc import Callable

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
)
from slipstream.core.request import SessionRef
from slipstream.state.record import Bounds, Claim, News

_OF_CLAIMS: dict[str, Callable[[str], SlipstreamError]] = {
    "absent": lambda name: SessionNotFound(f"there is no {name}"),
    "exists": lambda name: SessionExists(f"{name} exists already"),
    "busy": lambda name: SessionBusy(f"{name} is busy with another request"),
    "owner": lambda name: PermissionDenied(f"{name} belongs to another key"),
}

_OF_LEASES: dict[str, Callable[[str], SlipstreamError]] = {
    "taken": lambda name: SessionTaken(f"{name} has been taken over by another request"),
    "lost": lambda name: SessionOutOfSync(f"the store knows nothing of this lease of {name}"),
    "gap": lambda name: SessionOutOfSync(f"tokens come above those that are kept of {name}"),
    "differs": lambda name: SessionOutOfSync(f"what comes is not what is kept of {name}"),
}


def claim_refused(why: str, claim: Claim, *, model: str = "") -> SlipstreamError:
    """The error of a claim; `model` is the session's."""
    if why == "request":
        return RequestExists(f"request id {claim.request_id!r} is that of another request")
    name = f"request {claim.request_id!r}" if claim.is_alone else f"session {claim.session_id}"
    if why == "model":
        return InvalidRequest(f"{name} is with model {model}, not {claim.model}")
    return (_OF_CLAIMS.get(why) or _OF_LEASES[why])(name)


def session_refused(why: str, session_id: str) -> SlipstreamError:
    """The error of whatever names a session."""
    return (_OF_CLAIMS.get(why) or _OF_LEASES[why])(f"session {session_id}")


def check_claim(claim: Claim) -> None:
    """Raises `InvalidRequest` for names that are not in order: they become keys and lines."""
    SessionRef(claim.session_id)
    for name in (claim.request_id, claim.owner, claim.holder, claim.model, claim.digest):
        if not (name.isascii() and name.isprintable()) and name:
            raise InvalidRequest(f"{name[:80]!r} is not one line of printable ASCII characters")
    if not claim.ttl_s > 0:
        raise InvalidRequest(f"a session's ttl_s is {claim.ttl_s}, but must be above 0")


def check_news(news: News, bounds: Bounds) -> None:
    """Raises `CapacityError` for more than is kept of a session, `InvalidRequest` for nonsense."""
    num_tokens = news.start + len(news.tokens)
    if num_tokens > bounds.max_tokens:
        raise CapacityError(
            f"the session has {num_tokens} tokens, but at most {bounds.max_tokens} are kept"
        )
    ids = news.tokens
    if news.start < 0 or (ids and not (min(ids) >= 0 and max(ids) < 1 << 32)):
        raise InvalidRequest("a token's id or position is below 0 or above 32 bits")
    if news.opening is not None and not 0 < news.opening.num_prompt_tokens <= num_tokens:
        raise InvalidRequest(
            f"a prompt of {news.opening.num_prompt_tokens} tokens opens a session of {num_tokens}"
        )
    for text in (news.ending, news.opening and news.opening.params):
        if text and len(text.encode()) > bounds.max_text_bytes:
            raise CapacityError(
                f"a request's text has {len(text.encode())} bytes, but at most"
                f" {bounds.max_text_bytes} are kept"
            )
