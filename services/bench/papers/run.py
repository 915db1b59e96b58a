"""Runs experiments: their arms in turn, question by question, then what each measures beside.

Knows nothing of options, files and terminals.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.bench.figures import Output
from slipstream.bench.methods import PLAIN
from slipstream.bench.papers.bias import measure_bias
from slipstream.bench.papers.experiment import Experiment
from slipstream.bench.papers.figures import arm_figures, ms_per_token
from slipstream.bench.papers.lineup import Lineup
from slipstream.bench.papers.long import TEMPERATURES, measure_long
from slipstream.bench.papers.mask import WIDTHS, measure_masks
from slipstream.bench.papers.plan import PIECE, PapersPlan
from slipstream.bench.speed import Outputs, SpeedPlan, run_speed
from slipstream.core.types import SamplingParams

Advance = Callable[[str], None]
Extra = Callable[[PapersPlan, Lineup, Mapping[float, Outputs], Advance], dict[str, Any]]

EXTRAS: Mapping[str, Extra] = {
    "long": measure_long,
    "target-init": measure_bias,
    "mask": measure_masks,
}
"""What an experiment measures that is no speed on the questions, by its id."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The outputs of all methods by temperature."""

    lineup: Lineup
    outputs: Mapping[float, Outputs]

    def speed(self, experiment: Experiment) -> dict[str, Any]:
        """Figures of an experiment's arms by temperature (as text) and label."""
        return {
            f"{temperature:g}": {
                arm.label: self._figures(arm.method, self.lineup.method(arm).name, outputs)
                for arm in self.lineup.arms(experiment, temperature)
            }
            for temperature, outputs in self.outputs.items()
            if experiment.arms(temperature)
        }

    def _figures(self, method: str, name: str, outputs: Outputs) -> dict[str, Any]:
        plain_ms = ms_per_token(outputs[PLAIN])
        return {"method": method, **arm_figures(outputs[name], plain_ms)}


def num_steps(plan: PapersPlan, lineup: Lineup) -> int:
    """How often `advance` is told of something."""
    asked = plan.repeats * len(plan.questions) + plan.warmup
    steps = sum(asked * len(lineup.methods(plan.experiments, at)) for at in plan.temperatures)
    extras = {
        "long": len(TEMPERATURES) * (plan.long_tokens // PIECE),
        "target-init": plan.num_laws,
        "mask": len(WIDTHS),
    }
    return steps + sum(extras.get(of.experiment_id, 0) for of in plan.experiments)


def run_papers(plan: PapersPlan, lineup: Lineup, *, advance: Advance) -> dict[str, Any]:
    """`{"categories": [...], "experiments": {ID: {"speed": ..., "more": ...}}}`."""
    outputs = {at: _run(plan, lineup, at, advance) for at in plan.temperatures}
    runs = Runs(lineup, outputs)
    experiments = {}
    for experiment in plan.experiments:
        extra = EXTRAS.get(experiment.experiment_id, _nothing)
        experiments[experiment.experiment_id] = {
            "speed": runs.speed(experiment),
            "more": extra(plan, lineup, outputs, advance),
        }
    return {"categories": _categories(plan, outputs), "experiments": experiments}


def _run(plan: PapersPlan, lineup: Lineup, temperature: float, advance: Advance) -> Outputs:
    sampling = SamplingParams(temperature=temperature, seed=plan.seed)
    speed = SpeedPlan(
        lineup.methods(plan.experiments, temperature),
        plan.questions,
        sampling,
        plan.max_new_tokens,
        plan.repeats,
        plan.warmup,
    )
    return run_speed(speed, lineup.contenders.under(sampling), advance=advance)


def _categories(plan: PapersPlan, outputs: Mapping[float, Outputs]) -> list[str]:
    """Of the outputs of each method, which are in the order of the questions."""
    if not outputs:
        return []
    first: list[Output] = list(next(iter(outputs.values()))[PLAIN])
    return [output.category for output in first]


def _nothing(
    plan: PapersPlan, lineup: Lineup, outputs: Mapping[float, Outputs], advance: Advance
) -> dict[str, Any]:
    del plan, lineup, outputs, advance
    return {}
