"""Errors as OpenAI's clients expect them: one table from ours, and what only HTTP can refuse.

Knows no framework.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from slipstream.core import errors
from slipstream.core.errors import LimitExceeded, SlipstreamError
from slipstream.core.types import SamplingParams

# The most special class comes first.
TABLE: tuple[tuple[type[SlipstreamError], int, str], ...] = (
    (errors.RequestTooLarge, 413, "body_too_large"),
    (errors.PromptTooLong, 400, "context_length_exceeded"),
    (errors.UnsupportedCombination, 400, "unsupported_combination"),
    (errors.InvalidRequest, 400, "invalid_value"),
    (errors.NotBuilt, 400, "unsupported_parameter"),
    (errors.ModelNotFound, 404, "model_not_found"),
    (errors.SessionError, 409, "conflict"),
    (errors.LimitExceeded, 429, "rate_limit_exceeded"),
    (errors.CapacityError, 429, "no_capacity"),
    (errors.Unauthenticated, 401, "invalid_api_key"),
    (errors.PermissionDenied, 403, "permission_denied"),
    (errors.Unavailable, 503, "unavailable"),
    (errors.HandshakeError, 503, "unavailable"),
    (errors.Cancelled, 503, "cancelled"),
    (errors.DeadlineExceeded, 504, "deadline_exceeded"),
    (errors.SlipstreamError, 500, "internal_error"),
)
"""What an error is over HTTP: its status, and the code that programs read."""

_PARAMETERS = {"max_tokens", "logprobs", *(at.name for at in fields(SamplingParams))}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One error on its way to a caller: a sentence, and what programs make of it."""

    status: int
    message: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The error as OpenAI has it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }


class Refused(Exception):
    """A request that goes no further."""

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.problem = Problem(status, message, code, param)


class CallerGone(Exception):
    """The caller left before the answer."""


def problem_of(error: SlipstreamError) -> Problem:
    """What an error of ours is over HTTP."""
    status, code = next((status, code) for kind, status, code in TABLE if isinstance(error, kind))
    headers = {} if error.request_id is None else {"x-request-id": error.request_id}
    if isinstance(error, LimitExceeded) and error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    message = str(error) or "the service gave no reason"
    return Problem(status, message, code, _param(message) if status == 400 else None, headers)


def _param(message: str) -> str | None:
    """The parameter that a sentence begins with, if it does."""
    name = message.partition(" ")[0]
    return name if name in _PARAMETERS else None
