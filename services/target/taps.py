"""Readers of a session's keys and values: where each stands, and copies of what it lacks.

Everything here runs on the engine's thread, so a copy never meets a forward. Knows no wire, and
waits for nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.errors import InvalidRequest, SessionClosed, SessionOutOfSync
from slipstream.models.cache import KvCache


@dataclass(frozen=True, slots=True)
class KvSlice:
    """A copy of positions start..start+count-1 on the CPU.

    `values` are [layers, 2 * kv_heads, count, head_dim], the keys of a layer before its values.
    """

    start: int
    values: Tensor

    @property
    def count(self) -> int:
        """Number of positions."""
        return self.values.shape[2]


class KvTap:
    """One reader's place in a cache: everything below `position` has been taken."""

    def __init__(self, cache: KvCache, layers: Sequence[int], start: int) -> None:
        """Raises `InvalidRequest` for layers that are not there, `SessionOutOfSync` for a start
        above what is held."""
        check_layers(layers, cache.pool.layout.num_layers)
        if not 0 <= start <= cache.count:
            raise SessionOutOfSync(
                f"keys and values from position {start} on were asked for, but {cache.count}"
                " positions are held"
            )
        self._cache: KvCache | None = cache
        self._layers = tuple(layers)
        self._position = start

    @property
    def position(self) -> int:
        """First position that the next slice can have."""
        return self._position

    def lower(self, count: int) -> None:
        """Positions from `count` on were forgotten: what follows replaces them."""
        self._position = min(self._position, count)

    def end(self) -> None:
        """The session is gone."""
        self._cache = None

    @torch.inference_mode()
    def take(self, max_positions: int) -> KvSlice | None:
        """Copy what comes next, up to so many positions; None when there is nothing new.

        Raises `SessionClosed` once the session is gone.
        """
        cache = self._cache
        if cache is None:
            raise SessionClosed("the session whose keys and values were read is gone")
        count = min(cache.count - self._position, max_positions)
        if count <= 0:
            return None
        start, end = self._position, self._position + count
        layers = [cache.gather(at, start, end) for at in self._layers]
        values = torch.empty((len(layers), *layers[0].shape), dtype=cache.pool.layout.dtype)
        for place, layer in zip(values, layers, strict=True):
            place.copy_(layer)
        self._position = end
        return KvSlice(start, values)


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raises `InvalidRequest` unless they are layers of the model, each once."""
    if not layers:
        raise InvalidRequest("keys and values of no layer were asked for, but at least 1 is needed")
    if len(set(layers)) != len(layers):
        raise InvalidRequest(f"layers {_listed(layers)} were asked for, but each can be sent once")
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise InvalidRequest(f"layer {layer} was asked for, but the model has {num_layers}")


def _listed(layers: Sequence[int]) -> str:
    shown = ", ".join(str(layer) for layer in layers[:8])
    return shown if len(layers) <= 8 else f"{shown}, ..."
