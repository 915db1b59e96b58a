"""Where a request ends inside a round. Pure; knows nothing of text, trees or caches."""

from collections.abc import Sequence

from slipstream.core.types import FinishReason, Session


def finish(
    session: Session, num_output_tokens: int, tokens: Sequence[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The `tokens` of a round that survive, and why the request ends there, if it does.

    `num_output_tokens` were final before them. The first stop token ends the request and is
    kept; so does reaching `max_tokens`. Nothing after the end survives, the bonus token
    included. A stop token in the last place allowed counts as a stop.
    """
    room = session.max_tokens - num_output_tokens
    for index, token in enumerate(tokens[: max(room, 0)]):
        if token in session.stop_token_ids:
            return tuple(tokens[: index + 1]), FinishReason.STOP
    if len(tokens) >= room:
        return tuple(tokens[: max(room, 0)]), FinishReason.LENGTH
    return tuple(tokens), None
