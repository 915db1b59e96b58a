"""How a session's next turn becomes a request."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from slipstream.core.request.request import (
    DraftFacts,
    Generation,
    ModelFacts,
    Request,
    draft_settings,
    make_request,
)
from slipstream.state.record import Record

Encode = Callable[[int | None], Awaitable[Sequence[int]]]
"""Return the token ids of the turn's prompt behind the session's last token, None at its start."""


async def turn_request(
    asked: Generation, record: Record, model: ModelFacts, draft: DraftFacts, encode: Encode
) -> Request:
    """Return the checked request of a turn; its prompt is encoded unless the record has its tokens.

    Raises `InvalidRequest` for options that do not go together, before anything is encoded.
    """
    ask = asked.ask
    draft_settings(ask.speculation, draft)
    tokens = record.tokens[: record.turn.num_prompt_tokens]
    if not tokens:
        before = record.tokens
        tokens = (*before, *await encode(before[-1] if before else None))
    request = make_request(record.session_id, tokens, ask, model, draft)
    return replace(request, past=record.output, num_received=asked.num_received)
