"""Frames of HTTP/2 and messages of gRPC, as bytes."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
NO_WINDOW = struct.pack(">HI", 4, 0)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def message(data: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", 0, len(data)) + data


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
