"""The grammar of methods: what a name means, and which names mean nothing."""

from dataclasses import replace

import pytest

from slipstream.bench.methods import parse_method, parse_methods, with_plain
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.types import Shape, StopPolicy, Verification

CLASSIC = SpeculationOptions(
    mode=Mode.FORCED,
    max_draft_tokens=5,
    shape=Shape.CHAIN,
    stop=StopPolicy.FIXED,
    lookup=False,
    drafter="glide",
)
OPTIONS = {
    "glide": CLASSIC,
    "best": SpeculationOptions(),
    "auto": SpeculationOptions(),
    "forced": SpeculationOptions(mode=Mode.FORCED),
    "glide+cape+svip=0.4": replace(
        CLASSIC, shape=Shape.CAPE, stop=StopPolicy.SVIP, threshold=0.4, max_draft_tokens=None
    ),
    "glide+target-init": replace(CLASSIC, shape=Shape.FORK, verification=Verification.TARGET_INIT),
    "glide+product=4x2x1": replace(
        CLASSIC, shape=Shape.PRODUCT, widths=(4, 2, 1), max_draft_tokens=None
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_name_means_these_options(name):
    assert parse_method(name).options == OPTIONS[name]


def test_a_vanilla_draft_carries_its_model():
    method = parse_method("vanilla:some/model+svip+nodes=9")
    assert (method.base, method.model) == ("vanilla", "some/model")
    assert (method.options.stop, method.options.max_nodes) == (StopPolicy.SVIP, 9)


def test_plain_decoding_is_added_once_and_only_where_it_is_missing():
    def names(text):
        return [method.name for method in with_plain(parse_methods(text))]

    assert names("glide") == ["plain", "glide"]
    assert names("glide,plain") == ["glide", "plain"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("glide+cape+chain", "shape twice"),
        ("glide+depth=3+depth=4", "max draft tokens twice"),
        ("glide+product=2x2+depth=1", "have 2 depths, but max_draft_tokens is 1"),
        ("plain+svip", "drafts nothing"),
        ("ngram+svip", "does not go with ngram"),
        ("glide+mcsd+dynamic", "does not go with mcsd"),
        ("glide+cape+target-init", "does not go with target-init"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(name, reason):
    with pytest.raises(UnsupportedCombination, match=reason):
        parse_method(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("medusa", "'medusa' is unknown"),
        ("", "is unknown"),
        ("glide+", "unknown modifier ''"),
        ("glide+lucky", "unknown modifier 'lucky'"),
        ("vanilla", "is unknown"),
        ("vanilla:", "names no model"),
        ("glide+depth", "form depth=5"),
        ("glide+depth=0", "max_draft_tokens is 0"),
        ("glide+nodes=1000", "max_nodes is 1000"),
        ("glide+product", "form product=4x2x2"),
        ("glide+svip=high", "form svip or svip=0.3"),
        ("glide+svip=-1", "threshold of stop svip"),
        ("glide+cape=3", "not of the form cape"),
    ],
)
def test_names_that_mean_nothing_are_refused(name, reason):
    with pytest.raises(InvalidRequest, match=reason):
        parse_method(name)


GAPS, TWICE = ("", "plain,", "plain,,glide", " "), ("glide,glide", "plain,plain")
NO_LISTS = dict.fromkeys(GAPS, "names with commas between") | dict.fromkeys(TWICE, "named twice")


@pytest.mark.parametrize("text", NO_LISTS)
def test_a_list_with_gaps_or_a_method_twice_is_refused(text):
    with pytest.raises(InvalidRequest, match=NO_LISTS[text]):
        parse_methods(text)
