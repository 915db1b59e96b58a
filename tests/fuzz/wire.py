"""HTTP/2 connections as bytes: gRPC calls whose frames, lengths and order are not what they say."""

import gzip
import struct
from functools import cache
from random import Random

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
NO_WINDOW = struct.pack(">HI", 4, 0)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def message(data: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message with its prefix, which may lie."""
    return struct.pack(">BI", flag, len(data) if length is None else length) + data


def header(name: bytes, value: bytes) -> bytes:
    """A header as HPACK writes it without an index and without Huffman's code."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)])
    rest, parts = len(text) - 127, bytearray(b"\x7f")
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*parts, rest])


def connection(path: str, valid: bytes, random: Random) -> tuple[bytes, ...]:
    """The parts of a connection with some calls, each broken in its way."""
    settings = frame(SETTINGS, 0, 0, random.choice((b"", b"", NO_WINDOW, b"\0" * 5)))
    parts = [PREFACE + settings]
    for number in range(random.choice((1, 1, 3, 20))):
        parts.append(_call(2 * number + 1, path, valid, random))
    if random.random() < 0.2:
        parts.append(_between(random))
    return tuple(parts)


def _call(stream: int, path: str, valid: bytes, random: Random) -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *random.sample(_ODD_HEADERS, random.choice((0, 0, 1, 2))),
    ]
    if random.random() < 0.1:
        del fields[random.randrange(len(fields))]
    block = b"".join(header(name, value) for name, value in fields)
    opened = frame(HEADERS, END_HEADERS if random.random() < 0.97 else 0, stream, block)
    body = _body(valid, random)
    ended = random.choice((0, END_STREAM, END_STREAM))
    sent = opened + frame(DATA, ended, stream, body)
    if random.random() < 0.3:
        sent += frame(RESET, 0, stream, struct.pack(">I", random.choice((0, 8, 99))))
    return sent


def _body(valid: bytes, random: Random) -> bytes:
    """A message whose prefix lies, is compressed, cut or doubled; or none."""
    zipped, bomb = gzip.compress(valid, mtime=0), _bomb()
    return random.choice(
        (
            message(valid),
            message(valid, length=len(valid) + 1),
            message(valid, length=2**32 - 1),
            message(valid, length=0),
            message(valid)[: random.randrange(len(valid) + 5)],
            message(valid) * 3,
            message(zipped, flag=1),
            message(bomb, flag=1),
            message(valid, flag=1),
            message(valid, flag=255),
            b"",
            random.randbytes(20),
        )
    )


@cache
def _bomb() -> bytes:
    """Ten million bytes, in few."""
    return gzip.compress(b"\0" * 10_000_000, mtime=0)


def _between(random: Random) -> bytes:
    """Frames that belong to no call."""
    return random.choice(
        (
            frame(PING, 0, 0, b"12345678"),
            frame(PING, 0, 0, b"1"),
            frame(GOAWAY, 0, 0, b"\0" * 8),
            frame(WINDOW, 0, 0, struct.pack(">I", 2**31 - 1)),
            frame(WINDOW, 0, 0, struct.pack(">I", 0)),
            frame(CONTINUATION, END_HEADERS, 1, b"\x82"),
            frame(99, 255, 2**31 - 1, b"x"),
            frame(DATA, END_STREAM, 77, b"x"),
            struct.pack(">I", 2**24 - 1)[1:] + b"\0\0\0\0\0\1",
            random.randbytes(60),
        )
    )


_ODD_HEADERS = (
    (b"grpc-encoding", b"gzip"),
    (b"grpc-encoding", b"nothing"),
    (b"grpc-timeout", b"1n"),
    (b"grpc-timeout", b"99999999H"),
    (b"grpc-timeout", b"x"),
    (b"authorization", b"Bearer \xff"),
    (b"traceparent", b"00-x"),
    (b"x-bin", b"!!!"),
    (b"grpc-trace-bin", b"AAAA"),
    (b"x", b"y" * 20_000),
    (b"", b"empty"),
    (b"Upper", b"case"),
    (b":late", b"pseudo"),
    (b"user-agent", b"\0"),
)
