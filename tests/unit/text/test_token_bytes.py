"""Tokens as bytes: joined, they are the text that they were made of."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from slipstream.models.tokenizer import text_tokenizer
from support.models.tiny_checkpoint import SPECIAL, byte_tokenizer

TEXTS = [
    "hello",
    "  two  spaces \n\n\tand lines\r\n",
    "a<|user|>b <|bot|>c<|im_end|> <|im_start|>user",
    "<0x41> <s>a </s> [own]b",
    "It 's , isn 't it ? Don't .",
    "naïve Ωmega жук 漢字 👩‍👩‍👧 e\u0301 \u00a0\u200b\ufeff\ufffd",
    "\x00\x01\x7f",
]
MANNERS = {
    "llama": decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
    "metaspace": decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]
    ),
}


def pieces(manner):
    """SentencePiece's manner: a sign for spaces, and bytes for what has no piece."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", *"abcdehlortw", "▁a", "he", "ll", "hell", "hello", "▁hello"]
    vocab = {word: number for number, word in enumerate(words)}
    merges = [("▁", "a"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello")]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = MANNERS[manner]
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_tokens([AddedToken("[own]"), AddedToken("naïve")])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def smollm2(request):
    return AutoTokenizer.from_pretrained(request.getfixturevalue("real_model"))


@pytest.fixture(scope="module", params=["bytes", "smollm2"])
def byte_level(request):
    hf = smollm2(request) if request.param == "smollm2" else byte_tokenizer()
    return text_tokenizer(hf)


@pytest.fixture(scope="module", params=list(MANNERS))
def in_pieces(request):
    return text_tokenizer(pieces(request.param))


def joined(text, ids):
    return b"".join(text.token_bytes(token) for token in ids)


@pytest.mark.parametrize("string", TEXTS)
def test_the_bytes_of_a_text_s_tokens_are_its_utf_8(byte_level, string):
    ids = byte_level.encode(string, add_special_tokens=False)
    assert joined(byte_level, ids) == string.encode()


@pytest.mark.parametrize("string", ["hello a hello", "a\n\tb  c", "漢字 👩‍👩‍👧 <0x41>", "hello"])
def test_in_pieces_too_behind_the_space_that_begins_a_text(in_pieces, string):
    ids = in_pieces.encode(string, add_special_tokens=False)
    assert joined(in_pieces, ids) == b" " + string.encode()
    assert in_pieces.decode(ids) == string


def test_added_and_special_tokens_are_spelled_as_they_are_written(in_pieces):
    ids = in_pieces.encode("<s>[own]naïve", add_special_tokens=False)
    assert [in_pieces.token_bytes(token) for token in ids] == [b"<s>", b"[own]", "naïve".encode()]
    text = text_tokenizer(byte_tokenizer())
    assert [text.token_bytes(token).decode() for token in range(3)] == list(SPECIAL)


def test_bytes_joined_read_as_decoding_reads(byte_level):
    chance = random.Random(3)
    for _ in range(50):
        ids = [chance.randrange(20, len(byte_level)) for _ in range(9)]
        assert joined(byte_level, ids).decode(errors="replace") == byte_level.decode(ids)


@pytest.mark.parametrize("token", [-1, 10**6, 1 << 31])
def test_ids_that_are_no_token_s_have_no_bytes(byte_level, in_pieces, token):
    assert byte_level.token_bytes(token) == in_pieces.token_bytes(token) == b""


def test_without_a_decoder_a_token_is_what_is_written():
    backend = Tokenizer(models.BPE(vocab={"a▁": 0, "<0x41>": 1}, merges=[]))
    text = text_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert joined(text, [0, 1]) == "a▁<0x41>".encode()
