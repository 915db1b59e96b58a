"""Long texts: encoded while others run, and refused by a part of them where they can't fit."""

import asyncio
import random
import sys
from datetime import datetime

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from slipstream.core.errors import PromptTooLong
from slipstream.text.template import ChatTemplate
from slipstream.text.tokenizer import PIECE_CHARS, TextTokenizer, TokenizerParts
from support.models.tiny_checkpoint import byte_tokenizer, text_tokenizer


def word_pieces():
    """Words in pieces; one of more than a hundred characters is a single unknown token."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    vocab = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer_of(backend)


def runs():
    """Pairs of a letter are merged, and pairs of pairs: tokens of up to 64 characters."""
    words = ["a" * 2**number for number in range(7)] + [" "]
    vocab = {word: number for number, word in enumerate(words)}
    return tokenizer_of(Tokenizer(models.BPE(vocab, [(word, word) for word in words[:6]])))


def tokenizer_of(backend):
    return TextTokenizer(TokenizerParts(b"", "", {}), backend, ChatTemplate("", {}, datetime.now))


TOKENIZERS = {
    "bytes": lambda: text_tokenizer(byte_tokenizer()),
    "word pieces": word_pieces,
    "runs": runs,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_that_fits_is_never_refused(kind):
    tokenizer, draw = TOKENIZERS[kind](), random.Random(0)
    for longest in (1, 64, 101, 2 * PIECE_CHARS):
        lengths = [draw.randint(1, longest) for _ in range(2 * PIECE_CHARS // (longest + 1))]
        text = " ".join(["a" * length for length in lengths])
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False, max_tokens=len(ids)) == ids


class Counted:
    """The library's tokenizer, and how many characters it was given."""

    def __init__(self, backend):
        self._backend = backend
        self.num_chars = 0

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def encode_batch_fast(self, texts, *, add_special_tokens):
        self.num_chars += sum(map(len, texts))
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def test_of_a_text_that_can_not_fit_no_more_is_encoded_than_shows_it():
    backend = Counted(Tokenizer.from_str(byte_tokenizer().backend_tokenizer.to_str()))
    tokenizer = tokenizer_of(backend)
    with pytest.raises(PromptTooLong, match="4194304 characters has more than 1000 tokens"):
        tokenizer.encode("a b " * (1 << 20), add_special_tokens=False, max_tokens=1000)
    assert backend.num_chars <= PIECE_CHARS


@pytest.fixture
def no_switches():
    """A thread gives Python's lock up by itself alone, not because its time is up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_switches")
async def test_the_event_loop_goes_on_while_a_text_is_encoded():
    tokenizer, num_turns = text_tokenizer(byte_tokenizer()), 0

    def encode():
        before = num_turns
        ids = tokenizer.encode("a b " * PIECE_CHARS, add_special_tokens=False)
        return len(ids), num_turns - before

    encoding = asyncio.create_task(asyncio.to_thread(encode))
    while not encoding.done():
        await asyncio.sleep(0)
        num_turns += 1
    num_tokens, num_turns_meanwhile = await encoding
    assert num_tokens == 4 * PIECE_CHARS
    assert num_turns_meanwhile > 0
