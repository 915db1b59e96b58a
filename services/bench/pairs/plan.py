"""What two routers are compared with. Values only."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from slipstream.bench.questions import Question, in_turn
from slipstream.core.errors import InvalidRequest
from slipstream.core.types import SamplingParams


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Pairs of runs: the same requests through either router."""

    base: str
    """What the other one is compared with."""
    subject: str
    questions: tuple[Question, ...]
    sampling: SamplingParams
    concurrency: int = 1
    """Users who ask again when answered."""
    num_requests: int = 8
    """Of all users in a run."""
    num_pairs: int = 9
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("concurrency", "num_requests", "num_pairs", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.num_requests < self.concurrency:
            raise InvalidRequest(
                f"{self.num_requests} requests leave some of {self.concurrency} users without one"
            )

    @property
    def names(self) -> tuple[str, str]:
        """Of both routers."""
        return self.base, self.subject

    @property
    def num_runs(self) -> int:
        """Of both, those included that do not count."""
        return 2 * self.num_pairs + 2

    def asked(self) -> Iterator[Question]:
        """What a run asks: the same every time."""
        return islice(cycle(in_turn(self.questions)), self.num_requests)

    def turns(self) -> Iterator[str]:
        """Whose run is next. Pairs are run one after the other, every second one in reverse."""
        for number in range(self.num_pairs):
            yield from self.names if number % 2 == 0 else reversed(self.names)
