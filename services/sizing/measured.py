"""What `slipstream bench breakeven --json` found out, as sizing takes it. Knows the file alone."""

import json
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.making import Guess
from slipstream.sizing.recording import Devices, devices_from_values


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What machines take, and how often the draft was right in chains of `depth`."""

    devices: Devices
    acceptance: float
    depth: int

    def __post_init__(self) -> None:
        Guess(self.acceptance, self.depth)


def read_measured(path: Path) -> MeasuredCosts:
    """Out of such a file. Raises `InvalidRequest`, which names it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["breakeven"]
        draft = values["draft"]
        return MeasuredCosts(
            devices_from_values(values["devices"]), float(draft["acceptance"]), int(draft["depth"])
        )
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read ({error.strerror})") from None
    except (LookupError, TypeError, ValueError, AttributeError, InvalidRequest) as error:
        raise InvalidRequest(
            f"{path} is not what `slipstream bench breakeven --json` writes ({error})"
        ) from None
