"""Methods that a benchmark compares, named by a small grammar, and their engines.

A method is a base and modifiers: `glide+cape+svip=0.4+depth=8`. Bare `glide`, `eagle3` and
`vanilla:MODEL` are the classic: a chain of fixed length 5 in every round. `best`, or `auto`, is the
default of the draft, and `forced` the same in every round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from slipstream.bench.harness import require_distinct
from slipstream.client import Client
from slipstream.client.embedded import Embedded
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest, UnsupportedCombination, refused_as
from slipstream.core.policy.options import Mode, SpeculationOptions, check_combination
from slipstream.core.types import Shape, StopPolicy, Verification
from slipstream.drafting.build import Drafter, DraftModel
from slipstream.models.format.digests import weights_digests
from slipstream.models.glide.load import glide_folder

Base = Literal["plain", "ngram", "glide", "eagle3", "vanilla", "best"]

PLAIN = "plain"
CLASSIC_DEPTH = 5
GRAMMAR = (
    "a base (plain, ngram, glide, eagle3, vanilla:MODEL, best, auto or forced) and any of +chain,"
    " +cape, +dynamic, +product=4x2x2, +fixed, +svip[=h], +decision[=h], +cost[=r], +depth=N,"
    " +nodes=N, +lookup, +no-lookup, +mcsd, +mcsd-replacement, +target-init, +forced, +auto"
)

_VANILLA = "vanilla:"
_BASES: Mapping[str, Base] = {name: name for name in get_args(Base) if name != "vanilla"}
_ALIASES = {"auto": "best", "forced": "best+forced"}
_WORDS: Mapping[str, Mapping[str, Any]] = {
    **{shape.value: {"shape": shape} for shape in (Shape.CHAIN, Shape.CAPE, Shape.DYNAMIC)},
    **{stop.value: {"stop": stop} for stop in StopPolicy},
    **{mode.value: {"verification": mode} for mode in Verification if mode.value != "exact"},
    **{mode.value: {"mode": mode} for mode in (Mode.FORCED, Mode.AUTO)},
    "lookup": {"lookup": True},
    "no-lookup": {"lookup": False},
}
"""Modifiers without a value."""
_THRESHOLDS = (StopPolicy.SVIP, StopPolicy.DECISION, StopPolicy.COST)
_VALUES: Mapping[str, tuple[str, Callable[[str], Any], Mapping[str, Any], str]] = {
    "depth": ("max_draft_tokens", int, {}, "depth=5"),
    "nodes": ("max_nodes", int, {}, "nodes=16"),
    "product": (
        "widths",
        lambda text: tuple(map(int, text.split("x"))),
        {"shape": Shape.PRODUCT},
        "product=4x2x2",
    ),
    **{
        stop.value: ("threshold", float, {"stop": stop}, f"{stop.value} or {stop.value}=0.3")
        for stop in _THRESHOLDS
    },
}
"""Modifiers with a value: its option, how it is read, further options, and the form."""


@dataclass(frozen=True, slots=True)
class Method:
    """Way to decode. `model` is the draft model of base `vanilla`."""

    name: str
    base: Base
    options: SpeculationOptions
    model: str | None = None

    def is_comparable(self, *, is_greedy: bool) -> bool:
        """Return whether the same tokens as plain decoding are to be expected, near-ties aside."""
        verification = self.options.verification or Verification.EXACT
        if is_greedy:
            return verification.is_lossless
        return verification is Verification.EXACT


def parse_methods(text: str) -> tuple[Method, ...]:
    """Parse a list with commas. Raises `InvalidRequest` for what grammar or engines don't know."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidRequest(f"the methods are {text!r}, but must be names with commas between")
    methods = tuple(parse_method(name) for name in names)
    require_distinct([method.name for method in methods], "method")
    return methods


def parse_method(name: str) -> Method:
    """Parse one method by name. See `parse_methods`."""
    head, *modifiers = name.split("+")
    head, *more = _ALIASES.get(head, head).split("+")
    base, model = _base(name, head)
    values: dict[str, Any] = {}
    for modifier in (*more, *modifiers):
        _add(name, modifier, values)
    if base == PLAIN:
        if values:
            raise UnsupportedCombination(
                f"method {name!r} drafts nothing, so {', '.join(values)} can't be set"
            )
        return Method(name, base, SpeculationOptions(mode=Mode.OFF))
    _fill(base, values)
    with refused_as(f"method {name!r}:"):
        options = SpeculationOptions(**values)
        kind = "glide" if base == "best" else base
        check_combination(options, kind, has_decision_model=True)
    return Method(name, base, options, model)


def parse_request_methods(text: str) -> tuple[Method, ...]:
    """Parse methods that one engine or router takes per request. Raises `InvalidRequest` for what
    needs another engine or draft model."""
    methods = parse_methods(text)
    for method in methods:
        if method.base == "vanilla":
            raise UnsupportedCombination(
                f"method {method.name!r} needs an engine of its own; under load the methods are"
                " plain, auto, forced, and glide or ngram where that is the draft"
            )
    return methods


def with_plain(methods: Sequence[Method]) -> tuple[Method, ...]:
    """Return `methods` with plain decoding, which they are compared with."""
    has_plain = any(method.name == PLAIN for method in methods)
    return tuple(methods) if has_plain else (parse_method(PLAIN), *methods)


def _base(name: str, head: str) -> tuple[Base, str | None]:
    if head.startswith(_VANILLA):
        model = head.removeprefix(_VANILLA)
        if not model:
            raise InvalidRequest(f"method {name!r} names no model, as vanilla:smollm2-135m does")
        return "vanilla", model
    if head not in _BASES:
        raise InvalidRequest(f"method {name!r} is unknown; a method is {GRAMMAR}")
    return _BASES[head], None


def _add(name: str, modifier: str, values: dict[str, Any]) -> None:
    """Add the options that a modifier sets, each at most once."""
    key, has_value, text = modifier.partition("=")
    option, read, more, form = _VALUES.get(key, ("", str, {}, key))
    if key not in _WORDS and not option:
        raise InvalidRequest(
            f"method {name!r} has an unknown modifier {modifier!r}; a method is {GRAMMAR}"
        )
    try:
        given = {**more, option: read(text)} if has_value and option else _WORDS[modifier]
    except (KeyError, ValueError):
        raise InvalidRequest(
            f"method {name!r} has modifier {modifier!r}, which is not of the form {form}"
        ) from None
    for field, setting in given.items():
        if field in values:
            raise UnsupportedCombination(
                f"method {name!r} sets its {field.replace('_', ' ')} twice"
            )
        values[field] = setting


def _fill(base: Base, values: dict[str, Any]) -> None:
    """Add what the base means where no modifier differs."""
    if values.get("verification") is Verification.TARGET_INIT:
        values.setdefault("shape", Shape.FORK)
    if base == "best":
        return
    if base != "vanilla":
        values["drafter"] = base
    values.setdefault("mode", Mode.FORCED)
    values.setdefault("shape", Shape.CHAIN)
    values.setdefault("stop", StopPolicy.FIXED)
    values.setdefault("lookup", False)
    if values["stop"] is StopPolicy.FIXED and "widths" not in values and base != "ngram":
        values.setdefault("max_draft_tokens", CLASSIC_DEPTH)


class MethodEngines:
    """The methods of one run over one target, which they share; drafts where they can be."""

    def __init__(
        self, target: str, draft: str, options: EngineOptions, profile: Path | None = None
    ) -> None:
        """`draft` is that of glide and best: glide, a directory of weights or vanilla:MODEL;
        `profile` is a file that takes the place of its own profile."""
        self._target = target
        self._draft = draft
        self._options = options
        self._profile = profile
        self._drafters: dict[str, Drafter] = {}
        self.draft_digests: dict[str, str] = {}
        """SHA-256 of the GliDe weights when they were loaded, by file; empty without any."""

    def load(self, method: Method) -> None:
        """Load the models of a method; raises `ModelError` or `InvalidRequest` where it can't."""
        with refused_as(f"method {method.name!r}:"), self.client(method).session() as session:
            # Everything about a request is checked when it is made; this one never runs.
            session.stream((0,), max_tokens=1, speculation=method.options)

    @cached_property
    def engine(self) -> Engine:
        """The target, loaded when it is first needed."""
        return Engine.load(self._target, self._options, draft=self._draft)

    def draft_model(self) -> DraftModel:
        """Return the draft for the target, without a profile."""
        return self.engine.draft_model(self._draft)

    def client(self, method: Method) -> Client:
        return Client.of(Embedded(self.engine, self._drafter(method)))

    def _drafter(self, method: Method) -> Drafter:
        # As engines name drafts: a target alone has none.
        names = {"plain": "none", "ngram": "ngram", "vanilla": f"vanilla:{method.model}"}
        name = names.get(method.base, self._draft)
        if name not in self._drafters:
            profile = self._profile if name == self._draft else None
            drafter = self.engine.drafter(name, profile=profile)
            if drafter.kind == "glide":
                self.draft_digests = weights_digests(
                    glide_folder(self._draft, self.engine.model_id)
                )
            self._drafters[name] = drafter
        return self._drafters[name]
