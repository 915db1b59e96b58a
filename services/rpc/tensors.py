"""Keys and values between tensors and bytes: raw or 8-bit. Knows no messages and no sessions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.kv import KvDtype, KvEncoding, KvFormat, KvFrame

_TORCH = {
    KvDtype.BFLOAT16: torch.bfloat16,
    KvDtype.FLOAT16: torch.float16,
    KvDtype.FLOAT32: torch.float32,
}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}
# numpy has no bfloat16, so bits are moved as integers; little-endian on every host.
_BITS: dict[int, tuple[torch.dtype, np.dtype[Any]]] = {
    2: (torch.int16, np.dtype("<i2")),
    4: (torch.int32, np.dtype("<i4")),
}
_LARGEST = 127
_MAX_SCALE = float(np.finfo(np.float32).max) / _LARGEST


def dtype_of(dtype: torch.dtype) -> KvDtype:
    """The wire's name of a cache's element type. Raises `InvalidRequest` when it has none."""
    if dtype not in _NAMES:
        known = ", ".join(_TORCH)
        raise InvalidRequest(f"keys and values of {dtype} can't be sent, only {known}")
    return _NAMES[dtype]


def torch_dtype(dtype: KvDtype) -> torch.dtype:
    """The other way round."""
    return _TORCH[dtype]


def pack(values: Tensor, encoding: KvEncoding) -> bytes:
    """The payload of `values`, [layers, 2 * kv_heads, count, head_dim] on the CPU."""
    if encoding is KvEncoding.INT8:
        return _pack_int8(values)
    bits, order = _BITS[values.element_size()]
    return _array(values.view(bits)).astype(order, copy=False).tobytes()


def unpack(frame: KvFrame, form: KvFormat, into: Sequence[Tensor]) -> None:
    """Write a slice where it belongs: each layer's buffer is [2 * kv_heads, slots, head_dim].

    Raises `InvalidRequest` when the buffers end before it, or an 8-bit scale is no scale.
    """
    end = frame.start + frame.count
    slots = min(buffer.shape[1] for buffer in into)
    if end > slots:
        raise InvalidRequest(f"positions up to {end} were sent, but there is room for {slots}")
    places = [buffer[:, frame.start : end] for buffer in into]
    if form.encoding is KvEncoding.INT8:
        _unpack_int8(frame, form, places)
    else:
        _unpack_raw(frame, form, places)


def _unpack_raw(frame: KvFrame, form: KvFormat, places: Sequence[Tensor]) -> None:
    bits, order = _BITS[form.dtype.num_bytes]
    values = np.frombuffer(frame.payload, order).reshape(_shape(frame, form))
    for place, layer in zip(places, values, strict=True):
        if place.device.type == "cpu":
            _array(place.view(bits))[...] = layer  # one copy, from the message to its place
        else:
            place.view(bits).copy_(torch.from_numpy(layer.copy()))


def _pack_int8(values: Tensor) -> bytes:
    """Symmetric, rounded to nearest; a vector of zeros has scale 0."""
    exact = values.float()
    scales = exact.abs().amax(-1) / _LARGEST
    steps = exact / scales.masked_fill(scales == 0, 1)[..., None]
    whole = steps.round_().to(torch.int8)
    return b"".join((_array(scales).astype("<f4", copy=False).tobytes(), _array(whole).tobytes()))


def _unpack_int8(frame: KvFrame, form: KvFormat, places: Sequence[Tensor]) -> None:
    shape = _shape(frame, form)
    num_scales = form.num_heads * frame.count
    scales = np.frombuffer(frame.payload, "<f4", num_scales)
    if not ((scales >= 0) & (scales <= _MAX_SCALE)).all():  # NaN is neither
        raise InvalidRequest("a scale of 8-bit keys and values is negative or not finite")
    whole = np.frombuffer(frame.payload, np.int8, offset=scales.nbytes)
    exact = whole.reshape(shape) * scales.reshape(shape[:-1])[..., None]
    for place, layer in zip(places, torch.from_numpy(exact), strict=True):
        place.copy_(layer)


def _shape(frame: KvFrame, form: KvFormat) -> tuple[int, int, int, int]:
    return (len(form.layers), 2 * form.num_kv_heads, frame.count, form.head_dim)


def _array(values: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor's own memory."""
    array: np.ndarray[Any, np.dtype[Any]] = values.numpy()
    return array
