"""What a target has for a session's next round. A value; how it comes about is elsewhere."""

import math
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest
from slipstream.core.row_costs import RowCosts


@dataclass(frozen=True, slots=True)
class Offer:
    """What the target has for a session's next round: up to `rows` tokens, the pending one's too.

    A plain round takes `round_s` seconds, and one of more tokens what `costs` says; None: unknown.
    """

    rows: int
    round_s: float | None = None
    costs: RowCosts | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise InvalidRequest(f"{self.rows} rows are offered, but every round has one")
        if self.round_s is not None and not 0 <= self.round_s < math.inf:
            raise InvalidRequest(f"an offer's round_s is {self.round_s}, not 0 or more")
