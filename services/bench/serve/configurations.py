"""Configurations under load: ways to speculate that one engine or router takes per request.

Pure. Names are those of `bench speed`, and `auto` (the default) and `forced` (the same in every
round); what needs another engine, another draft model or other numerics is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.bench.harness import parse_names
from slipstream.bench.methods import PLAIN, Method, parse_method
from slipstream.core.errors import UnsupportedCombination
from slipstream.core.options import SpeculationOptions

AUTO = "auto"
FORCED = "forced"
BASELINES = (PLAIN, FORCED)
"""Configurations that others are measured against."""

_MEANING = {AUTO: "best", FORCED: "best+forced"}
_NUMERICS = frozenset({"fast", "invariant"})
_NEEDS_ENGINE = frozenset({"hf", "vanilla"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """Way to speculate, and its name on the command line."""

    name: str
    options: SpeculationOptions
    method: Method

    def is_comparable(self, *, is_greedy: bool) -> bool:
        """Return whether the tokens of plain decoding are to be expected."""
        return self.method.is_comparable(is_greedy=is_greedy)


def parse_configs(text: str) -> tuple[Configuration, ...]:
    """Parse a list with commas. Raises `InvalidRequest` for what no request can ask for."""
    return tuple(map(parse_config, parse_names(text, "method")))


def parse_config(name: str) -> Configuration:
    """Parse one configuration by name. See `parse_configurations`."""
    head, *modifiers = name.split("+")
    if numerics := sorted(_NUMERICS.intersection(modifiers)):
        raise UnsupportedCombination(
            f"method {name!r} asks for numerics {numerics[0]}, but numerics are the engine's, not"
            " a request's"
        )
    method = parse_method("+".join([_MEANING.get(head, head), *modifiers]))
    if method.base in _NEEDS_ENGINE:
        raise UnsupportedCombination(
            f"method {name!r} needs an engine of its own; under load the methods are plain, auto,"
            " forced, and glide or ngram where that is the draft"
        )
    options = method.options
    if method.base in ("glide", "ngram"):
        options = replace(options, drafter=method.base)
    return Configuration(name, options, method)


def baselines(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the subjects of ratios, and their baselines, among these configurations.

    `forced` is a subject where there is no other.
    """
    bases = tuple(name for name in BASELINES if name in names)
    subjects = tuple(name for name in names if name not in bases)
    if subjects or len(bases) < 2:
        return subjects, bases
    return (FORCED,), (PLAIN,)
