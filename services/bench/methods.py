"""Methods that a benchmark compares, named by a small grammar. Pure; loads no model.

A method is a base and modifiers: `glide+cape+svip=0.4+depth=8`. Bare `glide` and `vanilla:MODEL`
are the classic: a chain of fixed length 5 in every round. `best` is the shipped default.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slipstream.bench.harness import parse_names, require_distinct
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.options import Mode, SpeculationOptions, check_combination
from slipstream.core.types import Shape, StopPolicy, Verification

Numerics = Literal["invariant", "fast"]
Base = Literal["plain", "hf", "ngram", "glide", "vanilla", "best"]

PLAIN = "plain"
CLASSIC_DEPTH = 5
GRAMMAR = (
    "a base (plain, hf, ngram, glide, vanilla:MODEL or best) and any of +chain, +cape, +dynamic,"
    " +product=4x2x2, +fixed, +heuristic, +svip[=h], +decision[=h], +cost[=r], +depth=N, +nodes=N,"
    " +lookup, +no-lookup, +mcsd, +mcsd-replacement, +target-init, +forced, +auto,"
    " +invariant, +fast"
)

_VANILLA = "vanilla:"
_BASES: Mapping[str, Base] = {
    "plain": "plain",
    "hf": "hf",
    "ngram": "ngram",
    "glide": "glide",
    "best": "best",
}
_UNDRAFTED = frozenset({"plain", "hf"})


@dataclass(frozen=True, slots=True)
class Method:
    """Way to decode. `model` is the draft model of base `vanilla`."""

    name: str
    base: Base
    numerics: Numerics
    options: SpeculationOptions
    model: str | None = None

    @property
    def is_drafting(self) -> bool:
        """Return whether it is meant to draft anything."""
        return self.base not in _UNDRAFTED

    @property
    def reference(self) -> str:
        """Return the method whose outputs are plain decoding in this one's own numerics."""
        return PLAIN if self.numerics == "fast" else f"{PLAIN}+invariant"

    def is_comparable(self, *, is_greedy: bool) -> bool:
        """Return whether the same tokens as plain decoding are to be expected, near-ties aside."""
        verification = self.options.verification or Verification.EXACT
        if is_greedy:
            return verification.is_lossless
        return self.base != "hf" and verification is Verification.EXACT

    def promises_identity(self, *, is_greedy: bool) -> bool:
        """Return whether the same tokens as plain decoding are promised, near-ties included."""
        is_exact = self.is_comparable(is_greedy=is_greedy)
        return is_exact and self.base != "hf" and self.numerics == "invariant"


def parse_methods(text: str, *, numerics: Numerics = "invariant") -> tuple[Method, ...]:
    """Parse a list with commas; `numerics` are those of drafting methods.

    Raises `InvalidRequest` for anything that the grammar or the engines don't know.
    """
    names = parse_names(text, "method")
    methods = tuple(parse_method(name, numerics=numerics) for name in names)
    require_distinct([method.name for method in methods], "method")
    return methods


def parse_method(name: str, *, numerics: Numerics = "invariant") -> Method:
    """Parse one method by name. See `parse_methods`."""
    head, *modifiers = name.split("+")
    base, model = _base(name, head)
    parts = _Parts(name)
    for modifier in modifiers:
        parts.add(modifier)
    if base in _UNDRAFTED:
        return _undrafted(name, base, parts)
    own: Numerics = parts.values.pop("numerics", numerics)
    parts.fill(base)
    try:
        options = SpeculationOptions(**parts.values)
        kind = "glide" if base == "best" else base
        check_combination(options, kind, has_decision_model=True)
    except InvalidRequest as error:
        raise type(error)(f"method {name!r}: {error}") from None
    return Method(name, base, own, options, model)


def with_references(methods: Sequence[Method]) -> tuple[Method, ...]:
    """Return `methods` behind plain decoding in every numerics that they are compared in."""
    wanted = dict.fromkeys([PLAIN, *(m.reference for m in methods if m.is_drafting)])
    named = {method.name for method in methods}
    added = [parse_method(name) for name in wanted if name not in named]
    return (*added, *methods)


def _base(name: str, head: str) -> tuple[Base, str | None]:
    if head.startswith(_VANILLA):
        model = head.removeprefix(_VANILLA)
        if not model:
            raise InvalidRequest(f"method {name!r} names no model, as vanilla:smollm2-135m does")
        return "vanilla", model
    if head not in _BASES:
        raise InvalidRequest(f"method {name!r} is unknown; a method is {GRAMMAR}")
    return _BASES[head], None


def _undrafted(name: str, base: Base, parts: "_Parts") -> Method:
    numerics: Numerics = "fast"
    if base == "plain":
        numerics = parts.values.pop("numerics", numerics)
    if parts.values:
        raise UnsupportedCombination(
            f"method {name!r} drafts nothing, so {', '.join(parts.values)} can't be set"
        )
    # "plain+fast" and "plain" are the same run under one name.
    canonical = f"{PLAIN}+invariant" if numerics == "invariant" else base
    return Method(canonical, base, numerics, SpeculationOptions(mode=Mode.OFF))


@dataclass(slots=True)
class _Parts:
    """Options as the modifiers of one method set them, each at most once."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, modifier: str) -> None:
        key, has_value, value = modifier.partition("=")
        read = _MODIFIERS.get(key)
        if read is None:
            raise InvalidRequest(
                f"method {self.name!r} has an unknown modifier {modifier!r}; a method is {GRAMMAR}"
            )
        try:
            given = read(value if has_value else None)
        except ValueError:
            raise InvalidRequest(
                f"method {self.name!r} has modifier {modifier!r}, which is not of the form"
                f" {_FORMS.get(key, key)}"
            ) from None
        for option, setting in given.items():
            if option in self.values:
                raise UnsupportedCombination(
                    f"method {self.name!r} sets its {option.replace('_', ' ')} twice"
                )
            self.values[option] = setting

    def fill(self, base: Base) -> None:
        """Add what the base means where no modifier differs."""
        values = self.values
        if values.get("verification") is Verification.TARGET_INIT:
            values.setdefault("shape", Shape.FORK)
        if "widths" in values and "max_draft_tokens" in values:
            raise UnsupportedCombination(
                f"method {self.name!r}: product has a depth already, so depth can't be set"
            )
        if base == "best":
            return
        values.setdefault("mode", Mode.FORCED)
        values.setdefault("shape", Shape.CHAIN)
        values.setdefault("stop", StopPolicy.FIXED)
        values.setdefault("lookup", False)
        is_classic = values["stop"] is StopPolicy.FIXED and "widths" not in values
        if is_classic and base != "ngram":
            values.setdefault("max_draft_tokens", CLASSIC_DEPTH)


Read = Callable[[str | None], dict[str, Any]]


def _flag(**settings: Any) -> Read:
    def read(value: str | None) -> dict[str, Any]:
        if value is not None:
            raise ValueError(value)
        return settings

    return read


def _number(option: str) -> Read:
    return lambda value: {option: int(value or "")}


def _stop(policy: StopPolicy) -> Read:
    def read(value: str | None) -> dict[str, Any]:
        return {"stop": policy} | ({} if value is None else {"threshold": float(value)})

    return read


def _product(value: str | None) -> dict[str, Any]:
    return {"shape": Shape.PRODUCT, "widths": tuple(int(w) for w in (value or "").split("x"))}


def _flags(option: str, values: Iterable[Any]) -> dict[str, Read]:
    return {str(value): _flag(**{option: value}) for value in values}


_MODIFIERS: Mapping[str, Read] = {
    **_flags("shape", (Shape.CHAIN, Shape.CAPE, Shape.DYNAMIC)),
    "product": _product,
    **_flags("stop", (StopPolicy.FIXED, StopPolicy.HEURISTIC)),
    **{
        policy.value: _stop(policy)
        for policy in (StopPolicy.SVIP, StopPolicy.DECISION, StopPolicy.COST)
    },
    "depth": _number("max_draft_tokens"),
    "nodes": _number("max_nodes"),
    "lookup": _flag(lookup=True),
    "no-lookup": _flag(lookup=False),
    **_flags("verification", set(Verification) - {Verification.EXACT}),
    **_flags("mode", (Mode.FORCED, Mode.AUTO)),
    **_flags("numerics", ("invariant", "fast")),
}
_FORMS: Mapping[str, str] = {
    "product": "product=4x2x2",
    "depth": "depth=5",
    "nodes": "nodes=16",
    "svip": "svip or svip=0.3",
    "decision": "decision or decision=0.4",
    "cost": "cost or cost=0.05",
}
