"""How a request ended, as a value and as JSON. Knows neither stores nor the wire."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from slipstream.core.results import Continuity, RequestStats, Timings
from slipstream.core.stats import SpeculationStats
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
        """What `to_json` made. Raises `ValueError` for anything else."""
        try:
            values = json.loads(text)
            return cls(FinishReason(values["reason"]), _stats(values["stats"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is no ending of a request: {error}") from None

    def answered_again(self) -> "Ending":
        """The same, for a caller who asks once more: nothing of it is new."""
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
