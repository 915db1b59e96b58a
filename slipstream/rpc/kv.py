"""Slices of keys and values on the wire: what their messages say, and what is refused of them; and
their values between arrays and bytes, raw or 8-bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.conversion.convert_common import message_of, paired
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.rpc.wire import bytes_head, cut_out

MAX_PAYLOAD_BYTES = 1 << 20
"""Bound on a payload. Fewer messages take less time; one holds an event loop for some 0.3 ms."""
MAX_HEAD_BYTES = 256 << 10
"""Bound on a message beside its payload."""

Buffer = bytes | memoryview
"""Bytes that need not be copied to be read."""

_KEPT_BYTES = 30 << 20
_SCALE_BYTES = 4
_PAYLOAD = target_pb2.StreamKvResponse.PAYLOAD_FIELD_NUMBER


class KvDtype(StrEnum):
    """Element type of keys and values."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def num_bytes(self) -> int:
        return 4 if self is KvDtype.FLOAT32 else 2


class KvEncoding(StrEnum):
    """Encoding of keys and values on the wire."""

    RAW = "raw"
    """The cache's own bits, little-endian."""
    INT8 = "int8"
    """8-bit integers with one float32 scale per head and position."""


DTYPE = paired("the element type of keys and values", common_pb2.KvDtype, KvDtype)
ENCODING = paired("the encoding of keys and values", target_pb2.KvEncoding, KvEncoding)

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


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Format of every slice of one stream: the layers asked for, in that order."""

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    dtype: KvDtype
    encoding: KvEncoding = KvEncoding.RAW

    @property
    def num_heads(self) -> int:
        """Vectors of a position: keys and values of every head of every layer."""
        return len(self.layers) * 2 * self.num_kv_heads

    @property
    def bytes_per_position(self) -> int:
        """Bytes of a payload that one position takes."""
        if self.encoding is KvEncoding.INT8:
            return self.num_heads * (self.head_dim + _SCALE_BYTES)
        return self.num_heads * self.head_dim * self.dtype.num_bytes

    @property
    def max_positions(self) -> int:
        """Positions of the largest payload; at least one."""
        return max(1, MAX_PAYLOAD_BYTES // self.bytes_per_position)


@dataclass(frozen=True, slots=True)
class KvStreamSource:
    """Whose keys and values they are: a session of one process."""

    session_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class KvFrame:
    """Positions start..start+count-1, encoded. Layout: see `StreamKvResponse.payload`."""

    start: int
    count: int
    payload: Buffer
    propose: draft_pb2.Propose | None = None
    """Request for a proposal behind them."""


def keep_freed_memory() -> None:
    """Let large messages reuse freed memory, as far as the C library does that.

    glibc keeps as much as twice the largest block that was freed, up to 32 MB. By itself each
    message of 128 KiB or more is mapped anew, page by page, and takes twice the time. This block is
    never touched.
    """
    bytearray(_KEPT_BYTES)


def stream_request(
    source: KvStreamSource, credential: str, form: KvFormat, **said: int
) -> target_pb2.StreamKvRequest:
    """Return the message that opens a stream; `said` are its start, skip_from and skip_to, and
    whether its reader proposes."""
    opening = message_of(
        target_pb2.OpenKv,
        form,
        protocol_version=PROTOCOL_VERSION,
        session_id=source.session_id,
        incarnation=source.incarnation,
        credential=credential,
        **said,
    )
    return target_pb2.StreamKvRequest(open=opening)


def frame_to_bytes(source: KvStreamSource, form: KvFormat, frame: KvFrame) -> bytes:
    """Return the `StreamKvResponse` with its checksum, serialised with one copy of the payload."""
    head = message_of(
        target_pb2.StreamKvResponse,
        form,
        session_id=source.session_id,
        incarnation=source.incarnation,
        start=frame.start,
        count=frame.count,
    )
    tail = target_pb2.StreamKvResponse(crc32c=_crc32c(frame.payload))
    before = head.SerializeToString() + bytes_head(_PAYLOAD, len(frame.payload))
    return b"".join((before, frame.payload, tail.SerializeToString()))


def propose_to_bytes(propose: draft_pb2.Propose) -> bytes:
    """Return the request for a proposal: a message, or what stands behind that of a slice."""
    return target_pb2.StreamKvResponse(propose=propose).SerializeToString()


def frame_from_bytes(data: bytes, source: KvStreamSource, form: KvFormat) -> KvFrame:
    """Return the slice of a message, of no positions where it is a request for a proposal alone.
    Raises `InvalidRequest` unless all of it is as agreed on."""
    message, payload = _parsed(data)
    propose = message.propose if message.HasField("propose") else None
    if propose is not None and not message.count:
        return KvFrame(0, 0, b"", propose)
    _check("session", source.session_id, message.session_id)
    _check("incarnation", source.incarnation, message.incarnation)
    _check("layers", form.layers, tuple(message.layers))
    _check("dtype", form.dtype, DTYPE.from_pb(message.dtype))
    _check("num_kv_heads", form.num_kv_heads, message.num_kv_heads)
    _check("head_dim", form.head_dim, message.head_dim)
    _check("encoding", form.encoding, ENCODING.from_pb(message.encoding))
    if message.count == 0:
        raise InvalidRequest("a slice of keys and values has 0 positions, but must have 1 or more")
    _check("payload bytes", message.count * form.bytes_per_position, len(payload))
    _check("CRC-32C", _crc32c(payload), message.crc32c)
    return KvFrame(message.start, message.count, payload, propose)


def _crc32c(payload: Buffer) -> int:
    """Return the checksum of bytes; the library takes no view of memory, but an array of it."""
    return int(google_crc32c.value(np.frombuffer(payload, np.uint8)))


def _parsed(data: bytes) -> tuple[target_pb2.StreamKvResponse, memoryview]:
    try:
        head, payload = cut_out(data, _PAYLOAD, MAX_HEAD_BYTES)
        if len(head) > MAX_HEAD_BYTES:
            raise InvalidRequest(
                f"a slice of keys and values has {len(head)} bytes beside its payload, but may"
                f" have up to {MAX_HEAD_BYTES}"
            )
        message = target_pb2.StreamKvResponse.FromString(head)
    except DecodeError:
        raise InvalidRequest(
            f"a slice of keys and values of {len(data)} bytes can't be parsed"
        ) from None
    if message.payload:
        raise InvalidRequest("a slice of keys and values has two payloads, but must have one")
    return message, payload


def _check(name: str, expected: object, got: object) -> None:
    if expected != got:
        raise InvalidRequest(
            f"a slice of keys and values has {name} {got}, but {expected} was expected"
        )


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
