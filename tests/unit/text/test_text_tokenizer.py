"""A tokenizer without transformers reads and writes exactly as transformers does."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Regex, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from slipstream.core.errors import InvalidRequest, ModelMismatch, WeightsError
from slipstream.models.format import tokenizer
from slipstream.models.format.tokenizer import find_tokenizer
from slipstream.text.prompts import encode_prompt
from slipstream.text.token_bytes import TokenTable
from slipstream.text.tokenizer import TextTokenizer, vocab_hash
from support.commands import ROOT
from support.models.tiny_checkpoint import (
    byte_tokenizer,
    piece_tokenizer,
    save_checkpoint,
    text_tokenizer,
)

LIBRARY = ROOT / "slipstream"
TEXTS = [
    "",
    " ",
    "hello",
    "  two  spaces \n\n\tand lines\r\n",
    "<|end|>",
    "a<|user|>b <|bot|>c<|im_end|> <|im_start|>user",
    "<s>a </s> [own]b [ OWN ]",
    "It 's , isn 't it ? Don't .",
    "f(x) = x**2 + 1234567",
    "naïve Ωmega жук 漢字 👩‍👩‍👧 e\u0301 \u00a0\u200b\ufeff\ufffd",
    "\x00\x01\x7f",
    "word " * 300,
]


@pytest.fixture(
    scope="module", params=["bytes", "pieces", pytest.param("real", marks=pytest.mark.real)]
)
def hf(request):
    if request.param == "real":
        return AutoTokenizer.from_pretrained(request.getfixturevalue("real_model"))
    return byte_tokenizer() if request.param == "bytes" else piece_tokenizer()


@pytest.fixture(scope="module")
def text(hf):
    return text_tokenizer(hf)


def decoded(hf, ids):
    return hf.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def conversations():
    """The bundled prompts, and each with one more turn for every turn that it has."""
    for line in (LIBRARY / "data" / "prompts.jsonl").read_text().splitlines():
        messages = []
        for turn in json.loads(line)["turns"]:
            messages.append({"role": "user", "content": turn})
            yield list(messages)
            messages.append({"role": "assistant", "content": f"Of <{turn[:9]}>:\n\n* no.\n"})
        yield [*messages, {"role": "user", "content": "Go on."}]


@pytest.mark.parametrize("special", [False, True], ids=["plain", "with the model's own around"])
def test_text_has_the_ids_that_transformers_gives(hf, text, special):
    for string in TEXTS:
        expected = hf.encode(string, add_special_tokens=special)
        assert text.encode(string, add_special_tokens=special) == expected


def test_random_ids_have_the_text_that_transformers_gives(hf, text):
    choose = random.Random(0)
    special = hf.all_special_ids
    for _ in range(400):
        ids = [choose.randrange(len(hf) + 3) for _ in range(choose.randrange(12))]
        ids.insert(choose.randrange(len(ids) + 1), choose.choice(special))
        assert text.decode(ids) == decoded(hf, ids)
        assert text.decode(tuple(ids)) == text.decode(ids)


def test_conversations_read_and_number_as_in_transformers(hf, text):
    for messages in conversations():
        told = {"add_generation_prompt": True}
        rendered = hf.apply_chat_template(messages, tokenize=False, **told)
        ids = hf.apply_chat_template(messages, return_dict=False, **told)
        assert text.render(messages) == rendered
        assert encode_prompt(text, messages) == tuple(ids)


def test_its_parts_make_the_same_tokenizer_elsewhere(hf, text):
    parts = text.parts()
    again = TextTokenizer.from_parts(bytes(parts.json), *parts[1:])
    assert again.parts() == parts
    assert again.vocab_hash == text.vocab_hash == vocab_hash(hf.get_vocab())
    assert len(again) == len(text) == len(hf)
    assert again.chat_template == text.chat_template == hf.chat_template
    assert dict(parts.special_tokens) == hf.special_tokens_map
    for string in TEXTS:
        assert again.encode(string, add_special_tokens=True) == hf.encode(string)


def test_nothing_is_cut_or_filled_up_whatever_the_file_says():
    hf = byte_tokenizer()
    whole = hf.encode("hello")
    backend = Tokenizer.from_str(hf.backend_tokenizer.to_str())
    backend.enable_truncation(2)
    backend.enable_padding(length=16, pad_id=7)
    assert len(backend.encode("hello").ids) == 16
    tokenizer = TextTokenizer.from_parts(backend.to_str().encode(), "", {})
    assert tokenizer.encode("hello", add_special_tokens=True) == whole


@pytest.mark.parametrize(
    ("json_", "reason"),
    [
        (b"", "of 0 bytes can't be read"),
        (b"\xff\xfe", "of 2 bytes can't be read"),
        (b"null", "can't be read"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "can't be read"),
        (b'{"model": {"type": "Unigram", "vocab": []}}', "no tokens"),
        (
            b'{"model": {"type": "BPE", "continuing_subword_prefix": "##########",'
            b' "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}',
            "can't be read",
        ),
    ],
)
def test_what_is_no_tokenizer_is_refused(json_, reason):
    with pytest.raises(WeightsError, match=reason):
        TextTokenizer.from_parts(json_, "", {})


@pytest.mark.parametrize(
    ("string", "reason"), [("a\ud800", "not valid Unicode"), ("b", "turned into tokens")]
)
def test_text_without_tokens_is_refused(string, reason):
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="?"))
    tokenizer = TextTokenizer.from_parts(backend.to_str().encode(), "", {})
    assert tokenizer.encode("a", add_special_tokens=False) == [0]
    with pytest.raises(InvalidRequest, match=reason):
        tokenizer.encode(string, add_special_tokens=False)


def test_many_threads_get_what_one_gets(hf):
    asked = [messages for messages in conversations() if len(messages) > 1]

    def answer(tokenizer, messages):
        ids = encode_prompt(tokenizer, messages)
        return ids, tokenizer.decode(ids), tokenizer.vocab_hash, len(tokenizer)

    alone = text_tokenizer(hf)
    expected = [answer(alone, messages) for messages in asked]
    shared = text_tokenizer(hf)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda messages: answer(shared, messages), asked * 2))
    assert answers == expected * 2


def test_the_default_of_several_chat_templates_is_taken():
    hf = byte_tokenizer(template={"tool_use": "tools", "default": "{{ messages[0].content }}"})
    assert text_tokenizer(hf).render([{"role": "user", "content": "a"}]) == "a"


@pytest.mark.parametrize("template", [None, {"tool_use": "tools"}, {}])
def test_without_a_chat_template_there_is_only_raw_text(template):
    tokenizer = text_tokenizer(byte_tokenizer(template=template))
    assert tokenizer.chat_template == ""
    with pytest.raises(InvalidRequest, match="no chat template"):
        encode_prompt(tokenizer, "a")
    assert encode_prompt(tokenizer, [5]) == (5,)


def joined(text, ids):
    return b"".join(text.token_bytes(token) for token in ids)


@pytest.mark.parametrize("string", TEXTS)
def test_the_bytes_of_a_text_s_tokens_are_its_utf_8(string):
    text = text_tokenizer(byte_tokenizer())
    assert joined(text, text.encode(string, add_special_tokens=False)) == string.encode()


LAST = {
    "llama": [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)],
    "metaspace": [decoders.Metaspace(prepend_scheme="always")],
}


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
@pytest.mark.parametrize("string", ["hello a hello", "a\n\tb  c", "漢字 👩‍👩‍👧 <0x41>", "hello"])
def test_in_pieces_too_behind_the_space_that_begins_a_text(string, last):
    hf = piece_tokenizer()
    hf.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), *last])
    text = text_tokenizer(hf)
    ids = text.encode(string, add_special_tokens=False)
    assert joined(text, ids) == b" " + string.encode()
    assert text.decode(ids) == string


def test_added_tokens_are_spelled_as_they_are_written_and_others_have_no_bytes(hf, text):
    for number, token in hf.added_tokens_decoder.items():
        assert text.token_bytes(number) == token.content.encode()
    assert [text.token_bytes(token) for token in (-1, 10**6, 1 << 31)] == [b""] * 3


def test_without_a_decoder_a_token_is_what_is_written():
    backend = Tokenizer(models.BPE(vocab={"a▁": 0, "<0x41>": 1}, merges=[]))
    text = text_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert joined(text, [0, 1]) == "a▁<0x41>".encode()


def test_the_table_alone_reads_ids_as_the_tokenizer_does(hf, text):
    table, draw = TokenTable.from_bytes(text.table.to_bytes()), random.Random(0)
    assert len(table) >= len(text)
    for _ in range(200):
        ids = [draw.randrange(len(text) + 2) for _ in range(draw.randrange(12))]
        assert table.decode(ids) == text.decode(ids)
        assert [*map(table.token_bytes, ids)] == [*map(text.token_bytes, ids)]


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Replace("a", "aa"),
        decoders.Replace("", "a"),
        decoders.Replace(Regex("(a|a)*b"), ""),
        decoders.Sequence([decoders.BPEDecoder(""), decoders.Fuse()]),
    ],
)
def test_a_decoder_that_multiplies_text_or_searches_patterns_is_refused(decoder):
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoder
    with pytest.raises(WeightsError, match="decoder replaces a pattern, or a text by a longer one"):
        TokenTable.of(backend, without=1).check_decoder()


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "tokenizers_dir", lambda: tmp_path / "kept")
    return save_checkpoint(tmp_path / "tiny")


def test_files_name_tokens_beside_those_of_tokenizer_json(checkpoint):
    plain = find_tokenizer(checkpoint, None)
    path = checkpoint / "tokenizer_config.json"
    named = {"bos_token": "<b>", "extra_special_tokens": ["<c>"], "chat_template": "old"}
    added = {"260": {"content": "<d>", "special": False}, "259": {"content": "<b>"}}
    added["1"] = {"content": "<|user|>", "special": False}  # as tokenizer.json has it otherwise
    path.write_text(json.dumps({**json.loads(path.read_text()), **named}))
    ends = {"add_bos_token": True, "add_eos_token": True}  # what tokenizer.json adds counts
    for fields in ({}, {"added_tokens_decoder": added}, ends):
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
        own, theirs = find_tokenizer(checkpoint, None), AutoTokenizer.from_pretrained(checkpoint)
        ids = theirs.encode(text := "a<b> <c><d><|user|>")
        assert own.text.encode(text, add_special_tokens=True) == ids
        assert own.text.decode(ids) == decoded(theirs, ids)
        assert own.text.parts().special_tokens == theirs.special_tokens_map
        assert own.text.chat_template == theirs.chat_template == plain.text.chat_template
    (checkpoint / "chat_template.jinja").write_text("{{ image_token }}{{ messages[0].content }}")
    (checkpoint / "added_tokens.json").write_text('{"<e>": 261}')
    talk, role = [{"role": "user", "content": "a"}], {"image_token": "<c>"}
    for more in (role, {"extra_special_tokens": role}, {"model_specific_special_tokens": role}):
        path.write_text(json.dumps({**named, **more}))
        own, theirs = find_tokenizer(checkpoint, None), AutoTokenizer.from_pretrained(checkpoint)
        assert own.text.encode("a<e>", add_special_tokens=True) == theirs.encode("a<e>")
        assert own.text.render(talk) == theirs.apply_chat_template(talk, tokenize=False) == "<c>a"
    path.write_text('{"split_special_tokens": true}')
    with pytest.raises(ModelMismatch, match="reads special tokens as plain text"):
        find_tokenizer(checkpoint, None)


@pytest.mark.parametrize("make", [byte_tokenizer, piece_tokenizer])
def test_a_kept_tokenizer_is_the_one_that_was_read(checkpoint, monkeypatch, make):
    make().save_pretrained(checkpoint)
    first = find_tokenizer(checkpoint, None)
    monkeypatch.setattr(tokenizer, "_read", lambda *_: pytest.fail("it was read again"))
    again = find_tokenizer(checkpoint, None)
    assert again.text.parts() == first.text.parts()
    numbers = ("vocab_hash", "num_ids", "eos_token_id")
    assert all(getattr(again, name) == getattr(first, name) for name in numbers)
    text = "hello <|user|> wor 12 <s>"
    ids = make().encode(text, add_special_tokens=True)
    assert again.text.encode(text, add_special_tokens=True) == ids


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"json": "{}"}'])
def test_a_changed_tokenizer_or_one_that_is_kept_broken_is_read_again(checkpoint, content):
    first = find_tokenizer(checkpoint, None)
    (kept,) = (checkpoint.parent / "kept").iterdir()
    kept.write_text(content)
    assert find_tokenizer(checkpoint, None).text.parts() == first.text.parts()
    (checkpoint / "chat_template.jinja").write_text("{{ bos_token }}")
    assert find_tokenizer(checkpoint, None).text.chat_template == "{{ bos_token }}"
