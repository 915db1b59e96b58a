"""A trimmed head covers what its size lets it, counted on text that it was not filled from."""

import numpy as np
import pytest

from slipstream.core.errors import TrainingError
from slipstream.train.data import Document
from slipstream.train.first_draft import coverage

VOCAB = 32


def document(prompt: int, *answer: int) -> Document:
    return Document(np.asarray([prompt, *answer], dtype=np.int32), 1)


def texts() -> list[Document]:
    return [document(i % VOCAB, *(j % 8 for j in range(i % 5 + 1))) for i in range(24)]


def of(documents, sizes, forced=()):
    return coverage(documents, sizes, vocab_size=VOCAB, forced=forced, num_heldout=4)


def test_the_whole_vocabulary_covers_everything():
    assert of(texts(), [VOCAB]) == (1.0,)


def test_a_larger_head_covers_no_less():
    shares = of(texts(), [1, 2, 3, 4, 8])
    assert list(shares) == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1.0


def test_forced_tokens_are_covered_though_no_training_text_has_them():
    same = [document(i, 1, 1, 31) for i in range(6)]
    unseen = [Document(d.ids[:3], 1) for d in same]
    keys = sorted(range(6), key=lambda i: same[i].key)
    mixed = [same[i] if i in keys[:2] else unseen[i] for i in range(6)]
    plain = coverage(mixed, [1], vocab_size=VOCAB, forced=[], num_heldout=2)
    forced = coverage(mixed, [2], vocab_size=VOCAB, forced=[31], num_heldout=2)
    assert plain == pytest.approx((2 / 3,))
    assert forced == (1.0,)


@pytest.mark.parametrize("size", [0, VOCAB + 1])
def test_a_size_that_no_head_can_have_is_refused(size):
    with pytest.raises(TrainingError, match=f"a head size is {size}, but must be from 1 to 32"):
        of(texts(), [size])
