"""Figures of a method follow from its outputs by arithmetic that a reader can repeat."""

from dataclasses import replace

import pytest

from slipstream.bench.methods import parse_method
from slipstream.bench.speed_figures import (
    Divergence,
    MethodComparison,
    MethodReply,
    Output,
    divergences,
    figures,
    method_figures,
)
from slipstream.bench.statistics import first_difference
from slipstream.core.request.results import Timings
from slipstream.core.request.stats import Outcomes
from support.models.bench_files import FIGURES
from support.models.rounds import outcome


def drafted(*rounds):
    """Statistics of rounds given as (drafted, accepted)."""
    outcomes = Outcomes()
    for num_nodes, num_accepted in rounds:
        outcomes.record(outcome(num_nodes, num_nodes, num_accepted))
    return outcomes.summary(num_spec_tokens=5, lossless=True)


def output(question_id, tokens, seconds, *, category="qa", stats=None):
    prefill_s, decode_s = seconds
    timings = Timings(prefill_s, decode_s, decode_s / 4, decode_s / 2)
    return Output(question_id, category, (1, 2), MethodReply(tuple(tokens), timings, stats))


PLAIN = [output(1, [5, 6, 7], (1.0, 2.0)), output(2, [5, 6, 7, 8, 9], (1.0, 4.0), category="math")]
GLIDE = [
    output(1, [5, 6, 7], (1.0, 0.5), stats=drafted((3, 1), (2, 0))),
    output(2, [5, 6, 1, 8, 9], (1.0, 1.5), category="math", stats=drafted((5, 3))),
]


def compared(outputs=GLIDE, name="glide+fast", **more):
    return MethodComparison(parse_method(name), outputs, PLAIN, PLAIN, **more)


def test_the_figures_of_a_hand_made_run():
    got = figures(compared())
    assert set(got) > FIGURES
    assert got["tokens_per_s"] == pytest.approx(8 / 4)
    assert got["ratio"] == pytest.approx((8 / 4) / (8 / 8))
    assert got["ratio_decode"] == pytest.approx((6 / 2) / (6 / 6))
    assert got["mean_acceptance_length"] == pytest.approx(1 + 4 / 3)
    assert got["draft_acceptance_rate"] == pytest.approx(4 / 10)
    assert (got["drafted_tokens"], got["rounds"], got["outputs"]) == (10, 3, 2)
    assert (got["draft_share"], got["verify_share"]) == (0.25, 0.5)
    assert (got["identical"], got["identity"]) == (1, "different")


def test_categories_are_the_same_figures_over_their_own_outputs():
    found = divergences(GLIDE, PLAIN)
    parts = method_figures(compared(divergences=found))["categories"]
    assert list(parts) == ["qa", "math"]
    assert parts["qa"]["ratio"] == pytest.approx((3 / 1.5) / (3 / 3))
    assert parts["qa"]["divergences"] == []
    assert parts["math"]["identical"] == 0
    assert parts["math"]["divergences"] == [{"question_id": 2, "position": 2, "margin": None}]


def test_plain_decoding_is_once_as_fast_as_itself_and_its_own_reference():
    got = figures(compared(PLAIN, "plain"))
    assert (got["ratio"], got["ratio_decode"], got["identity"]) == (1, 1, "reference")
    assert (got["identical"], got["mean_acceptance_length"], got["drafted_tokens"]) == (2, 1, 0)


def test_where_nothing_was_drafted_identity_is_inconclusive():
    idle = [replace(out, reply=replace(out.reply, speculation=drafted())) for out in PLAIN]
    got = figures(compared(idle, "glide"))
    assert (got["identical"], got["identity"], got["outputs"]) == (None, "inconclusive", 2)


def test_other_tokens_are_no_fault_where_only_the_law_is_promised():
    assert figures(compared(name="glide+mcsd", is_greedy=False))["identity"] == "not-comparable"
    assert figures(compared(name="glide+mcsd", is_greedy=True))["identity"] == "different"


def test_an_output_is_identical_only_if_every_repeat_is():
    again = [GLIDE[0], replace(GLIDE[0], reply=replace(GLIDE[0].reply, token_ids=(5, 6)))]
    comparison = MethodComparison(parse_method("glide"), again, PLAIN[:1] * 2, PLAIN[:1] * 2)
    got = figures(comparison)
    assert (got["outputs"], got["identical"], got["tokens"]) == (1, 0, 5)
    assert divergences(again, PLAIN[:1]) == [Divergence(1, 2)]


@pytest.mark.parametrize(
    ("tokens", "reference", "expected"),
    [
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1], [1, 2], 1),
        ([1, 2], [1], 1),
        ([], [], None),
    ],
)
def test_the_first_difference_is_where_tokens_part_or_end(tokens, reference, expected):
    assert first_difference(tokens, reference) == expected
