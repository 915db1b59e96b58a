"""Profile of a pair of models, and what a request's options are with it. Values."""

import math
from dataclasses import dataclass, field
from functools import lru_cache

from slipstream.core.draft.cape import PAPER_TABLE
from slipstream.core.errors import InvalidRequest, check
from slipstream.core.policy.backoff import FormerGains, GainHistory
from slipstream.core.policy.options import (
    Mode,
    SpeculationOptions,
    check_combination,
    fits_extras,
    fitting_shape,
    fitting_stop,
    num_product_nodes,
)
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS, Calibration, make_stop
from slipstream.core.tree import MAX_NODES, Copying
from slipstream.core.types import Shape, StopPolicy, Verification

DEFAULT_NUM_ROOTS = 4
DEFAULT_LOOKUP = 1
"""Shortest match that is copied where a request asks for lookup and the profile knows of none."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Calibrated defaults of one pair of models.

    `calibration` maps the draft's confidence to the probability of acceptance. Greedy requests and
    sampled ones agree with a draft differently, hence a threshold and a calibration for each. What
    followed an earlier match of `lookup` tokens or more is copied (0: nothing is).

    The time of a draft step, `step_cost`, and that of one more token to verify, `row_cost`, both
    over that of a plain round, belong to a machine: None is what is measured there.
    """

    shape: Shape = Shape.CAPE
    stop: StopPolicy = StopPolicy.SVIP
    threshold: float | None = None
    threshold_sampled: float | None = None
    max_depth: int = 8
    max_nodes: int = 31
    step_cost: float | None = None
    row_cost: float | None = None
    lookup: int = 0
    cape_table: tuple[int, ...] = PAPER_TABLE
    calibration: Calibration = field(default_factory=Calibration)
    calibration_sampled: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        for name, most in (("max_depth", MAX_DRAFT_TOKENS), ("max_nodes", MAX_NODES)):
            value = getattr(self, name)
            check(1 <= value <= most, f"a profile's {name}", value, f"from 1 to {most}")
        for name in ("step_cost", "row_cost", "lookup"):
            value = getattr(self, name)
            is_right = value is None or 0 <= value < math.inf
            check(is_right, f"a profile's {name}", value, "0 or more")
        if self.shape in (Shape.PRODUCT, Shape.FORK):
            raise InvalidRequest(f"a profile's shape is {self.shape.value}, which needs a request")
        table = self.cape_table
        is_right = bool(table) and min(table) >= 0
        check(is_right, "a profile's cape_table", table, "counts of 0 or more")
        for threshold in (self.threshold, self.threshold_sampled):
            make_stop(self.stop, threshold, cost_ratio=1.0)

    def calibration_at(self, temperature: float) -> Calibration:
        return self.calibration_sampled if temperature else self.calibration


@dataclass(eq=False, slots=True)
class Ways:
    """Ways between services, in seconds there and back, as former requests of a target saw them."""

    granted_s: float | None = None
    """Way of a granted round outside the target's engine; None: none was seen."""
    draft_s: float = 0.0
    """Way of a proposal outside the draft's engine."""
    asked_s: float = 0.0
    """Way of a round that the router asks for, beyond that of a granted one."""
    opening_s: float = 0.0
    """Wait for the first proposal of a session."""


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """Facts of a draft, as it describes itself: its kind, calibrated defaults and abilities.

    `kind` is glide, eagle3, vanilla, ngram or none; `max_lag` is the longest path it was trained
    for; `step_s` is what a draft step took when it was loaded, in seconds.
    """

    kind: str
    profile: Profile = field(default_factory=Profile)
    has_decision_model: bool = False
    max_lag: int | None = None
    step_s: float | None = None
    ways: Ways = field(default_factory=Ways, compare=False)
    history: GainHistory = field(
        default_factory=lambda: lru_cache(64)(lambda _: FormerGains()), compare=False
    )
    """Gains of former requests, of the kinds that came last."""


NGRAM = DraftFacts(
    "ngram",
    Profile(shape=Shape.DYNAMIC, stop=StopPolicy.FIXED, step_cost=0.0, max_depth=8, max_nodes=15),
)
"""Facts of this draft."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A request's options with nothing left open."""

    mode: Mode
    shape: Shape
    stop: StopPolicy
    threshold: float | None
    max_draft_tokens: int
    max_nodes: int
    widths: tuple[int, ...]
    verification: Verification
    num_roots: int
    lookup: Copying | None
    is_sampled: bool
    draft: DraftFacts = field(compare=False)

    @property
    def longest_path(self) -> int:
        """Most tokens on a path that a round may propose."""
        return max(self.max_draft_tokens, self.lookup.max_depth if self.lookup else 0)


def resolve(
    options: SpeculationOptions, draft: DraftFacts, *, temperature: float = 0.0
) -> Settings:
    """Fill `options` from the profile of a draft.

    What is asked for by name is not cut to the profile's number of nodes. Raises
    `UnsupportedCombination` where they do not fit.
    """
    profile, drafter = draft.profile, draft.kind
    check_combination(options, drafter, has_decision_model=draft.has_decision_model)
    verification = options.verification or Verification.EXACT
    stop = fitting_stop(options, profile.stop, drafter=drafter)
    threshold = options.threshold
    if threshold is None and stop is profile.stop:
        threshold = profile.threshold_sampled if temperature else profile.threshold
    widths = options.widths or ()
    usual_roots = DEFAULT_NUM_ROOTS if verification is Verification.TARGET_INIT else 1
    roots = options.num_roots or usual_roots
    max_nodes = options.max_nodes or max(profile.max_nodes, _nodes_asked(options, roots))
    return Settings(
        mode=options.mode,
        shape=fitting_shape(options, profile.shape, drafter=drafter),
        stop=stop,
        threshold=threshold,
        max_draft_tokens=len(widths) or options.max_draft_tokens or profile.max_depth,
        max_nodes=max_nodes,
        widths=widths,
        verification=verification,
        num_roots=roots,
        lookup=_copying(options, profile, max_nodes, drafter=drafter),
        is_sampled=temperature > 0,
        draft=draft,
    )


def _nodes_asked(options: SpeculationOptions, num_roots: int) -> int:
    if options.widths:
        return num_product_nodes(options.widths)
    if options.max_draft_tokens is None:
        return 0
    is_rooted = options.verification is Verification.TARGET_INIT
    return min(num_roots * (options.max_draft_tokens + is_rooted), MAX_NODES)


def _copying(
    options: SpeculationOptions, profile: Profile, max_nodes: int, *, drafter: str
) -> Copying | None:
    """Return the copies beside the draft; a default that does not fit gives way."""
    is_on = profile.lookup > 0 if options.lookup is None else options.lookup
    if not is_on or options.mode is Mode.OFF or not fits_extras(options, drafter):
        return None
    depth = options.max_draft_tokens or min(max_nodes, MAX_DRAFT_TOKENS)
    shortest = profile.lookup or DEFAULT_LOOKUP
    return Copying(shortest, depth)
