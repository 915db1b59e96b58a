"""The native kernels that this processor has."""

from slipstream.core.errors import InvalidRequest
from slipstream.models.native.library import kernels

X86_64 = ("portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16")


def available():
    """Names of kernels, the portable ones first."""
    names = []
    for name in (*X86_64, "neon_dot"):
        try:
            names.append(kernels(name))
        except InvalidRequest:
            continue
    return names


def teams():
    """Return pairs of kernels and a number of threads: several numbers for those used here."""
    usual = kernels()
    return [
        (name, count) for name in available() for count in ((1, 2, 4) if name == usual else (1,))
    ]
