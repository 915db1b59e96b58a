"""Laws of verdicts from elsewhere: one that no target can reach is that target's failure."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import FinishReason, Proposal, Session, Verdict, Verification
from slipstream.core.verify.port_checks import check_verdict
from slipstream.rpc.conversion.convert import verdict_from_pb
from slipstream.rpc.conversion.convert_common import proposal_from_pb
from slipstream.rpc.v1 import common_pb2, target_pb2

SESSION = Session("s", num_prompt_tokens=3, max_tokens=5)
ROOTED = replace(SESSION, verification=Verification.TARGET_INIT, num_roots=2)
CHAIN = Proposal(TokenTree.chain([7, 8]))
TWINS = Proposal(TokenTree((7, 7, 9), (-1, -1, 1)))
"""Two siblings alike, as drawn with replacement; only the second one is continued."""
LENGTH = FinishReason.LENGTH
NAN = float("nan")


def check(verdict, *, session=SESSION, num_tokens=3, proposal=CHAIN):
    check_verdict(TokenSequence(session, range(num_tokens)), proposal, verdict, vocab_size=50)


@pytest.mark.parametrize(
    ("verdict", "others"),
    [
        (Verdict((5,), 0), {}),
        (Verdict((7, 8, 5), 2), {}),
        (Verdict((7, 9, 5), 2), {"proposal": TWINS}),
        (Verdict((5,), 0, LENGTH), {"num_tokens": 7}),
        (Verdict((), 0, LENGTH), {"num_tokens": 8}),
        (Verdict((), 0, roots=(4, 5)), {"session": ROOTED, "proposal": Proposal()}),
    ],
)
def test_what_a_target_can_say_passes(verdict, others):
    check(verdict, **others)


@pytest.mark.parametrize(
    ("verdict", "others", "message"),
    [
        (Verdict((), 0), {}, "no token"),
        (Verdict((7, 8, 5, 6), 2), {}, "4 tokens, above 3"),
        (Verdict((7, 8), 2), {"num_tokens": 7}, "2 tokens, above 1"),
        (Verdict((5,), 0), {"num_tokens": 7}, "goes on at its limit of 5"),
        (Verdict((7,), 2), {}, "no path"),
        (Verdict((8, 7), 2), {}, "no path"),
        (Verdict((5,), 2**32 - 1), {}, "no path"),
        (Verdict((50,), 0), {}, "token id 50, not 0 to 49"),
        (Verdict((5,), 0, forced=(99,)), {}, "token id 99, not 0 to 49"),
        (Verdict((5,), 0, roots=(1,)), {}, "1 roots"),
        (Verdict((), 0), {"session": ROOTED, "proposal": Proposal()}, "0 roots"),
        (Verdict((), 0, roots=(4, 5, 6)), {"session": ROOTED, "proposal": Proposal()}, "3 roots"),
        (Verdict((), 0, roots=(4,)), {"session": ROOTED}, "no token"),
        (Verdict((5,), 0, num_cached=9), {}, "9 of 3 tokens"),
    ],
)
def test_what_no_target_can_say_is_refused(verdict, others, message):
    with pytest.raises(InvalidRequest, match=message):
        check(verdict, **others)


LIKELIEST = common_pb2.TokenLogprob(top=[common_pb2.TopLogprob()] * 21, logprob=0)
LAW = common_pb2.NodeLaw(law=common_pb2.SparseLaw(tokens=[1] * 257))
TOO_MANY = {
    "tokens": {"tokens": [1] * 129},
    "roots": {"roots": [1] * 129},
    "forced": {"forced": [1] * 129},
    "logprobs": {"logprobs": [common_pb2.TokenLogprob()] * 129},
    "likeliest": {"logprobs": [LIKELIEST]},
    "nodes": {"tree": common_pb2.TokenTree(tokens=[1] * 128, parents=[-1] * 128)},
    "parents": {"tree": common_pb2.TokenTree(tokens=[1], parents=[-1] * 128)},
    "distributions": {"laws": [common_pb2.NodeLaw()] * 2},
    "tokens of a distribution": {"laws": [LAW]},
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_messages_of_too_many_are_refused_by_their_counts(name):
    fields = TOO_MANY[name]
    with pytest.raises(InvalidRequest, match="are told, but at most"):
        if {"tree", "laws"} & {*fields}:
            proposal_from_pb(common_pb2.Proposal(**fields))
        else:
            verdict_from_pb(target_pb2.Verdict(**{"tokens": [1], **fields}))
