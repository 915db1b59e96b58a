"""Memory of earlier texts: where the newest tokens of a text occurred before, and what followed."""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from slipstream.core.draft.ngram import MAX_TOKEN_ID
from slipstream.core.draft.ngram_sources import LATEST
from slipstream.core.errors import InvalidRequest

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
        self._generations = deque([_TextArray()])  # youngest first

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
        if not self._generations[0].learn(kept, room):
            self._generations.appendleft(_TextArray())
            self._generations[0].learn(kept, room)
        return self._shrink()

    def age(self) -> int:
        """Begin a generation; return how many tokens went with the oldest one."""
        self._generations.appendleft(_TextArray())
        return self._shrink()

    def drop_oldest(self) -> int:
        """Forget the oldest generation; return how many tokens it had."""
        dropped = self._generations.pop()
        if not self._generations:
            self._generations.append(_TextArray())
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


class _TextArray:
    """Texts in one array, and the newest position behind each of their n-grams.

    A text that repeats itself a lot has parts that are not found again, so whole texts are known
    as well. Keys are hashes of n-grams, newest token first, so what they find is compared.
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
        return _num_same(before, newest)

    def learn(self, text: Text, room: int) -> bool:
        """Append what is not there of a text, and renew what is; False if `room` tokens are full.

        What is appended begins with `LATEST` tokens of what was known before it.
        """
        is_known, before = hash(text) in self._texts, len(self.tokens)
        shorts, longs = list(_keys(text, SHORT)), list(_keys(text, LONG))
        start, known_to, at = 0, 0, LONG
        while at < len(text):
            position = self.long.get(longs[at - LONG])
            length = 0 if position is None else self._run(text, at, position)
            if position is None or not length:
                at += 1
                continue
            if at > max(known_to, LONG) and not is_known and not self._append(text[start:at], room):
                return False
            end = position + length
            _renew(self.short, shorts[at - LONG :], range(position - LONG + SHORT, end))
            _renew(self.long, longs[at - LONG :], range(position, end))
            known_to = at = at + length
            start = max(at - LATEST, 0)
        is_over = is_known or known_to == len(text)
        if not is_over and not self._append(text[start:], room):
            return False
        if len(self.tokens) > before:
            self._texts.add(hash(text))
        return True

    def _append(self, piece: Text, room: int) -> bool:
        start = len(self.tokens)
        if start + len(piece) + 1 > room:
            return False
        self.tokens.extend(piece)
        self.tokens.append(_SEPARATOR)
        for length, index in ((SHORT, self.short), (LONG, self.long)):
            _renew(index, _keys(piece, length), range(start + length, start + len(piece)))
        return True

    def _run(self, text: Text, at: int, position: int) -> int:
        """Return how much of a text from `at` on stands at a position; 0 where it is little."""
        length = min(_KNOWN_RUN, len(text) - at)
        kept = self.tokens[position - LONG : position + length]
        if tuple(kept) != text[at - LONG : at + length]:
            return 0
        kept = self.tokens[position + length : position + len(text) - at]
        return length + _num_same(kept, islice(text, at + length, None))


def _num_same(one: Iterable[int], other: Iterable[int]) -> int:
    """Return with how many equal tokens both begin."""
    num_same = 0
    for token, same in zip(one, other, strict=False):
        if token != same:
            break
        num_same += 1
    return num_same


def _renew(index: dict[int, int], keys: Iterable[int], positions: range) -> None:
    index.update(zip(keys, positions, strict=False))


def _keys(text: Text, length: int) -> Iterator[int]:
    """Return a key of the n-gram before each position, from position `length` on."""
    columns = [text[length - 1 - back : len(text) - 1 - back] for back in range(length)]
    return map(hash, zip(*columns, strict=False))
