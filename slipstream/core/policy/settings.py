"""Options of a request with nothing left open: as asked for, or else as calibrated. Pure."""

from dataclasses import dataclass, field

from slipstream.core.policy.backoff import GainPrior
from slipstream.core.policy.options import (
    Mode,
    SpeculationOptions,
    check_combination,
    fits_lookup,
    fits_overlap,
    fitting_shape,
    fitting_stop,
    num_product_nodes,
)
from slipstream.core.policy.overlap import OverlapGain
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS
from slipstream.core.tree import MAX_NODES, Copying
from slipstream.core.types import Shape, StopPolicy, Verification

DEFAULT_NUM_ROOTS = 4
DEFAULT_LOOKUP = 1
"""Shortest match that is copied where a request asks for lookup and the profile knows of none."""


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
    step_cost: float | None
    row_cost: float | None
    lookup: Copying | None
    overlap: bool | None = None
    """Drafting while a proposal is verified; None: where it is measured to pay."""
    step_s: float | None = None
    experience: GainPrior | None = field(default=None, compare=False)
    """Gain of earlier requests by the same draft."""
    overlap_gain: OverlapGain | None = field(default=None, compare=False)
    """Gain of its drafting during verifications; None where it can't do that."""

    @property
    def longest_path(self) -> int:
        """Most tokens on a path that a round may propose."""
        return max(self.max_draft_tokens, self.lookup.max_depth if self.lookup else 0)


def resolve(
    options: SpeculationOptions,
    profile: Profile,
    *,
    drafter: str,
    has_decision_model: bool,
    temperature: float = 0.0,
    step_s: float | None = None,
) -> Settings:
    """Fill `options` from `profile`; a draft step takes `step_s` seconds, if known.

    What is asked for by name is not cut to the profile's number of nodes. Raises
    `UnsupportedCombination` where they do not fit.
    """
    check_combination(options, drafter, has_decision_model=has_decision_model)
    verification = options.verification or Verification.EXACT
    stop = fitting_stop(options, profile.stop, drafter=drafter)
    inherits = options.threshold is None and stop is profile.stop
    widths = options.widths or ()
    usual_roots = DEFAULT_NUM_ROOTS if verification is Verification.TARGET_INIT else 1
    roots = options.num_roots or usual_roots
    max_nodes = options.max_nodes or max(profile.max_nodes, _nodes_asked(options, roots))
    return Settings(
        mode=options.mode,
        shape=fitting_shape(options, profile.shape, drafter=drafter),
        stop=stop,
        threshold=profile.threshold_at(temperature) if inherits else options.threshold,
        max_draft_tokens=len(widths) or options.max_draft_tokens or profile.max_depth,
        max_nodes=max_nodes,
        widths=widths,
        verification=verification,
        num_roots=roots,
        step_cost=profile.step_cost,
        row_cost=profile.row_cost,
        lookup=_copying(options, profile, max_nodes, drafter=drafter),
        overlap=options.overlap if fits_overlap(options, drafter) else False,
        step_s=step_s,
    )


def _nodes_asked(options: SpeculationOptions, num_roots: int) -> int:
    """Return the nodes that a request's widths, or paths of its length, make."""
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
    if not is_on or options.mode is Mode.OFF or not fits_lookup(options, drafter):
        return None
    depth = options.max_draft_tokens or min(max_nodes, MAX_DRAFT_TOKENS)
    shortest = profile.lookup or DEFAULT_LOOKUP
    return Copying(shortest, depth)
