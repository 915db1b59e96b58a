"""Figures of a method follow from its outputs by arithmetic that a reader can repeat."""

import pytest

from slipstream.bench.methods import parse_method
from slipstream.bench.speed import SpeedPlan, compare, method_figures
from slipstream.core.request.results import Timings
from slipstream.core.request.stats import Outcomes
from support.models.bench_files import FIGURES, sample
from support.models.rounds import outcome

TWO = {"question_id": 2, "category": "math"}


def drafted(*rounds):
    """Statistics of rounds given as (drafted, accepted)."""
    outcomes = Outcomes()
    for num_nodes, num_accepted in rounds:
        outcomes.record(outcome(num_nodes, num_nodes, num_accepted))
    return outcomes.summary(num_spec_tokens=5, lossless=True)


def output(tokens, prefill_s, decode_s, stats=None, **question):
    timings = Timings(prefill_s, decode_s, decode_s / 4, decode_s / 2)
    return sample(tokens, timings, stats or drafted(), wall_s=prefill_s + decode_s, **question)


PLAIN = [output([5, 6, 7], 1.0, 2.0), output([5, 6, 7, 8, 9], 1.0, 4.0, **TWO)]
GLIDE = [
    output([5, 6, 7], 1.0, 0.5, drafted((3, 1), (2, 0))),
    output([5, 6, 1, 8, 9], 1.0, 1.5, drafted((5, 3)), **TWO),
]


def figures(samples=GLIDE, name="glide", plain=PLAIN, **more):
    outputs = {"plain": plain, name: samples}
    return method_figures(parse_method(name), outputs, **more)


def test_the_figures_of_a_hand_made_run():
    got = figures()
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
    plan = SpeedPlan(methods=(parse_method("glide"),), questions=tuple(at.question for at in GLIDE))
    found = compare(plan, {"plain": PLAIN, "glide": GLIDE})["glide"]
    parts = found["categories"]
    assert list(parts) == ["qa", "math"]
    assert parts["qa"]["ratio"] == pytest.approx((3 / 1.5) / (3 / 3))
    assert found["prompts"] == {1: parts["qa"]["ratio"], 2: parts["math"]["ratio"]}
    assert parts["qa"]["differences"] == []
    assert parts["math"]["identical"] == 0
    assert parts["math"]["differences"] == [{"question_id": 2, "position": 2}]


def test_plain_decoding_is_once_as_fast_as_itself_and_its_own_reference():
    got = figures(PLAIN, "plain")
    assert (got["ratio"], got["ratio_decode"], got["identity"]) == (1, 1, "reference")
    assert (got["identical"], got["mean_acceptance_length"], got["drafted_tokens"]) == (2, 1, 0)


def test_where_nothing_was_drafted_identity_is_inconclusive():
    got = figures(PLAIN, "glide")
    assert (got["identical"], got["identity"], got["outputs"]) == (None, "inconclusive", 2)


def test_other_tokens_are_no_fault_where_only_the_law_is_promised():
    assert figures(name="glide+mcsd", is_greedy=False)["identity"] == "not-comparable"
    assert figures(name="glide+mcsd", is_greedy=True)["identity"] == "different"


def test_identity_is_promised_by_invariant_numerics_and_exact_verification_only():
    def promises(name, **more):
        return figures(name=name, **more)["identity_promised"]

    assert promises("glide", is_greedy=False)
    assert promises("glide+mcsd", is_greedy=True)
    assert not promises("glide+mcsd", is_greedy=False)
    assert not promises("glide+target-init", is_greedy=True)
    assert not promises("glide", is_invariant=False)


def test_an_output_is_identical_only_if_every_repeat_is():
    again = [GLIDE[0], output([5, 6], 1.0, 0.5, drafted((3, 1)))]
    got = figures(again, "glide", PLAIN[:1] * 2)
    assert (got["outputs"], got["identical"], got["tokens"]) == (1, 0, 5)
    assert got["differences"] == [{"question_id": 1, "position": 2}]
    longer = figures([output([5, 6, 7, 8], 1.0, 0.5, drafted((3, 1)))], "glide", PLAIN[:1])
    assert longer["differences"] == [{"question_id": 1, "position": 3}]
