"""What a request may ask for, and which parts go together."""

import math
from dataclasses import replace
from enum import StrEnum

import pytest

from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.policy import options as rules
from slipstream.core.policy.options import DRAFTERS, VERIFICATIONS, Mode, SpeculationOptions
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.request.model_info import drafter_infos, verification_infos
from slipstream.core.request.request import Ask, ModelFacts, make_request
from slipstream.core.types import Shape, StopPolicy, Verification

V, S, P = Verification, Shape, StopPolicy


def check(drafter="glide", *, has_decision_model=True, **fields):
    if fields.get("shape") is S.PRODUCT:
        fields.setdefault("widths", (2, 2))
    rules.check_combination(
        SpeculationOptions(**fields), drafter, has_decision_model=has_decision_model
    )


def is_supported(verification, shape, drafter):
    try:
        check(drafter, verification=verification, shape=shape)
    except UnsupportedCombination:
        return False
    return True


OF_MODELS = {
    V.EXACT: (S.CHAIN, S.CAPE, S.DYNAMIC, S.PRODUCT),
    V.MCSD: (S.CHAIN, S.PRODUCT, S.CAPE),
    V.MCSD_REPLACEMENT: (S.CHAIN, S.PRODUCT),
    V.TARGET_INIT: (S.FORK,),
}
OF_NGRAMS = {V.EXACT: (S.CHAIN, S.DYNAMIC)}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("shape", S)
@pytest.mark.parametrize("verification", V)
def test_what_goes_with_what_is_as_documented(verification, shape, drafter):
    shapes = (OF_NGRAMS if drafter == "ngram" else OF_MODELS).get(verification, ())
    assert is_supported(verification, shape, drafter) is (shape in shapes)


@pytest.mark.parametrize("stop", P)
def test_a_draft_without_a_distribution_serves_only_policies_that_ask_for_none(stop):
    if stop is P.FIXED:
        check("ngram", stop=stop)
    else:
        with pytest.raises(UnsupportedCombination, match=f"stop {stop.value} does not go with"):
            check("ngram", stop=stop)


def test_a_decision_without_its_weights_is_refused():
    check(stop=P.DECISION, has_decision_model=True)
    with pytest.raises(UnsupportedCombination, match="none is loaded"):
        check(stop=P.DECISION, has_decision_model=False)


def test_a_refusal_says_what_would_go():
    with pytest.raises(UnsupportedCombination, match="which takes cape, chain, product"):
        check(verification=V.MCSD, shape=S.DYNAMIC)


def test_an_unknown_drafter_is_refused():
    with pytest.raises(InvalidRequest, match="drafter is 'medusa'"):
        check("medusa")


def test_nothing_asked_goes_with_everything_but_what_a_drafter_lacks():
    for drafter in DRAFTERS:
        check(drafter, has_decision_model=False)
    check("ngram", mode=Mode.OFF)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verification", V)
def test_defaults_are_made_to_fit(verification, drafter):
    if drafter not in VERIFICATIONS[verification].drafters:
        return
    options = SpeculationOptions(verification=verification)
    shape = rules.fitting_shape(options, S.CAPE, drafter=drafter)
    stop = rules.fitting_stop(options, P.SVIP, drafter=drafter)
    assert is_supported(verification, shape, drafter)
    check(drafter, verification=verification, stop=stop)


def test_parameters_with_speculation_off_are_refused_by_name():
    with pytest.raises(UnsupportedCombination, match="max_nodes, shape is given"):
        SpeculationOptions(mode=Mode.OFF, max_nodes=4, shape=S.CHAIN)


def test_members_may_be_given_by_their_values_and_what_is_none_is_refused():
    given = {"mode": "forced", "shape": "chain", "stop": "svip", "verification": "exact"}
    options = SpeculationOptions(**given)
    assert (options.mode, options.shape) == (Mode.FORCED, S.CHAIN)
    assert all(isinstance(getattr(options, name), StrEnum) for name in given)
    assert (options.stop, options.verification) == (P.SVIP, V.EXACT)
    for name in given:
        with pytest.raises(InvalidRequest, match=f"{name} is 'sure', not one of "):
            SpeculationOptions(**{name: "sure"})
    with pytest.raises(InvalidRequest, match="mode is None, not one of auto, off, forced"):
        SpeculationOptions(mode=None)


@pytest.mark.parametrize(
    "fields",
    [
        *({"max_draft_tokens": 0}, {"max_draft_tokens": 41}, {"max_nodes": 0}, {"max_nodes": 128}),
        *({"num_roots": 0, "verification": V.TARGET_INIT}, {"num_roots": 2}, {"threshold": 0.3}),
        *({"threshold": at, "stop": P.SVIP} for at in (0.0, -0.1, math.nan, math.inf)),
        *({"threshold": at, "stop": P.DECISION} for at in (1.1, math.nan)),
        *({"threshold": at, "stop": P.COST} for at in (0.0, math.nan)),
        {"threshold": 0.3, "stop": P.FIXED},
        *({"shape": S.PRODUCT}, {"shape": S.CHAIN, "widths": (2,)}, {"widths": (2,)}),
        *({"shape": S.PRODUCT, "widths": ()}, {"shape": S.PRODUCT, "widths": (2, 0)}),
        {"shape": S.PRODUCT, "widths": (8, 8, 8)},
        {"shape": S.PRODUCT, "widths": (4, 2), "max_nodes": 11},
        {"shape": S.PRODUCT, "widths": (4, 2), "max_draft_tokens": 1},
    ],
)
def test_options_out_of_range_or_without_their_other_half_are_refused_at_birth(fields):
    with pytest.raises(InvalidRequest):
        SpeculationOptions(**fields)


@pytest.mark.parametrize("drafter", ["glide", "vanilla"])
def test_lookup_goes_with_a_model_that_drafts_and_exact_verification(drafter):
    check(drafter, lookup=True)
    for verification in set(V) - {V.EXACT}:
        with pytest.raises(UnsupportedCombination, match=f"exact, not {verification.value}"):
            check(drafter, lookup=True, verification=verification)
        check(drafter, lookup=False, verification=verification)
    with pytest.raises(UnsupportedCombination, match="ngram is lookup already"):
        check("ngram", lookup=True)
    check("ngram", lookup=False)


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
    assert StopPolicy.DECISION in drafter_infos([with_it])[0].stops
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


FALLBACK = ModelFacts("m", 40, 1000, frozenset(), is_fallback=True)
ASKED = [(SpeculationOptions(), Mode.OFF), (SpeculationOptions(mode=Mode.FORCED), Mode.FORCED)]
ASKED += [(SpeculationOptions(max_nodes=3), Mode.AUTO)]


@pytest.mark.parametrize(("options", "mode"), ASKED)
def test_a_fallback_decodes_plainly_unless_a_request_asks_for_speculation(options, mode):
    draft = DraftFacts("glide")
    for facts, expected in ((FALLBACK, mode), (replace(FALLBACK, is_fallback=False), options.mode)):
        request = make_request("s", [1, 2], Ask(speculation=options), facts, draft)
        assert request.settings.mode is expected
