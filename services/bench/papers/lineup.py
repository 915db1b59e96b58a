"""Arms as methods at work: each arm's draft is found, and what several experiments share runs once.

Prints nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from slipstream.bench.contenders import Contenders
from slipstream.bench.methods import PLAIN, Method, parse_method
from slipstream.bench.papers.experiment import PLAIN_ARM, Arm, Experiment, Weights

_BASE = "glide"

Sources = Mapping[Weights, str]
"""A directory of GliDe weights, or the name of a model for `vanilla`; what is left out was not
given, and its arms do not run."""


@dataclass(slots=True)
class Lineup:
    """The methods behind the arms of all experiments of a run."""

    contenders: Contenders
    sources: Sources
    _tuned: set[str] = field(default_factory=set)

    def arms(self, experiment: Experiment, temperature: float) -> Iterator[Arm]:
        """Plain decoding, and the experiment's arms whose drafts were given."""
        arms = experiment.arms(temperature)
        if arms:
            yield Arm(PLAIN_ARM, PLAIN)
        yield from (arm for arm in arms if self._is_given(arm.weights))

    def method(self, arm: Arm) -> Method:
        """What the arm runs."""
        source = self._source(arm.weights)
        if source is None:
            return parse_method(arm.method)
        if arm.weights is Weights.VANILLA:
            return parse_method(f"vanilla:{source}{arm.method.removeprefix(_BASE)}")
        found = parse_method(arm.method)
        method = replace(found, name=f"{found.name} with {arm.weights.value}")
        if method.name not in self._tuned:
            self.contenders.tune(method, self.contenders.engine(method.numerics).drafter(source))
            self._tuned.add(method.name)
        return method

    def methods(self, experiments: Iterable[Experiment], temperature: float) -> tuple[Method, ...]:
        """All that run at a temperature, each once."""
        found = {
            method.name: method
            for experiment in experiments
            for arm in self.arms(experiment, temperature)
            for method in [self.method(arm)]
        }
        return tuple(found.values())

    def _is_given(self, weights: Weights) -> bool:
        return weights in (Weights.DRAFT, Weights.ALIKE) or weights in self.sources

    def _source(self, weights: Weights) -> str | None:
        """None stands for the draft of the contenders, which `alike` is by default."""
        return self.sources.get(weights)
