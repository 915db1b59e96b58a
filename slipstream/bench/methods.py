"""Methods that a benchmark compares, named by a small grammar.

A method is a base and modifiers: `glide+cape+svip=0.4+depth=8`. Bare `glide` and `vanilla:MODEL`
are the classic: a chain of fixed length 5 in every round. `best` is the shipped default.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from slipstream.bench.harness import parse_names, require_distinct
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.policy.options import Mode, SpeculationOptions, check_combination
from slipstream.core.types import Shape, StopPolicy, Verification

Numerics = Literal["invariant", "fast"]
Base = Literal["plain", "ngram", "glide", "vanilla", "best"]

PLAIN = "plain"
CLASSIC_DEPTH = 5
GRAMMAR = (
    "a base (plain, ngram, glide, vanilla:MODEL or best) and any of +chain, +cape, +dynamic,"
    " +product=4x2x2, +fixed, +heuristic, +svip[=h], +decision[=h], +cost[=r], +depth=N, +nodes=N,"
    " +lookup, +no-lookup, +mcsd, +mcsd-replacement, +target-init, +forced, +auto,"
    " +invariant, +fast"
)

_VANILLA = "vanilla:"
_BASES: Mapping[str, Base] = {name: name for name in get_args(Base) if name != "vanilla"}
_DEFAULTS = {"auto": "best", "forced": "best+forced"}
"""Methods of requests that leave all or almost all to the engine."""
Read = Callable[[str | None], dict[str, Any]]
_FORMS: Mapping[str, str] = {
    "product": "product=4x2x2",
    "depth": "depth=5",
    "nodes": "nodes=16",
    "svip": "svip or svip=0.3",
    "decision": "decision or decision=0.4",
    "cost": "cost or cost=0.05",
}


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
        return self.base != PLAIN

    @property
    def reference(self) -> str:
        """Return the method whose outputs are plain decoding in this one's own numerics."""
        return PLAIN if self.numerics == "fast" else f"{PLAIN}+invariant"

    def is_comparable(self, *, is_greedy: bool) -> bool:
        """Return whether the same tokens as plain decoding are to be expected, near-ties aside."""
        verification = self.options.verification or Verification.EXACT
        if is_greedy:
            return verification.is_lossless
        return verification is Verification.EXACT

    def promises_identity(self, *, is_greedy: bool) -> bool:
        """Return whether the same tokens as plain decoding are promised, near-ties included."""
        return self.is_comparable(is_greedy=is_greedy) and self.numerics == "invariant"


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
    values: dict[str, Any] = {}
    for modifier in modifiers:
        _add(name, modifier, values)
    if base == PLAIN:
        return _plain(name, values)
    own: Numerics = values.pop("numerics", numerics)
    _fill(name, base, values)
    try:
        options = SpeculationOptions(**values)
        kind = "glide" if base == "best" else base
        check_combination(options, kind, has_decision_model=True)
    except InvalidRequest as error:
        raise type(error)(f"method {name!r}: {error}") from None
    return Method(name, base, own, options, model)


def parse_request_methods(text: str) -> tuple[Method, ...]:
    """Parse methods that one engine or router takes per request.

    Beside those of `parse_methods` there are `auto` (the default) and `forced` (the same in every
    round). Raises `InvalidRequest` for what needs another engine, draft model or other numerics.
    """
    return tuple(map(_request_method, parse_names(text, "method")))


def _request_method(name: str) -> Method:
    head, *modifiers = name.split("+")
    if numerics := sorted({"fast", "invariant"}.intersection(modifiers)):
        raise UnsupportedCombination(
            f"method {name!r} asks for numerics {numerics[0]}, but numerics are the engine's, not"
            " a request's"
        )
    method = parse_method("+".join([_DEFAULTS.get(head, head), *modifiers]))
    if method.base == "vanilla":
        raise UnsupportedCombination(
            f"method {name!r} needs an engine of its own; under load the methods are plain, auto,"
            " forced, and glide or ngram where that is the draft"
        )
    options = method.options
    if method.base in ("glide", "ngram"):
        options = replace(options, drafter=method.base)
    return replace(method, name=name, options=options)


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


def _plain(name: str, values: dict[str, Any]) -> Method:
    numerics: Numerics = values.pop("numerics", "fast")
    if values:
        raise UnsupportedCombination(
            f"method {name!r} drafts nothing, so {', '.join(values)} can't be set"
        )
    # "plain+fast" and "plain" are the same run under one name.
    canonical = f"{PLAIN}+invariant" if numerics == "invariant" else PLAIN
    return Method(canonical, "plain", numerics, SpeculationOptions(mode=Mode.OFF))


def _add(name: str, modifier: str, values: dict[str, Any]) -> None:
    """Add the options that a modifier sets, each at most once."""
    key, has_value, value = modifier.partition("=")
    read = _MODIFIERS.get(key)
    if read is None:
        raise InvalidRequest(
            f"method {name!r} has an unknown modifier {modifier!r}; a method is {GRAMMAR}"
        )
    try:
        given = read(value if has_value else None)
    except ValueError:
        raise InvalidRequest(
            f"method {name!r} has modifier {modifier!r}, which is not of the form"
            f" {_FORMS.get(key, key)}"
        ) from None
    for option, setting in given.items():
        if option in values:
            raise UnsupportedCombination(
                f"method {name!r} sets its {option.replace('_', ' ')} twice"
            )
        values[option] = setting


def _fill(name: str, base: Base, values: dict[str, Any]) -> None:
    """Add what the base means where no modifier differs."""
    if values.get("verification") is Verification.TARGET_INIT:
        values.setdefault("shape", Shape.FORK)
    if base == "best":
        return
    values.setdefault("mode", Mode.FORCED)
    values.setdefault("shape", Shape.CHAIN)
    values.setdefault("stop", StopPolicy.FIXED)
    values.setdefault("lookup", False)
    if values["stop"] is StopPolicy.FIXED and "widths" not in values and base != "ngram":
        values.setdefault("max_draft_tokens", CLASSIC_DEPTH)


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
