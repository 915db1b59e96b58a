"""What processes that tests start do; they find it by this module's name."""

from pathlib import Path

import torch

from slipstream.core.errors import TrainingError
from slipstream.train.group import TrainGroup
from slipstream.train.run import GlideRun
from support.models import tiny_training as tiny


def refuse(group: TrainGroup) -> None:
    raise TrainingError(f"one of {group.size} does not want to")


def count_and_refuse(group: TrainGroup, *, path: Path) -> None:
    """Leave the sum of all members' numbers, and what the lead has told them, in a file."""
    told = group.of_lead(40.0 + group.rank)
    total = group.total(torch.tensor(told + group.rank + 1))
    if group.is_lead:
        path.write_text(f"{group.size} members, {float(total)}")
    refuse(group)


def train_and_refuse(group: TrainGroup, *, run: GlideRun) -> None:
    """Train as one of a group, and then fail."""
    tiny.train_member(group, run=run)
    refuse(group)
