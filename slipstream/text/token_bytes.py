"""Tokens as text and bytes, without what encodes text: a process that only decodes holds no more.

The bytes of a text's tokens, joined, are its UTF-8. What decoders do to the start of a text is not
done: SentencePiece's drop its first space.
"""

import hashlib
import json
import re
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from tokenizers import Tokenizer

from slipstream.core.errors import WeightsError

MAX_TABLE_BYTES = 32 << 20
_MAX_DECODER_BYTES = 16 << 10
_SIZES = struct.Struct("<II")
_PLAIN, _ADDED, _SPECIAL = 0, 1, 2
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable:
    """The tokens of a tokenizer by their ids, and its decoder. Safe to share between threads."""

    def __init__(self, decoder: str, ends: "array[int]", records: bytes) -> None:
        """Take the decoder as JSON, empty for none, and for each id a byte of its kind with the
        token in UTF-8, or nothing where the id is no token's."""
        self._json = decoder
        self._decoder = _decoder(decoder)
        self._spell = _spelling(_steps(json.loads(decoder)) if decoder else [])
        self._ends = ends
        self._records = records

    @classmethod
    def of(cls, backend: Tokenizer, *, without: int) -> "TokenTable":
        """Return the table of all tokens but one. Raises `WeightsError` for one too large."""
        added = backend.get_added_tokens_decoder()
        kinds = {token.content: _SPECIAL if token.special else _ADDED for token in added.values()}
        ids = backend.get_vocab(with_added_tokens=True).values()
        num_ids = max((token for token in ids if token != without), default=-1) + 1
        _check_bytes(num_ids * array("I").itemsize)
        ends, records = array("I"), bytearray()
        for token in range(num_ids):
            text = None if token == without else backend.id_to_token(token)
            if text is not None:
                records.append(kinds.get(text, _PLAIN))
                records += text.encode()
            ends.append(len(records))
        _check_bytes(len(records) + num_ids * ends.itemsize)
        decoder = backend.decoder.__getstate__().decode() if backend.decoder else ""
        return cls(decoder, ends, bytes(records))

    @classmethod
    def from_bytes(cls, data: bytes) -> "TokenTable":
        """Return the table that `to_bytes` wrote, in work that does not grow with its tokens."""
        size, num_ids = _SIZES.unpack_from(data)
        start, ends = _SIZES.size + size, array("I")
        middle = start + num_ids * ends.itemsize
        ends.frombytes(data[start:middle])
        return cls(data[_SIZES.size : start].decode(), ends, data[middle:])

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` reads on the same machine."""
        decoder = self._json.encode()
        head = _SIZES.pack(len(decoder), len(self._ends))
        return head + decoder + self._ends.tobytes() + self._records

    def __len__(self) -> int:
        """Return the number of ids up to the highest token's."""
        return len(self._ends)

    def token(self, token_id: int) -> str:
        """Return the name of a token, empty for an id that is no token's."""
        return self._record(token_id)[1:].decode()

    @cached_property
    def num_plain(self) -> int:
        """Number of ids before the added tokens at the end."""
        ids = reversed(range(len(self)))
        return next((1 + token for token in ids if self._record(token)[:1] == b"\0"), 0)

    @cached_property
    def numbering(self) -> bytes:
        """Digests of the ids, for `same_numbering`: SHA-256 of the tokens before those added at the
        end, then 8 bytes of each id behind them, zeros without a token."""
        tokens = [self.token(token_id) for token_id in range(len(self))]
        plain, added = tokens[: self.num_plain], tokens[self.num_plain :]
        digests = (_digest(token)[:8] if token else bytes(8) for token in added)
        return _digest(json.dumps(plain)) + b"".join(digests)

    def check_decoder(self) -> None:
        """Raise `WeightsError` for a decoder whose work may be more than a few times its text."""
        size = len(self._json.encode())
        if size > _MAX_DECODER_BYTES:
            raise WeightsError(
                f"the tokenizer's decoder has {size} bytes, but at most {_MAX_DECODER_BYTES} fit"
            )
        for step in _steps(json.loads(self._json)) if self._json else []:
            for replaced, text in _replaced(step):
                if not replaced or len(text.encode()) > len(replaced.encode()):
                    raise WeightsError(
                        f"the step {step['type']} of the tokenizer's decoder replaces a pattern,"
                        " or a text by a longer one"
                    )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens, as the tokenizer's own decoder.

        Ids that are no token's are passed over. Incomplete UTF-8 becomes U+FFFD.
        """
        records = filter(None, map(self._record, ids))
        tokens = [record[1:].decode() for record in records if record[0] != _SPECIAL]
        text: str = self._decoder.decode(tokens) if self._decoder else " ".join(tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token behind others; they need not be whole characters.

        Added and special tokens have the bytes of their names, and ids that are no token's none.
        """
        record = self._record(token_id)
        if not record or record[0] != _PLAIN:
            return record[1:]
        return self._spell(record[1:].decode())

    def _record(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self._ends):
            return b""
        start = self._ends[token_id - 1] if token_id else 0
        return self._records[start : self._ends[token_id]]


def same_numbering(ours: bytes, theirs: bytes) -> bool:
    """Return whether the ids that two tokenizers have are the same tokens, by their `numbering`.

    Either may have added tokens at the end that the other one lacks. False where one is empty.
    """
    if not ours or ours[:32] != theirs[:32]:
        return False
    ends = range(40, min(len(ours), len(theirs)) + 1, 8)
    pairs = ((ours[end - 8 : end], theirs[end - 8 : end]) for end in ends)
    return all(one == other or bytes(8) in (one, other) for one, other in pairs)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _check_bytes(num_bytes: int) -> None:
    if num_bytes > MAX_TABLE_BYTES:
        raise WeightsError(f"the tokens have {num_bytes} bytes, but at most {MAX_TABLE_BYTES} fit")


def _decoder(state: str) -> Any:
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    decoder = json.loads(state) if state else None
    return Tokenizer.from_str(json.dumps({"model": model, "decoder": decoder})).decoder


def _spelling(steps: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes]:
    """Return how the steps of a decoder read a token."""
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return partial(_from_alphabet, alphabet=_alphabet())
    spaced = (step for step in steps if step["type"] in ("Metaspace", "Replace"))
    spaces = tuple(pair for step in spaced for pair in _replaced(step) if pair[0])
    return partial(_from_piece, spaces=spaces, has_bytes="ByteFallback" in kinds)


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _replaced(step: Mapping[str, Any]) -> list[tuple[str, str]]:
    match step["type"]:
        case "Replace":
            return [(step["pattern"].get("String", ""), step["content"])]
        case "Metaspace":
            return [(step["replacement"], " ")]
        case "BPEDecoder":
            return [(step["suffix"], " ")]
        case "CTC":
            return [(step["pad_token"], ""), (step["word_delimiter_token"], " ")]
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
