"""Reads what was measured of one experiment: arms by temperature, ratios pair by pair. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from slipstream.bench.serve.distributions import Interval, median_interval

Figures = Mapping[str, Any]


class NotMeasured(LookupError):
    """What is asked for was not run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The part of a result file that is about one experiment.

    `speed` maps temperatures (as text) to labels of arms to their figures, `more` holds what the
    experiment measures beside, and `categories` are those of the questions behind each arm's
    `rates`.
    """

    speed: Mapping[str, Mapping[str, Figures]]
    more: Mapping[str, Any]
    categories: Sequence[str]

    def arm(self, temperature: float, label: str) -> Figures:
        """Raises `NotMeasured` for an arm that did not run."""
        arms = self.speed.get(f"{temperature:g}", {})
        if label not in arms:
            raise NotMeasured(f"{label} was not run at temperature {temperature:g}")
        return arms[label]

    def extra(self, name: str) -> Any:
        """One part of what is measured beside the speed; raises `NotMeasured`."""
        if name not in self.more:
            raise NotMeasured(f"{name} was not measured")
        return self.more[name]

    def difference(
        self, temperature: float, figure: str, subject: str, base: str
    ) -> tuple[float, float] | None:
        """Mean of subject less base, output by output, and its standard error; None where a figure
        is not told by output."""
        ours, theirs = (
            self.arm(temperature, name).get("by_output", {}).get(figure, ())
            for name in (subject, base)
        )
        found = [
            a - b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None
        ]
        return (fmean(found), stdev(found) / len(found) ** 0.5) if len(found) > 1 else None

    def ratio(
        self, temperature: float, subject: str, base: str, *, category: str | None = None
    ) -> Interval | None:
        """Speed of `subject` over `base`, question by question; of one category, or of all."""
        pairs = zip(
            self.arm(temperature, subject)["rates"],
            self.arm(temperature, base)["rates"],
            self.categories,
            strict=True,
        )
        found = [a / b for a, b, of in pairs if a and b and category in (None, of)]
        return median_interval(found)
