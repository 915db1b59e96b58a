"""Answers of the public API on the wire, both ways: chunks, results, statistics and timings.

`x_from_pb` raises `InvalidRequest` for what is no such value. Figures that follow from others
are sent for callers in other languages, and not read back.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.origins import Origins, TokenOrigin
from slipstream.core.request.results import (
    Chunk,
    Continuity,
    PromptInfo,
    RequestStats,
    Result,
    Timings,
)
from slipstream.core.request.round_tree import RoundNode, RoundToken, RoundTree
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import FinishReason
from slipstream.rpc.conversion.convert_common import (
    FINISH,
    ORIGIN,
    TOOL_FORMAT,
    logprobs_from_pb,
    logprobs_to_pb,
)
from slipstream.rpc.v1 import generation_pb2 as pb

_COUNTS = (
    "num_spec_steps",
    "num_plain_steps",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "num_spec_tokens",
    "num_lookup_tokens",
    "num_accepted_lookup_tokens",
    "num_store_tokens",
    "num_accepted_store_tokens",
)
_PER_STEP = ("per_step_accepted", "per_step_drafted", "per_step_depth")


def chunk_to_pb(chunk: Chunk) -> pb.GenerateStreamResponse:
    """A part of an answer, with what is known at its beginning or end."""
    finish = None
    if chunk.finish_reason is not None and chunk.stats is not None:
        finish = finish_to_pb(chunk.finish_reason, chunk.stats)
    return pb.GenerateStreamResponse(
        text=chunk.text,
        token_ids=chunk.token_ids,
        prompt=None if chunk.prompt is None else prompt_info_to_pb(chunk.prompt),
        finish=finish,
        origins=origins_to_pb(chunk.origins),  # type: ignore[arg-type]
        logprobs=logprobs_to_pb(chunk.logprobs),
        rounds=map(_round_to_pb, chunk.rounds),
    )


def chunk_from_pb(message: pb.GenerateStreamResponse) -> Chunk:
    """A part of an answer."""
    reason, stats = None, None
    if message.HasField("finish"):
        reason, stats = finish_from_pb(message.finish)
    info = prompt_info_from_pb(message.prompt) if message.HasField("prompt") else None
    origins = origins_from_pb(message.origins)
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
    """A whole answer."""
    return pb.GenerateResponse(
        text=result.text,
        token_ids=result.token_ids,
        prompt=prompt_info_to_pb(result.prompt),
        finish=finish_to_pb(result.finish_reason, result.stats),
        origins=origins_to_pb(result.origins),  # type: ignore[arg-type]
        logprobs=logprobs_to_pb(result.logprobs),
    )


def result_from_pb(message: pb.GenerateResponse) -> Result:
    """A whole answer."""
    reason, stats = finish_from_pb(message.finish)
    info = prompt_info_from_pb(message.prompt)
    origins = origins_from_pb(message.origins)
    logprobs = logprobs_from_pb(message.logprobs)
    return Result(message.text, tuple(message.token_ids), reason, stats, info, origins, logprobs)


def origins_to_pb(origins: Origins) -> list[int]:
    return [ORIGIN.to_pb(origin) for origin in origins]


def origins_from_pb(numbers: Iterable[int]) -> Origins:
    return tuple(ORIGIN.from_pb(number) for number in numbers)


def prompt_info_to_pb(info: PromptInfo) -> pb.PromptInfo:
    """Convert the facts of a request at its start."""
    return pb.PromptInfo(
        request_id=info.request_id,
        model=info.model,
        seed=info.seed,
        num_prompt_tokens=info.num_prompt_tokens,
        tool_format=TOOL_FORMAT.to_pb(info.tool_format),  # type: ignore[arg-type]
        logprobs=logprobs_to_pb(info.logprobs),
    )


def prompt_info_from_pb(message: pb.PromptInfo) -> PromptInfo:
    """Convert the facts of a request at its start."""
    return PromptInfo(
        message.request_id,
        message.model,
        message.seed,
        message.num_prompt_tokens,
        TOOL_FORMAT.from_pb(message.tool_format),
        logprobs_from_pb(message.logprobs),
    )


def finish_to_pb(reason: FinishReason, stats: RequestStats) -> pb.FinishInfo:
    """Convert the facts of a request at its end."""
    usage = pb.Usage(
        num_prompt_tokens=stats.num_prompt_tokens,
        num_cached_tokens=stats.num_cached_tokens,
        num_output_tokens=stats.num_output_tokens,
    )
    return pb.FinishInfo(
        reason=FINISH.to_pb(reason),  # type: ignore[arg-type]
        usage=usage,
        speculation=speculation_stats_to_pb(stats.speculation),
        timings=timings_to_pb(stats.timings),
        continuity=continuity_to_pb(stats.continuity),
    )


def finish_from_pb(message: pb.FinishInfo) -> tuple[FinishReason, RequestStats]:
    """Convert the facts of a request at its end."""
    reason = FINISH.from_pb(message.reason)
    if reason is None:
        raise InvalidRequest("an answer has ended without a reason")
    usage = message.usage
    stats = RequestStats(
        num_prompt_tokens=usage.num_prompt_tokens,
        num_cached_tokens=usage.num_cached_tokens,
        num_output_tokens=usage.num_output_tokens,
        timings=timings_from_pb(message.timings),
        speculation=speculation_stats_from_pb(message.speculation),
        continuity=continuity_from_pb(message.continuity),
    )
    return reason, stats


def continuity_to_pb(continuity: Continuity) -> pb.Continuity:
    return pb.Continuity(**asdict(continuity))


def continuity_from_pb(message: pb.Continuity) -> Continuity:
    return Continuity(**{field.name: getattr(message, field.name) for field in fields(Continuity)})


def timings_to_pb(timings: Timings) -> pb.RequestTimings:
    """Seconds."""
    return pb.RequestTimings(
        **{field.name: getattr(timings, field.name) for field in fields(timings)}
    )


def timings_from_pb(message: pb.RequestTimings) -> Timings:
    """Seconds; none is negative."""
    values = {field.name: getattr(message, field.name) for field in fields(Timings)}
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise InvalidRequest(f"{name} is {value}, but must be a time of 0 seconds or more")
    return Timings(**values)


def speculation_stats_to_pb(stats: SpeculationStats) -> pb.SpeculationStats:
    """All figures, those that follow from others included."""
    return pb.SpeculationStats(
        **{name: getattr(stats, name) for name in (*_COUNTS, *_PER_STEP)},
        stop_reasons=stats.stop_reasons,
        fallbacks=stats.fallbacks,
        lossless=stats.lossless,
        mean_acceptance_length=stats.mean_acceptance_length,
        draft_acceptance_rate=stats.draft_acceptance_rate,
        acceptance_histogram=stats.acceptance_histogram,
    )


def speculation_stats_from_pb(message: pb.SpeculationStats) -> SpeculationStats:
    """The figures that all others follow from."""
    counts: dict[str, Any] = {name: getattr(message, name) for name in _COUNTS}
    steps: dict[str, Any] = {name: tuple(getattr(message, name)) for name in _PER_STEP}
    return SpeculationStats(
        **counts,
        **steps,
        stop_reasons=dict(message.stop_reasons),
        acceptance_histogram=dict(sorted(message.acceptance_histogram.items())),
        lossless=message.lossless,
        fallbacks=dict(message.fallbacks),
    )
