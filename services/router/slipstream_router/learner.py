"""Learning from requests: texts of finished ones are kept to draft later ones of the same scope.

Knows whose texts may be proposed to whom; not how texts are looked up or exchanged.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.core.draft.ngram import MAX_TOKEN_ID
from slipstream.core.draft.ngram_sources import TextMemory
from slipstream.core.errors import InvalidRequest
from slipstream.ngrams.scopes import LearnedScopes
from slipstream.state.factory import open_texts
from slipstream.state.options import StoreOptions
from slipstream.state.text_exchange import EVERY_S, MAX_TEXT_TOKENS, TextExchange
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments
from slipstream_router.replicas.probes import DescribedTarget

OFF, KEY, MODEL = "off", "key", "model"
"""What is learned: nothing, or texts for their own API key, or for all callers of a model."""
_MAX_SHARED_TEXTS = 1024
_TOKENS_PER_TEXT = 1000
"""Of a usual text: how many of them a store keeps follows from it."""


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """Options of learning: whose texts, how much of them is kept, and for how long."""

    learn: str = OFF
    max_tokens: int = 500_000
    ttl_s: float = 86_400.0

    def __post_init__(self) -> None:
        if self.learn not in (OFF, KEY, MODEL):
            raise InvalidRequest(
                f"learn is {self.learn!r}, but must be one of {OFF}, {KEY} and {MODEL}"
            )


class TrafficLearner:
    """Memories of what was asked and answered, one a scope. `run` it, and `aclose` it."""

    def __init__(
        self,
        options: LearnOptions,
        store: StoreOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Routers with one `store` share what they learn."""
        self._options = options
        self._scopes = LearnedScopes(options.max_tokens, ttl_s=options.ttl_s, clock=clock)
        self._exchange = self._open(store, clock) if options.learn != OFF else None
        self._num_learned = 0
        self._num_received = 0
        self._num_refused = 0

    def memory(self, model: DescribedTarget, owner: str) -> TextMemory | None:
        """Return what requests of an owner may copy from; None where nothing is learned."""
        if self._options.learn == OFF:
            return None
        scope = self._scope(model, owner)
        self._follow(scope, model)
        return self._scopes.texts(scope)

    def learn(self, model: DescribedTarget, owner: str, text: Sequence[int]) -> None:
        """Keep prompt and output of a request that has ended well, or their end."""
        if self._options.learn == OFF:
            return
        kept, scope = tuple(text[-MAX_TEXT_TOKENS:]), self._scope(model, owner)
        if max(kept, default=0) >= _vocab_size(model):
            self._num_refused += 1
            return
        self._scopes.learn(scope, kept)
        self._num_learned += 1
        self._follow(scope, model)
        if self._exchange is not None:
            self._exchange.publish(scope, kept)

    async def run(self) -> None:
        """Exchange texts with other routers and forget old ones, until cancelled."""
        if self._options.learn == OFF:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._expire())
            if self._exchange is not None:
                group.create_task(self._exchange.run())

    async def aclose(self) -> None:
        """Publish what waits, and end connections. Again is fine."""
        if self._exchange is not None:
            await self._exchange.aclose()

    def sample(self, instruments: Instruments) -> None:
        """Set the metrics to what they are at the moment."""
        exchange = self._exchange
        instruments.put(catalog.LEARNED_TOKENS, self._scopes.num_tokens)
        instruments.total(catalog.LEARNED_EVICTED, self._scopes.num_evicted)
        counts = {"request": self._num_learned, "replica": self._num_received}
        for source, count in counts.items():
            instruments.total(catalog.LEARNED_TEXTS, count, {"source": source})
        num_invalid = self._num_refused + (exchange.num_invalid if exchange else 0)
        lost = {"invalid": num_invalid, "unsent": exchange.num_dropped if exchange else 0}
        for reason, count in lost.items():
            instruments.total(catalog.LEARNED_LOST, count, {"reason": reason})

    def _open(self, store: StoreOptions, clock: Callable[[], float]) -> TextExchange | None:
        options = self._options
        num_kept = min(max(options.max_tokens // _TOKENS_PER_TEXT, 1), _MAX_SHARED_TEXTS)
        texts = open_texts(store, num_kept=num_kept, ttl_s=options.ttl_s)
        return None if texts is None else TextExchange(texts, self._receive, clock=clock)

    def _follow(self, scope: str, model: DescribedTarget) -> None:
        if self._exchange is not None:
            self._exchange.follow(scope, _vocab_size(model))

    def _receive(self, scope: str, text: Sequence[int]) -> None:
        self._num_received += 1
        self._scopes.learn(scope, text)

    async def _expire(self) -> None:
        while True:
            self._scopes.expire()
            await asyncio.sleep(EVERY_S)

    def _scope(self, model: DescribedTarget, owner: str) -> str:
        """Return the name of a scope, which discloses neither the model nor the owner."""
        owner = owner if self._options.learn == KEY else ""
        parts = (self._options.learn, model.tokenizer_hash, _vocab_size(model), model.name, owner)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _vocab_size(model: DescribedTarget) -> int:
    """Return what the ids of a text must be below: a target refuses a tree with others."""
    return min(model.facts.vocab_size, MAX_TOKEN_ID + 1)
