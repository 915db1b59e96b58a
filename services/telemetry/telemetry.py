"""What a service is given to tell of itself: a tracer, instruments, and how much to say."""

from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.metric import Instruments, no_instruments

MAX_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """Spans of rounds that a request has at most: its first ones, which other services tell of
    too, then the slowest ones, and those that accepted nothing of what was drafted."""

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
    """Of one process. By default nobody listens."""

    tracer: Tracer = field(default_factory=NoOpTracer)
    instruments: Instruments = field(default_factory=no_instruments)
    bounds: TraceBounds = field(default_factory=TraceBounds)
    shows_content: bool = False
    """Whether spans may carry prompts and answers."""
