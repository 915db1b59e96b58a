"""The SDK: `Client`, `AsyncClient`, and what goes into and comes out of a request."""

from slipstream.client.aio import AsyncClient, AsyncClientSession
from slipstream.client.client import Client, ClientSession
from slipstream.client.stream import AsyncChunkStream, ChunkStream
from slipstream.client.surface import RequestOptions
from slipstream.core import errors
from slipstream.core.model_info import ModelInfo
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, PromptInfo, RequestStats, Result, Timings
from slipstream.core.server_info import ServerInfo
from slipstream.core.stats import SpeculationStats
from slipstream.core.types import (
    FinishReason,
    SamplingParams,
    Shape,
    StopPolicy,
    Verification,
)

__all__ = [
    "AsyncChunkStream",
    "AsyncClient",
    "AsyncClientSession",
    "Chunk",
    "ChunkStream",
    "Client",
    "ClientSession",
    "FinishReason",
    "Mode",
    "ModelInfo",
    "Prompt",
    "PromptInfo",
    "RequestOptions",
    "RequestStats",
    "Result",
    "SamplingParams",
    "ServerInfo",
    "Shape",
    "SpeculationOptions",
    "SpeculationStats",
    "StopPolicy",
    "Timings",
    "Verification",
    "errors",
]
