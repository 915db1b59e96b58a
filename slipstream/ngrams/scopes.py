"""Memories of several scopes within one bound. No text of one scope is found in another."""

from collections.abc import Callable, Sequence

from slipstream.ngrams.memory import NUM_GENERATIONS, LearnedTexts

MAX_SCOPES = 10_000


class LearnedScopes:
    """A memory for each scope, at most `max_tokens` in all, each text for at most `ttl_s`.

    Where there is no room, the largest scope loses what it has not learned for longest: one that
    has no more than an equal share loses nothing to others.
    """

    def __init__(self, max_tokens: int, *, ttl_s: float, clock: Callable[[], float]) -> None:
        self._max_tokens = max_tokens
        self._generation_s = ttl_s / NUM_GENERATIONS
        self._clock = clock
        self._scopes: dict[str, LearnedTexts] = {}  # least recently used first
        self._aged_s: dict[str, float] = {}
        self.num_tokens = 0
        self.num_evicted = 0
        """Tokens that went for room, or because their time was up."""

    def texts(self, scope: str) -> LearnedTexts:
        """Return the memory of a scope, which is made when it is first used."""
        found = self._scopes.pop(scope, None)
        if found is None:
            found = LearnedTexts(self._max_tokens)
            self._aged_s[scope] = self._clock()
        self._scopes[scope] = found
        if len(self._scopes) > MAX_SCOPES:
            self._forget(next(iter(self._scopes)))
        return found

    def learn(self, scope: str, text: Sequence[int]) -> None:
        """Keep a text for its scope. Raises `InvalidRequest` as `LearnedTexts.learn` does."""
        texts = self.texts(scope)
        texts.max_tokens = self._room(texts)
        before = texts.num_tokens
        num_evicted = texts.learn(text)
        self.num_tokens += texts.num_tokens - before
        self.num_evicted += num_evicted

    def expire(self) -> None:
        """Forget texts whose time is up, and scopes that have none. To be called now and then."""
        now_s = self._clock()
        due = [at for at, since_s in self._aged_s.items() if now_s - since_s >= self._generation_s]
        for scope in due:
            texts = self._scopes[scope]
            if not texts.num_tokens:
                self._forget(scope)
                continue
            self._aged_s[scope] = now_s
            self._count(texts.age())

    def _room(self, texts: LearnedTexts) -> int:
        """Return how many tokens a scope may have, once others have given up what is not theirs."""
        share = self._max_tokens // len(self._scopes)
        while (room := self._max_tokens - self.num_tokens + texts.num_tokens) < share:
            others = (at for at in self._scopes.values() if at is not texts)
            self._count(max(others, key=lambda at: at.num_tokens).drop_oldest())
        return room

    def _forget(self, scope: str) -> None:
        del self._aged_s[scope]
        self._count(self._scopes.pop(scope).num_tokens)

    def _count(self, num_evicted: int) -> None:
        self.num_tokens -= num_evicted
        self.num_evicted += num_evicted
