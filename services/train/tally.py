"""How far a run that writes training data is, over all processes that write to one directory.

Knows nothing of models or of who writes; it looks at what is finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.train.shard_store import ShardStore
from slipstream.train.shards import Shard


@dataclass(frozen=True, slots=True)
class Written:
    """A finished shard: how many documents it holds and how many tokens the target wrote."""

    number: int
    num_documents: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class DataReport:
    """After a shard: shards finished by anybody, tokens of this run, seconds to the end."""

    num_done: int
    num_shards: int
    num_tokens: int
    tokens_per_second: float
    seconds_left: float


class Tally:
    """Counts what is written, and says when that is enough."""

    def __init__(self, shards: Sequence[Shard], store: ShardStore, max_tokens: int | None) -> None:
        """Counts what is finished already; `max_tokens` is of all shards together."""
        self._costs = {shard.number: shard.cost for shard in shards}
        self._store = store
        self._max_tokens = max_tokens
        self._tokens: dict[int, int] = {}
        self._num_own = 0
        self.done: set[int] = set()
        self.look(None)
        self._before = (self._cost_left(), sum(self._tokens.values()))

    def look(self, written: Written | None) -> None:
        """See what is finished by now; `written` is a shard of this run's own."""
        if written is not None:
            self._num_own += written.num_tokens
            self._tokens[written.number] = written.num_tokens
        self.done = self._store.done()
        if self._max_tokens is not None:
            for number in self.done - self._tokens.keys():
                self._tokens[number] = self._store.num_generated(number)

    def is_enough(self) -> bool:
        """Whether as many tokens are generated as were asked for."""
        return self._max_tokens is not None and sum(self._tokens.values()) >= self._max_tokens

    def report(self, elapsed_seconds: float) -> DataReport:
        """Where things are, `elapsed_seconds` after the first shard of this run was begun."""
        rate = self._num_own / elapsed_seconds if elapsed_seconds else 0.0
        left = elapsed_seconds * self._share_left()
        return DataReport(len(self.done), len(self._costs), self._num_own, rate, left)

    def _share_left(self) -> float:
        """What is left, in multiples of what was done since the start, by anybody."""
        cost_left, cost_before = self._cost_left(), self._before[0]
        shares = [cost_left / max(1, cost_before - cost_left)]
        if self._max_tokens is not None:
            num_tokens = sum(self._tokens.values())
            num_left = max(0, self._max_tokens - num_tokens)
            shares.append(num_left / max(1, num_tokens - self._before[1]))
        return min(shares)

    def _cost_left(self) -> int:
        return sum(cost for number, cost in self._costs.items() if number not in self.done)
