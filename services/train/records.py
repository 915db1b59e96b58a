"""Outcomes of drafted tokens: a row for each position of real rounds, in shards on disk."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.decision import NUM_STATS
from slipstream.models.glide.glide_files import read_tensors, write_tensors
from slipstream.train.data import write_json

_INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Records:
    """N positions whose path from the round's start was accepted.

    hidden [N, d] bfloat16: the draft's states; stats [N, 4] float32: see `slot_stats`, of the row
    that candidates were ranked by; accepted [N] bool: what the round made of the token;
    is_greedy [N] bool: how the round was decoded; prompt [N] int64: its prompt.
    """

    hidden: Tensor
    stats: Tensor
    accepted: Tensor
    is_greedy: Tensor
    prompt: Tensor

    def __post_init__(self) -> None:
        count = len(self.hidden)
        odd = [name for name in names() if len(getattr(self, name)) != count]
        if odd or self.hidden.ndim != 2 or self.stats.shape != (count, NUM_STATS):
            raise TrainingError(
                f"records of {count} positions do not fit: {', '.join(odd) or 'shape'}"
            )

    @property
    def confidence(self) -> Tensor:
        """Return the draft's top-1 probabilities, [N]."""
        return self.stats[:, 0].sigmoid()

    def __len__(self) -> int:
        return len(self.hidden)

    def rows(self, keep: Tensor) -> "Records":
        """Return the positions where `keep` [N] bool holds."""
        return Records(**{name: getattr(self, name)[keep] for name in names()})


def names() -> tuple[str, ...]:
    """Return the columns."""
    return tuple(field.name for field in fields(Records))


def no_records(hidden_size: int) -> Records:
    """Return the records of no position."""
    empty = torch.empty(0, hidden_size, dtype=torch.bfloat16)
    truth = torch.empty(0, dtype=torch.bool)
    return Records(empty, torch.empty(0, NUM_STATS), truth, truth, truth.long())


def joined(parts: Sequence[Records]) -> Records:
    """Return all positions of `parts`; TrainingError when there are no parts."""
    if not parts:
        raise TrainingError("no prompt was recorded: there was no time for one")
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names()}
    return Records(**columns)


class RecordStore:
    """Shards of records in a directory, of one draft, one list of prompts, one way to decode.

    What is there under the same `key` is used again; TrainingError for another key.
    """

    def __init__(self, directory: Path, key: dict[str, Any]) -> None:
        self._directory = directory
        index = directory / _INDEX
        if not index.exists():
            directory.mkdir(parents=True, exist_ok=True)
            write_json(index, key)
        elif json.loads(index.read_text(encoding="utf-8")) != key:
            raise TrainingError(
                f"{directory} holds records of another draft, other prompts or other settings:"
                " name another run directory, or delete it"
            )

    def get(self, shard: int) -> Records | None:
        """Return the records of a shard, None where it was not written yet."""
        path = self._path(shard)
        if not path.exists():
            return None
        tensors = read_tensors(path)
        if set(tensors) != set(names()):
            raise TrainingError(f"{path} holds no records: {', '.join(sorted(tensors))}")
        return Records(**tensors)

    def put(self, shard: int, records: Records) -> None:
        """Write a shard, whole or not at all."""
        write_tensors({name: getattr(records, name) for name in names()}, self._path(shard))

    def _path(self, shard: int) -> Path:
        return self._directory / f"records-{shard:05d}.safetensors"
