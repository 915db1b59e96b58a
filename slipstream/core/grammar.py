"""Grammars of outputs: a JSON schema or a regular expression. Values; nothing is compiled."""

from dataclasses import dataclass
from enum import StrEnum

from slipstream.core.errors import InvalidRequest

MAX_GRAMMAR_BYTES = 1 << 16
"""Largest size of a schema or an expression, in UTF-8."""


class GrammarKind(StrEnum):
    """Language of a grammar."""

    JSON_SCHEMA = "json-schema"
    """The text is JSON that the schema allows."""
    REGEX = "regex"
    """The whole text matches the expression."""
    TOOL_CALLS = "tool-calls"
    """Calls that the text begins follow a schema: JSON with `format` and `schema`."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The whole of a request's text follows it, or each tool call in it, unless its limit on tokens
    comes first."""

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        size = len(self.text.encode(errors="surrogatepass"))
        if not 1 <= size <= MAX_GRAMMAR_BYTES:
            raise InvalidRequest(
                f"the {self.kind.value} has {size} bytes, but must have 1 to {MAX_GRAMMAR_BYTES}"
            )
