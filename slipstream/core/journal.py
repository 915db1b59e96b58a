"""Journals: where a request stores what is final before it is sent."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from slipstream.core.request.results import Continuity, RequestStats, Timings
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import FinishReason

_TUPLES = ("per_step_accepted", "per_step_drafted", "per_step_depth")


@dataclass(frozen=True, slots=True)
class Ending:
    """The last word of a request."""

    reason: FinishReason
    stats: RequestStats

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Ending":
        """Return the value of what `to_json` made. Raises `ValueError` for anything else."""
        try:
            values = json.loads(text)
            return cls(FinishReason(values["reason"]), _stats(values["stats"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is no ending of a request: {error}") from None

    def answered_again(self) -> "Ending":
        """Return the ending for a caller who sends the request again: nothing of it is new."""
        stats = self.stats
        continuity = replace(stats.continuity, num_resumed_tokens=stats.num_output_tokens)
        return Ending(self.reason, replace(stats, continuity=continuity))


def _stats(values: Mapping[str, Any]) -> RequestStats:
    speculation = values["speculation"]
    lists = {name: tuple(speculation[name]) for name in _TUPLES}
    histogram = {int(num): steps for num, steps in speculation["acceptance_histogram"].items()}
    parts = {
        "timings": Timings(**values["timings"]),
        "speculation": SpeculationStats(
            **{**speculation, **lists, "acceptance_histogram": histogram}
        ),
        "continuity": Continuity(**values["continuity"]),
    }
    return RequestStats(**{**values, **parts})


class Journal(Protocol):
    """One request's."""

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """Keep output tokens that follow those kept before; with the last ones, how it ended.

        Raises `SessionTaken` when another process goes on with the request.
        """
        ...

    def continuity(self) -> Continuity:
        """Return the losses of the request so far, without those it began with."""
        ...


class NoJournal:
    """Journal of requests that end with this process: it keeps nothing."""

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """Keeps nothing."""

    def continuity(self) -> Continuity:
        """Nothing can become of it."""
        return Continuity()
