"""The SDK: `Client`, `AsyncClient`, and what goes into and comes out of a request."""

from typing import TYPE_CHECKING, Any

from slipstream.client.backend import AsyncChunkStream, ChunkStream
from slipstream.client.call import RequestOptions
from slipstream.client.client import AsyncClient, Client
from slipstream.client.session import AsyncClientSession, ClientSession
from slipstream.core import errors
from slipstream.core.logprobs import TokenLogprob, TopLogprob
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.origins import TokenOrigin
from slipstream.core.request.prompt import Prompt
from slipstream.core.request.results import (
    Chunk,
    Continuity,
    PromptInfo,
    RequestStats,
    Result,
    Timings,
)
from slipstream.core.request.server_info import ServerInfo
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.request.tool_calls import ToolCall, read_tool_calls
from slipstream.core.request.tools import Tool
from slipstream.core.types import FinishReason, SamplingParams, Shape, StopPolicy, Verification

if TYPE_CHECKING:
    from slipstream.rpc.security import ClientTls

__all__ = [
    "AsyncChunkStream",
    "AsyncClient",
    "AsyncClientSession",
    "Chunk",
    "ChunkStream",
    "Client",
    "ClientSession",
    "ClientTls",
    "Continuity",
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
    "TokenLogprob",
    "TokenOrigin",
    "Tool",
    "ToolCall",
    "TopLogprob",
    "Verification",
    "errors",
    "read_tool_calls",
]


def __getattr__(name: str) -> Any:
    """`ClientTls` loads gRPC, which embedded clients have no use for."""
    if name != "ClientTls":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slipstream.rpc.security import ClientTls

    return ClientTls
