"""Tokens as bytes: each alone, though it need not be whole characters.

Behind others, the bytes of a text's tokens, joined, are its UTF-8. What decoders do to a text's
beginning is not done: those of SentencePiece's manner drop its first space. Knows a tokenizer by
its decoder.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes of each token of a tokenizer, worked out once. Any number of threads may ask."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._names = {
            number: token.content for number, token in backend.get_added_tokens_decoder().items()
        }
        self._spell = _spelling(backend)
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Of added and special tokens as they are written; empty for what is no token."""
        if token_id not in self._known:
            self._known[token_id] = self._worked_out(token_id)
        return self._known[token_id]

    def _worked_out(self, token_id: int) -> bytes:
        if token_id in self._names:
            return self._names[token_id].encode()
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else self._spell(token)


def _spelling(backend: Tokenizer) -> Callable[[str], bytes]:
    """How the tokenizer's decoder reads a token."""
    steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return partial(_from_alphabet, alphabet=_alphabet())
    spaces = tuple(pair for step in steps for pair in _spaces(step))
    return partial(_from_piece, spaces=spaces, has_bytes="ByteFallback" in kinds)


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of a decoder that is a sequence of others, those; they may be such again."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _spaces(step: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a step of a decoder reads in the place of what is written."""
    if step["type"] == "Metaspace":
        return [(step["replacement"], " ")]
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return [(step["pattern"]["String"], step["content"])]
    return []


def _from_piece(token: str, *, spaces: Sequence[tuple[str, str]], has_bytes: bool) -> bytes:
    """In SentencePiece's manner: a text with a sign for spaces, or one byte in hexadecimal."""
    if has_bytes and (byte := _BYTE.fullmatch(token)):
        return bytes.fromhex(byte[1])
    for written, read in spaces:
        token = token.replace(written, read)
    return token.encode()


def _from_alphabet(token: str, *, alphabet: Mapping[str, int]) -> bytes:
    """In GPT-2's manner: a character for each byte. Any other text is read as it is written."""
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's: bytes that are visible in Latin-1 stand for themselves, the others follow it."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in visible]
    signs = {chr(byte): byte for byte in visible}
    return signs | {chr(0x100 + place): byte for place, byte in enumerate(others)}
