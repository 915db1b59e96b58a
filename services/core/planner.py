"""How much to draft in the next round. Pure; knows no model, no clock and neither engine.

`resolve` fills a request's options with the engine's calibrated defaults; `Planner` then plans
round after round and learns from each verdict.
"""

import math
from dataclasses import dataclass, field

from slipstream.core.calibration import Calibration
from slipstream.core.cape import PAPER_TABLE
from slipstream.core.errors import InvalidRequest
from slipstream.core.options import (
    MAX_NODES,
    Mode,
    SpeculationOptions,
    check_combination,
    fitting_shape,
    fitting_stop,
    num_product_nodes,
)
from slipstream.core.stop import MAX_DRAFT_TOKENS, HeuristicLength, make_stop
from slipstream.core.types import Plan, Proposal, Shape, StopPolicy, Verdict, Verification

DEFAULT_NUM_ROOTS = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """Calibrated defaults of one pair of models on one machine.

    `step_cost` is the time of a draft step, and `row_cost` that of one more row to verify, both
    over that of a plain round; `calibration` is what the draft's confidence is worth. Greedy
    requests and sampled ones agree with a draft differently, hence a threshold and a calibration
    for each.
    """

    shape: Shape = Shape.CAPE
    stop: StopPolicy = StopPolicy.SVIP
    threshold: float | None = None
    threshold_sampled: float | None = None
    max_depth: int = 8
    max_nodes: int = 31
    step_cost: float = 0.05
    row_cost: float = 0.0
    cape_table: tuple[int, ...] = PAPER_TABLE
    calibration: Calibration = field(default_factory=Calibration)
    calibration_sampled: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= MAX_DRAFT_TOKENS:
            raise InvalidRequest(f"a profile's max_depth is {self.max_depth}, not 1 to 40")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise InvalidRequest(f"a profile's max_nodes is {self.max_nodes}, not 1 to 127")
        for name in ("step_cost", "row_cost"):
            if not 0 <= getattr(self, name) < math.inf:
                value = getattr(self, name)
                raise InvalidRequest(f"a profile's {name} is {value}, not 0 or more")
        if self.shape in (Shape.PRODUCT, Shape.FORK):
            raise InvalidRequest(f"a profile's shape is {self.shape.value}, which needs a request")
        if not self.cape_table or min(self.cape_table) < 0:
            raise InvalidRequest(
                f"a profile's cape_table is {self.cape_table}, but needs counts of 0 or more"
            )
        for threshold in (self.threshold, self.threshold_sampled):
            make_stop(self.stop, threshold, cost_ratio=1.0)

    def threshold_at(self, temperature: float) -> float | None:
        """The threshold of its stop policy, for requests at this temperature."""
        return self.threshold_sampled if temperature else self.threshold

    def calibration_at(self, temperature: float) -> Calibration:
        """What the draft's confidence is worth at this temperature."""
        return self.calibration_sampled if temperature else self.calibration


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
    step_cost: float
    row_cost: float


def resolve(
    options: SpeculationOptions,
    profile: Profile,
    *,
    drafter: str,
    has_decision_model: bool,
    temperature: float = 0.0,
) -> Settings:
    """Fill `options` from `profile`. Raises `UnsupportedCombination` where they do not fit."""
    check_combination(options, drafter, has_decision_model=has_decision_model)
    verification = options.verification or Verification.EXACT
    stop = fitting_stop(options, profile.stop, drafter=drafter)
    inherits = options.threshold is None and stop is profile.stop
    max_draft_tokens = options.max_draft_tokens or profile.max_depth
    widths = (options.widths or ())[:max_draft_tokens]
    roots = options.num_roots or DEFAULT_NUM_ROOTS
    return Settings(
        mode=options.mode,
        shape=fitting_shape(options, profile.shape, drafter=drafter),
        stop=stop,
        threshold=profile.threshold_at(temperature) if inherits else options.threshold,
        max_draft_tokens=len(widths) or max_draft_tokens,
        max_nodes=options.max_nodes or profile.max_nodes,
        widths=widths,
        verification=verification,
        num_roots=roots if verification is Verification.TARGET_INIT else 1,
        step_cost=profile.step_cost,
        row_cost=profile.row_cost,
    )


class Planner:
    """Plans the rounds of one request."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        cap = settings.max_draft_tokens
        self._length = HeuristicLength(min(HeuristicLength().length, cap), cap)
        self._backoff = Backoff()

    @property
    def settings(self) -> Settings:
        return self._settings

    def plan(self, remaining: int, verdict: Verdict) -> Plan:
        """The next round after `verdict`, with `remaining` tokens until the request's limit.

        A plan of depth 0 is a plain round: when speculation is off, does not pay, has no rows
        to spare, or when the target's own token is the last one allowed.
        """
        if self._settings.verification is Verification.TARGET_INIT:
            return self._forest(remaining, verdict)
        nodes = self._free_nodes(verdict)
        depth = min(self._depth(), remaining - 1, self._fitting_depth(nodes))
        if depth < 1 or not self._speculates():
            return Plan(max_depth=0, max_nodes=0)
        return self._shaped(depth, nodes)

    def record(self, proposal: Proposal, verdict: Verdict) -> None:
        """Learn from a round. One in which no draft proposed anything teaches nothing."""
        depth = max(proposal.tree.depths(), default=0)
        if depth == 0 or proposal.fallback is not None:
            return
        self._length = self._length.after(all_accepted=verdict.num_accepted == depth)
        if verdict.finish_reason is None:  # a last round is cut short for reasons of its own
            costs = self._settings
            cost = 1 + depth * costs.step_cost + len(proposal.tree) * costs.row_cost
            self._backoff.record(len(verdict.tokens) / cost)

    def _speculates(self) -> bool:
        if self._settings.mode is Mode.AUTO:
            return self._backoff.allows()
        return self._settings.mode is Mode.FORCED

    def _depth(self) -> int:
        if self._settings.stop is StopPolicy.HEURISTIC:
            return self._length.length
        return self._settings.max_draft_tokens

    def _fitting_depth(self, nodes: int) -> int:
        """The longest path of a tree that has no more than `nodes` nodes."""
        widths = self._settings.widths
        if not widths:
            return nodes
        depths = range(len(widths) + 1)
        return max(depth for depth in depths if num_product_nodes(widths[:depth]) <= nodes)

    def _free_nodes(self, verdict: Verdict) -> int:
        """Nodes that cost the target nothing; forced speculation has one in any case."""
        if verdict.free_rows is None:
            return self._settings.max_nodes
        least = 1 if self._settings.mode is Mode.FORCED else 0
        return min(self._settings.max_nodes, max(verdict.free_rows - 1, least))

    def _forest(self, remaining: int, verdict: Verdict) -> Plan:
        """Chains under the roots. Their own level needs no drafting, and no round goes without:
        a slot whose roots are drawn can't be decoded plainly."""
        roots = verdict.roots
        nodes = max(self._free_nodes(verdict), len(roots))
        depth = min(1 + self._depth(), remaining, nodes // max(len(roots), 1))
        return self._shaped(max(depth, 1), nodes, roots)

    def _shaped(self, depth: int, nodes: int, roots: tuple[int, ...] = ()) -> Plan:
        settings = self._settings
        return Plan(
            max_depth=depth,
            max_nodes=nodes,
            shape=settings.shape,
            stop=settings.stop,
            threshold=settings.threshold,
            widths=settings.widths[:depth],
            roots=roots,
        )


class Backoff:
    """Turns speculation off while it does not pay, and tries again at growing intervals.

    The gain of a round is its tokens over its time in plain rounds; a running average of it
    below 1 means that plain decoding is faster.
    """

    WEIGHT = 0.2
    FIRST_GAIN = 2.0
    FIRST_PAUSE = 4
    LONGEST_PAUSE = 64

    def __init__(self) -> None:
        self._gain = self.FIRST_GAIN
        self._pause = self.FIRST_PAUSE
        self._plain_rounds_left = 0

    @property
    def gain(self) -> float:
        """Running average of tokens per round over cost per round."""
        return self._gain

    def record(self, gain: float) -> None:
        """Take in a round that speculated."""
        self._gain += self.WEIGHT * (gain - self._gain)
        if self._gain >= 1:
            self._pause = self.FIRST_PAUSE
            return
        self._plain_rounds_left = self._pause
        self._pause = min(2 * self._pause, self.LONGEST_PAUSE)

    def allows(self) -> bool:
        """Whether to speculate in the round now planned."""
        if self._plain_rounds_left == 0:
            return True
        self._plain_rounds_left -= 1
        return False
