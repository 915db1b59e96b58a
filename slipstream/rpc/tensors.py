"""Keys and values between arrays and bytes: raw or 8-bit. Without messages and sessions."""

from typing import Any

import ml_dtypes
import numpy as np

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.kv import KvDtype, KvEncoding, KvFormat, KvFrame

Array = np.ndarray[Any, np.dtype[Any]]
_TYPES: dict[KvDtype, np.dtype[Any]] = {
    KvDtype.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    KvDtype.FLOAT16: np.dtype(np.float16),
    KvDtype.FLOAT32: np.dtype(np.float32),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_BITS: dict[int, np.dtype[Any]] = {2: np.dtype("<i2"), 4: np.dtype("<i4")}
"""Bits travel as integers, little-endian on every host."""
_LARGEST = 127
_MAX_SCALE = float(np.finfo(np.float32).max) / _LARGEST


def dtype_of(dtype: "np.dtype[Any]") -> KvDtype:
    """The wire's name of a cache's element type. Raises `InvalidRequest` when it has none."""
    if dtype not in _NAMES:
        known = ", ".join(_TYPES)
        raise InvalidRequest(f"keys and values of {dtype} can't be sent, only {known}")
    return _NAMES[dtype]


def element_type(dtype: KvDtype) -> "np.dtype[Any]":
    """The other way round."""
    return _TYPES[dtype]


def pack(values: Array, encoding: KvEncoding) -> bytes:
    """The payload of `values`, [layers, 2 * kv_heads, count, head_dim]."""
    if encoding is KvEncoding.INT8:
        return _pack_int8(values)
    order = _BITS[values.itemsize]
    return values.view(order.newbyteorder("=")).astype(order, copy=False).tobytes()


def unpack(frame: KvFrame, form: KvFormat) -> Array:
    """The values of a slice, [layers, 2 * kv_heads, count, head_dim]; in place where they are raw.

    Raises `InvalidRequest` where an 8-bit scale is no scale.
    """
    if form.encoding is KvEncoding.INT8:
        return _unpack_int8(frame, form)
    dtype = _TYPES[form.dtype]
    bits = np.frombuffer(frame.payload, _BITS[dtype.itemsize])
    own = bits.astype(bits.dtype.newbyteorder("="), copy=False)
    return own.view(dtype).reshape(_shape(frame, form))


def _pack_int8(values: Array) -> bytes:
    """Symmetric, rounded to nearest; a vector of zeros has scale 0."""
    exact = values.astype(np.float32)
    scales = np.abs(np.maximum(exact.max(-1), -exact.min(-1))) / np.float32(_LARGEST)
    exact /= np.where(scales == 0, np.float32(1), scales)[..., None]
    whole = np.rint(exact, out=exact).astype(np.int8)
    return b"".join((scales.astype("<f4", copy=False).tobytes(), whole.tobytes()))


def _unpack_int8(frame: KvFrame, form: KvFormat) -> Array:
    shape = _shape(frame, form)
    num_scales = form.num_heads * frame.count
    scales = np.frombuffer(frame.payload, "<f4", num_scales)
    if not ((scales >= 0) & (scales <= _MAX_SCALE)).all():  # NaN is neither
        raise InvalidRequest("a scale of 8-bit keys and values is negative or not finite")
    whole = np.frombuffer(frame.payload, np.int8, offset=scales.nbytes)
    return whole.reshape(shape) * scales.reshape(shape[:-1])[..., None]


def _shape(frame: KvFrame, form: KvFormat) -> tuple[int, int, int, int]:
    return (len(form.layers), 2 * form.num_kv_heads, frame.count, form.head_dim)
