"""What the spans of one round say of it."""

from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import (
    FinishReason,
    NodeStats,
    Plan,
    Proposal,
    ReplyTiming,
    Shape,
    Verdict,
)
from support.telemetry.watched_rounds import PREFILL, Script, watched

TIMING = ReplyTiming(service_s=0.5, queue_s=0.25, engine_s=0.125, kv_wait_s=0.0625)
TREE = TokenTree((1, 2, 3, 4), (ROOT, 0, 0, ROOT))
TOLD = Script(
    draft_s=3,
    verify_s=2,
    proposal=Proposal(
        TREE,
        (NodeStats(0.5, 0.5, 1.0), NodeStats(0.5, 0.5, 2.0, 0.75), NodeStats(0.5, 0.5, 3.0)),
        stopped_by="policy",
        staleness=5,
        timing=TIMING,
        num_copied=1,
    ),
    verdict=Verdict((1, 9), 1, FinishReason.STOP, timing=TIMING),
)
REPLY = {
    "slipstream.reply.service_ms": 500,
    "slipstream.reply.queue_ms": 250,
    "slipstream.reply.engine_ms": 125,
}


def test_a_round_has_its_plan_its_proposal_and_its_verdict():
    heard, _ = watched([PREFILL, TOLD], 9)
    _, at = heard.spans("round")
    assert dict(at.attributes) == {
        "slipstream.round.index": 1,
        "slipstream.round.kind": "speculative",
        "slipstream.round.drafted": 4,
        "slipstream.round.accepted": 1,
        "slipstream.round.final": 2,
    }
    said = dict(heard.span("draft.propose").attributes)
    assert {name: said[name] for name in said if ".plan." not in name} == {
        "slipstream.proposal.waited_ms": 3000,
        "slipstream.proposal.nodes": 4,
        "slipstream.proposal.copied": 1,
        "slipstream.proposal.depth": 2,
        "slipstream.proposal.stop_reason": "policy",
        "slipstream.proposal.staleness": 5,
        "slipstream.proposal.entropy": 2,
        "slipstream.proposal.score": 0.75,
        "slipstream.proposal.kv_wait_ms": 62.5,
        **REPLY,
    }
    assert dict(heard.spans("target.verify")[1].attributes) == {
        "slipstream.verdict.waited_ms": 2000,
        "slipstream.verdict.nodes": 4,
        "slipstream.verdict.accepted": 1,
        "slipstream.verdict.final": 2,
        "slipstream.verdict.finish_reason": "stop",
        **REPLY,
    }


def test_roots_that_the_target_drew_are_none_of_the_drafts_tokens():
    fork = Plan(max_depth=2, max_nodes=4, shape=Shape.FORK, roots=(7, 8))
    drafted = Proposal(TokenTree((7, 8, 1), (ROOT, ROOT, 0)))
    alone = Proposal(TokenTree((7, 8), (ROOT, ROOT)), fallback="no draft")
    rounds = [
        PREFILL,
        Script(plan=fork, proposal=drafted, verdict=Verdict((7, 1), 2, roots=(3, 4))),
        Script(plan=fork, proposal=drafted, verdict=Verdict((8,), 1, roots=(3, 4))),
        Script(plan=fork, proposal=alone, verdict=Verdict((8,), 1, roots=(3, 4))),
    ]
    _, request = watched(rounds, 0)
    seen = [(at.kind, at.num_nodes, at.depth, at.num_accepted) for at in request.seen[1:]]
    assert seen == [("speculative", 1, 1, 1), ("speculative", 1, 1, 0), ("plain", 0, 0, 0)]
