"""Laws of turning tokens into text: nothing is lost, nothing emitted has to be taken back."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders

from slipstream.core.errors import InvalidRequest
from slipstream.core.text import Piece, TextStream


def decode(tokens: Sequence[int]) -> str:
    """A byte tokenizer."""
    return bytes(tokens).decode(errors="replace")


def streamed(data: bytes, sizes: Sequence[int], stop: Sequence[str] = ()) -> list[Piece]:
    stream = TextStream(decode, stop)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(stream.push(list(data[start : start + size])))
        start += size
        if pieces[-1].is_stopped:
            return pieces
    return [*pieces, stream.finish()]


def cuts(length: int, seed: int) -> list[int]:
    rng, sizes = random.Random(seed), []
    while sum(sizes) < length:
        sizes.append(min(rng.randint(1, 5), length - sum(sizes)))
    return sizes


TEXT = "plain, grüße, 日本語 and 🙂🙂 to the END. and more"


@pytest.mark.parametrize("seed", range(20))
def test_every_piece_is_whole_tokens_with_exactly_their_text(seed):
    data = TEXT.encode()
    for piece in streamed(data, cuts(len(data), seed), ["never there"]):
        assert decode(piece.tokens) == piece.text
        assert "\ufffd" not in piece.text


@pytest.mark.parametrize("seed", range(20))
def test_text_ends_before_the_stop_string_wherever_the_cuts_are(seed):
    data = TEXT.encode()
    pieces = streamed(data, cuts(len(data), seed), ["END", "x"])
    assert "".join(piece.text for piece in pieces) == TEXT[: TEXT.index("END")]
    assert pieces[-1].is_stopped


def test_the_tokens_of_a_stop_end_with_the_one_that_completed_it():
    pieces = streamed(b"go on STOP here", [15], ["STOP"])
    assert bytes(pieces[-1].tokens) == b"go on STOP"
    assert pieces[-1].text == "go on "


def test_the_earliest_of_several_stop_strings_ends_the_text():
    pieces = streamed(b"a then b then c", [15], ["c", "then", "b t"])
    assert "".join(piece.text for piece in pieces) == "a "


def test_a_beginning_of_a_stop_string_waits_and_is_emitted_when_it_was_none():
    stream = TextStream(decode, ["<end>"])
    assert stream.push(list(b"a<en")).text == "a"
    assert stream.push(list(b"em")).text == "<enem"


@pytest.mark.parametrize("stop", [[""], ["x" * 241], ["x"] * 17])
def test_stop_strings_out_of_bounds_are_refused(stop):
    with pytest.raises(InvalidRequest):
        TextStream(decode, stop)


@pytest.mark.parametrize("stop", [(), ("END", "x")])
@pytest.mark.parametrize("seed", range(10))
def test_a_stream_that_broke_after_any_piece_goes_on_with_exactly_the_rest(seed, stop):
    data = TEXT.encode()
    whole = streamed(data, cuts(len(data), seed), stop)
    for num_pieces in range(len(whole)):  # the last one says that it ended
        sent = [token for piece in whole[:num_pieces] for token in piece.tokens]
        rest = TextStream(decode, stop, num_sent=len(sent))
        piece = rest.push(list(data))
        ending = Piece("", ()) if piece.is_stopped else rest.finish()
        text = "".join(piece.text for piece in whole[:num_pieces]) + piece.text + ending.text
        assert text == "".join(piece.text for piece in whole)
        tokens = [*sent, *piece.tokens, *ending.tokens]
        assert tokens == [token for piece in whole for token in piece.tokens]


BYTES = [b"\x80", b"\xe2", b"\x82", b"\xac", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80\xf0", b" a"]
BYTES += ["é".encode(), "\ufffd".encode(), b"\xac\xe2\x82", b"\x9f\x98\x80\xf0", b"\xff\xfe"]


def decode_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer whose tokens begin and end within characters."""
    return b"".join(BYTES[token] for token in tokens).decode(errors="replace")


def streamed_one_by_one(spell, tokens, **options) -> list[Piece]:
    stream = TextStream(spell, **options)
    return [*(stream.push([token]) for token in tokens), stream.finish()]


@given(st.lists(st.integers(0, len(BYTES) - 1), max_size=24))
@example([11] * 20)  # every token ends within a character that the next one completes
@example([12] * 20)
@example([1, 2] * 10)
def test_streamed_text_is_the_decoded_whole_whatever_the_bytes_of_tokens_are(tokens):
    pieces = streamed_one_by_one(decode_bytes, tokens)
    assert "".join(piece.text for piece in pieces) == decode_bytes(tokens)
    assert [token for piece in pieces for token in piece.tokens] == tokens
    num_sent = 0
    for at, piece in enumerate(pieces[:-1]):
        num_sent += len(piece.tokens)
        assert at + 1 - num_sent <= 3
        rest = TextStream(decode_bytes, num_sent=num_sent)  # of a stream that broke here
        text = rest.push(tokens).text + rest.finish().text
        assert text == "".join(piece.text for piece in pieces[at + 1 :])


@pytest.mark.parametrize("byte", [0x80, 0xFF])
def test_bytes_that_are_never_a_character_are_streamed_as_sentencepiece_decodes_them(byte):
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])

    def fall_back(tokens: Sequence[int]) -> str:
        return decoder.decode([f"<0x{token:02X}>" for token in tokens])

    tokens = [byte] * 50
    pieces = streamed_one_by_one(fall_back, tokens)
    assert "".join(piece.text for piece in pieces) == fall_back(tokens) == "\ufffd" * 50


PIECES = ["▁one", "▁two", "", "<0xC3>", "<0xA9>", "ly"]  # an empty one is not shown
WORDS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
WORDS = decoders.Sequence([*WORDS, decoders.Strip(" ", 1, 0)])


def decode_words(tokens: Sequence[int]) -> str:
    """A tokenizer that drops the first space of a text."""
    return WORDS.decode([PIECES[token] for token in tokens if PIECES[token]])


@pytest.mark.parametrize("cut", [1, 2, 4, 5, 6, 7])
def test_text_that_goes_on_from_a_text_is_the_rest_of_the_whole(cut):
    tokens = [0, 1, 3, 4, 2, 1, 5, 2, 2, 0]
    pieces = streamed_one_by_one(decode_words, tokens[cut:], before=tokens[:cut])
    rest = "".join(piece.text for piece in pieces)
    assert decode_words(tokens[:cut]) + rest == decode_words(tokens) == "one twoé twoly one"
    assert [token for piece in pieces for token in piece.tokens] == tokens[cut:]


@pytest.mark.parametrize("token", [0, 1, 4, 11, 12, 13])
@pytest.mark.parametrize("size", [1, 4000])
def test_the_work_for_a_token_does_not_grow_with_the_bytes_before_it(token, size):
    num_decoded = longest = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal num_decoded, longest
        num_decoded += len(tokens)
        longest = max(longest, len(tokens))
        return decode_bytes(tokens)

    stream = TextStream(counted, ["never there"])
    for _ in range(4000 // size):
        stream.push([token] * size)
    stream.finish()
    assert longest <= 8
    assert num_decoded <= 20 * 4000
