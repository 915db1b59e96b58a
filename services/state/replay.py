"""Answers that were kept: the same request again gets the same answer, and nothing runs."""

from collections.abc import Callable, Sequence

from slipstream.core.errors import InvalidRequest
from slipstream.core.journal import Ending
from slipstream.core.request import Generation
from slipstream.core.results import Chunk, PromptInfo
from slipstream.core.text import Piece, TextStream, joined
from slipstream.state.record import Record


def replayed(
    asked: Generation, record: Record, detokenise: Callable[[Sequence[int]], str]
) -> Chunk:
    """All of a request's answer that its caller does not hold, in one piece.

    Raises `InvalidRequest` when the caller holds more than there is.
    """
    output, turn = record.output, record.turn
    if asked.num_received > len(output):
        raise InvalidRequest(
            f"num_received is {asked.num_received}, but the answer has {len(output)} tokens"
        )
    assert turn.ending is not None
    ending = Ending.from_json(turn.ending).answered_again()
    sampling = asked.ask.sampling
    info = PromptInfo(turn.request_id, record.model, sampling.seed, turn.num_prompt_tokens)
    piece = _rest(asked, output, detokenise)
    # What is kept are tokens, not the rounds that they came from.
    unknown = (None,) * len(piece.tokens)
    origins = unknown if asked.ask.with_origins else ()
    logprobs = unknown if asked.ask.num_logprobs is not None else ()
    return Chunk(piece.text, piece.tokens, ending.reason, ending.stats, info, origins, logprobs)


def _rest(
    asked: Generation, output: Sequence[int], detokenise: Callable[[Sequence[int]], str]
) -> Piece:
    if asked.num_received == len(output):
        return Piece("", ())
    stream = TextStream(detokenise, asked.ask.stop, num_sent=asked.num_received)
    piece = stream.push(output)
    if piece.is_stopped:
        return piece
    return joined((piece, stream.finish()))
