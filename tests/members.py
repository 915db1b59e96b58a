"""What processes that tests start do; they find it by this module's name."""

from slipstream.core.errors import TrainingError
from slipstream.train.parallel import Team


def refuse(team: Team) -> None:
    raise TrainingError(f"one of {team.size} does not want to")
