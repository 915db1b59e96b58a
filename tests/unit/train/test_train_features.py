"""Features of a batch are those that the target computes for each document."""

import numpy as np
import pytest
import torch

from slipstream.train.data import DataFile, Document
from slipstream.train.features import FeatureSet
from support.models import tiny_glide as tiny

LAYERS = (0, 1, 3)


@pytest.fixture(scope="module")
def target():
    return tiny.llama().to(torch.bfloat16).requires_grad_(False)


def data_file():
    generator = np.random.default_rng(0)
    documents = tuple(
        Document(generator.integers(1, tiny.VOCAB, size=size, dtype=np.int32), 2)
        for size in (9, 4, 7)
    )
    return DataFile("text.jsonl", "0" * 64, documents, 0)


def test_a_batch_holds_what_the_target_computes_for_each_document(target):
    files = [data_file()]
    found = FeatureSet(files, target, LAYERS).batch([2, 1, 0])
    for row, document in enumerate(reversed(files[0].documents)):
        tokens, size = document.ids.tolist(), len(document.ids)
        cache = tiny.target_kv(target, tokens)
        for layer, pair in zip(LAYERS, found.kvs, strict=True):
            for part, expected in zip(pair, cache[layer], strict=True):
                # Products of several rows may round otherwise than those of one.
                torch.testing.assert_close(part[row, :, :size], expected[0], atol=1e-3, rtol=0.02)
                assert not part[row, :, size:].any()
        with torch.inference_mode():
            scores = target(torch.tensor([tokens])).logits[0]
        assert found.argmax[row, :size].tolist() == scores.argmax(-1).tolist()
        assert found.num_prompts[row] == 2


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_batch_for_which_there_is_room_stays_and_the_others_are_computed_again(target, room):
    asked = []
    features = FeatureSet(
        [data_file()],
        target,
        LAYERS,
        has_room=lambda at: asked.append(at.type) or len(asked) <= room,
    )
    first, again = ([features.batch(part) for part in ([0, 2], [1])] for _ in range(2))
    assert [one is other for one, other in zip(first, again, strict=True)] == [room > 0, room > 1]
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one.kvs, other.kvs)
        assert torch.equal(one.argmax, other.argmax)
    assert set(asked) == {"cpu"}
