"""Tokens as bytes: each alone, though it need not be whole characters.

The bytes of a text's tokens, joined, are its UTF-8. What decoders do to the start of a text is not
done: SentencePiece's drop its first space.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes of each token of a tokenizer, computed once. Safe to share between threads."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._names = {
            number: token.content for number, token in backend.get_added_tokens_decoder().items()
        }
        self._spell = _spelling(backend)
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Return the bytes, of added and special tokens as they are written; empty for no token."""
        if token_id not in self._known:
            self._known[token_id] = self._compute(token_id)
        return self._known[token_id]

    def _compute(self, token_id: int) -> bytes:
        if token_id in self._names:
            return self._names[token_id].encode()
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else self._spell(token)


def _spelling(backend: Tokenizer) -> Callable[[str], bytes]:
    """Return how the tokenizer's decoder reads a token."""
    steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return partial(_from_alphabet, alphabet=_alphabet())
    spaces = tuple(pair for step in steps for pair in _spaces(step))
    return partial(_from_piece, spaces=spaces, has_bytes="ByteFallback" in kinds)


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of a decoder, which may be a sequence of such."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _spaces(step: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a step of a decoder replaces, and by what."""
    if step["type"] == "Metaspace":
        return [(step["replacement"], " ")]
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return [(step["pattern"]["String"], step["content"])]
    return []


def _from_piece(token: str, *, spaces: Sequence[tuple[str, str]], has_bytes: bool) -> bytes:
    """Return a token of SentencePiece: text with a sign for spaces, or one byte in hexadecimal."""
    if has_bytes and (byte := _BYTE.fullmatch(token)):
        return bytes.fromhex(byte[1])
    for written, read in spaces:
        token = token.replace(written, read)
    return token.encode()


def _from_alphabet(token: str, *, alphabet: Mapping[str, int]) -> bytes:
    """Return a token of GPT-2: a character for each byte, or else text as it is written."""
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()


def _alphabet() -> dict[str, int]:
    """Return GPT-2's: bytes visible in Latin-1 stand for themselves, the others follow it."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in visible]
    signs = {chr(byte): byte for byte in visible}
    return signs | {chr(0x100 + place): byte for place, byte in enumerate(others)}
