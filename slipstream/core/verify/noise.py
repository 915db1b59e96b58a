"""Keyed randomness as arrays: the numbers of `core.verify.keyed_noise`, for many tokens at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.verify.keyed_noise import BELOW_ONE, ROUNDS, Purpose, noise_keys

Floats = NDArray[np.float32]
Ids = NDArray[np.integer[Any]]

MAX_GUMBEL = 23.0
"""Above all Gumbel noise: 33 bits make its largest value 22.88."""


def gumbel(seed: int, position: int, ids: Ids | int, *, purpose: Purpose) -> Floats:
    """Standard Gumbel noise for the tokens `ids` [n] at absolute `position`; fp32 [n].

    A token's noise depends on its own id only, never on which other ids are asked for. An int
    asks for the whole vocabulary of that size.
    """
    numbers = uniforms(seed, position, ids, purpose=purpose)
    # log1p(-u) as log(1 - u) and what rounding lost: numpy's own is slow on many processors.
    rest = 1 - numbers
    lost = (rest - 1 + numbers) / rest
    noise: Floats = np.subtract(lost, np.log(rest, out=rest), out=rest)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def uniforms(seed: int, position: int, ids: Ids | int, *, purpose: Purpose) -> Floats:
    """Uniform numbers above 0 and below 1 for each of `ids` [n] (or of range(ids)); fp32 [n]."""
    first, second = noise_keys(seed, position, purpose)
    bits = np.arange(ids, dtype=np.uint32) if isinstance(ids, int) else ids.astype(np.uint32)
    scratch = np.empty_like(bits)
    bits ^= first
    _mix_(bits, scratch)
    bits += second
    _mix_(bits, scratch)
    bits ^= 1 << 31
    # In float64 the 32 bits and the half are exact; one rounding remains.
    numbers = bits + 0.5
    numbers *= 2.0**-32
    return np.minimum(numbers.astype(np.float32), BELOW_ONE)


def _mix_(bits: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    for shift, factor in ROUNDS:
        bits ^= np.right_shift(bits, shift, out=scratch)
        if factor is not None:
            bits *= factor
