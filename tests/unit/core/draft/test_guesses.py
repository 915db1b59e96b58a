"""Guesses of several sources add up to a probability, and are believed as far as they held."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft.guesses import DRAFT_PRIOR, Guesses
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import CopySource, TokenTree
from slipstream.core.types import SamplingParams, Session
from slipstream.core.verify.keyed_noise import Purpose, gumbel_of

GREEDY = SamplingParams()
TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=30)


class Store:
    """An n-gram store that has the same guesses behind everything."""

    def __init__(self, *guesses):
        self.guesses = guesses
        self.seen = []

    def after(self, latest):
        self.seen.append(latest)
        return self.guesses


def guesses_of(tokens, store=None, sampling=GREEDY):
    guesses = Guesses(store, sampling)
    guesses.sequence = TokenSequence(Session("s", 1, 100), tokens)
    guesses.take(guesses.sequence)
    return guesses


def goes_on(guesses, *tokens):
    guesses.sequence.append(tokens)
    guesses.take(guesses.sequence)


def by_token(guesses, path=()):
    return {guess.token: guess for guess in guesses.after(path)}


@settings(deadline=None)
@given(
    TOKENS,
    TOKENS,
    st.lists(st.floats(0, 0.3), max_size=3),
    st.sampled_from([0.0, 1.0]),
)
def test_what_may_follow_has_probabilities_that_add_up_to_one_at_most(
    tokens, path, shares, temperature
):
    store = Store(*enumerate(shares))
    sampling = SamplingParams(temperature=temperature)
    guesses = guesses_of(tokens, store, sampling).after(tuple(path))
    assert len({guess.token for guess in guesses}) == len(guesses)
    assert all(guess.probability >= 0 for guess in guesses)
    assert sum(guess.probability for guess in guesses) <= 1 + 1e-9


def test_each_guess_has_the_first_of_its_sources():
    found = by_token(guesses_of([1, 2, 1], Store((2, 0.5), (9, 0.1))))
    assert found[2].source is CopySource.LOOKUP
    assert found[9].source is CopySource.STORE


def test_sources_are_given_the_newest_tokens_first_and_the_path_before_the_text():
    store = Store()
    guesses_of(range(40), store).after((70, 71))
    assert store.seen == [(71, 70, *range(39, 25, -1))]


def test_short_matches_of_the_text_are_left_out_where_asked():
    guesses = guesses_of([1, 2, 3, 2])
    assert by_token(guesses)[3].source is CopySource.LOOKUP
    assert not guesses.after((), shortest=2)


def test_a_place_that_was_not_proposed_teaches_as_much_as_one_that_was():
    guesses = guesses_of([7, 7, 7])
    before = by_token(guesses)[7].probability
    guesses.after((7,))
    goes_on(guesses, 7, 7)
    assert by_token(guesses)[7].probability > before


def test_a_draft_is_believed_as_far_as_its_nodes_became_final():
    chain = TokenTree.chain((5, 6))
    guesses = guesses_of([1])
    assert guesses.of_draft(chain, (1.0, 0.5)) == pytest.approx((DRAFT_PRIOR, DRAFT_PRIOR / 2))
    goes_on(guesses, 5, 9)
    (after_half,) = guesses.of_draft(TokenTree.chain((5,)), (1.0,))
    assert after_half < DRAFT_PRIOR
    for _ in range(57):
        guesses.of_draft(TokenTree.chain((5,)), (1.0,))
        goes_on(guesses, 5)
    (after_all,) = guesses.of_draft(TokenTree.chain((5,)), (1.0,))
    assert after_all > 0.9


def test_repeating_a_call_teaches_nothing_twice():
    guesses, once = guesses_of([7, 7, 7]), guesses_of([7, 7, 7])
    for other in (guesses, once):
        other.after(())
        goes_on(other, 8)
    for _ in range(5):
        guesses.after(())
        guesses.take(guesses.sequence)
    assert guesses.after((7,)) == once.after((7,))


def test_at_a_temperature_guesses_follow_the_noise_of_their_position():
    shares = [(token, 0.2) for token in range(5)]
    for seed in range(20):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        found = by_token(guesses_of([100, 101], Store(*shares), sampling), (102,))
        noise = [gumbel_of(seed, 3, token, purpose=Purpose.DRAW) for token in range(5)]
        ranked = sorted(found, key=lambda token: found[token].probability)
        assert ranked == sorted(range(5), key=noise.__getitem__)
