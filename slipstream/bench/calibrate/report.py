"""Result of a calibration, as a file, a table and a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from slipstream.bench.calibrate.run import Timed
from slipstream.bench.calibrate.simulate import Simulated
from slipstream.bench.calibrate.sweep import Evidence, Tried
from slipstream.bench.report import fixed, table
from slipstream.core.policy.profile import profile_values
from slipstream.drafting.profile_file import ModelPair, profile_file
from slipstream.plots import save_plot


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Result of a calibration.

    `timed` are the finalists, the fastest first; `measured` are costs in milliseconds.
    """

    pair: ModelPair
    timed: Sequence[Timed]
    tried: Sequence[Tried]
    evidence: Evidence
    measured: Mapping[str, Any]
    num_timed_prompts: int

    @property
    def best(self) -> Timed:
        """Return the fastest finalist, which is chosen."""
        return self.timed[0]

    def file(
        self, command: str, machine: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the profile file. `facts` are more of what to note."""
        measured = {
            **facts,
            "num_replies": len(self.evidence.both),
            "num_tokens": self.evidence.num_tokens,
            "num_timed_prompts": self.num_timed_prompts,
            "chosen": self.best.name,
            "greedy": dict(self.best.greedy),
            "sampled": dict(self.best.sampled),
            "costs": dict(self.measured),
        }
        facts_of_machine = dict(machine)
        notes = {
            "command": command,
            "revision": facts_of_machine.pop("git_commit", None),
            "machine": facts_of_machine,
            "measured": measured,
        }
        return profile_file(self.best.profile, self.pair, notes)


def timed_table(timed: Sequence[Timed], tried: Sequence[Tried]) -> Table:
    """Return one row for each profile that ran against the clock, the fastest first."""
    shown = table("profile", "greedy", "sampled", "both", "simulated", "tokens/round", "sampled")
    simulated = {item.name: item for item in tried}
    for item in timed:
        guess = simulated.get(item.name)
        shown.add_row(
            item.name,
            fixed(item.greedy["ratio_decode"], 2, "x"),
            fixed(item.sampled["ratio_decode"], 2, "x"),
            fixed(item.ratio, 2, "x"),
            fixed(guess.speed if guess else None, 2, "x"),
            fixed(item.greedy["mean_acceptance_length"], 2),
            fixed(item.sampled["mean_acceptance_length"], 2),
        )
    return shown


def sweep_values(tried: Sequence[Tried], timed: Sequence[Timed]) -> dict[str, Any]:
    """Return everything that was tried, and its figures."""
    ranked = sorted(tried, key=lambda item: -item.speed)
    return {
        "simulated": [
            {
                "name": item.name,
                "speed": item.speed,
                "greedy": _figures(item.greedy),
                "sampled": _figures(item.sampled),
                "profile": profile_values(item.profile),
            }
            for item in ranked
        ],
        "timed": [
            {"name": item.name, "ratio": item.ratio, "greedy": item.greedy, "sampled": item.sampled}
            for item in timed
        ],
    }


def save_sweep(path: Path, tried: Sequence[Tried]) -> None:
    """Plot speed against tokens per round, a point a setting; the best of each kind is named."""
    groups: dict[str, list[Tried]] = {}
    for item in tried:
        groups.setdefault(f"{item.profile.stop.value}, {item.profile.shape.value}", []).append(item)
    best = [max(items, key=lambda item: item.speed) for items in groups.values()]
    best.sort(key=lambda item: -item.speed)

    def draw(axes: Any) -> None:
        for name, items in groups.items():
            xs, ys = zip(*(_point(item) for item in items), strict=True)
            axes.scatter(xs, ys, s=14, label=name)
        for rank, item in enumerate(best):
            axes.annotate(
                f"{rank + 1}: {item.name}",
                _point(item),
                xytext=(0.02, 0.97 - 0.045 * rank),
                textcoords="axes fraction",
                fontsize="x-small",
                arrowprops={"arrowstyle": "-", "lw": 0.4},
            )

    save_plot(
        path,
        draw,
        title="Simulated settings, greedy and sampled together",
        x="tokens per round (greedy)",
        y="speed over plain decoding",
    )


def _point(item: Tried) -> tuple[float, float]:
    return item.greedy.tokens_per_round, item.speed


def _figures(simulated: Simulated) -> Mapping[str, float]:
    return {
        "tokens_per_round": simulated.tokens_per_round,
        "speed": simulated.speed,
        "rounds": simulated.num_rounds,
        "tokens": simulated.num_tokens,
    }
