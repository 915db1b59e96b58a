"""The tokenizer in a GGUF file is the model's own, or what it can't follow is refused by name."""

from dataclasses import replace

import pytest

from slipstream.core.errors import WeightsError
from slipstream.models.format.gguf_config import turn_ends
from slipstream.models.format.gguf_file import GgufFile
from slipstream.models.format.gguf_tokenizer import read_gguf_tokenizer
from slipstream.models.loading import load_model
from support.models import tiny_gguf
from support.models.families import FIELD_CASES

SMALL = 64  # elements of a hidden state
NAMED = ("<|im_end|>", "<|endoftext|>", "<end_of_utterance>")
ROLES = [({"unknown": 5}, {0}), ({"eot": 7, "eom": 9}, {0, 5, 7, 9})]


def small(path, family="llama", **more):
    return tiny_gguf.write(path, lambda _: "F32", family, SMALL, more=more)


def tokenizer_of(path, family="llama", **fields):
    named = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    return read_gguf_tokenizer(GgufFile(small(path, family, **named)))


@pytest.mark.parametrize(
    ("name", "kind", "roles", "expected"),
    [
        *((name, kind, {}, {0, 5}) for name in NAMED for kind in (1, 3, 4)),
        *((NAMED[0], 3, roles, ends) for roles, ends in ROLES),
        *(("</s>", kind, {}, {0, 5} if kind == 3 else {0}) for kind in (1, 3, 4)),  # a tag of HTML
    ],
)
def test_tokens_with_a_role_or_a_usual_name_end_an_answer(name, kind, roles, expected, tmp_path):
    fields = tiny_gguf.padded(0)
    fields["tokenizer.ggml.tokens"][5] = name
    fields["tokenizer.ggml.token_type"][5] = kind
    fields |= {f"tokenizer.ggml.{role}_token_id": token for role, token in roles.items()}
    assert load_model(str(small(tmp_path / "ends.gguf", **fields))).stop_token_ids == expected


def test_tokens_have_names_of_their_own(tmp_path):
    fields = tiny_gguf.padded(0)
    tokens = fields["tokenizer.ggml.tokens"]
    tokens[7] = tokens[8] = ""
    table = read_gguf_tokenizer(GgufFile(small(tmp_path / "a.gguf", **fields))).table
    assert [table.token(number) for number in (7, 8)] == ["[EMPTY_7]", "[EMPTY_8]"]
    tokens[9] = tokens[10]
    with pytest.raises(WeightsError, match=r"has the token '.' 2 times"):
        read_gguf_tokenizer(GgufFile(small(tmp_path / "b.gguf", **fields)))


@pytest.mark.parametrize("has_types", [True, False])
def test_plain_tokens_with_the_usual_names_are_control_tokens(has_types, tmp_path):
    fields = tiny_gguf.padded(0)
    names = ["<|im_start|>", "<end_of_turn>", "<td>", "<|end"]
    fields["tokenizer.ggml.tokens"][5:9] = names
    file = GgufFile(small(tmp_path / "a.gguf", **fields))
    if not has_types:
        del file.fields["tokenizer.ggml.token_type"]
    tokenizer = read_gguf_tokenizer(file)
    found = [tokenizer.encode(name, add_special_tokens=False) for name in names]
    assert [ids == [5 + place] for place, ids in enumerate(found)] == [True, True, False, False]
    assert turn_ends(file) == [0, 6]


def test_an_end_of_a_message_is_none_of_a_turn_where_others_end_it(tmp_path):
    fields = tiny_gguf.padded(0) | {"tokenizer.ggml.eos_token_id": 4}
    for name, ends in (("<|call|>", [4, 5]), ("<|calling|>", [0, 4])):
        fields["tokenizer.ggml.tokens"][4:6] = ["<|return|>", name]
        assert turn_ends(GgufFile(small(tmp_path / f"{len(name)}.gguf", **fields))) == ends


def test_of_a_merge_that_is_there_twice_the_first_counts(tmp_path):
    fields = tiny_gguf.padded(0) | {"tokenizer.ggml.merges": ["a b", "b c", "a b"]}
    fields["tokenizer.ggml.tokens"][5:7] = ["ab", "bc"]
    tokenizer = read_gguf_tokenizer(GgufFile(small(tmp_path / "a.gguf", **fields)))
    assert tokenizer.encode("abc", add_special_tokens=False)[0] == 5


def test_several_chat_templates_are_named_in_a_list(tmp_path):
    more = {f"chat_template{end}": f"<{end}>" for end in ("", ".tool_use", ".rag")}
    fields = {**more, "chat_templates": ["tool_use", "rag"]}
    path = small(tmp_path / "a.gguf", **{f"tokenizer.{it}": fields[it] for it in fields})
    expected = "{% if tools %}<.tool_use>{% else %}<>{% endif %}"
    assert read_gguf_tokenizer(GgufFile(path)).chat_template == expected


@pytest.mark.parametrize(("kind", "kept"), [(1, 9), (3, 0), (4, 0)])
def test_added_tokens_past_the_embedding_are_plain_text(kind, kept, tmp_path):
    fields = tiny_gguf.padded(0)
    rows = len(fields["tokenizer.ggml.tokens"])
    fields["tokenizer.ggml.tokens"] += [f"<{number}>" for number in range(9)]
    fields["tokenizer.ggml.token_type"] += [kind] * 9
    file = GgufFile(small(tmp_path / "a.gguf", **fields))
    table = file.tensors["token_embd.weight"]
    file.tensors["token_embd.weight"] = replace(table, shape=(rows, SMALL))
    assert max(read_gguf_tokenizer(file).ids()) == rows - 1 + kept


@pytest.mark.parametrize(
    ("pre", "adds", "expected"),
    [
        *(("smollm", None, 0), ("smollm", True, 1), ("smollm", 1, 1)),
        *(("llama-bpe", None, 1), ("llama-bpe", False, 0), ("llama-bpe", 0, 0)),
    ],
)
def test_a_text_begins_with_one_bos_where_the_file_says_so(pre, adds, expected, tmp_path):
    fields = {"pre": pre, "bos_token_id": 1, "merges": ["Ġ Ġ"]}
    if adds is not None:
        fields["add_bos_token"] = adds
    ids = tokenizer_of(tmp_path / "bos.gguf", **fields).encode("a b", add_special_tokens=True)
    assert ids.count(1) == expected == (ids[0] == 1)


@pytest.mark.parametrize(("words", "fields"), FIELD_CASES["gguf_tokenizers"])
def test_what_a_tokenizer_can_not_follow_is_refused_by_its_name(fields, words, tmp_path):
    with pytest.raises(WeightsError, match=words):
        tokenizer_of(tmp_path / "odd.gguf", **fields)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{at:02X}>" for at in range(256))]
WORDS = ["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁"]


@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        (True, "ab", ["<s>", "▁ab"]),
        (False, "ab", ["<s>", "ab"]),
        (True, "a  ab", ["<s>", "▁a", "▁", "▁ab"]),
        (False, "b\n", ["<s>", "b", "<0x0A>"]),
    ],
)
def test_pieces_are_merged_by_score_with_bytes_for_the_rest(prefix, text, expected, tmp_path):
    scores = [0.0] * len(PIECES) + [-10.0, -10.0, -10.0, -2.0, -3.0, -1.0, -5.0]
    types = [2, 3, 3] + [6] * 256 + [1] * len(WORDS)
    fields = {"model": "llama", "tokens": [*PIECES, *WORDS], "token_type": types, "scores": scores}
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    own = {**fields, **roles, "add_space_prefix": prefix}
    tokenizer = tokenizer_of(tmp_path / "spm.gguf", **own)
    with pytest.raises(WeightsError, match="same score for all pieces"):
        tokenizer_of(tmp_path / "odd.gguf", **{**own, "scores": [-1000.0] * len(scores)})
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert [tokenizer.table.token(number) for number in ids] == expected
    assert tokenizer.decode(ids) == text


def test_spaces_behind_control_tokens_of_phi_3_are_theirs(tmp_path):
    pieces = ["<unk>", "<s>", "<|end|>", "<0x0A>", "▁", "a", "▁a"]
    fields = {"tokens": pieces, "token_type": [2, 3, 3, 6, 1, 1, 1], "bos_token_id": 1}
    fields |= {"model": "llama", "scores": [0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -1.0]}
    expected = {"phi3": [2, 6, 1, 4, 3, 5], "llama": [2, 4, 3, 5, 1, 4, 3, 5]}
    for family, ids in expected.items():
        tokenizer = tokenizer_of(tmp_path / family, family, **fields)
        assert tokenizer.encode("<|end|>\na<s>\na", add_special_tokens=False) == ids
