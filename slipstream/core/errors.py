"""Errors that callers can meet. Messages are one sentence: what is wrong, the value, the limit."""

from collections import abc
from contextlib import contextmanager

FAILED = 1
"""Exit code of a process that failed; another attempt may succeed."""
BAD_INPUT = 2
"""Exit code of a process with options or models that it can't use; another attempt fails too."""
INTERRUPTED = 130


class SlipstreamError(Exception):
    """Base of every error this package raises on purpose.

    Its message is one line of bounded length that can be printed, whatever it quotes.
    """

    request_id: str | None = None
    """The request that failed, where there is one and it is known."""

    def __str__(self) -> str:
        return printable(super().__str__(), max_chars=MAX_MESSAGE_CHARS)


class InvalidRequest(SlipstreamError, ValueError):
    """A parameter, prompt or combination that can't be honoured."""


class UnsupportedCombination(InvalidRequest):
    """Each option is fine on its own, together they are not."""


class RequestTooLarge(InvalidRequest):
    """The request is a larger message than the service takes."""


class PromptTooLong(InvalidRequest):
    """The prompt, or the prompt and what may follow, exceeds the context."""


class NotBuilt(SlipstreamError):
    """Something that this version can't do at all."""


class ModelError(SlipstreamError):
    """A model that can't be found, loaded or used."""


class ModelNotFound(ModelError):
    """No such alias, path, hub id or package."""


class ModelMismatch(ModelError):
    """Draft and target do not belong together."""


class WeightsError(ModelError):
    """A weights file that is broken or of another shape."""


class SessionError(SlipstreamError):
    """The two sides disagree about a session."""


class SessionOutOfSync(SessionError):
    """A delta starts above the tokens that the engine holds."""


class SessionBusy(SessionError):
    """A second request while one is running on the session."""


class SessionClosed(SessionError):
    """The session was closed, or never opened."""


class SessionNotFound(SessionError):
    """No such session."""


class SessionExists(SessionError):
    """A session that is to begin is there already."""


class RequestExists(SessionError):
    """The request id is that of another request."""


class SessionTaken(SessionError):
    """Another request has taken the session over."""


class CapacityError(SlipstreamError):
    """Memory or rows that are not there."""


class NoRoom(CapacityError):
    """Memory that is not free now, but may be soon."""


class LimitExceeded(CapacityError):
    """The quota of an API key is used up for now."""

    retry_after_s: float | None = None
    """Seconds until there is room again, where that is known."""

    def __init__(self, sentence: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class ServiceError(SlipstreamError):
    """A service that did not answer as it should."""


class Unavailable(ServiceError):
    """A service that can't be reached, or is about to stop. Worth another try."""


class HandshakeError(ServiceError):
    """A service that is not the one expected: another model, layout, protocol or process."""


class DeadlineExceeded(ServiceError):
    """A service that did not answer in time."""


class Cancelled(ServiceError):
    """The request was cancelled."""


class InternalError(ServiceError):
    """A service that failed in a way it did not foresee."""


class AccessError(SlipstreamError):
    """A caller that may not."""


class Unauthenticated(AccessError):
    """No token, or a wrong one."""


class PermissionDenied(AccessError):
    """A token that does not open this."""


class TrainingError(SlipstreamError):
    """Data or settings that can't be trained with."""


@contextmanager
def refused_as(what: str, kind: type[SlipstreamError] | None = None) -> abc.Iterator[None]:
    """Put `what` before the sentence of an `InvalidRequest`, and raise it as a `kind`, if given."""
    try:
        yield
    except InvalidRequest as error:
        raise (kind or type(error))(f"{what} {error}") from None


def check(is_right: bool, name: str, value: object, limit: str) -> None:
    """Raise `InvalidRequest`, which says what the value must be, unless it is right."""
    if not is_right:
        raise InvalidRequest(f"{name} is {value!r}, but must be {limit}")


def host_and_port(name: str, address: str) -> tuple[str, int]:
    """Return the parts of the option `name`, HOST:PORT to listen on. Raises `InvalidRequest`."""
    host, _, port = address.rpartition(":")
    is_bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536
    check(bool(host) and not is_bare and is_port, name, address, "HOST:PORT")
    return host.strip("[]"), int(port)


def check_fits(what_has: str, count: int, things: str, limit: int) -> None:
    """Raise `InvalidRequest` for more things than fit. `what_has` is the subject and "has"."""
    if count > limit:
        raise InvalidRequest(f"{what_has} {count} {things}, but at most {limit} fit")


MAX_TOKEN_ID = 2**31 - 1


def check_token_ids(
    what: str, tokens: abc.Collection[int], num_tokens: int = MAX_TOKEN_ID + 1
) -> None:
    """Raise `InvalidRequest` for an id that is none of so many tokens'."""
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < num_tokens:
            raise InvalidRequest(f"{what} has token id {token}, not 0 to {num_tokens - 1}")


MAX_CHARS = 1000
MAX_MESSAGE_CHARS = 4000
"""Longest message of an error; lists of known names are the longest ones."""


def printable(text: str, *, max_chars: int = MAX_CHARS) -> str:
    """Return the text with a space for every character that can't be printed, and cut.

    >>> printable("no" + chr(10) + "FORGED", max_chars=5)
    'no FO (5 of 9 characters)'
    """
    line = "".join(char if char.isprintable() else " " for char in text[:max_chars])
    if len(text) <= max_chars:
        return line
    return f"{line} ({max_chars} of {len(text)} characters)"
