"""A target says by how much the token it drew beats others: what a near-tie is told by."""

import math

import numpy as np
import pytest
import torch

from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session, Verification
from slipstream.core.verify.keyed_noise import Purpose
from slipstream.core.verify.noise import gumbel
from slipstream.core.verify.verify import verify
from slipstream.rpc.conversion.convert import verify_from_pb, verify_to_pb
from slipstream.rpc.delta import Delta
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import target_pb2
from support.models import tiny
from support.services.served_target import served_target

PROMPT = tuple(tiny.tokens(20))
RIVALS = (3, 11, 40)
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, seed=5),
    SamplingParams(temperature=1.2, repetition_penalty=1.5, logit_bias=((11, 2.0),), seed=6),
]


def session_of(sampling=None, **fields):
    return Session("s", len(PROMPT), 50, sampling or SamplingParams(), **fields)


def obvious(logits, sampling):
    """What every token scores after PROMPT, written down from the definition."""
    scores = logits.double().clone()
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    for token in set(PROMPT):
        factor = sampling.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    if sampling.is_greedy:
        return scores
    noise = gumbel(sampling.seed, len(PROMPT), tiny.VOCAB, purpose=Purpose.DRAW)
    return scores / sampling.temperature + torch.from_numpy(noise)


@pytest.fixture(scope="module")
def hf():
    return tiny.hf_model()


@pytest.fixture(scope="module")
def model():
    return tiny.causal()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_margins_are_differences_of_the_scores_that_the_draw_compared(model, hf, sampling):
    with torch.inference_mode():
        scores = obvious(hf(torch.tensor([PROMPT])).logits[0, -1], sampling)
    engine = tiny.local_target(model)
    asked = Proposal(rivals=RIVALS)
    verdict = finished(engine.verify(TokenSequence(session_of(sampling), PROMPT), asked))
    assert verdict.tokens == (int(scores.argmax()),)
    expected = [float(scores.max() - scores[rival]) for rival in RIVALS]
    assert verdict.margins == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_asking_for_margins_changes_no_token(model, sampling):
    plain, asked = tiny.local_target(model), tiny.local_target(model)
    session, tokens = session_of(sampling), list(PROMPT)
    for _ in range(6):
        sequence = TokenSequence(session, tokens)
        without = finished(plain.verify(sequence, Proposal()))
        verdict = finished(asked.verify(sequence, Proposal(rivals=RIVALS)))
        assert verdict.tokens == without.tokens
        assert without.margins == ()
        tokens += verdict.tokens


def test_margins_are_of_the_first_slot_also_where_the_proposal_goes_on():
    logits = np.array([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0]], np.float32)
    proposal = Proposal(TokenTree.chain([1]), rivals=(2, 1))
    walk = verify(Session("s", 1, 9), [0], proposal, lambda node: logits[node + 1])
    assert (walk.nodes, walk.token, walk.margins) == ((0,), 0, (2.0, 0.0))


def test_a_rival_that_the_law_excludes_is_infinitely_far():
    sampling = SamplingParams(temperature=1.0, top_k=1)
    session = Session("s", 1, 9, sampling)
    walk = verify(session, [0], Proposal(rivals=(0,)), lambda _: np.float32([0, 3, 1]))
    assert (walk.token, walk.margins) == (1, (math.inf,))


@pytest.mark.parametrize(
    ("verification", "rivals", "complaint"),
    [
        (Verification.EXACT, (tiny.VOCAB,), "the list of rivals has token 48"),
        (Verification.EXACT, (1,) * 65, "65 rivals are asked for"),
        (Verification.MCSD, (1,), "mcsd verification gives no margins"),
        (Verification.TARGET_INIT, (1,), "target-init verification gives no margins"),
    ],
)
def test_incomparable_rivals_are_refused_and_change_nothing(model, verification, rivals, complaint):
    engine = tiny.local_target(model)
    session = session_of(verification=verification)
    with pytest.raises(InvalidRequest, match=complaint):
        finished(engine.verify(TokenSequence(session, PROMPT), Proposal(rivals=rivals)))
    assert engine.memory.pool.num_used_bytes == 0


def test_rivals_travel_with_a_round_and_never_with_what_a_draft_proposes():
    asked = verify_to_pb(Delta(3, (4,)), Proposal(TokenTree.chain([1]), rivals=RIVALS))
    delta, proposal = verify_from_pb(
        target_pb2.VerifyProposal.FromString(asked.SerializeToString())
    )
    assert (delta.start, delta.tokens, proposal.rivals) == (3, (4,), RIVALS)
    assert "rivals" not in asked.proposal.DESCRIPTOR.fields_by_name


async def test_margins_are_the_same_over_the_wire(model):
    engine = tiny.local_target(model)
    session, asked = session_of(SAMPLINGS[1]), Proposal(rivals=RIVALS)
    here = await engine.verify(TokenSequence(session, PROMPT), asked)
    async with served_target(model) as served:
        identity = (await served.stub.DescribeTarget(target_pb2.DescribeTargetRequest())).identity
        remote = RemoteTarget(Peer("target", served.channel), identity, CallOptions())
        there = await remote.verify(TokenSequence(session, PROMPT), asked)
        await remote.release("s")
        await served.until_empty()
    assert (there.tokens, there.margins) == (here.tokens, here.margins)
