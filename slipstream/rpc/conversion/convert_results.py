"""Answers of the public API on the wire, both ways: chunks, results, statistics and timings.

`x_from_pb` raises `InvalidRequest` for what is no such value. Figures that follow from others
are sent for callers in other languages, and not read back.
"""

import math
from dataclasses import asdict

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.origins import RoundNode, RoundToken, RoundTree, TokenOrigin
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
    ORIGIN,
    TOOL_FORMAT,
    fields_of,
    logprobs_from_pb,
    logprobs_to_pb,
    value_from_pb,
)
from slipstream.rpc.v1 import generation_pb2 as pb


def chunk_to_pb(chunk: Chunk) -> pb.GenerateStreamResponse:
    """A part of an answer, with what is known at its beginning or end."""
    finish = None
    if chunk.finish_reason is not None and chunk.stats is not None:
        finish = _finish_to_pb(chunk.finish_reason, chunk.stats)
    return pb.GenerateStreamResponse(
        text=chunk.text,
        token_ids=chunk.token_ids,
        prompt=None if chunk.prompt is None else _prompt_info_to_pb(chunk.prompt),
        finish=finish,
        origins=map(ORIGIN.to_pb, chunk.origins),  # type: ignore[arg-type]
        logprobs=logprobs_to_pb(chunk.logprobs),
        rounds=map(_round_to_pb, chunk.rounds),
    )


def chunk_from_pb(message: pb.GenerateStreamResponse) -> Chunk:
    """A part of an answer."""
    reason, stats = None, None
    if message.HasField("finish"):
        reason, stats = _finish_from_pb(message.finish)
    info = _prompt_info_from_pb(message.prompt) if message.HasField("prompt") else None
    origins = tuple(map(ORIGIN.from_pb, message.origins))
    logprobs = logprobs_from_pb(message.logprobs)
    rounds = tuple(map(_round_from_pb, message.rounds))
    return Chunk(
        message.text, tuple(message.token_ids), reason, stats, info, origins, logprobs, rounds
    )


def _round_to_pb(tree: RoundTree) -> pb.RoundTree:
    nodes = [{**asdict(node), "origin": ORIGIN.to_pb(node.origin)} for node in tree.nodes]
    return pb.RoundTree(
        nodes=[pb.RoundNode(**node) for node in nodes],
        tokens=[
            pb.RoundToken(text=token.text, origin=ORIGIN.to_pb(token.origin))  # type: ignore[arg-type]
            for token in tree.tokens
        ],
        draft_s=tree.draft_s,
        verify_s=tree.verify_s,
    )


def _round_from_pb(message: pb.RoundTree) -> RoundTree:
    nodes = (
        RoundNode(node.token_id, node.text, node.parent, _origin(node.origin), node.is_kept)
        for node in message.nodes
    )
    tokens = (RoundToken(token.text, _origin(token.origin)) for token in message.tokens)
    return RoundTree(tuple(nodes), tuple(tokens), message.draft_s, message.verify_s)


def _origin(number: int) -> TokenOrigin:
    origin = ORIGIN.from_pb(number)
    if origin is None:
        raise InvalidRequest("a token of a round has no origin")
    return origin


def result_to_pb(result: Result) -> pb.GenerateResponse:
    """Convert a whole answer."""
    return pb.GenerateResponse(
        text=result.text,
        token_ids=result.token_ids,
        prompt=_prompt_info_to_pb(result.prompt),
        finish=_finish_to_pb(result.finish_reason, result.stats),
        origins=map(ORIGIN.to_pb, result.origins),  # type: ignore[arg-type]
        logprobs=logprobs_to_pb(result.logprobs),
    )


def result_from_pb(message: pb.GenerateResponse) -> Result:
    """Convert a whole answer."""
    reason, stats = _finish_from_pb(message.finish)
    info = _prompt_info_from_pb(message.prompt)
    origins = tuple(map(ORIGIN.from_pb, message.origins))
    logprobs = logprobs_from_pb(message.logprobs)
    return Result(message.text, tuple(message.token_ids), reason, stats, info, origins, logprobs)


def _prompt_info_to_pb(info: PromptInfo) -> pb.PromptInfo:
    own = {"tool_format": TOOL_FORMAT.to_pb(info.tool_format)}
    return pb.PromptInfo(**fields_of(info, **own, logprobs=logprobs_to_pb(info.logprobs)))


def _prompt_info_from_pb(message: pb.PromptInfo) -> PromptInfo:
    tool_format = TOOL_FORMAT.from_pb(message.tool_format)
    logprobs = logprobs_from_pb(message.logprobs)
    return value_from_pb(PromptInfo, message, tool_format=tool_format, logprobs=logprobs)


def _finish_to_pb(reason: FinishReason, stats: RequestStats) -> pb.FinishInfo:
    drafted = stats.speculation
    derived = ("mean_acceptance_length", "draft_acceptance_rate")
    figures = {name: getattr(drafted, name) for name in derived}
    return pb.FinishInfo(
        reason=FINISH.to_pb(reason),  # type: ignore[arg-type]
        usage=pb.Usage(
            num_prompt_tokens=stats.num_prompt_tokens,
            num_cached_tokens=stats.num_cached_tokens,
            num_output_tokens=stats.num_output_tokens,
        ),
        speculation=pb.SpeculationStats(**fields_of(drafted, **figures)),
        timings=pb.RequestTimings(**fields_of(stats.timings)),
        continuity=pb.Continuity(**fields_of(stats.continuity)),
    )


def _finish_from_pb(message: pb.FinishInfo) -> tuple[FinishReason, RequestStats]:
    reason = FINISH.from_pb(message.reason)
    if reason is None:
        raise InvalidRequest("an answer has ended without a reason")
    timings = value_from_pb(Timings, message.timings)
    for name, value in fields_of(timings).items():
        if not (math.isfinite(value) and value >= 0):
            raise InvalidRequest(f"{name} is {value}, but must be a time of 0 seconds or more")
    stats = value_from_pb(
        RequestStats,
        message.usage,
        timings=timings,
        speculation=value_from_pb(SpeculationStats, message.speculation),
        continuity=value_from_pb(Continuity, message.continuity),
    )
    return reason, stats
