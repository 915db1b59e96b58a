"""Speculation options of a request, and which of them go together, by two tables."""

from collections.abc import Set
from dataclasses import dataclass, fields
from enum import StrEnum

from slipstream.core.errors import InvalidRequest, UnsupportedCombination, check, check_fits
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS, make_stop
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import Shape, StopPolicy, Verification


class Mode(StrEnum):
    """Decision whether a request speculates."""

    AUTO = "auto"
    """While it pays: plain rounds when it does not."""
    OFF = "off"
    """Plain decoding."""
    FORCED = "forced"
    """Speculation in every round, paying or not."""


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """Speculation options of a request; `None` takes the engine's calibrated default.

    `max_draft_tokens` bounds a path, `max_nodes` the tree: by default at the calibrated number, or
    at what `widths`, roots or `max_draft_tokens` make if that is more. `threshold` is of `stop`;
    `widths` are the children per depth of shape `product`; `num_roots` is of `target-init`.
    `drafter` is a kind: glide, eagle3, vanilla or ngram. `lookup` adds what the text repeats, and
    what n-gram stores have, to what the draft proposes. Members of enumerations may be given by
    their values.
    """

    mode: Mode = Mode.AUTO
    max_draft_tokens: int | None = None
    max_nodes: int | None = None
    shape: Shape | None = None
    stop: StopPolicy | None = None
    threshold: float | None = None
    widths: tuple[int, ...] | None = None
    verification: Verification | None = None
    num_roots: int | None = None
    drafter: str | None = None
    lookup: bool | None = None

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            object.__setattr__(self, name, _member(name, getattr(self, name), kind))
        _check_range("max_draft_tokens", self.max_draft_tokens, MAX_DRAFT_TOKENS)
        _check_range("max_nodes", self.max_nodes, MAX_NODES)
        _check_range("num_roots", self.num_roots, MAX_NODES)
        if self.drafter is not None:
            _check_drafter(self.drafter)
        if self.mode is Mode.OFF:
            self._check_nothing_given()
        self._check_widths()
        if self.num_roots is not None and self.verification is not Verification.TARGET_INIT:
            raise UnsupportedCombination("num_roots goes with verification target-init only")
        if self.threshold is not None and self.stop is None:
            raise InvalidRequest(f"threshold is {self.threshold}, but no stop policy is named")
        if self.stop is not None and self.threshold is not None:
            make_stop(self.stop, self.threshold)

    def _check_nothing_given(self) -> None:
        given = [
            option.name
            for option in fields(self)
            if option.name != "mode" and getattr(self, option.name) is not None
        ]
        if given:
            raise UnsupportedCombination(f"mode is off, but {', '.join(given)} is given")

    def _check_widths(self) -> None:
        if (self.widths is not None) != (self.shape is Shape.PRODUCT):
            raise UnsupportedCombination("shape product and widths go together only")
        if self.widths is None:
            return
        check_num_depths(len(self.widths))
        if len(self.widths) > (self.max_draft_tokens or MAX_DRAFT_TOKENS):
            raise UnsupportedCombination(
                f"widths {self.widths} have {len(self.widths)} depths, but max_draft_tokens is"
                f" {self.max_draft_tokens}"
            )
        for width in self.widths:
            _check_range("a width", width, MAX_NODES)
        nodes, limit = num_product_nodes(self.widths), self.max_nodes or MAX_NODES
        check_fits(f"widths {self.widths} make", nodes, "nodes", limit)


_ENUMS = {"mode": Mode, "shape": Shape, "stop": StopPolicy, "verification": Verification}


def _member(name: str, value: str | None, kind: type[StrEnum]) -> StrEnum | None:
    if value is None and kind is not Mode:
        return None
    try:
        return kind(value or "")
    except ValueError:
        raise InvalidRequest(f"{name} is {value!r}, not one of {', '.join(kind)}") from None


def check_num_depths(num_depths: int) -> None:
    """Raise `InvalidRequest` for more widths than a path may have depths."""
    if not 1 <= num_depths <= MAX_DRAFT_TOKENS:
        raise InvalidRequest(f"widths has {num_depths} depths, not 1 to {MAX_DRAFT_TOKENS}")


def num_product_nodes(widths: tuple[int, ...]) -> int:
    """Nodes of the full product tree with these children per depth."""
    total, level = 0, 1
    for width in widths:
        level *= width
        total += level
    return total


@dataclass(frozen=True, slots=True)
class Capability:
    """Shapes, stop policies and drafters that go with one verification mode or drafter."""

    name: str
    shapes: frozenset[Shape]
    stops: frozenset[StopPolicy]
    drafters: frozenset[str]
    note: str = ""
    extras: bool = False
    """Permission to copy text beside the proposals, and to draft while they are verified."""


VANILLA, EAGLE = "vanilla:", "eagle3:"
"""Beginnings of the names of drafts that are models, or heads, by themselves."""
READING = ("glide", "eagle3")
"""Drafters that are made for one target, which they may read."""
_KINDS = (*READING, "vanilla")
_MODELS = frozenset(_KINDS)
_DRAFTERS = _MODELS | {"ngram"}
_STOPS = frozenset(StopPolicy)
_DRAWN_SHAPES = frozenset({Shape.CHAIN, Shape.PRODUCT, Shape.CAPE})

VERIFICATIONS: dict[Verification, Capability] = {
    Verification.EXACT: Capability(
        "exact",
        frozenset(Shape) - {Shape.FORK},
        _STOPS,
        _DRAFTERS,
        "the same tokens as plain",
        extras=True,
    ),
    Verification.MCSD: Capability(
        "mcsd", _DRAWN_SHAPES, _STOPS, _MODELS, "cape leaves are drawn, without replacement"
    ),
    Verification.MCSD_REPLACEMENT: Capability(
        "mcsd-replacement",
        frozenset({Shape.CHAIN, Shape.PRODUCT}),
        _STOPS,
        _MODELS,
        "candidates may repeat",
    ),
    Verification.TARGET_INIT: Capability(
        "target-init", frozenset({Shape.FORK}), _STOPS, _MODELS, "NOT lossless"
    ),
}

DRAFTERS: dict[str, Capability] = {
    **{
        name: Capability(name, frozenset(Shape), _STOPS, frozenset({name}), extras=True)
        for name in _KINDS
    },
    "ngram": Capability(
        "ngram",
        frozenset({Shape.CHAIN, Shape.DYNAMIC}),
        frozenset({StopPolicy.FIXED}),
        frozenset({"ngram"}),
        "no distribution, hence no confidence and no entropy",
    ),
}


def check_combination(
    options: SpeculationOptions, drafter: str, *, has_decision_model: bool
) -> None:
    """Raises `UnsupportedCombination` when the parts asked for do not go together.

    What is left to the engine's default is not looked at: defaults fit.
    """
    _check_drafter(drafter)
    mode = options.verification or Verification.EXACT
    for capability in _rows(options, drafter):
        _check_part(capability, "shape", options.shape, capability.shapes)
        _check_part(capability, "stop", options.stop, capability.stops)
    if drafter not in VERIFICATIONS[mode].drafters:
        raise UnsupportedCombination(
            f"verification {mode.value} does not go with drafter {drafter}"
        )
    if options.lookup:
        _check_lookup(mode, drafter)
    if options.stop is StopPolicy.DECISION and not has_decision_model:
        raise UnsupportedCombination("stop decision needs a decision model, but none is loaded")


def fitting_shape(options: SpeculationOptions, default: Shape, *, drafter: str) -> Shape:
    """The shape asked for, or `default`, or else the first one that the other parts go with."""
    fitting = [row.shapes for row in _rows(options, drafter)]
    return options.shape or next(it for it in (default, *Shape) if all(it in of for of in fitting))


def fitting_stop(options: SpeculationOptions, default: StopPolicy, *, drafter: str) -> StopPolicy:
    """The stop policy asked for, or `default`, or else the first one the drafter can serve."""
    stops = (default, *StopPolicy)
    return options.stop or next(it for it in stops if it in DRAFTERS[drafter].stops)


def fits_extras(options: SpeculationOptions, drafter: str) -> bool:
    """Return whether copies may stand beside this drafter's proposals with these options, and it
    may go on while they are verified."""
    return all(row.extras for row in _rows(options, drafter))


def _rows(options: SpeculationOptions, drafter: str) -> tuple[Capability, Capability]:
    return VERIFICATIONS[options.verification or Verification.EXACT], DRAFTERS[drafter]


def _check_lookup(mode: Verification, drafter: str) -> None:
    if not VERIFICATIONS[mode].extras:
        raise UnsupportedCombination(f"lookup goes with verification exact, not {mode.value}")
    if not DRAFTERS[drafter].extras:
        raise UnsupportedCombination(
            f"lookup stands beside a draft that is a model, but {drafter} is lookup already"
        )


def _check_part(
    capability: Capability, name: str, value: StrEnum | None, fits: Set[StrEnum]
) -> None:
    if value is not None and value not in fits:
        known = ", ".join(sorted(fits))
        raise UnsupportedCombination(
            f"{name} {value.value} does not go with {capability.name}, which takes {known}"
        )


def _check_drafter(kind: str) -> None:
    check(kind in DRAFTERS, "the drafter", kind[:80], f"one of {', '.join(DRAFTERS)}")


def _check_range(name: str, value: int | None, limit: int) -> None:
    check(value is None or 1 <= value <= limit, name, value, f"from 1 to {limit}")
