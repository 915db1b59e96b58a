"""Slices of keys and values on the wire: what their messages say, and what is refused of them."""

from dataclasses import dataclass
from enum import StrEnum

import google_crc32c
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
