"""What is calibrated for a pair of models: the defaults of requests. A value."""

import math
from dataclasses import dataclass, field

from slipstream.core.cape import PAPER_TABLE
from slipstream.core.errors import InvalidRequest
from slipstream.core.options import MAX_NODES
from slipstream.core.stop import MAX_DRAFT_TOKENS, Calibration, make_stop
from slipstream.core.types import Shape, StopPolicy


@dataclass(frozen=True, slots=True)
class Profile:
    """Calibrated defaults of one pair of models.

    `calibration` maps the draft's confidence to the probability of acceptance. Greedy requests and
    sampled ones agree with a draft differently, hence a threshold and a calibration for each. What
    followed an earlier match of `lookup` tokens or more is copied (0: nothing is), and the draft is
    not asked where `lookup_alone` copied tokens are expected to be kept.

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
    lookup_alone: float = 4.0
    cape_table: tuple[int, ...] = PAPER_TABLE
    calibration: Calibration = field(default_factory=Calibration)
    calibration_sampled: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= MAX_DRAFT_TOKENS:
            raise InvalidRequest(f"a profile's max_depth is {self.max_depth}, not 1 to 40")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise InvalidRequest(f"a profile's max_nodes is {self.max_nodes}, not 1 to 127")
        for name in ("step_cost", "row_cost", "lookup", "lookup_alone"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
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
