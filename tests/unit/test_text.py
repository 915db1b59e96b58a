"""Laws of turning tokens into text: nothing is lost, nothing emitted has to be taken back."""

import random
from collections.abc import Sequence

import pytest

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
def test_the_pieces_add_up_to_the_text_and_the_tokens_however_they_are_cut(seed):
    data = TEXT.encode()
    pieces = streamed(data, cuts(len(data), seed))
    assert "".join(piece.text for piece in pieces) == TEXT
    assert bytes(token for piece in pieces for token in piece.tokens) == data


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


def test_bytes_that_never_become_a_character_are_emitted_at_the_end():
    stream = TextStream(decode)
    assert stream.push([0xF0, 0x9F]).tokens == ()
    last = stream.finish()
    assert last.tokens == (0xF0, 0x9F)
    assert last.text == decode([0xF0, 0x9F])


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


def test_nothing_is_emitted_of_what_was_sent_while_it_is_not_reached_again():
    rest = TextStream(decode, num_sent=4)
    assert rest.push([65, 66]) == Piece("", ())
    assert rest.push([67, 68, 69]) == Piece("E", (69,))
