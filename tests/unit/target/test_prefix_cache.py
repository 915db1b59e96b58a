"""Pages that others may begin with: found by their tokens, held once, let go of in order."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from slipstream.models.dtypes import CPU, FLOAT32
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.verifying.memory import PrefixCache

LAYOUT = KvLayout(1, 1, 2, FLOAT32, CPU)
FIRST = tuple(range(BLOCK_SIZE))


def made(num_pages=16, max_pages=16):
    pool = KvPool(LAYOUT, num_pages)
    return pool, PrefixCache(pool, max_pages=max_pages)


def leave(pool, prefixes, tokens):
    pages = pool.take(round_up(len(tokens), BLOCK_SIZE) // BLOCK_SIZE)
    prefixes.insert(tokens, pages)
    for page in pages:
        pool.drop(page)
    return pages


@given(st.permutations([20, 12, 16, 20, 14, 3]))
def test_beginnings_of_one_text_take_one_page(lengths):
    pool, prefixes = made()
    for length in lengths:
        leave(pool, prefixes, FIRST[:length])
    assert (len(prefixes), pool.num_free) == (1, 15)
    assert prefixes.match(FIRST)[1] == 20


def test_what_several_hold_is_kept_once():
    pool, prefixes = made()
    for tail in range(5):
        leave(pool, prefixes, (*FIRST, *FIRST, tail))
    assert len(prefixes) == 2 + 5


def test_the_longest_unused_goes_first_and_ends_before_beginnings():
    pool, prefixes = made()
    texts = [(at, *FIRST, at) for at in (200, 201, 202)]
    for text in texts:
        leave(pool, prefixes, text)
    prefixes.match(texts[0])
    found = []
    while prefixes.evict():
        found.append([prefixes.match(text)[1] for text in reversed(texts)])
        prefixes.match(texts[0])
    assert len(found) == 6
    assert found[0][1] == BLOCK_SIZE
    assert all(sum(later) < sum(sooner) for sooner, later in pairwise(found))
    assert pool.num_free == pool.num_pages


def test_no_more_is_kept_than_may_be():
    pool, prefixes = made(max_pages=3)
    for at in range(10):
        leave(pool, prefixes, (at, 1, 2))
    assert (len(prefixes), pool.num_free) == (3, 13)
    assert prefixes.match((9, 1, 2))[1] == 3


def test_a_page_in_use_is_not_released():
    pool, prefixes = made()
    (page,) = pool.take(1)
    prefixes.insert((1, 2), [page])
    assert not prefixes.evict()
    pool.drop(page)
    assert prefixes.evict()


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=400), min_size=1, max_size=12))
def test_a_match_is_the_longest_prefix_that_any_session_left(texts):
    pool, prefixes = made(64, 64)
    *left, asked = texts
    for text in left:
        leave(pool, prefixes, tuple(text))
    same = [
        sum(accumulate((a == b for a, b in zip(text, asked, strict=False)), min)) for text in left
    ]
    pages, count = prefixes.match(asked)
    assert count == max(same, default=0)
    assert len(pages) == round_up(count, BLOCK_SIZE) // BLOCK_SIZE
    while prefixes.evict():
        pass
    assert pool.num_free == 64
