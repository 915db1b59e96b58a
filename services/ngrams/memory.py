"""Memory of earlier texts: where the newest tokens of a text occurred before, and what followed.

Knows token ids only; neither requests, nor stores, nor the wire.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from slipstream.core.errors import InvalidRequest
from slipstream.core.ngram import MAX_TOKEN_ID
from slipstream.core.ngram_sources import LATEST

SHORT, LONG = 3, 8
"""Lengths of the n-grams that texts are indexed by."""
NUM_GENERATIONS = 4
"""Parts of a memory; the oldest one is dropped as a whole."""
_KNOWN_RUN = 16
"""Tokens of a text that must be there in a row to be left out when it is kept again."""
_SEPARATOR = 0xFFFFFFFF
"""Stands between texts. It is no token, so no match goes beyond it."""

Text = tuple[int, ...]


class LearnedTexts:
    """Texts of one scope, at most `max_tokens`, separators included. See `TextMemory`.

    Texts are kept in generations. A text that is learned again is kept once in the youngest of
    them, and counts as new there. So what was not learned for longest goes first, at once and
    without any search.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._generations = deque([_Generation()])  # youngest first

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept, separators included."""
        return sum(len(at.tokens) for at in self._generations)

    def after(self, latest: Sequence[int]) -> tuple[int, int] | None:
        """Return the token behind the best earlier match, and how many tokens matched; or None.

        Looks for the newest 8 tokens, and where they are not known for the newest 3. Each
        generation has their most recent occurrence; the one with the longest match is taken, the
        most recent of equals.
        """
        newest = tuple(latest[:LATEST])
        found = None
        if len(newest) >= LONG:
            found = self._best(newest, LONG)
        if found is None and len(newest) >= SHORT:
            found = self._best(newest, SHORT)
        return found

    def learn(self, text: Sequence[int]) -> int:
        """Keep a text, or its end where it is long; return how many tokens had to go for it.

        Raises `InvalidRequest` for an id that no vocabulary has.
        """
        room = self.max_tokens // NUM_GENERATIONS
        kept = tuple(text[-(room - 1) :]) if room > SHORT + 1 else ()
        if len(kept) <= SHORT:
            return self._shrink()
        if min(kept) < 0 or max(kept) > MAX_TOKEN_ID:
            raise InvalidRequest(f"a text to learn has token ids outside 0 to {MAX_TOKEN_ID}")
        young = self._generations[0]
        pieces = young.unknown(kept)
        if len(young.tokens) + sum(len(piece) + 1 for piece in pieces) > room:
            young, pieces = _Generation(), [kept]
            self._generations.appendleft(young)
        young.keep(kept, pieces)
        return self._shrink()

    def age(self) -> int:
        """Begin a generation; return how many tokens went with the oldest one."""
        self._generations.appendleft(_Generation())
        return self._shrink()

    def drop_oldest(self) -> int:
        """Forget the oldest generation; return how many tokens it had."""
        dropped = self._generations.pop()
        if not self._generations:
            self._generations.append(_Generation())
        return len(dropped.tokens)

    def _best(self, newest: Text, length: int) -> tuple[int, int] | None:
        """Return the token and the match of the best generation; None below `length` tokens."""
        key, best, token = hash(newest[:length]), length - 1, None
        for at in self._generations:
            position = (at.short if length == SHORT else at.long).get(key)
            if position is not None and (match := at.match(newest, position)) > best:
                best, token = match, at.tokens[position]
                if match == len(newest):
                    break
        return None if token is None else (token, best)

    def _shrink(self) -> int:
        num_dropped = 0
        while len(self._generations) > NUM_GENERATIONS or self.num_tokens > self.max_tokens:
            num_dropped += self.drop_oldest()
        return num_dropped


class _Generation:
    """Texts in one array, and the newest position behind each of their n-grams.

    Keys are hashes of n-grams, newest token first: what is found by them has to be compared.
    """

    def __init__(self) -> None:
        self.tokens = array("I")
        self._texts: set[int] = set()
        self.short: dict[int, int] = {}
        self.long: dict[int, int] = {}

    def match(self, newest: Text, position: int) -> int:
        """Return how many tokens before a position are `newest`."""
        before = tuple(self.tokens[max(position - len(newest), 0) : position])[::-1]
        if before == newest:
            return len(newest)
        num_same = 0
        for kept, token in zip(before, newest, strict=False):
            if kept != token:
                break
            num_same += 1
        return num_same

    def keep(self, text: Text, pieces: Sequence[Text]) -> None:
        """Append those pieces of a text that are `unknown`."""
        if pieces:
            self._texts.add(hash(text))
        for piece in pieces:
            start = len(self.tokens)
            self.tokens.extend(piece)
            self.tokens.append(_SEPARATOR)
            for length, index in ((SHORT, self.short), (LONG, self.long)):
                positions = range(start + length, start + len(piece))
                index.update(zip(_keys(piece, length), positions, strict=False))

    def unknown(self, text: Text) -> list[Text]:
        """Return the pieces of a text that are not there yet, and renew those that are.

        A piece begins with `LATEST` tokens of what was known before it. A text that repeats itself
        a lot has pieces that are not found again, so whole texts are known as well.
        """
        if not self.tokens:
            return [text]
        shorts, longs = list(_keys(text, SHORT)), list(_keys(text, LONG))
        pieces: list[Text] = []
        start, known_to, at = 0, LONG, LONG
        while at < len(text):
            position = self.long.get(longs[at - LONG])
            length = 0 if position is None else self._run(text, at, position)
            if position is None or not length:
                at += 1
                continue
            if at > known_to:
                pieces.append(text[start:at])
            positions = range(position, position + length)
            self.short.update(zip(islice(shorts, at - SHORT, None), positions, strict=False))
            self.long.update(zip(islice(longs, at - LONG, None), positions, strict=False))
            known_to = at = at + length
            start = max(at - LATEST, 0)
        if start == 0 or known_to < len(text):
            pieces.append(text[start:])
        return [] if hash(text) in self._texts else pieces

    def _run(self, text: Text, at: int, position: int) -> int:
        """Return how much of a text from `at` on stands at a position; 0 where it is little."""
        first = text[at - LONG : at + _KNOWN_RUN]
        if tuple(self.tokens[position - LONG : position + _KNOWN_RUN]) != first:
            return 0
        length = len(first) - LONG
        kept = self.tokens[position + length : position + len(text) - at]
        for token, other in zip(kept, islice(text, at + length, None), strict=False):
            if token != other:
                break
            length += 1
        return length


def _keys(text: Text, length: int) -> Iterator[int]:
    """Return a key of the n-gram before each position, from position `length` on."""
    columns = [text[length - 1 - back : len(text) - 1 - back] for back in range(length)]
    return map(hash, zip(*columns, strict=False))
