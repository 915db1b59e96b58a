"""An n-gram store on disk says what its text said, and what is broken is refused or harmless."""

import itertools
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from slipstream.core.errors import InvalidRequest, ModelMismatch, TrainingError, WeightsError
from slipstream.ngrams.store_file import (
    ARRAYS,
    FULL,
    SUFFIX,
    NgramFile,
    NgramStores,
    StoreHeader,
    checksum,
    open_store,
    store_named,
)
from slipstream.train.data import Document
from slipstream.train.ngrams import CountSettings, count, fitting, write_store

HEADER = StoreHeader("t" * 64, 50, 3, 0)
TEXTS = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=30), min_size=1, max_size=6)
EVERYTHING = CountSettings(min_count=1)


def documents(texts, num_prompt=1):
    return [Document(np.asarray(text, np.int32), num_prompt) for text in texts]


def store_of(path, texts, settings=EVERYTHING, header=HEADER):
    header = replace(header, max_context=settings.max_context)
    tables = count(documents(texts), settings, progress=lambda done, total: None)
    write_store(path, fitting(tables, settings, header.vocab_size), header)
    return NgramFile(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("ngrams") / f"tiny{SUFFIX}"


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_what_follows_a_context_is_what_followed_it_in_texts_the_most_frequent_first(path, texts):
    store = store_of(path, texts, replace(EVERYTHING, max_context=1))
    followed = {}
    for text in texts:
        for before, token in itertools.pairwise(text):
            followed.setdefault(before, Counter())[token] += 1
    for before, counts in followed.items():
        found = store.after([before])
        assert {token for token, _ in found} <= set(counts)
        assert sum(share for _, share in found) <= 1
        ranked = [counts[token] for token, _ in found]
        assert ranked == sorted(ranked, reverse=True)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 60), max_size=6))
def test_whatever_is_asked_has_probabilities_of_known_tokens(path, texts, latest):
    found = store_of(path, texts).after(latest)
    assert sum(share for _, share in found) <= 1 + 1e-9
    assert all(0 < share <= 1 and 0 <= token < 6 for token, share in found)
    assert len({token for token, _ in found}) == len(found)


def test_a_longer_context_says_more_than_a_shorter_one_and_leaves_it_the_rest(path):
    store = store_of(path, [[1, 2, 3]] * 6 + [[7, 2, 4]] * 12)
    assert store.after([2, 1])[0][0] == 3
    assert store.after([2, 7])[0][0] == 4
    assert store.after([2, 9])[0][0] == 4
    assert {token for token, _ in store.after([2, 1])} == {3, 4}


def test_prompts_are_contexts_and_are_not_counted(path):
    tables = count(
        documents([[1, 2, 3, 4]] * 3, num_prompt=3), EVERYTHING, progress=lambda *_: None
    )
    write_store(path, fitting(tables, EVERYTHING, 50), HEADER)
    store = NgramFile(path)
    assert [token for token, _ in store.after([3, 2, 1])] == [4]
    assert not store.after([1])


def test_contexts_that_were_seen_too_seldom_are_left_out(path):
    store = store_of(path, [[1, 2]] * 3 + [[3, 4]] * 2, CountSettings(max_context=1, min_count=3))
    assert store.after([1])
    assert not store.after([3])


def test_a_file_fits_its_bound_by_leaving_out_what_is_rare(path):
    draw = np.random.default_rng(1)
    frequent = [[1, 2, 3]] * 500
    rare = draw.integers(0, 5000, (300, 40)).tolist()
    header = replace(HEADER, vocab_size=5000)
    small = store_of(path, frequent + rare, CountSettings(min_count=1, max_mb=8 / 1024), header)
    assert small.num_bytes < 8192 + 2048
    assert small.after([1])[0][0] == 2
    with pytest.raises(InvalidRequest, match="max_mb is 0"):
        CountSettings(max_mb=1e-4)


def test_vocabularies_beyond_16_bits_are_kept_whole(path):
    store = store_of(path, [[150_000, 160_000]] * 3, header=replace(HEADER, vocab_size=200_000))
    assert store.after([150_000])[0][0] == 160_000


def test_data_without_answers_is_refused():
    with pytest.raises(TrainingError, match="no generated tokens"):
        count(documents([[1, 2]], num_prompt=2), EVERYTHING, progress=lambda *_: None)


def changed(path, **changes):
    """The file with other arrays, or other words in its header, and a checksum that fits."""
    about = {name: value for name, value in changes.items() if name not in ARRAYS}
    arrays = load_file(path) | {name: changes[name] for name in ARRAYS if name in changes}
    header = {
        "tokenizer_hash": "t" * 64,
        "vocab_size": 50,
        "max_context": 3,
        "num_tokens": 0,
        "format_version": 1,
        "crc32": checksum([arrays[name].tobytes() for name in ARRAYS]),
    }
    save_file(arrays, path, metadata={"ngrams": json.dumps(header | about)})


U32 = np.uint32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 2}, "format is 2, not 1"),
        ({"max_context": 99}, "contexts have 99 tokens, not 1 to 8"),
        ({"crc32": 1}, "checksum is another"),
        ({"surprise": 1}, "surprise"),
        ({"buckets": np.zeros(4, U32)}, "3 buckets, not a power of 2"),
        ({"starts": np.zeros(9, U32)}, "not of one length"),
        ({"tokens": np.zeros(2, np.float32)}, "tokens has the type F32"),
    ],
)
def test_a_file_that_is_broken_is_refused_with_the_reason(path, change, words):
    store_of(path, [[1, 2, 3]] * 3)
    changed(path, **change)
    with pytest.raises(WeightsError, match=words):
        NgramFile(path)


def test_a_file_that_ends_early_or_is_another_file_is_refused(path):
    store_of(path, [[1, 2, 3]] * 3)
    whole = path.read_bytes()
    for data in (b"", b"\0" * 7, whole[:40], whole[:-3], b"\xff" * 100, whole[:-1] + b"\x01"):
        path.write_bytes(data)
        with pytest.raises(WeightsError, match="can't be read"):
            NgramFile(path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_places_that_lead_anywhere_bring_nothing_but_known_tokens(path, data):
    store_of(path, [[1, 2, 3, 4, 5]] * 3)
    arrays = load_file(path)
    wild = {}
    for name in ("buckets", "starts", "tokens", "probabilities"):
        most = int(np.iinfo(arrays[name].dtype).max)
        values = [data.draw(st.integers(0, most)) for _ in arrays[name]]
        wild[name] = np.asarray(values, arrays[name].dtype)
    changed(path, **wild)
    store = NgramFile(path)
    for latest in ([1], [2, 1], [4, 3, 2], [5, 4, 3]):
        for token, share in store.after(latest):
            assert 0 <= token < 50
            assert 0 <= share <= FULL


def test_a_store_is_found_by_the_tokenizer_it_is_of(path):
    open_store.cache_clear()
    store_of(path, [[1, 2, 3]] * 3)
    stores = NgramStores((str(path),))
    store = stores.of("t" * 64, vocab_size=50)
    assert store.path == path
    assert stores.of("u" * 64, vocab_size=50) is None
    assert stores.of("t" * 64, vocab_size=49) is None
    assert store_named(str(path), "t" * 64, vocab_size=50) is store
    assert store_named("none", "t" * 64, vocab_size=50) is None
    assert store_named("auto", "t" * 64, vocab_size=50) is None
    for tokenizer, vocab_size in (("u" * 64, 50), ("t" * 64, 49)):
        with pytest.raises(ModelMismatch, match="of another tokenizer"):
            store_named(str(path), tokenizer, vocab_size=vocab_size)


def test_the_store_in_the_package_is_whole_and_small():
    (store,) = NgramStores()._stores.values()
    assert store.num_bytes < 10 * 2**20
    assert store.header.num_tokens > 1_000_000
    assert sum(share for _, share in store.after([1, 198, 9690])) <= 1 + 1e-9
