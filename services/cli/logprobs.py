"""How likely tokens were, for people: one line for each, with the likeliest of its slot."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream.core.logprobs import Logprobs, TokenLogprob, TopLogprob

_UNKNOWN = "-"


def logprob_lines(logprobs: "Logprobs") -> "Iterator[str]":
    """Value and text of each token, then of the likeliest."""
    for item in logprobs:
        if item is None:
            yield f"{_UNKNOWN:>9}"
            continue
        top = ", ".join(f"{_quoted(other)} {other.logprob:.3f}" for other in item.top)
        yield f"{item.logprob:9.3f}  {_quoted(item):14}  {top}".rstrip()


def logprob_values(logprobs: "Logprobs") -> list[dict[str, Any] | None]:
    """As JSON values; the bytes also as text, in which what is no character is U+FFFD."""
    return [
        None
        if item is None
        else {
            **_values(item),
            "top": [{"token_id": other.token_id, **_values(other)} for other in item.top],
        }
        for item in logprobs
    ]


def _values(item: "TokenLogprob | TopLogprob") -> dict[str, Any]:
    text = item.text.decode(errors="replace")
    return {"logprob": item.logprob, "text": text, "bytes": list(item.text)}


def _quoted(item: "TokenLogprob | TopLogprob") -> str:
    return json.dumps(item.text.decode(errors="backslashreplace"), ensure_ascii=False)
