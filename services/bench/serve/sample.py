"""Requests under load as their callers saw them, and runs of many."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from slipstream.core.request.results import RequestStats


@dataclass(frozen=True, slots=True)
class Mark:
    """Tokens that came at once."""

    at_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Class of an error, and its sentence."""

    name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Request as its caller saw it.

    `due_s` is when its user came, from which everything counts; `sent_s` when it was sent.
    `stats` are there when it was read to its end, `failure` when it failed.
    """

    question_id: int | str
    due_s: float
    sent_s: float
    ended_s: float
    marks: tuple[Mark, ...] = ()
    token_ids: tuple[int, ...] = ()
    stats: RequestStats | None = None
    failure: Failure | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether it was answered to its end."""
        return self.stats is not None and self.failure is None

    @property
    def num_tokens(self) -> int:
        """Return the tokens that came."""
        return sum(mark.num_tokens for mark in self.marks)

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token; None where none came."""
        return self.marks[0].at_s - self.due_s if self.marks else None

    @property
    def tpot_s(self) -> float | None:
        """Return the time per output token after the first; None for fewer than two."""
        if self.num_tokens < 2:
            return None
        return (self.marks[-1].at_s - self.marks[0].at_s) / (self.num_tokens - 1)

    @property
    def latency_s(self) -> float:
        """Return the time from the user's coming to the end of the answer."""
        return self.ended_s - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Return the times between chunks with tokens."""
        return [after.at_s - before.at_s for before, after in pairwise(self.marks)]


@dataclass(frozen=True, slots=True)
class GoodputLimits:
    """Limits of a good request, in milliseconds; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_any(self) -> bool:
        """Return whether there is a limit at all."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def met_by(self, sample: LoadSample) -> bool:
        """Return whether it was answered within the limits; one token has no time per token."""
        return (
            sample.is_finished
            and _within(sample.ttft_s, self.ttft_ms)
            and _within(sample.tpot_s, self.tpot_ms)
        )


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Requests of one run at one point. `concurrency` is None in an open loop."""

    samples: Sequence[LoadSample]
    concurrency: int | None = None

    @property
    def finished(self) -> list[LoadSample]:
        """Return the requests that were answered to their end."""
        return [sample for sample in self.samples if sample.is_finished]

    @property
    def wall_s(self) -> float:
        """Return the time from the first user's coming to the last request's end."""
        if not self.samples:
            return 0.0
        ended_s = max(sample.ended_s for sample in self.samples)
        return ended_s - min(sample.due_s for sample in self.samples)

    @property
    def tokens_per_s(self) -> float | None:
        """Return output tokens of finished requests, all together, over all of the time."""
        return self._per_second(sum(sample.num_tokens for sample in self.finished))

    @property
    def requests_per_s(self) -> float | None:
        """Return finished requests over all of the time."""
        return self._per_second(len(self.finished))

    @property
    def steady_tokens_per_s(self) -> float | None:
        """Return tokens that came while every user had a request, over that time.

        It leaves out the end, where some have no next request. None in an open loop, and where the
        workers were never all at work.
        """
        count = self.concurrency
        if count is None or count > len(self.samples):
            return None
        start_s = sorted(sample.due_s for sample in self.samples)[count - 1]
        end_s = sorted(sample.ended_s for sample in self.samples)[-count]
        if end_s <= start_s:
            return None
        marks = [mark for sample in self.finished for mark in sample.marks]
        tokens = sum(mark.num_tokens for mark in marks if start_s < mark.at_s <= end_s)
        return tokens / (end_s - start_s)

    def good_per_s(self, limits: GoodputLimits) -> float | None:
        """Return goodput: requests that met the limits over all of the time."""
        return self._per_second(sum(map(limits.met_by, self.samples)))

    def _per_second(self, count: int) -> float | None:
        return count / self.wall_s if self.wall_s > 0 else None


def _within(value_s: float | None, limit_ms: float | None) -> bool:
    return limit_ms is None or value_s is None or 1000 * value_s <= limit_ms
