"""What a model says it can be asked for is what the tables of requests say."""

import pytest

from slipstream.core.policy.options import DRAFTERS, VERIFICATIONS
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.model_info import drafter_info, drafter_infos, verification_infos
from slipstream.core.types import Shape, StopPolicy, Verification


def test_one_row_stands_for_all_replicas_of_a_kind():
    drafts = [
        DraftFacts("glide", has_decision_model=True, max_lag=8),
        DraftFacts("ngram"),
        DraftFacts("glide", has_decision_model=True, max_lag=5),
    ]
    glide, ngram = drafter_infos(drafts)
    assert (glide.kind, glide.num_replicas, glide.max_draft_tokens) == ("glide", 2, 5)
    assert (ngram.kind, ngram.num_replicas, ngram.max_draft_tokens) == ("ngram", 1, None)
    assert set(ngram.shapes) == DRAFTERS["ngram"].shapes


def test_a_replica_without_a_decision_model_takes_the_decision_from_all():
    with_it, without = DraftFacts("glide", has_decision_model=True), DraftFacts("glide")
    assert StopPolicy.DECISION in drafter_info(with_it).stops
    assert StopPolicy.DECISION not in drafter_infos([with_it, without])[0].stops


@pytest.mark.parametrize(
    ("kinds", "drafters", "shapes"),
    [(set(), (), ()), ({"ngram"}, ("ngram",), (Shape.CHAIN, Shape.DYNAMIC))],
)
def test_what_no_drafter_goes_with_is_not_offered(kinds, drafters, shapes):
    (exact,) = verification_infos(kinds)
    assert exact.verification is Verification.EXACT
    assert (exact.drafters, exact.shapes) == (drafters, shapes)
    assert drafter_infos([DraftFacts("none")]) == ()


def test_with_every_drafter_there_is_every_verification():
    rows = verification_infos(set(DRAFTERS))
    assert {row.verification for row in rows} == set(VERIFICATIONS)
    for row in rows:
        assert set(row.shapes) == VERIFICATIONS[row.verification].shapes
        assert set(row.drafters) == VERIFICATIONS[row.verification].drafters
        assert row.lossless is row.verification.is_lossless
