"""What a service is given to tell of itself: a tracer, instruments, and how much to say."""

from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from slipstream.telemetry.metric import Instruments, no_instruments


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """Spans of rounds that a request has at most: its first ones, which other services tell of
    too, then the slowest ones, and those that accepted nothing of what was drafted."""

    first: int = 8
    slowest: int = 4
    rejected: int = 8


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Of one process. By default nobody listens."""

    tracer: Tracer = field(default_factory=NoOpTracer)
    instruments: Instruments = field(default_factory=no_instruments)
    bounds: TraceBounds = field(default_factory=TraceBounds)
    shows_content: bool = False
    """Whether spans may carry prompts and answers."""
