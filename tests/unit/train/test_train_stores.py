"""Features of the target: from disk or computed in the batch, they are the same."""

import numpy as np
import pytest
import torch

from slipstream.core.errors import TrainingError
from slipstream.train.data import DataFile, Document
from slipstream.train.features import FeatureSet, FeatureSource
from slipstream.train.stores import feature_stores
from support.models import tiny_glide as tiny

LAYERS = (0, 1, 3)
ROW_BYTES = len(LAYERS) * 2 * 2 * 8 * 2 + 32 * 2 + 4


@pytest.fixture(scope="module")
def target():
    return tiny.llama().to(torch.bfloat16).requires_grad_(False)


def source(target, layers=LAYERS):
    return FeatureSource(target, "tiny", "t" * 64, layers)


def data_file(name="text.jsonl", lengths=(9, 4, 7), seed=0):
    generator = np.random.default_rng(seed)
    documents = tuple(
        Document(generator.integers(1, tiny.VOCAB, size=size, dtype=np.int32), 2)
        for size in lengths
    )
    return DataFile(name, f"{seed:064}", documents, 0)


def stores(target, files, place, *, layers=LAYERS, max_bytes=1e9, progress=lambda d, t: None):
    return feature_stores(
        source(target, layers), files, place, max_bytes=max_bytes, progress=progress
    )


def batch(target, files, found, layers=LAYERS):
    """All documents, the last one first."""
    features = FeatureSet(list(zip(files, found, strict=True)), source(target, layers))
    return features.batch(list(reversed(range(len(features.documents)))))


def assert_same(left, right):
    assert len(left.kvs) == len(right.kvs)
    for ours, theirs in zip(left.kvs, right.kvs, strict=True):
        for part, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(part, other)
    torch.testing.assert_close(left.hidden, right.hidden)
    for name in ("ids", "argmax", "lengths", "num_prompts"):
        assert torch.equal(getattr(left, name), getattr(right, name))


def test_a_batch_holds_what_the_target_computes_for_each_document(target, tmp_path):
    files = [data_file()]
    found = batch(target, files, stores(target, files, tmp_path))
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


@pytest.mark.parametrize("tokens", [0, 3, 9, 15, 20, 29, 40])
def test_within_any_budget_a_batch_is_the_same(target, tmp_path, tokens):
    files = [data_file(), data_file("more.jsonl", (11, 5), seed=1)]
    whole = batch(target, files, stores(target, files, tmp_path / "whole"))
    found = stores(target, files, tmp_path / "part", max_bytes=tokens * ROW_BYTES)
    assert_same(batch(target, files, found), whole)
    used = sum(path.stat().st_size for path in (tmp_path / "part").rglob("*") if path.is_file())
    assert used <= tokens * ROW_BYTES


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_batch_for_which_there_is_room_stays_and_the_others_are_computed_again(target, room):
    asked = []
    parts = [(data_file(), None)]
    features = FeatureSet(
        parts, source(target), has_room=lambda at: asked.append(at.type) or len(asked) <= room
    )
    first, again = ([features.batch(part) for part in ([0, 2], [1])] for _ in range(2))
    assert [one is other for one, other in zip(first, again, strict=True)] == [room > 0, room > 1]
    for one, other in zip(first, again, strict=True):
        assert_same(one, other)
    assert set(asked) == {"cpu"}


def test_stores_of_other_text_or_another_target_do_not_serve(target, tmp_path):
    stores(target, [data_file()], tmp_path)
    computed = []
    other, fewer = FeatureSource(target, "other", "t" * 64, LAYERS), source(target, (1,))
    origins = ((source(target), data_file(seed=3)), (other, data_file()), (fewer, data_file()))
    for origin, data in (*origins, *origins):
        feature_stores(
            origin, [data], tmp_path, max_bytes=1e9, progress=lambda *n: computed.append(n)
        )
    assert len(computed) == 3, "each once"


def test_a_store_that_lost_a_part_is_named(target, tmp_path):
    stores(target, [data_file()], tmp_path)
    (path,) = tmp_path.rglob("hidden")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(TrainingError, match="hidden is missing or not 1280 bytes long"):
        stores(target, [data_file()], tmp_path)
