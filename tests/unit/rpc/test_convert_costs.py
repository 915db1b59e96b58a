"""What rounds cost crosses the wire whole, and a hint that cannot be is no error but none."""

import pytest

from slipstream.core.row_costs import Offer, RowCosts
from slipstream.core.types import Plan, ReplyTiming, Verdict
from slipstream.rpc.conversion import convert

TIMING = ReplyTiming()
OFFERS = [
    None,
    Offer(4),
    Offer(1, 0.02, RowCosts()),
    Offer(32, 0.02, RowCosts(((1, 1.0), (2, 1.0), (8, 1.25), (32, 2.5)))),
]


def sent(offer):
    return convert.verdict_to_pb(Verdict((5, 6), 1, offer=offer), TIMING)


@pytest.mark.parametrize("offer", OFFERS)
def test_an_offer_comes_as_it_was_sent(offer):
    arrived = convert.verdict_from_pb(sent(offer), TIMING).offer
    told = offer is not None and offer.costs is not None and len(offer.costs.points) > 1
    assert arrived == (offer if told or offer is None else Offer(offer.rows, offer.round_s))


@pytest.mark.parametrize(
    "change",
    [
        *({"free_rows": 0}, {"round_s": -0.001}, {"round_s": float("nan")}),
        *({"costs": [0.5, 1.0, 1.0]}, {"costs": [2.0, 1.5, 3.0]}, {"cost_tokens": [8, 2, 32]}),
    ],
)
def test_an_offer_that_can_not_be_is_none_and_the_verdict_counts(change):
    message = sent(OFFERS[-1])
    for name, value in change.items():
        message.ClearField(name)
        if isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    verdict = convert.verdict_from_pb(message, TIMING)
    assert (verdict.tokens, verdict.offer) == ((5, 6), None)


def test_a_plan_s_prices_come_as_they_were_sent():
    plan = Plan(4, 15, worth=0.125, row_prices=(0.25, 0.5))
    assert convert.plan_from_pb(convert.plan_to_pb(plan, None)) == plan
