"""The SDK: `Client` and what goes into and comes out of a request."""

from slipstream.client.client import Client, ClientSession, RequestOptions
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.results import Chunk, RequestStats, Result, Timings
from slipstream.core.types import (
    FinishReason,
    SamplingParams,
    Shape,
    StopPolicy,
    Verification,
)

__all__ = [
    "Chunk",
    "Client",
    "ClientSession",
    "FinishReason",
    "Mode",
    "RequestOptions",
    "RequestStats",
    "Result",
    "SamplingParams",
    "Shape",
    "SpeculationOptions",
    "StopPolicy",
    "Timings",
    "Verification",
]
