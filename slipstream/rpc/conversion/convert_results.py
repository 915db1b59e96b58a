"""Answers of the public API on the wire, both ways: chunks, results, statistics and timings.

`x_from_pb` raises `InvalidRequest` for what is no such value. Figures that follow from others
are sent for callers in other languages, and not read back.
"""

import math
from dataclasses import asdict

from slipstream.core.errors import InvalidRequest, check
from slipstream.core.request.results import (
    Chunk,
    Continuity,
    PromptInfo,
    RequestStats,
    Result,
    Timings,
)
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import FinishReason
from slipstream.rpc.conversion.convert_common import (
    FINISH,
    logprobs_from_pb,
    message_of,
    value_from_pb,
)
from slipstream.rpc.v1 import generation_pb2 as pb


def chunk_to_pb(chunk: Chunk) -> pb.GenerateStreamResponse:
    """A part of an answer, with what is known at its beginning or end."""
    finish = None
    if chunk.finish_reason is not None and chunk.stats is not None:
        finish = _finish_to_pb(chunk.finish_reason, chunk.stats)
    return message_of(pb.GenerateStreamResponse, chunk, finish=finish)


def chunk_from_pb(message: pb.GenerateStreamResponse) -> Chunk:
    """A part of an answer."""
    reason, stats = None, None
    if message.HasField("finish"):
        reason, stats = _finish_from_pb(message.finish)
    info = _prompt_info_from_pb(message.prompt) if message.HasField("prompt") else None
    return value_from_pb(
        Chunk,
        message,
        finish_reason=reason,
        stats=stats,
        prompt=info,
        logprobs=logprobs_from_pb(message.logprobs),
    )


def result_to_pb(result: Result) -> pb.GenerateResponse:
    """Convert a whole answer."""
    finish = _finish_to_pb(result.finish_reason, result.stats)
    return message_of(pb.GenerateResponse, result, finish=finish)


def result_from_pb(message: pb.GenerateResponse) -> Result:
    """Convert a whole answer."""
    reason, stats = _finish_from_pb(message.finish)
    return value_from_pb(
        Result,
        message,
        finish_reason=reason,
        stats=stats,
        prompt=_prompt_info_from_pb(message.prompt),
        logprobs=logprobs_from_pb(message.logprobs),
    )


def _prompt_info_from_pb(message: pb.PromptInfo) -> PromptInfo:
    return value_from_pb(PromptInfo, message, logprobs=logprobs_from_pb(message.logprobs))


def _finish_to_pb(reason: FinishReason, stats: RequestStats) -> pb.FinishInfo:
    usage = message_of(pb.Usage, stats)
    return message_of(pb.FinishInfo, stats, reason=FINISH.to_pb(reason), usage=usage)


def _finish_from_pb(message: pb.FinishInfo) -> tuple[FinishReason, RequestStats]:
    reason = FINISH.from_pb(message.reason)
    if reason is None:
        raise InvalidRequest("an answer has ended without a reason")
    timings = value_from_pb(Timings, message.timings)
    for name, value in asdict(timings).items():
        check(math.isfinite(value) and value >= 0, name, value, "a time of 0 seconds or more")
    stats = value_from_pb(
        RequestStats,
        message.usage,
        timings=timings,
        speculation=value_from_pb(SpeculationStats, message.speculation),
        continuity=value_from_pb(Continuity, message.continuity),
    )
    return reason, stats
