"""What is said of a proposal's tree: where its longest path ended."""

import pytest

from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Proposal
from slipstream.engine.thread import Done
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import draft_pb2
from slipstream_draft.telemetry import PROPOSE, DraftTelemetry
from support.telemetry.listening import Listener


def said_of(proposal):
    heard = Listener()
    telemetry = DraftTelemetry(heard.telemetry)
    with heard.caller() as at:
        message = draft_pb2.SpeculateRequest(trace=trace_to_pb(at))
        with telemetry.answering(message) as reply:
            done = Done(proposal, 0.0, 0.0)
            telemetry.record_proposal(reply, done, asked_s=0.0, kv_wait_s=0.0)
    said = heard.span(PROPOSE).attributes
    return {name.removeprefix("slipstream.proposal."): value for name, value in said.items()}


def node(entropy, score=None):
    return NodeStats(0.5, 0.5, entropy, score)


@pytest.mark.parametrize("score", [0.25, None])
async def test_entropy_and_score_are_those_where_the_longest_path_ends(score):
    tree = TokenTree((1, 2, 3, 4, 5), (-1, 0, -1, 1, 2))
    stats = (node(1.0), node(2.0), node(1.0), node(3.0, score), node(4.0))
    expected = {"nodes": 5, "depth": 3, "stop_reason": "policy", "entropy": 3.0}
    if score is not None:
        expected["score"] = score
    assert said_of(Proposal(tree, stats, stopped_by="policy")) == expected


async def test_of_an_empty_proposal_it_is_said_why_and_how_far_the_keys_lagged_behind():
    said = {"nodes": 0, "depth": 0, "stop_reason": "lag", "staleness": 9, "kv_wait_ms": 0.0}
    assert said_of(Proposal(stopped_by="lag", staleness=9)) == said
