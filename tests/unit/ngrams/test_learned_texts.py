"""Laws of learned texts: what is proposed was there, the most recent wins, and all is bounded."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft.ngram import MAX_TOKEN_ID
from slipstream.core.draft.ngram_sources import LATEST
from slipstream.core.errors import InvalidRequest
from slipstream.ngrams.memory import LONG, SHORT, LearnedTexts

AMPLE = 1 << 20
TOKENS = st.integers(0, 2)
TEXTS = st.lists(st.lists(TOKENS, max_size=60).map(tuple), max_size=8)


def learned(*texts, max_tokens=AMPLE):
    memory = LearnedTexts(max_tokens)
    for text in texts:
        memory.learn(text)
    return memory


def newest(text):
    return tuple(reversed(text[-LATEST:]))


def common(first, second):
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def occurrences(texts, latest):
    """What followed the n-grams of each place, and how long they match; the most recent last."""
    for text in texts:
        for position in range(SHORT, len(text)):
            yield text[position], common(newest(text[:position]), latest)


def expected(texts, latest):
    """The token behind the newest 8 tokens, or the newest 3, where they were most recently."""
    for length in (LONG, SHORT):
        found = [token for token, match in occurrences(texts, latest) if match >= length]
        if found and len(latest) >= length:
            return found[-1]
    return None


def test_what_followed_the_newest_tokens_follows_again():
    memory = learned((1, 2, 3, 4, 5, 6))
    assert memory.after(newest((9, 2, 3, 4))) == (5, 3)
    assert memory.after(newest((1, 2, 3, 4))) == (5, 4)
    assert memory.after(newest((2, 3, 5))) is None
    assert memory.after(newest((3, 4))) is None  # too few to be sure of anything


def test_nothing_follows_the_end_of_a_text_and_no_match_goes_beyond_its_start():
    memory = learned((1, 2, 3, 4), (5, 6, 7, 8, 9))
    assert memory.after(newest((2, 3, 4))) is None
    assert memory.after(newest((3, 4, 5))) is None
    assert memory.after(newest((3, 4, 5, 6, 7))) == (8, 3)


def test_the_most_recent_of_equal_matches_wins_and_a_longer_one_over_it():
    shared = tuple(range(10, 30))
    memory = learned((1, *shared, 2), (3, *shared, 4))
    assert memory.after(newest(shared)) == (4, LATEST)
    memory.learn((1, *shared, 2))
    assert memory.after(newest(shared)) == (2, LATEST)
    old = learned((7, 8, 9, 1), (8, 9, 2), (0, 8, 9, 2))
    assert old.after(newest((7, 8, 9))) == (1, 3)


def test_a_text_is_found_as_it_is_token_by_token():
    text = tuple(random.Random(0).choices(range(1000), k=300))
    memory = learned(text)
    for position in range(LATEST, len(text)):
        assert memory.after(newest(text[:position])) == (text[position], LATEST)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(TOKENS, max_size=20).map(tuple))
def test_what_is_proposed_followed_so_long_a_match_in_one_text(texts, end):
    latest, memory = newest(end), learned(*texts)
    found = memory.after(latest)
    assert found is None or found[1] >= SHORT
    matches = {(token, match) for token, match in occurrences(texts, latest)}
    if found is None:
        assert expected(texts, latest) is None
    else:
        token, match = found
        assert any(match <= longest for other, longest in matches if other == token)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(TOKENS, max_size=20).map(tuple))
def test_the_most_recent_occurrence_is_taken(texts, end):
    distinct = list(dict.fromkeys(text for text in texts if len(text) > SHORT))
    latest = newest(end)
    found = learned(*distinct).after(latest)
    assert (found and found[0]) == expected(distinct, latest)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 200),
    st.lists(st.lists(st.integers(0, 3), max_size=100) | st.integers(0, 300), max_size=30),
)
def test_a_memory_is_bounded_whatever_is_learned(max_tokens, steps):
    """A number has it go on with another bound; below 100 it ages before."""
    memory = LearnedTexts(max_tokens)
    for step in steps:
        before = memory.num_tokens
        if isinstance(step, int):
            memory.max_tokens = step
            num_dropped = memory.age() if step < 100 else 0
            assert memory.num_tokens == before - num_dropped
            continue
        num_dropped = memory.learn(step)
        assert memory.num_tokens <= memory.max_tokens
        assert 0 <= num_dropped <= before + len(step) + 1


def test_the_same_texts_again_take_no_more_room():
    draw = random.Random(1)
    words = [draw.choices(range(500), k=draw.randint(1, 9)) for _ in range(40)]
    texts = [[at for word in draw.choices(words, k=80) for at in word] for _ in range(20)]
    memory = learned(*texts)
    num_tokens = memory.num_tokens
    for text in [*texts, *reversed(texts)]:
        memory.learn(text)
    assert memory.num_tokens == num_tokens


def test_a_turn_adds_what_is_new_of_it():
    draw = random.Random(2)
    text = draw.choices(range(5000), k=1000)
    memory = learned(text)
    for _ in range(10):
        before = memory.num_tokens
        text += draw.choices(range(5000), k=50)
        memory.learn(text)
        assert memory.num_tokens == before + 50 + LATEST + 1


def test_what_was_not_learned_for_longest_goes_first():
    draw = random.Random(3)
    often, seldom = (tuple(draw.choices(range(5000), k=50)) for _ in range(2))
    memory = learned(seldom, often, max_tokens=1000)
    for _ in range(30):
        memory.learn(draw.choices(range(5000), k=50))
        memory.learn(often)
    assert memory.after(newest(often[:20])) == (often[20], LATEST)
    assert memory.after(newest(seldom[:20])) is None


def test_what_has_aged_often_enough_is_gone():
    memory = learned(tuple(range(20)))
    assert [memory.age() for _ in range(4)] == [0, 0, 0, 21]
    assert memory.num_tokens == 0
    assert memory.after((5, 4, 3)) is None


def test_the_end_of_a_long_text_is_kept():
    memory = learned(tuple(range(1000)), max_tokens=400)
    assert memory.num_tokens == 100
    assert memory.after((998, 997, 996)) == (999, 3)
    assert memory.after((898, 897, 896)) is None


@pytest.mark.parametrize("token", [-1, MAX_TOKEN_ID + 1, 1 << 32])
def test_a_token_that_no_vocabulary_has_is_refused(token):
    memory = LearnedTexts(AMPLE)
    with pytest.raises(InvalidRequest, match="token ids outside"):
        memory.learn((1, 2, 3, token, 4))
    assert memory.num_tokens == 0
