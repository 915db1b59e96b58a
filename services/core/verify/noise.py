"""Keyed randomness as tensors: the numbers of `core.verify.keyed_noise`, for many tokens at once.

Knows nothing of distributions, trees or models.
"""

import torch
from torch import Tensor

from slipstream.core.verify.keyed_noise import BELOW_ONE, ROUNDS, Purpose, noise_keys

MAX_GUMBEL = 23.0
"""Above all Gumbel noise: 33 bits make its largest value 22.88."""


def gumbel(seed: int, position: int, ids: Tensor | int, *, purpose: Purpose) -> Tensor:
    """Standard Gumbel noise for the tokens `ids` [n] at absolute `position`; fp32 [n].

    A token's noise depends on its own id only, never on which other ids are asked for. An int
    asks for the whole vocabulary of that size, on the CPU.
    """
    return uniforms(seed, position, ids, purpose=purpose).neg_().log1p_().neg_().log_().neg_()


def uniforms(seed: int, position: int, ids: Tensor | int, *, purpose: Purpose) -> Tensor:
    """Uniform numbers above 0 and below 1 for each of `ids` [n] (or of range(ids)); fp32 [n]."""
    if isinstance(ids, int):
        ids = torch.arange(ids, dtype=torch.int32)
    first, second = signed_keys(seed, position, purpose=purpose)
    return _uniforms(first, second, ids.to(torch.int32))


def signed_keys(seed: int, position: int, *, purpose: Purpose) -> tuple[int, int]:
    """Return the keys of a position's noise, as two signed 32-bit numbers."""
    first, second = noise_keys(seed, position, purpose)
    return _signed(first), _signed(second)


def gumbel_rows(keys: Tensor, ids: Tensor) -> Tensor:
    """The Gumbel noise [R, n] of many positions at once, the numbers that `gumbel` gives for each.

    `keys` [R, 2] int32 hold the `signed_keys` of each row, `ids` [n] the tokens. On the device of
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
    return numbers.to(torch.float32).clamp_(max=BELOW_ONE)


def _mix_(bits: Tensor, scratch: Tensor) -> None:
    """`_mix` of each element, in place. Torch shifts signed numbers arithmetically: hence masks."""
    for shift, factor in ROUNDS:
        torch.bitwise_right_shift(bits, shift, out=scratch)
        bits.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
        if factor is not None:
            bits.mul_(_signed(factor))


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
