"""Keyed randomness: noise as a function of (seed, position, purpose, index) and of nothing else.

An elementwise integer hash gives 32 bits, in wrap-around 32-bit arithmetic, so every device and
host has the same bits, and noise can be had for a few candidate tokens without the rest of the
vocabulary. There is no generator and no state. Knows nothing of laws, trees or models.
"""

import math
import struct
from enum import IntEnum

import torch
from torch import Tensor

MAX_GUMBEL = 23.0
"""Above all Gumbel noise: 33 bits make its largest value 22.88."""

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_BELOW_ONE = 1 - 2.0**-24
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))
"""Shift and multiplier of each step of the mix (C. Wellons, "lowbias32")."""


class Purpose(IntEnum):
    """What a number is drawn for. Streams of different purposes are independent."""

    DRAW = 1
    """The target's token of a slot, by Gumbel-max."""
    CANDIDATE = 2
    """The draft's candidates."""
    ACCEPT = 3
    """The acceptance tests of rejection sampling."""
    RESIDUAL = 4
    """The token drawn after the last rejection."""
    ROOT = 5
    """Target-initialised roots."""


def gumbel(seed: int, position: int, ids: Tensor | int, *, purpose: Purpose) -> Tensor:
    """Standard Gumbel noise for the tokens `ids` [n] of the slot at absolute `position`; fp32 [n].

    A token's noise depends on its own id only, never on which other ids are asked for. An int
    asks for the whole vocabulary of that size, on the CPU.
    """
    return uniforms(seed, position, ids, purpose=purpose).neg_().log1p_().neg_().log_().neg_()


def uniforms(seed: int, position: int, ids: Tensor | int, *, purpose: Purpose) -> Tensor:
    """Uniform numbers above 0 and below 1 for each of `ids` [n] (or of range(ids)); fp32 [n]."""
    if isinstance(ids, int):
        ids = torch.arange(ids, dtype=torch.int32)
    first, second = slot_keys(seed, position, purpose=purpose)
    return _uniforms(first, second, ids.to(torch.int32))


def slot_keys(seed: int, position: int, *, purpose: Purpose) -> tuple[int, int]:
    """What the noise of a slot depends on, as two signed 32-bit numbers."""
    first, second = _keys(seed, position, purpose)
    return _signed(first), _signed(second)


def gumbel_rows(keys: Tensor, ids: Tensor) -> Tensor:
    """The Gumbel noise [R, n] of many slots at once, the numbers that `gumbel` gives for each.

    `keys` [R, 2] int32 hold the `slot_keys` of each row, `ids` [n] the tokens. On the device of
    both, with no look at the host.
    """
    numbers = _uniforms(keys[:, :1], keys[:, 1:], ids.to(torch.int32))
    return numbers.neg_().log1p_().neg_().log_().neg_()


def _uniforms(first: Tensor | int, second: Tensor | int, ids: Tensor) -> Tensor:
    """The hash of `ids` [n] under two keys, or [R, n] under keys [R, 1], as numbers."""
    bits = ids ^ first
    scratch = torch.empty_like(bits)
    _mix_(bits, scratch)
    bits.add_(second)
    _mix_(bits, scratch)
    # In float64 the 32 bits and the half are exact; one rounding remains.
    numbers = bits.to(torch.float64).add_(2.0**31 + 0.5).mul_(2.0**-32)
    return numbers.to(torch.float32).clamp_(max=_BELOW_ONE)


def uniform(seed: int, position: int, purpose: Purpose, index: int) -> float:
    """One number of `uniforms`, bit for bit, without a tensor."""
    first, second = _keys(seed, position, purpose)
    bits = _mix(((_mix((index ^ first) & _MASK32)) + second) & _MASK32) ^ 0x80000000
    rounded: float = struct.unpack("f", struct.pack("f", (bits + 0.5) * 2.0**-32))[0]
    return min(rounded, _BELOW_ONE)


def gumbel_of(seed: int, position: int, token: int, *, purpose: Purpose) -> float:
    """The Gumbel noise of one token, without a tensor: that of `gumbel` up to rounding."""
    return -math.log(-math.log1p(-uniform(seed, position, purpose, token)))


def _keys(seed: int, position: int, purpose: Purpose) -> tuple[int, int]:
    """Two 32-bit keys out of 64 bits of seed, a position and a purpose."""
    key = _mix64(seed ^ _mix64((position << 8 | purpose) & _MASK64))
    return key & _MASK32, key >> 32


def _mix64(value: int) -> int:
    """The finaliser of SplitMix64, on one step of its sequence."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31


def _mix(bits: int) -> int:
    for shift, factor in _ROUNDS:
        bits ^= bits >> shift
        if factor is not None:
            bits = bits * factor & _MASK32
    return bits


def _mix_(bits: Tensor, scratch: Tensor) -> None:
    """`_mix` of each element, in place. Torch shifts signed numbers arithmetically: hence masks."""
    for shift, factor in _ROUNDS:
        torch.bitwise_right_shift(bits, shift, out=scratch)
        bits.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
        if factor is not None:
            bits.mul_(_signed(factor))


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
