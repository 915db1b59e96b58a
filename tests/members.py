"""What processes that tests start do; they find it by this module's name."""

from pathlib import Path

import torch

import tiny_training as tiny
from slipstream.core.errors import TrainingError
from slipstream.train.parallel import Team
from slipstream.train.run import GlideRun


def refuse(team: Team) -> None:
    raise TrainingError(f"one of {team.size} does not want to")


def count_and_refuse(team: Team, *, path: Path) -> None:
    """Leave the sum of all members' numbers, and what the lead has told them, in a file."""
    told = team.of_lead(40.0 + team.rank)
    total = team.total(torch.tensor(told + team.rank + 1))
    if team.is_lead:
        path.write_text(f"{team.size} members, {float(total)}")
    refuse(team)


def train_and_refuse(team: Team, *, run: GlideRun) -> None:
    """Train as one of a team, and then fail."""
    tiny.train_member(team, run=run)
    refuse(team)
