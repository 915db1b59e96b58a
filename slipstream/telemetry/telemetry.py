"""Telemetry of a process: a tracer, instruments, and how much is recorded."""

from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.metric import Instruments, no_instruments

MAX_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """Limits of a request's rounds with spans: its first ones, which have spans of other services
    too, then the slowest ones, and those in which no draft token was accepted."""

    first: int = 8
    slowest: int = 4
    rejected: int = 8

    def __post_init__(self) -> None:
        for name in ("first", "slowest", "rejected"):
            count = getattr(self, name)
            if not 0 <= count <= MAX_ROUNDS:
                raise InvalidRequest(
                    f"spans of the {name} rounds are {count}, but must be from 0 to {MAX_ROUNDS}"
                )


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry of one process. By default nothing is exported."""

    tracer: Tracer = field(default_factory=NoOpTracer)
    instruments: Instruments = field(default_factory=no_instruments)
    bounds: TraceBounds = field(default_factory=TraceBounds)
    shows_content: bool = False
    """Whether spans may carry prompts and answers."""
