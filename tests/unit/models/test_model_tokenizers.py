"""Tokenizers in the files of models: read as transformers reads them, kept, and compared."""

import json
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from slipstream.core.errors import ModelMismatch
from slipstream.models.format import tokenizer
from slipstream.models.format.tokenizer import find_tokenizer
from slipstream.models.loaded import require_same_numbering
from slipstream.models.loading import load_model
from slipstream.text.token_bytes import same_numbering
from support.models.tiny_checkpoint import (
    byte_tokenizer,
    piece_tokenizer,
    save_checkpoint,
    text_tokenizer,
)


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "tokenizers_dir", lambda: tmp_path / "kept")
    return save_checkpoint(tmp_path / "tiny")


def test_files_name_tokens_beside_those_of_tokenizer_json(checkpoint):
    plain = find_tokenizer(checkpoint, None)
    path = checkpoint / "tokenizer_config.json"
    named = {"bos_token": "<b>", "extra_special_tokens": ["<c>"], "chat_template": "old"}
    added = {"260": {"content": "<d>", "special": False}, "259": {"content": "<b>"}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **named}))
    for fields in ({}, {"added_tokens_decoder": added}):
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
        own, theirs = find_tokenizer(checkpoint, None), AutoTokenizer.from_pretrained(checkpoint)
        text = "a<b> <c><d>"
        assert own.text.encode(text, add_special_tokens=True) == theirs.encode(text)
        assert own.text.parts().special_tokens == theirs.special_tokens_map
        assert own.text.chat_template == theirs.chat_template == plain.text.chat_template
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


NUMBERINGS = {
    "added tokens": ({}, {"added": ("<a>",)}, None),
    "fewer added ones": ({"added": ("<a>", "<b>")}, {"added": ("<a>",)}, None),
    "another added one": (
        *({"added": ("<a>", "<b>")}, {"added": ("<a>", "<c>")}),
        "token 260 is '<c>' of the draft small, but '<b>' of the target large",
    ),
    "another token": (
        *({"more": ("aa", "bb")}, {"more": ("aa", "cc"), "added": ("bb",)}),
        "token 260 is 'cc' of the draft small, but 'bb' of the target large",
    ),
    "one token more": (
        *({"added": ("<a>",)}, {"more": ("aa",), "added": ("<a>",)}),
        "token 259 is 'aa' of the draft small, but '<a>' of the target large",
    ),
    "one token less": (
        *({"more": ("aa",)}, {}),
        "token 259 is none of the draft small, but 'aa' of the target large",
    ),
    "as many, others added": (
        *({"more": ("<a>",)}, {"added": ("<a>",)}),
        "the draft small has 259 tokens before those that were added, but the target large 260",
    ),
}


@pytest.mark.parametrize("case", NUMBERINGS)
def test_a_draft_whose_ids_are_other_tokens_is_refused_with_the_first(case, checkpoint):
    ours, theirs, sentence = NUMBERINGS[case]
    tokenizers = [byte_tokenizer(**ours), byte_tokenizer(**theirs)]
    own, other = map(text_tokenizer, tokenizers)
    small = replace(load_model(str(checkpoint)), tokenizer=other, model_id="small")
    assert same_numbering(own.table.numbering, other.table.numbering) is (sentence is None)
    if sentence is None:
        require_same_numbering("large", own, small)
        return
    with pytest.raises(ModelMismatch) as refused:
        require_same_numbering("large", own, small)
    assert str(refused.value) == sentence
