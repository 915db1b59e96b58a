"""Checks of texts and token ids."""

from collections.abc import Sequence

from slipstream.core.errors import InvalidRequest

MAX_TOKEN_ID = 2**31 - 1


def check_unicode(text: str, name: str) -> None:
    """Raises `InvalidRequest` for text that has no bytes: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} is not valid Unicode ({error.reason})") from None


def check_token_ids(tokens: Sequence[int], what: str = "the prompt") -> None:
    """Raise `InvalidRequest` for ids that are none."""
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise InvalidRequest(f"{what} has token id {token}, not 0 to {MAX_TOKEN_ID}")
