"""Tokens that a forward draws itself, and what it returns with them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """How input `index` of a forward draws its token: see `core.draws`."""

    index: int
    temperature: float
    keys: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A forward whose tokens are drawn: `hidden` [rows, d] is overwritten by the next forward,
    `places` are the rows' slots by part."""

    hidden: Tensor
    places: tuple[tuple[int, ...], ...]
    tokens: list[int]
