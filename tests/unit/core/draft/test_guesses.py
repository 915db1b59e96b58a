"""Guesses of several sources add up, are believed as far as they held, and become a tree."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft.ngram_tree import LEAST, Guess, Guesses, TreeLimits, grow
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import EMPTY, CopySource, TokenTree
from slipstream.core.types import SamplingParams, Session
from slipstream.core.verify.keyed_noise import Purpose, gumbels_of
from support.models.toy import path_tokens, trees

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


def by_token(guesses, path=()):
    return {guess.token: guess for guess in guesses.after(path)}


@settings(deadline=None)
@given(TOKENS, TOKENS, st.lists(st.floats(0, 0.3), max_size=3), st.sampled_from([0.0, 1.0]))
def test_what_may_follow_has_probabilities_that_add_up_to_one_at_most(
    tokens, path, shares, temperature
):
    store = Store(*enumerate(shares))
    guesses = guesses_of(tokens, store, SamplingParams(temperature=temperature)).after(tuple(path))
    assert len({guess.token for guess in guesses}) == len(guesses)
    assert all(guess.probability >= 0 for guess in guesses)
    assert sum(guess.probability for guess in guesses) <= 1 + 1e-9


def test_short_matches_of_the_text_are_left_out_where_asked():
    guesses = guesses_of([1, 2, 3, 2])
    assert by_token(guesses)[3].source is CopySource.LOOKUP
    assert not guesses.after((), shortest=2)


def test_a_place_that_was_not_proposed_teaches_as_much_as_one_that_was():
    guesses = guesses_of([7, 7, 7])
    before = by_token(guesses)[7].probability
    guesses.after((7,))
    guesses.sequence.append((7, 7))
    guesses.take(guesses.sequence)
    assert by_token(guesses)[7].probability > before


def test_at_a_temperature_guesses_follow_the_noise_of_their_position():
    shares = [(token, 0.2) for token in range(5)]
    for seed in range(20):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        found = by_token(guesses_of([100, 101], Store(*shares), sampling), (102,))
        noise = gumbels_of(seed, 3, range(5), purpose=Purpose.DRAW)
        ranked = sorted(found, key=lambda token: found[token].probability)
        assert ranked == sorted(range(5), key=noise.__getitem__)


STORE = CopySource.STORE
SHARES = st.lists(st.floats(0.03, 0.9), min_size=1, max_size=2).filter(lambda at: sum(at) <= 1)


@st.composite
def tables(draw):
    """Probabilities of tokens 0 and 1 behind every path of up to three of them."""
    paths = [path for n in range(4) for path in itertools.product(range(2), repeat=n)]
    return {path: draw(SHARES) for path in paths}


def after(table):
    def guesses(path):
        return [Guess(token, share, STORE) for token, share in enumerate(table.get(path, ()))]

    return guesses


def reaches(table):
    """The probability of every path to become final."""
    found = {(): 1.0}
    for path, shares in table.items():
        for token, share in enumerate(shares):
            if path in found:
                found[*path, token] = found[path] * share
    del found[()]
    return {path: reach for path, reach in found.items() if reach >= LEAST}


def paths_of(tree):
    return [path_tokens(tree, node) for node in range(len(tree))]


@settings(deadline=None, max_examples=40)
@given(tables(), st.integers(0, 12))
def test_a_tree_has_the_likeliest_paths_of_all(table, max_nodes):
    grown = grow(EMPTY, (), after(table), TreeLimits(4, max_nodes))
    everything = sorted(reaches(table).values(), reverse=True)
    assert list(grown.reaches) == pytest.approx(everything[:max_nodes])
    by_path = reaches(table)
    assert [by_path[path] for path in paths_of(grown.tree)] == pytest.approx(grown.reaches)


@settings(deadline=None, max_examples=40)
@given(tables(), st.lists(st.floats(0.01, 0.5), min_size=12, max_size=12).map(sorted))
def test_no_other_number_of_nodes_pays_more_where_each_costs_more_than_the_last(table, prices):
    grown = grow(EMPTY, (), after(table), TreeLimits(4, 12, prices))
    values = sorted(reaches(table).values(), reverse=True)[:12]
    gains = [sum(values[:n]) - sum(prices[:n]) for n in range(len(values) + 1)]
    gain = sum(grown.reaches) - sum(prices[: len(grown.tree)])
    # A node hardly above its price is added, and what follows it is not looked up.
    assert gain >= max(gains) - 0.1


@settings(deadline=None, max_examples=40)
@given(tables(), st.integers(1, 4))
def test_a_chain_has_the_likeliest_token_of_every_position(table, max_depth):
    grown = grow(EMPTY, (), after(table), TreeLimits(max_depth, 12, is_chain=True))
    assert grown.tree.is_chain()
    assert len(grown.tree) <= max_depth
    for node, token in enumerate(grown.tree.tokens):
        shares = table[grown.tree.tokens[:node]]
        assert shares[token] == max(shares)


@settings(deadline=None, max_examples=40)
@given(tables(), trees((1, 5), 4), st.data(), st.integers(0, 12))
def test_what_a_draft_proposed_stays_and_is_shared(table, tree, data, max_nodes):
    probabilities = [data.draw(st.floats(0, 1)) for _ in tree.tokens]
    limits = TreeLimits(4, max_nodes, (0.05,) * 12)
    grown = grow(tree, probabilities, after(table), limits)
    assert grown.tree.tokens[: len(tree)] == tree.tokens
    assert grown.tree.parents[: len(tree)] == tree.parents
    assert len(grown.tree) <= max(max_nodes, len(tree))
    assert len(set(paths_of(grown.tree))) == len(grown.tree)
    assert len(grown.sources) == len(grown.reaches) == len(grown.tree) - len(tree)


def test_what_a_sure_draft_leaves_over_is_shared_among_the_others():
    table = {(): [0.5, 0.4]}
    sure = grow(TokenTree.chain((0,)), (0.9,), after(table), TreeLimits(1, 9))
    unsure = grow(TokenTree.chain((0,)), (0.2,), after(table), TreeLimits(1, 9))
    assert sure.reaches == pytest.approx([0.1 * 0.4 / 0.5])
    assert unsure.reaches == pytest.approx([0.4])
