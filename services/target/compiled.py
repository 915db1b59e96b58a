"""A grammar that is ready to be followed: a matcher to copy, and another that is still pristine."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from slipstream.core.errors import CapacityError
from slipstream.core.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

NO_WAY = "NoExtension"
"""How the library's message begins where nothing may follow."""
_MAX_SENTENCE = 240


class CompiledGrammar:
    """Matchers of one grammar. Copies of one share what has been found out of the grammar, and the
    library's limits on that."""

    def __init__(
        self,
        grammar: Grammar,
        matcher: "LLMatcher",
        on_renewed: Callable[["CompiledGrammar"], None],
    ) -> None:
        """`on_renewed` has a spare matcher made elsewhere, now and whenever that was taken."""
        self.grammar = grammar
        self.spare: LLMatcher | None = None
        """One that nothing was read with."""
        self._shared = matcher
        self._on_renewed = on_renewed
        on_renewed(self)

    def matcher(self) -> "LLMatcher":
        """Return one at the beginning of a text. Takes no time to speak of."""
        return self._shared.deep_copy()

    def fresh(self) -> "LLMatcher":
        """Return one that shares nothing with those before it, but with those after it.

        Raises `CapacityError` while none has been made since the last one was taken.
        """
        if self.spare is None:
            raise CapacityError(
                f"the {self.grammar.kind.value} is used up by other requests and is compiled anew;"
                " try again later"
            )
        self._shared, self.spare = self.spare, None
        self._on_renewed(self)
        return self.matcher()


def sentence(message: str) -> str:
    """Return what is essential of the library's message, as one line of printable text."""
    lines = message.strip().splitlines() or [""]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (named or lines)[0]
    printable = "".join(char if char.isprintable() else " " for char in line)
    is_long = len(printable) > _MAX_SENTENCE
    return printable[:_MAX_SENTENCE] + "…" if is_long else printable
