"""What a target has for a session's next round. A value; how it comes about is elsewhere."""

import math
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Offer:
    """What the target has for a session's next round.

    Up to `rows` rows, the pending token's included. Each but the first costs `row_cost` plain
    rounds, and a plain round takes `round_s` seconds; None: as the profile says.
    """

    rows: int
    row_cost: float | None = None
    round_s: float | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise InvalidRequest(f"{self.rows} rows are offered, but every round has one")
        for name in ("row_cost", "round_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InvalidRequest(f"an offer's {name} is {value}, not 0 or more")
