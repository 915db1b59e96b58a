"""Tokens as stores keep them: four bytes each, little-endian."""

import struct

TOKEN_BYTES = 4


def packed(tokens: tuple[int, ...]) -> bytes:
    """Tokens, each from 0 to 2**32 - 1, as bytes."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpacked(text: bytes) -> tuple[int, ...]:
    """The tokens again."""
    return struct.unpack(f"<{len(text) // TOKEN_BYTES}I", text)
