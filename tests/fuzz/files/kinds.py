"""Kinds of files that are fuzzed: how one is made, broken and loaded, and which errors are right.

A case is a kind, a seed and a number: the same three make the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random

from slipstream.core.errors import InvalidRequest, ModelError, TrainingError

_MODULES = ("settings", "model", "weights")
"""Modules with kinds: each has a tuple `KINDS`."""
REFUSALS = (InvalidRequest, ModelError, TrainingError)
"""Errors that say that a file can't be used: commands end with `BAD_INPUT`."""
_INTACT = 0.02
"""Part of the cases that are seeds as they are, which must load."""

Mutate = Callable[[Random, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of file.

    `seeds` returns intact files, `load` reads the file at a path as the product does, `prepare`
    puts what else has to be in the file's folder there, once for each process.
    """

    name: str
    file: str
    """The file's name in its folder."""
    seeds: Callable[[], Sequence[bytes]]
    mutate: Mutate
    load: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None
    refusals: tuple[type[Exception], ...] = REFUSALS

    def data(self, seed: int, number: int) -> tuple[bytes, bool]:
        """Return the bytes of a case, and whether they are an intact seed."""
        random = Random(f"{self.name} {seed} {number}")
        intact = random.choice(_seeds(self))
        if random.random() < _INTACT:
            return intact, True
        return self.mutate(random, intact), False


@cache
def _seeds(kind: Kind) -> Sequence[bytes]:
    return kind.seeds()


def kinds_by_name() -> dict[str, Kind]:
    """Return all kinds, by name."""
    modules = [import_module(f"fuzz.files.{name}_kinds") for name in _MODULES]
    return {kind.name: kind for module in modules for kind in module.KINDS}
