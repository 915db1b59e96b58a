"""Keys and values between arrays and bytes: raw or 8-bit. Without messages and sessions."""

from collections.abc import Sequence
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
_SCALE = np.dtype("<f4")
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


def pack(layers: Sequence[Array], encoding: KvEncoding) -> memoryview:
    """The payload of `layers`, each [2 * kv_heads, count, head_dim]: their only copy."""
    if encoding is KvEncoding.INT8:
        return _pack_int8(layers)
    bits = _BITS[layers[0].itemsize]
    copy = np.empty((len(layers), *layers[0].shape), bits)
    for into, layer in zip(copy, layers, strict=True):
        into[...] = layer.view(bits.newbyteorder("="))
    return copy.reshape(-1).view(np.uint8).data


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


def _pack_int8(layers: Sequence[Array]) -> memoryview:
    """Symmetric, rounded to nearest; a vector of zeros has scale 0."""
    shape = (len(layers), *layers[0].shape)
    num_scales = len(layers) * layers[0][..., 0].size
    payload = np.empty(num_scales * (_SCALE.itemsize + shape[-1]), np.uint8)
    scales = payload[: num_scales * _SCALE.itemsize].view(_SCALE).reshape(shape[:-1])
    whole = payload[scales.nbytes :].view(np.int8).reshape(shape)
    exact = np.empty(shape[1:], np.float32)  # reused: new memory takes longer than the arithmetic
    bits, largest = exact.view(np.int32), np.empty(shape[1:], np.int32)
    for layer, scale, into in zip(layers, scales, whole, strict=True):
        if layer.dtype == _TYPES[KvDtype.BFLOAT16]:  # several times as fast as the type's own cast
            np.left_shift(layer.view(np.int16), 16, out=bits, dtype=np.int32)
        else:
            exact[...] = layer
        # Without its sign a number is the larger, the larger its bits are.
        np.bitwise_and(bits, 0x7FFFFFFF, out=largest)
        scale[...] = largest.max(-1).view(np.float32) / np.float32(_LARGEST)
        exact /= np.where(scale == 0, np.float32(1), scale)[..., None]
        np.rint(exact, out=into, casting="unsafe")
    return payload.data


def _unpack_int8(frame: KvFrame, form: KvFormat) -> Array:
    shape = _shape(frame, form)
    num_scales = form.num_heads * frame.count
    scales = np.frombuffer(frame.payload, _SCALE, num_scales)
    if not ((scales >= 0) & (scales <= _MAX_SCALE)).all():  # NaN is neither
        raise InvalidRequest("a scale of 8-bit keys and values is negative or not finite")
    whole = np.frombuffer(frame.payload, np.int8, offset=scales.nbytes)
    return whole.reshape(shape) * scales.reshape(shape[:-1])[..., None]


def _shape(frame: KvFrame, form: KvFormat) -> tuple[int, int, int, int]:
    return (len(form.layers), 2 * form.num_kv_heads, frame.count, form.head_dim)
