"""The native kernels as a shared library: where it is, what it has, its functions' types.

`SLIPSTREAM_NATIVE` names the kernels to use (portable, avx2, avx2_vnni, avx512, avx512_vnni,
avx512_bf16, neon_dot) instead of the fastest that the processor has, or is `off`.
"""

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from slipstream.config import NATIVE_VARIABLE, native_kernels
from slipstream.core.errors import InvalidRequest, ModelError

OFF = "off"
PATH = Path(__file__).parent / "lib" / "libslipstream_native.so"
_MISFIT = -2


class NotNative(Exception):
    """Native code can't be used, with a reason for logs."""


class NativeShape(ctypes.Structure):
    """See `NativeShape` in `src/model.h`."""

    _fields_ = (
        *((name, c_int32) for name in ("layers", "hidden", "heads", "key_heads", "head_dim")),
        *((name, c_int32) for name in ("mlp", "num_cross", "keys_are_bfloat16")),
        *((name, c_float) for name in ("norm_epsilon", "attention_scale")),
        *((name, c_float) for name in ("embedding_scale", "residual_scale")),
        *((name, c_int32) for name in ("is_gelu", "has_features")),
        *((name, c_int32) for name in ("norms_residual", "norms_output")),
    )

    def __init__(self, *sizes: float, **named: float) -> None:
        super().__init__(*sizes, **{"embedding_scale": 1.0, "residual_scale": 1.0, **named})


class Cache(ctypes.Structure):
    """See `Cache` in `src/model.h`."""

    _fields_ = (
        ("layers", c_void_p),
        *((name, c_int64) for name in ("slots", "count", "layer_bytes")),
        ("states", c_void_p),
        ("state_bytes", c_int64),
    )


class NativeBatch(ctypes.Structure):
    """See `Batch` in `src/model.h`."""

    _fields_ = (
        *((name, c_int64) for name in ("count", "kept")),
        *(
            (name, c_void_p)
            for name in ("tokens", "positions", "slots", "block_tables", "num_in_table")
        ),
        *((name, c_void_p) for name in ("ancestors", "first_ancestor", "num_read", "cross")),
        *(("block_table_sizes", c_void_p), ("num_ancestors", c_int64)),
        *(("features", c_void_p), ("num_features", c_int64)),
        *(("outputs", c_void_p), ("num_outputs", c_int64)),
    )


class Matrix(ctypes.Structure):
    """See `Weights` in `src/packing.h`."""

    _fields_ = (
        *((name, c_int32) for name in ("kind", "outputs", "inputs")),
        *(("values", c_void_p), ("bytes", c_int64), ("bias", c_void_p), ("bias_size", c_int64)),
    )


class RankedRows(ctypes.Structure):
    """See `RankedRows` in `src/model.h`."""

    _fields_ = (("ids", c_void_p), ("count", c_int64), ("rows", c_void_p), ("num_noisy", c_int64))


class Decision(ctypes.Structure):
    """See `DecisionModel` in `src/model.h`."""

    _fields_ = (
        ("width", c_int64),
        *((name, c_void_p) for name in ("hidden", "bias", "stats", "out")),
    )


class ChainState(ctypes.Structure):
    """See `ChainState` in `src/model.h`."""

    _fields_ = (
        *((name, c_int64) for name in ("limit", "max_depth", "lag", "is_scored", "policy")),
        *((name, c_double) for name in ("threshold", "fallback", "min_path_prob")),
        *(("points", c_void_p), ("num_points", c_int64), ("ends", c_void_p), ("num_ends", c_int64)),
        *(("others", c_void_p), ("num_others", c_int64), ("is_sampled", c_int64)),
        *(("position", c_int64), ("seed", c_uint64)),
        *(("factor", c_float), ("path_prob", c_double), ("length", c_int64)),
    )


_SIGNATURES = {
    "slipstream_kernels": (c_char_p, [c_char_p]),
    "slipstream_team": (c_void_p, [c_int32]),
    "slipstream_free_team": (None, [c_void_p]),
    "slipstream_model": (
        c_int32,
        [
            *(ctypes.POINTER(NativeShape), c_char_p, c_void_p, ctypes.POINTER(Matrix)),
            ctypes.POINTER(c_void_p),
        ],
    ),
    "slipstream_free_model": (None, [c_void_p]),
    "slipstream_set_rotary": (
        c_int32,
        [c_void_p, c_int32, *[c_int64] * 2, *[c_void_p] * 2, c_int64],
    ),
    "slipstream_set_layer": (c_int32, [c_void_p, c_int32, c_int64, c_int32]),
    "slipstream_set_matrices": (
        c_int32,
        [c_void_p, *[c_int32] * 3, ctypes.POINTER(Matrix), c_int32],
    ),
    "slipstream_set_norm": (c_int32, [c_void_p, *[c_int32] * 3, c_void_p, c_int64]),
    "slipstream_tie": (c_int32, [c_void_p]),
    "slipstream_weight_bytes": (c_int64, [c_void_p]),
    "slipstream_roofline": (c_int32, [c_void_p, c_void_p]),
    "slipstream_forward": (
        c_int32,
        [c_void_p, ctypes.POINTER(Cache), ctypes.POINTER(NativeBatch), c_void_p, c_int64],
    ),
    "slipstream_follow": (
        c_int32,
        [
            *(c_void_p, ctypes.POINTER(Cache), ctypes.POINTER(NativeBatch)),
            *(ctypes.POINTER(Decision), ctypes.POINTER(ChainState), c_int64),
            ctypes.POINTER(RankedRows),
        ],
    ),
    "slipstream_dequantise": (
        c_int32,
        [c_void_p, ctypes.POINTER(Matrix), c_int32, c_void_p, c_int64],
    ),
    "slipstream_quantise": (c_int32, [c_void_p, c_int64, c_void_p, c_int64]),
    "slipstream_logits": (c_int32, [c_void_p, *(c_void_p, c_int64) * 2]),
    "slipstream_sampling_candidates": (
        c_int64,
        [*[c_void_p] * 2, c_int64, c_float, c_uint32, c_uint32, *[c_void_p] * 2, c_int64],
    ),
}


@cache
def library() -> ctypes.CDLL:
    """Return the library. Raises `NotNative` where none was built, or it can't be loaded."""
    if not PATH.is_file():
        raise NotNative(
            "no native kernels were built, as there was no C++ compiler; with one (g++), install"
            " Slipstream again and plain decoding is about three times as fast"
        )
    try:
        found = ctypes.CDLL(str(PATH))
    except OSError as error:
        raise NotNative(f"the native kernels can't be loaded ({error})") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def call(name: str, *arguments: Any) -> int:
    """Call a function of the library, which has a result. Raises `ModelError` where it refuses
    types or lengths, `MemoryError`."""
    result: int = getattr(library(), f"slipstream_{name}")(*arguments)
    if result == _MISFIT:
        raise ModelError(f"native code refuses {name}: types or lengths are not the model's")
    if result < 0:
        raise MemoryError("there is no memory for the native weights")
    return result


def kernels(wanted: str | None = None) -> str:
    """Return the name of the kernels to use: those that are wanted or that the environment names,
    else the fastest.

    Raises `NotNative` where there are none, `InvalidRequest` for a name that this processor has
    no kernels of.
    """
    name = native_kernels() if wanted is None else wanted
    if name == OFF:
        raise NotNative(f"{NATIVE_VARIABLE} is {OFF}")
    found = library().slipstream_kernels(name.encode())
    if found is None:
        raise InvalidRequest(
            f"{NATIVE_VARIABLE} is {name!r}, but this processor has no such kernels; leave it unset"
            f" for the fastest, or use portable, or {OFF}"
        )
    known: bytes = found
    return known.decode()


def has_kernels() -> bool:
    """Return whether there are kernels to use. Raises `InvalidRequest` as `kernels` does."""
    try:
        return bool(kernels())
    except NotNative:
        return False


@cache
def team(num_threads: int) -> int:
    """Return the threads that all models of this process share, as a handle for the library.

    Raises `NotNative` where they can't be started.
    """
    handle: int | None = library().slipstream_team(num_threads)
    if handle is None:
        raise NotNative(f"{num_threads} threads can't be started")
    return handle
