"""Log-probabilities in OpenAI's two shapes: of chats, and the older one of completions."""

import math
from typing import Any

from slipstream.core.logprobs import Logprobs, TokenLogprob

Json = dict[str, Any]

IMPOSSIBLE = -9999.0
"""What OpenAI says of a token that can't be: JSON has no infinity."""


def chat_logprobs(told: Logprobs) -> Json | None:
    """Of a chat's tokens; those of which nothing is known are left out. None without any."""
    if not told:
        return None
    content = [
        {
            **_entry(token.text, token.logprob),
            "top_logprobs": [_entry(other.text, other.logprob) for other in token.top],
        }
        for token in told
        if token is not None
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(told: Logprobs, *, offset: int = 0) -> Json | None:
    """Of a completion's tokens; `offset` is the length of the text before the first."""
    known = [token for token in told if token is not None]
    if not known:
        return None
    offsets = []
    for token in known:
        offsets.append(offset)
        offset += len(token.text.decode(errors="replace"))
    return {
        "tokens": [_name(token.text) for token in known],
        "token_logprobs": [_finite(token.logprob) for token in known],
        "top_logprobs": [_by_name(token) for token in known],
        "text_offset": offsets,
    }


def _entry(text: bytes, logprob: float) -> Json:
    return {
        "token": text.decode(errors="replace"),
        "logprob": _finite(logprob),
        "bytes": list(text),
    }


def _by_name(token: TokenLogprob) -> dict[str, float]:
    """The likeliest ones and, as OpenAI has it, the token itself."""
    named = {_name(other.text): _finite(other.logprob) for other in token.top}
    return {**named, _name(token.text): _finite(token.logprob)} if named else {}


def _name(text: bytes) -> str:
    """A token that is not whole characters has its bytes for a name, so that no two are alike."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else IMPOSSIBLE
