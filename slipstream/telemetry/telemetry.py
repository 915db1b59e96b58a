"""Telemetry of a process: a tracer, instruments, and how much is recorded."""

from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from slipstream.telemetry.metric import Instruments, no_instruments


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry of one process. By default nothing is exported."""

    tracer: Tracer = field(default_factory=NoOpTracer)
    instruments: Instruments = field(default_factory=no_instruments)
    trace_rounds: int = 8
    """Rounds of a request that have spans: its first."""
