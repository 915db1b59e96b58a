"""Keyed randomness of single tokens: noise as a function of (seed, position, purpose, index).

An elementwise integer hash gives 32 bits, in wrap-around 32-bit arithmetic, so every device and
host has the same bits, and noise can be had for a few candidate tokens without the rest of the
vocabulary. There is no generator and no state. `core.verify.noise` has the same numbers as arrays.
"""

import math
import struct
from collections.abc import Iterable
from enum import IntEnum

MASK32 = 0xFFFFFFFF
BELOW_ONE = 1 - 2.0**-24
"""Largest number below 1 of float32."""
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))
"""Shift and multiplier of each step of the mix (C. Wellons, "lowbias32")."""
_MASK64 = 0xFFFFFFFFFFFFFFFF


class Purpose(IntEnum):
    """Purpose of a random number. Streams of different purposes are independent."""

    DRAW = 1
    """The target's token of a position, by Gumbel-max."""
    CANDIDATE = 2
    ACCEPT = 3
    """The acceptance tests of rejection sampling."""
    RESIDUAL = 4
    """The token drawn after the last rejection."""
    ROOT = 5
    """Target-initialised roots."""


def uniform(seed: int, position: int, purpose: Purpose, index: int) -> float:
    """Return one number of `core.verify.noise.uniforms`, bit for bit, without an array."""
    return _uniform(noise_keys(seed, position, purpose), index)


def gumbels_of(seed: int, position: int, tokens: Iterable[int], *, purpose: Purpose) -> list[float]:
    """Return the Gumbel noise of tokens: that of `core.verify.noise.gumbel` up to rounding."""
    keys = noise_keys(seed, position, purpose)
    return [-math.log(-math.log1p(-_uniform(keys, token))) for token in tokens]


def _uniform(keys: tuple[int, int], index: int) -> float:
    bits = _mix((_mix((index ^ keys[0]) & MASK32) + keys[1]) & MASK32) ^ 0x80000000
    rounded: float = struct.unpack("f", struct.pack("f", (bits + 0.5) * 2.0**-32))[0]
    return min(rounded, BELOW_ONE)


def noise_keys(seed: int, position: int, purpose: Purpose) -> tuple[int, int]:
    """Two 32-bit keys out of 64 bits of seed, a position and a purpose; of arrays of uint64, keys
    of each."""
    key = _mix64(seed ^ _mix64((position << 8 | int(purpose)) & _MASK64))
    return key & MASK32, key >> 32


def signed(value: int) -> int:
    """Return the signed number of the same 32 bits."""
    return value - 2**32 if value >= 2**31 else value


def _mix64(value: int) -> int:
    """The finaliser of SplitMix64, on one step of its sequence."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31


def _mix(bits: int) -> int:
    for shift, factor in ROUNDS:
        bits ^= bits >> shift
        if factor is not None:
            bits = bits * factor & MASK32
    return bits
