"""Every figure follows from the outcomes of the rounds."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.request.stats import MAX_PER_STEP, Outcomes
from slipstream.core.tree import CopySource, TokenTree
from slipstream.core.types import Proposal, Verdict
from support.models.rounds import outcome, round_of

ROUNDS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=20
)
LOOKUP, STORE, GRAMMAR = CopySource


def stats_of(rounds, **fields):
    outcomes = Outcomes()
    for accepted, depth, drafted in rounds:
        outcomes.record(outcome(drafted, depth, accepted))
    return outcomes.summary(num_spec_tokens=9, lossless=True)


def test_a_worked_example():
    outcomes = Outcomes()
    outcomes.record(outcome(12, 4, 4, stopped_by="policy"))
    outcomes.record(outcome(10, 3, 1, stopped_by="policy"))
    outcomes.record(outcome(8, 4, 1, stopped_by="depth"))
    outcomes.record(outcome(0, 0, 0))
    stats = outcomes.summary(num_spec_tokens=4, lossless=False)
    assert (stats.mean_acceptance_length, stats.draft_acceptance_rate) == (3.0, 0.2)
    assert stats.acceptance_histogram == {1: 2, 4: 1}
    assert (stats.num_spec_steps, stats.num_plain_steps) == (3, 1)
    assert (stats.num_draft_tokens, stats.num_accepted_draft_tokens) == (30, 6)
    assert (stats.per_step_accepted, stats.per_step_drafted) == ((4, 1, 1), (12, 10, 8))
    assert stats.per_step_depth == (4, 3, 4)
    assert stats.stop_reasons == {"policy": 2, "depth": 1}
    assert (stats.num_spec_tokens, stats.lossless) == (4, False)


@given(ROUNDS)
def test_the_histogram_accounts_for_every_step_and_every_accepted_token(rounds):
    stats = stats_of(rounds)
    histogram = stats.acceptance_histogram
    assert sum(histogram.values()) == stats.num_spec_steps
    assert sum(k * n for k, n in histogram.items()) == stats.num_accepted_draft_tokens
    assert stats.num_spec_steps + stats.num_plain_steps == len(rounds)
    assert 0 <= stats.draft_acceptance_rate <= 1
    assert 1 <= stats.mean_acceptance_length <= 1 + 9


def test_of_many_rounds_the_newest_are_there_one_by_one_and_all_in_the_sums():
    num_rounds = 3 * MAX_PER_STEP
    stats = stats_of((step % 3, 4, 8) for step in range(num_rounds))
    newest = [step % 3 for step in range(num_rounds - MAX_PER_STEP, num_rounds)]
    assert list(stats.per_step_accepted) == newest
    assert len(stats.per_step_drafted) == len(stats.per_step_depth) == MAX_PER_STEP
    assert stats.acceptance_histogram == dict.fromkeys(range(3), MAX_PER_STEP)
    assert (stats.num_spec_steps, stats.num_draft_tokens) == (num_rounds, 8 * num_rounds)
    assert stats.num_accepted_draft_tokens == 3 * MAX_PER_STEP


def test_a_summary_is_not_changed_by_later_rounds():
    outcomes = Outcomes()
    outcomes.record(outcome(2, 2, 1))
    before = outcomes.summary(num_spec_tokens=2, lossless=True)
    outcomes.record(outcome(2, 2, 2, stopped_by="eos"))
    assert (before.per_step_accepted, before.stop_reasons) == ((1,), {"none": 1})


def test_copied_tokens_are_counted_among_the_draft_tokens_and_apart():
    outcomes = Outcomes()
    path = TokenTree((1, 2, 3, 4, 5, 6, 7), (-1, 0, 1, 2, -1, -1, -1))
    sources = (LOOKUP, STORE, STORE, STORE, STORE)
    outcomes.record(round_of(Proposal(path, sources=sources), Verdict((1, 2, 3, 4, 99), 4)))
    outcomes.record(outcome(6, 6, 6, stopped_by="lookup", sources=tuple([LOOKUP] * 5 + [GRAMMAR])))
    stats = outcomes.summary(num_spec_tokens=6, lossless=True)
    assert (stats.num_draft_tokens, stats.num_accepted_draft_tokens) == (13, 10)
    assert (stats.num_lookup_tokens, stats.num_accepted_lookup_tokens) == (7, 7)
    assert (stats.num_store_tokens, stats.num_accepted_store_tokens) == (4, 1)


def test_a_round_without_a_draft_in_which_something_was_copied_is_no_plain_step():
    outcomes = Outcomes()
    outcomes.record(outcome(2, 2, 1, stopped_by="lookup", fallback="timeout"))
    outcomes.record(outcome(0, 0, 0, fallback="timeout"))
    stats = outcomes.summary(num_spec_tokens=6, lossless=True)
    assert (stats.num_spec_steps, stats.num_plain_steps) == (1, 1)
    assert stats.fallbacks == {"timeout": 2}
