"""What counts as training text, who is held out, and how it is cut into batches."""

import json
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import TrainingError
from slipstream.train.data import Document, ReadLimits, batches, read_data, split_heldout

LIMITS = ReadLimits(vocab_size=50, max_tokens=8)


def encode(text):
    return [len(word) for word in text.split()]


def write(path, *lines):
    path.write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    return path


def document(prompt, generated=()):
    return Document(np.array([*prompt, *generated], dtype=np.int32), len(prompt))


def test_ids_and_prompt_texts_both_become_documents(tmp_path):
    path = write(tmp_path / "a.jsonl", {"p": [1, 2], "g": [3], "t": 0.6}, {"prompt": "ab c def"})
    data = read_data(path, LIMITS, encode=encode)
    assert [d.ids.tolist() for d in data.documents] == [[1, 2, 3], [2, 1, 3]]
    assert [d.num_prompt for d in data.documents] == [2, 3]
    assert (data.num_tokens, data.num_generated) == (6, 1)


def test_texts_and_conversations_with_an_answer_become_documents(tmp_path):
    user, reply = {"role": "user", "content": "ab c"}, {"role": "assistant", "content": "def"}
    lines = {"prompt": "ab c", "answer": "def"}, {"messages": [user, reply]}
    path = write(tmp_path / "a.jsonl", *lines, {"p": [2, 1], "g": [3]})
    limits = replace(LIMITS, encode_answer=encode)
    prompt = lambda at: encode(at if isinstance(at, str) else at[0]["content"])  # noqa: E731
    data = read_data(path, limits, encode=prompt)
    found = [(document.ids.tolist(), document.num_prompt) for document in data.documents]
    assert found == [([2, 1, 3], 2)] * 3


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "last one is not the assistant's"),
        ({"messages": "a"}, "last one is not the assistant's"),
        ({"prompt": "a", "answer": 3}, "an answer of type int, not text"),
        ({"question": "a"}, 'neither "prompt", "messages" nor "p" and "g"'),
    ],
)
def test_a_line_of_text_that_has_no_answer_is_named(tmp_path, line, sentence):
    path = write(tmp_path / "a.jsonl", line)
    with pytest.raises(TrainingError, match=f"line 1 has .*{sentence}"):
        read_data(path, replace(LIMITS, encode_answer=encode), encode=encode)


@pytest.mark.parametrize(
    "line",
    ["{\n", {"q": [1]}, {"p": [], "g": [1]}, {"p": [50], "g": []}, {"p": [-1]}, {"p": ["x"]}, [1]],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line):
    path = write(tmp_path / "a.jsonl", {"p": [1], "g": [2]}, line)
    with pytest.raises(TrainingError, match="line 2"):
        read_data(path, LIMITS, encode=encode)


@pytest.mark.parametrize("name", ["missing.jsonl", "broken.jsonl.gz"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(TrainingError, match=name):
        read_data(tmp_path / name, LIMITS, encode=encode)


def test_no_prompt_is_both_trained_on_and_held_out():
    documents = [document([k % 10, 1], [k]) for k in range(40)] + [document([3, 1])]
    train, heldout = split_heldout(documents, 4)
    assert not {documents[i].key for i in train} & {documents[i].key for i in heldout}
    assert len({documents[i].key for i in heldout}) == 4


def test_later_turns_of_a_held_out_conversation_are_not_trained_on():
    first = [document([k, 1], [k, k]) for k in range(20)]
    later = [document([k, 1, k, k, 7], [5]) for k in range(20)]
    train, heldout = split_heldout([*later, *first], 4)
    trained, held = ({i % 20 for i in part} for part in (train, heldout))
    assert not trained & held
    assert (len(held), len(heldout)) == (4, 8)


def test_the_held_out_prompts_do_not_depend_on_the_order_or_on_other_training_text():
    documents = [document([k, 1], [k]) for k in range(40)]
    _, heldout = split_heldout(documents, 4)
    turned = documents[::-1]
    _, again = split_heldout(turned, 4)
    assert {documents[i].key for i in heldout} == {turned[i].key for i in again}


LENGTHS = [3, 9, 4, 30, 5, 7, 2, 8, 6, 5] * 7


def test_epochs_have_the_same_batches_of_bounded_size_in_another_order_and_repeat_themselves():
    first, again, later = (list(batches(LENGTHS, 20, seed=3, epoch=n)) for n in (0, 0, 1))
    assert first == again != later
    assert sorted(first) == sorted(later) != sorted(batches(LENGTHS, 20, seed=4, epoch=0))
    assert sorted(index for batch in first for index in batch) == list(range(len(LENGTHS)))
    for batch in first:
        assert len(batch) == 1 or len(batch) * max(LENGTHS[i] for i in batch) <= 20
