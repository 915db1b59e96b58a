"""What may follow a session's text by n-grams, and how likely, as far as it held before.

Knows token ids and the interface of their sources; no draft, no tree and no model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.core.copying import MatchAcceptance, StoreAcceptance
from slipstream.core.history import num_same
from slipstream.core.keyed_noise import Purpose, gumbel_of
from slipstream.core.ngram import OwnText
from slipstream.core.ngram_sources import LATEST, CopySource, NgramSources
from slipstream.core.types import Delta, SamplingParams

NOISE_WEIGHT = 0.6
"""Part of the noise that is believed in: probabilities are estimates. (Sampled text of
SmolLM2-135M: with 0.6, guesses of 0.15, 0.25, 0.35, 0.45 held in 0.11, 0.19, 0.28, 0.40.)"""

_Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Guess:
    """One token that may come next: how likely it is, and the first source that has it."""

    probability: float
    source: CopySource


@dataclass(frozen=True, slots=True)
class _Found:
    """What every source has behind one path."""

    own: tuple[int, int] | None
    learned: tuple[int, int] | None
    stored: Sequence[tuple[int, float]]


class Guesses:
    """One session's guesses. Every source is trusted as far as it was right in this session."""

    def __init__(self, sources: NgramSources, sampling: SamplingParams) -> None:
        self._sources = sources
        self._sampling = sampling
        self._text = OwnText()
        self._acceptance = {
            CopySource.LOOKUP: MatchAcceptance(),
            CopySource.LEARNED: MatchAcceptance(),
        }
        self._store = StoreAcceptance()
        self._found: dict[_Path, _Found] = {}
        """What was found behind the text that ends at `_start`."""
        self._start = 0

    @property
    def tokens(self) -> Sequence[int]:
        """The session's tokens."""
        return self._text.tokens

    def take(self, delta: Delta) -> int:
        """Take in what became final, learn from it, and return how many tokens stayed.

        Raises `SessionOutOfSync` as every draft does.
        """
        same = num_same(self._text.tokens, delta)
        self._text.truncate(same)
        self._text.append(delta.tokens[same - delta.start :])
        if delta.end != self._start or same < self._start:
            if same == self._start:
                self._learn(self._text.tokens[same:])
            self._found.clear()
            self._start = delta.end
        return same

    def after(self, path: _Path, *, shortest: int = 1) -> Mapping[int, Guess]:
        """Return the tokens that may follow the text and `path`.

        Copies of the text count behind matches of at least `shortest` tokens.
        """
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._find(path)
        guesses: dict[int, Guess] = {}
        rest = 1.0
        matches = ((CopySource.LOOKUP, found.own), (CopySource.LEARNED, found.learned))
        for source, match in matches:
            if match is None or (source is CopySource.LOOKUP and match[1] < shortest):
                continue
            token, length = match
            probability = rest * self._acceptance[source].of(length)
            rest -= probability
            _add(guesses, token, probability, source)
        share = rest * self._store.share
        for token, probability in found.stored:
            _add(guesses, token, share * probability, CopySource.STORE)
        return guesses if self._sampling.is_greedy else self._drawn(guesses, len(path))

    def _drawn(self, guesses: Mapping[int, Guess], depth: int) -> dict[int, Guess]:
        """Return the guesses as the target's own noise of the position changes them.

        The target draws by Gumbel-max, with noise that is a function of seed, position and token:
        what it adds to a token is known before its logits are.
        """
        seed, position = self._sampling.seed, len(self._text.tokens) + depth
        weights = {
            token: guess.probability
            * math.exp(NOISE_WEIGHT * gumbel_of(seed, position, token, purpose=Purpose.DRAW))
            for token, guess in guesses.items()
        }
        rest = max(1.0 - sum(guess.probability for guess in guesses.values()), 0.0)
        total = sum(weights.values()) + rest
        return {
            token: replace(guess, probability=weights[token] / total)
            for token, guess in guesses.items()
        }

    def _find(self, path: _Path) -> _Found:
        latest = (*reversed(path), *self._text.tokens[: -LATEST - 1 : -1])[:LATEST]
        store, memory = self._sources.store, self._sources.memory
        return _Found(
            self._text.after(path),
            None if memory is None else memory.after(latest),
            () if store is None else store.after(latest),
        )

    def _learn(self, final: Sequence[int]) -> None:
        """Learn from every place of the final text that was looked at, proposed or not."""
        path: _Path = ()
        for token in final:
            found = self._found.get(path)
            if found is None:
                return
            matches = ((CopySource.LOOKUP, found.own), (CopySource.LEARNED, found.learned))
            for source, match in matches:
                if match is not None:
                    self._acceptance[source].learn(match[1], is_right=match[0] == token)
            if found.stored:
                expected = sum(probability for _, probability in found.stored)
                is_right = any(one == token for one, _ in found.stored)
                self._store.learn(expected, is_right=is_right)
            path = (*path, token)


def _add(guesses: dict[int, Guess], token: int, probability: float, source: CopySource) -> None:
    known = guesses.get(token)
    if known is None:
        guesses[token] = Guess(probability, source)
    else:
        guesses[token] = replace(known, probability=known.probability + probability)
